"""Which boot it is: one number within it, another one after it, and never a guess that it is another one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import ExhaustedError
from replicate.system import boot

ID = "01234567-89ab-cdef-0123-456789abcdef\n"


@pytest.fixture(autouse=True)
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "boot_id"
    path.write_text(ID)
    monkeypatch.setattr(boot, "BOOT_ID", path)
    monkeypatch.delenv("REPLICATE_BOOT_ID", raising=False)
    boot._kernels.cache_clear()
    yield path
    boot._kernels.cache_clear()


def test_it_is_the_kernels_word_and_asked_for_once(kernel: Path) -> None:
    assert boot.boot_word() == 0x0123456789ABCDEF
    kernel.unlink()
    assert boot.boot_word() == 0x0123456789ABCDEF


def test_another_boot_has_another_word(kernel: Path) -> None:
    first = boot.boot_word()
    boot._kernels.cache_clear()
    kernel.write_text(ID.replace("f\n", "e\n"))
    assert boot.boot_word() != first


def test_it_is_never_0(kernel: Path) -> None:
    kernel.write_text("ffffffff-ffff-ffff-0000-000000000000\n")
    assert boot.boot_word() == 1


def test_without_proc_nothing_is_concluded(kernel: Path) -> None:
    kernel.unlink()
    assert boot.boot_word() == 1


def test_what_cannot_be_read_for_now_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(ExhaustedError):
        boot.boot_word()
    monkeypatch.undo()


def test_a_test_of_power_loss_says_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = boot.boot_word()
    monkeypatch.setenv("REPLICATE_BOOT_ID", "one")
    one = boot.boot_word()
    monkeypatch.setenv("REPLICATE_BOOT_ID", "two")
    assert len({kernels, one, boot.boot_word()}) == 3
