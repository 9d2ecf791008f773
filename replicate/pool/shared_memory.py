"""One file of shared memory below /dev/shm: created, attached, checked and removed.

Guarantees: a mapping is handed out only of a regular file that belongs to the instance's owner, that nobody else can
open, that was made by this format, in this boot, for this instance, and that is as long as it says. A file that was
unlinked or replaced since is noticed by `is_current()`, a new one is told from the old by its random epoch. Once a
pool was retired under the commit lock, nobody takes it for the instance's there.
Leaves to others: what the words and bytes after the header mean.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
import time
import uuid
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Final

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
from replicate.limits import FORMAT_VERSION, LOOK_S
from replicate.pool.control import (
    CONTROL_BYTES,
    HOME_BYTES_MAX,
    HOME_OFFSET,
    POOL_BOOT,
    POOL_BYTES,
    POOL_EPOCH,
    POOL_FORMAT,
    POOL_INSTANCE,
    POOL_MAGIC,
    POOL_STATE,
    STATE_BUILDING,
    STATE_CLOSED,
    STATE_READY,
)
from replicate.system.boot import boot_word
from replicate.system.os_errors import EXHAUSTED, NO_DESCRIPTORS, exhausted

DIRECTORY: Final = "/dev/shm"
DIRECTORY_VARIABLE: Final = "REPLICATE_SHM_DIR"
FREE_SHARE: Final = 4
"""A pool takes at most one part in this many of what is free, so that a small /dev/shm is left to others too."""


class PoolKind(Enum):
    """Which of the two pools of an instance; the value stands in the file's name."""

    JOURNAL = "journal"
    RECEIVE = "receive"
    __hash__ = object.__hash__  # each is there once; an Enum's own is two calls in Python

    @property
    def magic(self) -> int:
        """The first word of the file."""
        return int.from_bytes(b"DSREPPJ1" if self is PoolKind.JOURNAL else b"DSREPPR1", "big")


def shared_memory_directory() -> Path:
    """/dev/shm, unless the environment (tests) names another directory."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY)


def pool_path(kind: PoolKind, instance: bytes, owner_uid: int | None = None) -> Path:
    """Where the pool of the instance (16 bytes of its UUID) lies. `owner_uid` defaults to the effective user."""
    uid = os.geteuid() if owner_uid is None else owner_uid
    return shared_memory_directory() / f"dualsite-{uid}-{instance.hex()}-{kind.value}"


class SharedMemory:
    """A mapped pool file. `words` is the control area as native u64, `map` all of it; both die with `close()`.

    The file is made with `os.open` (O_CREAT, O_EXCL, O_NOFOLLOW, O_CLOEXEC, mode 0600), `posix_fallocate` and `mmap`.
    Not `multiprocessing.shared_memory`: on Python 3.11 a process that merely attached unlinks the live segment when it
    exits. Not `ftruncate` alone: on a full tmpfs the first touch of an unallocated page kills the toucher with SIGBUS.

    Stores become visible in program order on x86-64. On a machine with weaker order the readers' checks (address,
    seqno, CRC) still refuse what is not complete; they would only read the journal files more often.
    """

    __slots__ = (
        "bytes",
        "epoch",
        "fd",
        "kind",
        "look_again_s",
        "map",
        "path",
        "view",
        "words",
    )

    def __init__(self, kind: PoolKind, path: Path, fd: int, size: int) -> None:
        """Map `size` bytes of `fd`, which this object owns from now on (closed if mapping fails)."""
        try:
            self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError) as error:
            os.close(fd)
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise exhausted(error, "a pool cannot be mapped", str(path)) from error
            raise JournalIOError(f"a pool cannot be mapped: {error}", where=str(path)) from error
        self.kind = kind
        self.path = path
        self.fd = fd
        self.bytes = size
        self.view = memoryview(self.map)
        self.words = self.view[:CONTROL_BYTES].cast("Q")
        self.epoch = self.words[POOL_EPOCH]
        self.look_again_s = 0.0
        """When `was_current` looks next: a process that finds it changed knows that it has looked, and need ask no
        clock."""

    @classmethod
    def create(
        cls,
        kind: PoolKind,
        instance: bytes,
        *,
        configured_bytes: int,
        minimum_bytes: int,
        replace: bool = False,
    ) -> SharedMemory:
        """Make the pool of an instance in state BUILDING: min(configured, a quarter of what is free) bytes, all zero
        but the header. The caller must hold the lock under which pools of this instance are made.

        `replace`: mark an existing one closed (its users then learn POOL_REPLACED) and unlink it first.
        AlreadyExistsError without it; DiskFullError when less than `minimum_bytes` would result;
        PermissionRefusedError; JournalIOError. After a failure no file of ours is left behind.
        """
        path = pool_path(kind, instance)
        if replace:
            retire(kind, instance)
        size = affordable_bytes(path.parent, configured_bytes, minimum_bytes)
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise AlreadyExistsError("the pool is there already", where=str(path)) from error
        except OSError as error:
            raise _translated(error, path, "a pool cannot be created") from error
        try:
            os.fchmod(fd, 0o600)
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            raise _translated(error, path, "a pool cannot be allocated") from error
        memory = cls(kind, path, fd, size)
        words = memory.words
        words[POOL_STATE] = STATE_BUILDING
        words[POOL_FORMAT] = FORMAT_VERSION
        words[POOL_EPOCH] = memory.epoch = secrets.randbits(63) + 1
        words[POOL_BOOT] = boot_word()
        words[POOL_INSTANCE] = int.from_bytes(instance[:8], "big")
        words[POOL_INSTANCE + 1] = int.from_bytes(instance[8:], "big")
        words[POOL_BYTES] = size
        words[POOL_MAGIC] = kind.magic
        return memory

    @classmethod
    def attach(
        cls, kind: PoolKind, instance: bytes, *, owner_uid: int | None = None, building: bool = False
    ) -> SharedMemory:
        """Map the existing pool of an instance after checking it.

        NotFoundError: no file. TryAgainError: it is being built, or its builder died (unless `building` allows that).
        PoolReplacedError: closed, or left from before the last boot. PermissionRefusedError: symlink, not a regular
        file, wrong owner or mode, a second name. FormatUnknownError: another format. WrongInstanceError. DamagedError:
        no pool at all, or shorter than it says. In every case nothing stays open.
        """
        path = pool_path(kind, instance, owner_uid)
        uid = os.geteuid() if owner_uid is None else owner_uid
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFoundError("the pool does not exist", where=str(path)) from error
        except OSError as error:
            raise _translated(error, path, "a pool cannot be opened") from error
        try:
            size = _checked_size(fd, path, uid, building)
            header = memoryview(os.pread(fd, CONTROL_BYTES, 0)).cast("Q")
            _check_header(header, kind, path, size, instance, building)
        except OSError as error:
            os.close(fd)
            raise _translated(error, path, "a pool cannot be read") from error
        except BaseException:
            os.close(fd)
            raise
        return cls(kind, path, fd, size)

    def mark_ready(self) -> None:
        """From now on others may attach. The builder calls it last."""
        self.words[POOL_STATE] = STATE_READY

    @property
    def home(self) -> str:
        """The instance's directory as last noted; "" when nobody has."""
        return os.fsdecode(bytes(self.view[HOME_OFFSET:CONTROL_BYTES]).partition(b"\0")[0])

    def note_home(self, directory: Path) -> None:
        """Keep the instance's directory with the pool, so that a pool without instance can be told
        (admin/stale_pools.py)."""
        path = os.fsencode(directory)
        if len(path) <= HOME_BYTES_MAX and path != os.fsencode(self.home):
            self.view[HOME_OFFSET:CONTROL_BYTES] = path.ljust(CONTROL_BYTES - HOME_OFFSET, b"\0")

    def is_current(self) -> bool:
        """Whether this mapping still is the pool that others attach to: not closed, not unlinked, not replaced.

        One fstat, about 1 µs (a look at the path costs twice that). A file that was unlinked, or that another one was
        renamed over, has no name left.
        """
        return (
            self.words[POOL_STATE] != STATE_CLOSED
            and self.words[POOL_EPOCH] == self.epoch
            and os.fstat(self.fd).st_nlink == 1
        )

    def was_current(self) -> bool:
        """`is_current()`, but its name may have been looked at up to LOOK_S seconds ago: no system call, mostly.

        Ask under the lock under which pools of this instance are made. A process that makes another one there waits so
        long before anything else (`outlast_looks`), also when this one has lost its name to somebody else: so no two
        are ever in use."""
        words = self.words
        if words[POOL_STATE] == STATE_CLOSED or words[POOL_EPOCH] != self.epoch:
            return False
        now_s = monotonic()
        if now_s >= self.look_again_s:
            if os.fstat(self.fd).st_nlink != 1:
                return False
            self.look_again_s = now_s + LOOK_S
        return True

    def check_current(self) -> None:
        """PoolReplacedError unless `is_current()`."""
        if not self.is_current():
            raise PoolReplacedError("the pool was replaced or removed", where=str(self.path), do="Attach again")

    def close(self) -> None:
        """Drop the mapping and the descriptor; the pool itself lives on. Twice is no error."""
        if self.fd < 0:
            return
        self.words.release()
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            pass  # A reader still looks at it: the mapping goes when the last view does.
        os.close(self.fd)
        self.fd = -1


def outlast_looks() -> None:
    """Wait until nobody goes by a look at a pool's name that came before this call. Under the lock that `was_current`
    is asked under."""
    time.sleep(LOOK_S)


def retire(kind: PoolKind, instance: bytes) -> bool:
    """Mark the instance's pool closed, so that everybody who has it mapped notices, and unlink it. False: none there.

    A file that is not a pool of ours is unlinked unread (it bears our name, and nobody could attach to it). Under the
    lock under which pools are made, no process takes an older one for the instance's from here on: one that lost its
    name to somebody else is closed for nobody, so this takes LOOK_S longer (`was_current`).
    """
    path = pool_path(kind, instance)
    outlast_looks()
    try:
        memory = SharedMemory.attach(kind, instance, building=True)
    except NotFoundError:
        return False
    except (PermissionRefusedError, FormatUnknownError, WrongInstanceError, DamagedError, PoolReplacedError):
        pass
    else:
        memory.words[POOL_STATE] = STATE_CLOSED
        memory.close()
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _translated(error, path, "a pool cannot be removed") from error
    return True


def whole_pages(size: int) -> int:
    """The bytes of a pool that may have at most so many."""
    return size // mmap.PAGESIZE * mmap.PAGESIZE


def affordable_bytes(directory: Path, configured_bytes: int, minimum_bytes: int) -> int:
    """min(configured, a quarter of what is free), in whole pages; DiskFullError when that is below the minimum."""
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        raise _translated(error, directory, "the directory of the pools cannot be used") from error
    free = facts.f_bavail * facts.f_frsize
    size = whole_pages(min(configured_bytes, free // FREE_SHARE))
    if size < minimum_bytes:
        raise DiskFullError(
            f"a pool needs at least {minimum_bytes} bytes and may take a quarter of the {free} that are free",
            where=str(directory),
            do="free or enlarge it, for example: mount -o remount,size=256M /dev/shm",
            free_bytes=free,
            minimum_bytes=minimum_bytes,
            configured_bytes=configured_bytes,
        )
    return size


def _checked_size(fd: int, path: Path, uid: int, building: bool) -> int:
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise PermissionRefusedError("a pool must be a regular file", where=str(path), do="remove it")
    if facts.st_uid != uid:
        raise PermissionRefusedError(f"a pool must belong to user {uid}, not to {facts.st_uid}", where=str(path))
    if facts.st_mode & 0o077:
        raise PermissionRefusedError(
            f"a pool must be closed to others, its mode is {facts.st_mode & 0o777:o}", where=str(path), do="remove it"
        )
    if facts.st_nlink > 1:
        raise PermissionRefusedError("a pool must have one name only", where=str(path), do="remove the others")
    if facts.st_size < CONTROL_BYTES:
        if facts.st_size == 0 and not building:
            raise TryAgainError("the pool is being made", where=str(path))
        raise DamagedError(f"no pool: only {facts.st_size} bytes", where=str(path))
    return facts.st_size


def _check_header(header: memoryview, kind: PoolKind, path: Path, size: int, instance: bytes, building: bool) -> None:
    where = str(path)
    if header[POOL_MAGIC] == 0 and not building:
        raise TryAgainError("the pool is being made", where=where)
    if header[POOL_MAGIC] != kind.magic:
        raise DamagedError(f"no {kind.value} pool: wrong magic number", where=where, do="stop all users and remove it")
    if header[POOL_FORMAT] != FORMAT_VERSION:
        raise FormatUnknownError(
            f"pool of format {header[POOL_FORMAT]}, this release knows {FORMAT_VERSION}",
            where=where,
            do="stop all processes that use the instance, then start them with one release",
        )
    if header[POOL_BOOT] != boot_word():
        raise PoolReplacedError("the pool is left from before the last boot", where=where, do="make a new one")
    found = header[POOL_INSTANCE].to_bytes(8, "big") + header[POOL_INSTANCE + 1].to_bytes(8, "big")
    if found != instance:
        raise WrongInstanceError(f"pool of instance {uuid.UUID(bytes=found)}", where=where, do="remove it")
    if header[POOL_BYTES] != size:
        raise DamagedError(f"the pool has {size} bytes, its header says {header[POOL_BYTES]}", where=where)
    if header[POOL_STATE] == STATE_CLOSED:
        raise PoolReplacedError("the pool is closed", where=where, do="attach again")
    if header[POOL_STATE] != STATE_READY and not building:
        raise TryAgainError("the pool is being made", where=where)


def _translated(error: OSError, path: Path, what: str) -> Exception:
    text = f"{what}: {os.strerror(error.errno or 0)}"
    if error.errno in NO_DESCRIPTORS:
        return exhausted(error, what, str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
        return DiskFullError(text, where=str(path))
    if error.errno == errno.ELOOP:
        return PermissionRefusedError("a pool must not be a symbolic link", where=str(path), do="remove it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionRefusedError(text, where=str(path))
    return JournalIOError(text, where=str(path))
