"""A simulated disk, and the module `os` as the product uses it on one.

What a process writes is seen by all at once (the page cache); what the disk has is another matter. `Disk.power_loss`
leaves what was synced, and of each write and each name that was not: all, nothing, or some sectors, in any order.

Guarantees: what a sync has returned for is there after every power loss. After a failed fsync the pages count as
written although the disk may not have them, as Linux has it: a second fsync succeeds and proves nothing.
Leaves to others: whose files they are, what is in them.
"""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from tests.simulation.kernel import Killed

SECTOR_BYTES: Final = 512
DEVICE: Final = 7
BLOCK_BYTES: Final = 512
DISK_BLOCKS: Final = 1 << 20


class Inode:
    """A file. `seen`: by processes. `synced`: what the disk has for certain; `pending`: what it may have besides."""

    __slots__ = ("links", "locked_by", "number", "pending", "seen", "synced")

    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.seen = bytearray(data)
        self.synced = bytearray(data)
        self.pending: list[tuple[int, bytes]] = []
        self.links = 1
        self.locked_by: int | None = None

    def write(self, offset: int, data: bytes) -> None:
        _put(self.seen, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        del self.seen[size:]
        self.pending.append((-1 - size, b""))

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.synced, offset, data)
        self.pending.clear()

    def fail_sync(self, dice: random.Random) -> None:
        """Some of it has reached the disk; all of it counts as clean from now on."""
        self._settle(dice)

    def lose(self, dice: random.Random) -> None:
        self._settle(dice)
        self.seen = bytearray(self.synced)
        self.locked_by = None

    def _settle(self, dice: random.Random) -> None:
        pending, self.pending = self.pending, []
        if not pending:
            return
        mode = dice.choice((0, 1, 2, 2, 3, 3, 4, 4))
        for place, (offset, data) in enumerate(pending):
            if mode == 0:  # nothing
                continue
            keeps = dice.random() < 0.5
            if mode == 1 or (mode == 2 and keeps) or offset < 0:  # all, or any of them
                _put(self.synced, offset, data)
            elif mode == 3:  # all up to one, which is torn
                if place == len(pending) - 1:
                    data = data[: dice.randrange(len(data) + 1)] if data else data
                _put(self.synced, offset, data)
            elif mode == 4:  # sectors, in any order
                start = 0
                while start < len(data):
                    length = SECTOR_BYTES - (offset + start) % SECTOR_BYTES
                    if dice.random() < 0.5:
                        _put(self.synced, offset + start, data[start : start + length])
                    start += length


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if offset < 0:
        del target[-1 - offset :]
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class Disk:
    """One host's disk: one device, some directories, files by their whole path."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self.directories = {path: number + 2 for number, path in enumerate(directories)}
        self.names: dict[str, Inode] = {}
        self.certain: dict[str, Inode] = {}
        self.changes: dict[str, list[tuple[str, str, Inode]]] = {}
        """Of each directory: (old name, new name, file) not synced yet, in order; "" for none."""
        self._inodes = 100
        self.failures: dict[str, int] = {}
        """Call -> how many more of them until one fails with EIO."""
        self.then_write_in = 0
        """After the next call that fails, the n-th write does too: a disk that goes on failing (0: not)."""
        self.is_full = False
        self.short_in = 0
        """The n-th write from now is short (0: none)."""
        self.slow_s = 0.0

    def copy(self) -> Disk:
        """Everything on it is synced."""
        made = Disk(tuple(self.directories))
        made.names = {path: Inode(inode.number, bytes(inode.seen)) for path, inode in self.names.items()}
        made.certain = dict(made.names)
        made._inodes = self._inodes
        return made

    def make(self) -> Inode:
        self._inodes += 1
        return Inode(self._inodes)

    def rename(self, old: str, new: str, inode: Inode) -> None:
        """One change of a directory: what had the name `old` has the name `new`."""
        if old:
            del self.names[old]
        replaced = self.names.pop(new, None) if new else None
        if replaced is not None:
            replaced.links -= 1
        if new:
            self.names[new] = inode
        else:
            inode.links -= 1
        self.changes.setdefault(os.path.dirname(old or new), []).append((old, new, inode))

    def sync_directory(self, path: str) -> None:
        for change in self.changes.pop(path, ()):
            self._certain(*change)

    def _certain(self, old: str, new: str, inode: Inode) -> None:
        if old:
            self.certain.pop(old, None)
        if new:
            self.certain[new] = inode

    def power_loss(self, dice: random.Random) -> None:
        """What was certain stays; of the rest, what the dice say."""
        for path in sorted(self.changes):
            changes = self.changes[path]
            mode = dice.randrange(4)
            last = dice.randrange(len(changes) + 1)
            for place, change in enumerate(changes):
                if mode == 1 or (mode == 2 and place < last) or (mode == 3 and dice.random() < 0.5):
                    self._certain(*change)
        self.changes.clear()
        for path in sorted(self.certain):
            inode = self.certain[path]
            inode.lose(dice)
            inode.links = 1
        self.names = dict(self.certain)
        self.failures.clear()
        self.is_full = False
        self.short_in = 0

    def fails(self, call: str) -> bool:
        """Whether this call is the one that fails."""
        left = self.failures.get(call, 0)
        if left:
            self.failures[call] = left - 1
            if left == 1 and self.then_write_in and call != "pwrite":
                self.failures["pwrite"], self.then_write_in = self.then_write_in, 0
            return left == 1
        return False


class SimulatedOs:
    """The module `os` for the one that runs now. `process()` says who that is; its host has a `disk`."""

    path = SimpleNamespace(
        join=os.path.join, dirname=os.path.dirname, basename=os.path.basename, abspath=os.path.abspath
    )
    fspath = staticmethod(os.fspath)
    strerror = staticmethod(os.strerror)
    fsencode = staticmethod(os.fsencode)
    fsdecode = staticmethod(os.fsdecode)
    sep = os.sep

    def __init__(self, process: Callable[[], Any], dice: random.Random) -> None:
        self._process = process
        self._dice = dice
        self._fds: dict[int, tuple[Inode | str, Disk, int]] = {}
        self._next_fd = 1000
        self.path = SimpleNamespace(
            **vars(SimulatedOs.path), lexists=self._exists, exists=self._exists, realpath=os.path.abspath
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("O_", "SEEK_")):
            return getattr(os, name)
        raise AttributeError(f"the simulated module os has no {name}")

    # Who and what.

    def getpid(self) -> int:
        return int(self._process().pid)

    def geteuid(self) -> int:
        return 0

    def sched_yield(self) -> None:
        pass

    def urandom(self, count: int) -> bytes:
        return self._dice.randbytes(count)

    def _disk(self) -> Disk:
        process = self._process()
        process.check()
        disk = process.host.disk
        assert isinstance(disk, Disk)
        return disk

    def _exists(self, path: str) -> bool:
        return os.fspath(path) in self._disk().names

    def inode(self, fd: int) -> Inode | None:
        """The file of a descriptor; None for a directory, or what is no file of ours."""
        found = self._fds.get(fd)
        return found[0] if found is not None and isinstance(found[0], Inode) else None

    # Descriptors.

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        disk = self._disk()
        name = os.fspath(path)
        found: Inode | str
        if name in disk.directories:
            found = name
        else:
            inode = disk.names.get(name)
            if inode is None:
                if not flags & os.O_CREAT or os.path.dirname(name) not in disk.directories:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
                if disk.is_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
                inode = disk.make()
                disk.rename("", name, inode)
            elif flags & os.O_EXCL and flags & os.O_CREAT:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            if flags & os.O_TRUNC and inode.seen:
                inode.truncate(0)
            found = inode
        self._next_fd += 1
        self._fds[self._next_fd] = (found, disk, self.getpid())
        return self._next_fd

    def close(self, fd: int) -> None:
        # Not checked: what is left of a dead process may be closed as garbage, at any moment. It has no descriptors.
        found = self._fds.pop(fd, None)
        if found is not None and isinstance(found[0], Inode) and found[0].locked_by == fd:
            found[0].locked_by = None

    def close_all(self, pid: int) -> None:
        """What the kernel does when a process has died."""
        for fd in [fd for fd, found in self._fds.items() if found[2] == pid]:
            found = self._fds.pop(fd)[0]
            if isinstance(found, Inode) and found.locked_by == fd:
                found.locked_by = None

    def flock(self, fd: Any, how: int) -> None:
        import fcntl

        self._process().check()
        inode = self.inode(fd)
        if inode is None:
            return  # a pool's memory, a lock file: see host.py
        if how & fcntl.LOCK_UN:
            inode.locked_by = None
        elif inode.locked_by not in (None, fd):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        else:
            inode.locked_by = fd

    def _file(self, fd: int) -> tuple[Inode, Disk]:
        if self._process().is_dead:
            raise Killed
        found, disk, _ = self._fds[fd]
        assert isinstance(found, Inode)
        return found, disk

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        return bytes(self._file(fd)[0].seen[offset : offset + count])

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        inode, disk = self._file(fd)
        if disk.fails("pwrite"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        taken = bytes(data)
        if disk.is_full and offset + len(taken) > len(inode.seen):
            taken = taken[: max(0, len(inode.seen) - offset)]
            if not taken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif disk.short_in and offset // SECTOR_BYTES != (offset + len(taken) - 1) // SECTOR_BYTES:
            # Linux takes a write page by page: what lies within one page, so within one sector, is whole or fails.
            disk.short_in -= 1
            if not disk.short_in:
                taken = taken[: max(1, len(taken) // 2)]
        inode.write(offset, taken)
        return len(taken)

    def write(self, fd: int, data: Any) -> int:
        return self.pwrite(fd, data, len(self._file(fd)[0].seen))

    def posix_fadvise(self, fd: int, offset: int, size: int, advice: int) -> None:
        self._file(fd)  # what was written and not synced may survive a loss of power, asked for or not

    POSIX_FADV_DONTNEED = os.POSIX_FADV_DONTNEED

    def ftruncate(self, fd: int, size: int) -> None:
        self._file(fd)[0].truncate(size)

    def fsync(self, fd: int) -> None:
        self._sync(fd, "fsync")

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync")

    def _sync(self, fd: int, call: str) -> None:
        self._process().check()
        found, disk, _ = self._fds[fd]
        if disk.fails(call):
            if isinstance(found, Inode):
                found.fail_sync(self._dice)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if isinstance(found, Inode):
            found.sync()
        else:
            disk.sync_directory(found)

    def fstat(self, fd: int) -> Any:
        self._process().check()
        found, disk, _ = self._fds[fd]
        return self._facts(found, disk)

    @staticmethod
    def _facts(found: Inode | str, disk: Disk) -> Any:
        if isinstance(found, str):
            return SimpleNamespace(st_dev=DEVICE, st_ino=disk.directories[found], st_nlink=2, st_size=4096)
        size = len(found.seen)
        return SimpleNamespace(
            st_dev=DEVICE, st_ino=found.number, st_nlink=found.links, st_size=size, st_ctime_ns=found.number,
            st_mtime_ns=found.number,
            st_blocks=-(-size // BLOCK_BYTES), st_mode=0o100600, st_uid=0,
        )  # fmt: skip

    def fdopen(self, fd: int, mode: str = "r") -> Any:
        inode, _ = self._file(fd)
        return _Opened(self, fd, bytes(inode.seen)) if "r" in mode else _Written(self, fd)

    # Names.

    def stat(self, path: Any, *, follow_symlinks: bool = True) -> Any:
        disk = self._disk()
        name = os.fspath(path)
        if name in disk.directories:
            return self._facts(name, disk)
        if name not in disk.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._facts(disk.names[name], disk)

    def read(self, path: Any) -> bytes:
        """All of a file: read_private."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return bytes(self._file(fd)[0].seen)
        finally:
            self.close(fd)

    def listdir(self, path: Any) -> list[str]:
        disk = self._disk()
        name = os.fspath(path)
        if name not in disk.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        begin = name if name.endswith("/") else f"{name}/"
        size = len(begin)
        return [one[size:] for one in disk.names if one.startswith(begin) and "/" not in one[size:]]

    @contextmanager
    def scandir(self, path: Any) -> Iterator[list[Any]]:
        def entry(name: str) -> Any:
            where = os.path.join(os.fspath(path), name)
            return SimpleNamespace(name=name, path=where, stat=lambda **more: self.stat(where, **more))

        yield [entry(name) for name in self.listdir(path)]

    def statvfs(self, path: Any) -> Any:
        free = 0 if self._disk().is_full else DISK_BLOCKS // 2
        return SimpleNamespace(f_blocks=DISK_BLOCKS, f_bfree=free, f_bavail=free, f_frsize=4096)

    def rename(self, old: Any, new: Any) -> None:
        disk = self._disk()
        if disk.fails("rename"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode = disk.names.get(os.fspath(old))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(old))
        disk.rename(os.fspath(old), os.fspath(new), inode)

    def link(self, old: Any, new: Any, *, follow_symlinks: bool = True) -> None:
        disk = self._disk()
        inode, name = disk.names.get(os.fspath(old)), os.fspath(new)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(old))
        if name in disk.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        inode.links += 1
        disk.rename("", name, inode)

    def unlink(self, path: Any) -> None:
        disk = self._disk()
        name = os.fspath(path)
        if name not in disk.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        disk.rename(name, "", disk.names[name])


class _Opened(io.BytesIO):
    """A file that was opened to be read."""

    def __init__(self, system: SimulatedOs, fd: int, data: bytes) -> None:
        super().__init__(data)
        self._system, self._fd = system, fd

    def __exit__(self, *_: object) -> None:
        self._system.close(self._fd)


class _Written(io.StringIO):
    """A log: nobody reads it."""

    def __init__(self, system: SimulatedOs, fd: int) -> None:
        super().__init__()
        self._system, self._fd = system, fd

    def __exit__(self, *_: object) -> None:
        self._system.close(self._fd)
