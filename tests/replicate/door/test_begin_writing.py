"""A writer that is alone, and will wait for the disk, has it begin beside COMMIT: when, with what, and if it fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicate.journal.record import read_head
from tests.harness.instances import check, insert, make_primary, rows, session_of


@pytest.fixture(autouse=True)
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "pools"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the frames that the kernel was asked to begin with: what stood at the place that it was told."""
    seqnos: list[int] = []
    advise = os.posix_fadvise

    def told(fd: int, offset: int, size: int, advice: int) -> None:
        frame = os.pread(fd, size, offset)
        assert len(frame) == size
        seqnos.append(read_head(frame).seqno)
        advise(fd, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", told)
    return seqnos


def test_only_after_a_commit_of_its_own(tmp_path: Path, begun: list[int]) -> None:
    """The page that frames share would be written twice for each flush, where others append to it meanwhile."""
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as one, session_of(instance) as other:
        seqnos = [insert(writer, number) for number, writer in enumerate((one, one, one, other, one, other, other))]
    first = seqnos[0]
    assert [seqno - first for seqno in begun] == [1, 2, 6]
    assert len(rows(instance.region("main").path)) == 7
    check(instance)


@pytest.mark.parametrize("durability", ["interval", "off"])
def test_not_where_nobody_waits_for_the_disk(tmp_path: Path, begun: list[int], durability: str) -> None:
    instance = make_primary(tmp_path / "alpha", durability=durability)
    with session_of(instance) as session:
        for number in range(3):
            insert(session, number)
    assert begun == []


def test_a_file_system_that_knows_no_such_thing_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def refuse(*_: int) -> None:
        nonlocal asked
        asked += 1
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        for number in range(3):
            insert(session, number)
    assert asked == 2
    assert len(rows(instance.region("main").path)) == 3
    check(instance)
