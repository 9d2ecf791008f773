"""The pool's file: what may be mapped, and what is refused by name."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicate.errors import (
    AlreadyExistsError,
    DamagedError,
    DiskFullError,
    FormatUnknownError,
    JournalIOError,
    NotFoundError,
    PermissionRefusedError,
    PoolReplacedError,
    TryAgainError,
    WrongInstanceError,
)
from replicate.limits import FORMAT_VERSION, LOOK_S, MIB, POOL_BYTES_MIN
from replicate.pool import control, shared_memory
from replicate.pool.shared_memory import PoolKind, SharedMemory, pool_path, retire
from tests.harness.descriptors import open_descriptors

INSTANCE = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0).bytes
JOURNAL = PoolKind.JOURNAL


def create(**options: object) -> SharedMemory:
    settings: dict[str, object] = {"configured_bytes": MIB, "minimum_bytes": POOL_BYTES_MIN, **options}
    return SharedMemory.create(JOURNAL, INSTANCE, **settings)  # type: ignore[arg-type]


@pytest.fixture
def ready() -> Iterator[SharedMemory]:
    memory = create()
    memory.mark_ready()
    yield memory
    memory.close()


def test_attached_memory_is_the_same_memory(ready: SharedMemory) -> None:
    other = SharedMemory.attach(JOURNAL, INSTANCE)
    other.words[control.LAST_SEQNO] = 2**64 - 1
    assert ready.words[control.LAST_SEQNO] == 2**64 - 1
    assert other.epoch == ready.epoch != 0
    assert other.bytes == ready.bytes == MIB
    other.close()
    other.close()
    assert ready.is_current()


def test_the_file_is_allocated_private_and_closed_on_exec(ready: SharedMemory) -> None:
    facts = os.stat(ready.path)
    assert facts.st_mode & 0o777 == 0o600
    assert facts.st_blocks * 512 >= MIB
    assert fcntl.fcntl(ready.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    for name in os.listdir("/proc/self/fd"):  # also the one that mmap keeps
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target == str(ready.path):
            assert fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_the_name_says_whose_it_is(shm_directory: Path) -> None:
    path = pool_path(JOURNAL, INSTANCE)
    assert path == shm_directory / f"dualsite-{os.geteuid()}-{INSTANCE.hex()}-journal"
    assert pool_path(PoolKind.RECEIVE, INSTANCE, 77).name == f"dualsite-77-{INSTANCE.hex()}-receive"


def test_dev_shm_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLICATE_SHM_DIR")
    assert pool_path(JOURNAL, INSTANCE).parent == Path("/dev/shm")


def test_attaching_process_does_not_unlink_when_it_exits(ready: SharedMemory) -> None:
    program = (
        "from replicate.pool.shared_memory import *\n"
        f"m = SharedMemory.attach(PoolKind.JOURNAL, {INSTANCE!r})\nm.words[20] += 5\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert ready.words[20] == 5
    assert ready.is_current()


def test_not_there() -> None:
    with pytest.raises(NotFoundError):
        SharedMemory.attach(JOURNAL, INSTANCE)
    assert not retire(JOURNAL, INSTANCE)


def test_there_already(ready: SharedMemory) -> None:
    with pytest.raises(AlreadyExistsError):
        create()
    assert ready.is_current()


def test_being_built() -> None:
    memory = create()
    with pytest.raises(TryAgainError):
        SharedMemory.attach(JOURNAL, INSTANCE)
    memory.mark_ready()
    SharedMemory.attach(JOURNAL, INSTANCE).close()
    memory.close()


@pytest.mark.parametrize("size", [0, MIB])
def test_left_by_a_builder_that_was_killed(shm_directory: Path, size: int) -> None:
    path = pool_path(JOURNAL, INSTANCE)
    path.touch(mode=0o600)
    os.truncate(path, size)
    with pytest.raises(TryAgainError):
        SharedMemory.attach(JOURNAL, INSTANCE)
    create(replace=True).close()


def test_replaced_by_us(ready: SharedMemory) -> None:
    new = create(replace=True)
    assert not ready.is_current()
    assert ready.words[control.POOL_STATE] == control.STATE_CLOSED
    with pytest.raises(PoolReplacedError, match="POOL_REPLACED"):
        ready.check_current()
    assert new.epoch != ready.epoch
    new.close()


def test_unlinked_by_somebody(ready: SharedMemory) -> None:
    os.unlink(ready.path)
    assert not ready.is_current()
    with pytest.raises(PoolReplacedError):
        ready.check_current()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, as `was_current` sees them."""
    now_s = [1000.0]
    monkeypatch.setattr(shared_memory, "monotonic", lambda: now_s[0])
    return now_s


def test_a_name_that_was_seen_is_looked_for_again_after_a_while(
    ready: SharedMemory, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: looks.append(fd) or fstat(fd))
    for _ in range(100):
        assert ready.was_current()
    assert looks == [ready.fd]
    os.unlink(ready.path)
    clock[0] += LOOK_S * 0.99
    assert ready.was_current()
    clock[0] += LOOK_S * 0.02
    for _ in range(3):  # that it is not there is no reason to look less often
        assert not ready.was_current()
    assert looks == [ready.fd] * 4


def test_what_the_words_say_is_seen_at_once(ready: SharedMemory, clock: list[float]) -> None:
    assert ready.was_current()
    ready.words[control.POOL_EPOCH] += 1
    assert not ready.was_current()
    ready.words[control.POOL_EPOCH] -= 1
    assert ready.was_current()
    assert retire(JOURNAL, INSTANCE)
    assert not ready.was_current()


@pytest.mark.parametrize("is_there", [True, False])
def test_once_retired_it_is_nobodys_pool_no_matter_who_has_unlinked_it(ready: SharedMemory, is_there: bool) -> None:
    assert ready.was_current()
    if not is_there:
        os.unlink(ready.path)
    assert retire(JOURNAL, INSTANCE) == is_there
    assert not ready.was_current()


def test_another_file_moved_over_it(ready: SharedMemory, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"\0" * MIB)
    os.replace(other, ready.path)
    assert not ready.is_current()


def test_epoch_overwritten(ready: SharedMemory) -> None:
    ready.words[control.POOL_EPOCH] += 1
    assert not ready.is_current()


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("index", "value", "error"),
    [
        (control.POOL_MAGIC, 1, DamagedError),
        (control.POOL_FORMAT, FORMAT_VERSION + 1, FormatUnknownError),
        (control.POOL_FORMAT, FORMAT_VERSION - 1, FormatUnknownError),
        (control.POOL_BOOT, 99, PoolReplacedError),
        (control.POOL_INSTANCE, 99, WrongInstanceError),
        (control.POOL_INSTANCE + 1, 99, WrongInstanceError),
        (control.POOL_BYTES, 2 * MIB, DamagedError),
        (control.POOL_STATE, control.STATE_CLOSED, PoolReplacedError),
    ],
)
def test_a_header_that_is_not_ours(ready: SharedMemory, index: int, value: int, error: type[Exception]) -> None:
    ready.words[index] = value
    opened = open_descriptors()
    with pytest.raises(error) as caught:
        SharedMemory.attach(JOURNAL, INSTANCE)
    assert str(ready.path) in str(caught.value)
    assert open_descriptors() == opened
    create(replace=True).close()


def test_the_other_kind_of_pool(ready: SharedMemory) -> None:
    os.link(ready.path, ready.path.with_name("x"))
    os.rename(ready.path, pool_path(PoolKind.RECEIVE, INSTANCE))
    os.unlink(ready.path.with_name("x"))
    with pytest.raises(DamagedError, match="receive pool"):
        SharedMemory.attach(PoolKind.RECEIVE, INSTANCE)


def _symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "change",
    [
        _symlink,
        _fifo,
        lambda path: path.chmod(0o640),
        lambda path: path.chmod(0o602),
        lambda path: os.link(path, path.with_name("second")),
    ],
)
def test_what_is_not_closed_to_others(ready: SharedMemory, change: Callable[[Path], None]) -> None:
    change(ready.path)
    with pytest.raises(PermissionRefusedError):
        SharedMemory.attach(JOURNAL, INSTANCE)


def test_a_directory_in_its_place(ready: SharedMemory) -> None:
    _directory(ready.path)
    with pytest.raises(JournalIOError):
        SharedMemory.attach(JOURNAL, INSTANCE)


def test_another_owner(ready: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    named_as_ours = pool_path(JOURNAL, INSTANCE, os.geteuid() + 1)
    ready.path.rename(named_as_ours)
    with pytest.raises(PermissionRefusedError, match="belong"):
        SharedMemory.attach(JOURNAL, INSTANCE, owner_uid=os.geteuid() + 1)


def test_a_symlink_is_not_followed_at_creation(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep")
    path = pool_path(JOURNAL, INSTANCE)
    path.symlink_to(target)
    with pytest.raises(AlreadyExistsError):
        create()
    create(replace=True).close()
    assert target.read_text() == "keep"


class _Statvfs:
    def __init__(self, free_bytes: int) -> None:
        self.f_frsize = 4096
        self.f_bavail = free_bytes // 4096


@pytest.mark.parametrize(("free_mib", "expected_mib"), [(64, 16), (1000, 64), (4, 1)])
def test_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch, free_mib: int, expected_mib: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: _Statvfs(free_mib * MIB))
    assert shared_memory.affordable_bytes(Path("/x"), 64 * MIB, MIB) == expected_mib * MIB


def test_too_small_a_dev_shm(monkeypatch: pytest.MonkeyPatch, shm_directory: Path) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: _Statvfs(3 * MIB))
    with pytest.raises(DiskFullError) as caught:
        create()
    assert str(shm_directory) in str(caught.value)
    assert "remount" in caught.value.do
    assert not os.listdir(shm_directory)


def test_no_room_although_statvfs_said_so(monkeypatch: pytest.MonkeyPatch, shm_directory: Path) -> None:
    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    opened = open_descriptors()
    with pytest.raises(DiskFullError):
        create()
    assert not os.listdir(shm_directory)
    assert open_descriptors() == opened


def test_the_directory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "/nonexistent/shm")
    with pytest.raises(JournalIOError):
        create()


def test_a_small_tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing where we may mount; elsewhere the two tests before stand for it."""
    directory = tmp_path / "small"
    directory.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(directory)], capture_output=True, check=False
        ).returncode
    ):
        return
    try:
        monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))
        memory = create(configured_bytes=64 * MIB)
        assert MIB <= memory.bytes <= 6 * MIB // 4
        (directory / "filler").write_bytes(b"x" * (3 * MIB))
        with pytest.raises(DiskFullError):
            SharedMemory.create(PoolKind.RECEIVE, INSTANCE, configured_bytes=4 * MIB, minimum_bytes=4 * MIB)
        for begin in range(0, memory.bytes, 4096):  # touching every page of ours does not raise SIGBUS
            memory.view[begin] = 1
        memory.close()
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_close_while_someone_still_looks(ready: SharedMemory) -> None:
    view = ready.view[100:200]
    ready.close()
    assert view[0] == 0
