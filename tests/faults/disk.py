"""A disk as a power loss may leave it: what the system calls of a run said, and legal states between them.

`read_trace` reads what strace has written down; `TracedDisk` takes the operations one by one and knows what is synced.
The model: a write that is not synced may be there, missing or torn at any 512 bytes, also when a later one is there; a
name that was made, changed or removed, a directory's too, is only certain once the directory that it stands in was
synced. Until then each name of each directory is for itself, as POSIX allows: a later change may be there without an
earlier one. Only a rename loses no file, as on every journalling file system: the old name goes when the new one is
there, and both may be. Of all the combinations `states` gives a few extreme ones and as many others, by dice, as it is
asked for: among them those where names are certain in their order (ext4, xfs) or in their order by directory.

Guarantees: what was synced is in every state, if the names of its directories are; what was never written is in none.
Leaves to others: whose files they are. Pure, but for `TracedDisk.put`, which writes a state into the directories.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

SECTOR_BYTES: Final = 512
CALLS: Final = (
    "openat,write,pwrite64,lseek,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate,fallocate,"
    "mkdir,mkdirat,rmdir,link,linkat"
)
_LINE: Final = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_FD: Final = re.compile(r"^(\d+)<([^>]*)>")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_KINDS: Final = {
    "renam": "rename",
    "link": "link",
    "linka": "link",
    "unlin": "unlink",
    "mkdir": "mkdir",
    "rmdir": "unlink",
}


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `kind`: write, size, sync, create, mkdir, rename, link, unlink, told. `path`: as at that moment;
    of a rename or a link the `target` is the new name."""

    kind: str
    path: str
    offset: int = 0
    data: bytes = b""
    target: str = ""


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", "")) if escaped.startswith("\\x") else escaped.encode()


def read_trace(lines: Iterable[str], below: str) -> Iterator[Op]:
    """The operations on files whose path begins with `below`, and what was written to descriptor 1 (`told`)."""
    places: dict[int, int] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        call, arguments, result = found[1], found[2], int(found[3])
        if result < 0:
            continue
        strings = [_text(one) for one in _STRING.findall(arguments)]
        handle = _FD.match(arguments)
        fd = int(handle[1]) if handle else -1
        path = _text(handle[2]).decode() if handle else ""
        numbers = [int(one) for one in re.findall(r", (\d+)", arguments)]
        if call == "openat":
            places[result] = 0
            name = strings[0].decode()
            if "O_CREAT" in arguments and name.startswith(below):
                yield Op("create", name)
                if "O_TRUNC" in arguments:
                    yield Op("size", name, 0)
        elif call == "write" and fd == 1:
            yield Op("told", "", 0, strings[0])
        elif call.startswith(("rename", "link", "unlink", "mkdir", "rmdir")):
            names = [one.decode() for one in strings]
            if path:  # relative to a directory that is open
                names = [f"{path}/{one}" if not one.startswith("/") else one for one in names]
            if names[0].startswith(below):
                yield Op(_KINDS[call[:5]], names[0], target=names[-1] if len(names) > 1 else "")
        elif not path.startswith(below):
            continue
        elif call == "lseek":
            places[fd] = result
        elif call == "write":
            place = places.get(fd, 0)
            yield Op("write", path, place, strings[0][:result])
            places[fd] = place + result
        elif call == "pwrite64":
            yield Op("write", path, numbers[-1], strings[0][:result])
        elif call in ("fsync", "fdatasync"):
            yield Op("sync", path)
        elif call == "ftruncate":
            yield Op("size", path, numbers[-1])


@dataclass
class File:
    """A file that may have several names in time: what is certain, and what may or may not be there."""

    synced: bytes = b""
    pending: list[Op] = field(default_factory=list)

    def content(self, chosen: Callable[[int, Op], bytes | None]) -> bytes:
        """With the pending operations that `chosen` keeps (its answer: a mask over the sectors, None: all)."""
        if not self.pending:
            return self.synced
        data = bytearray(self.synced)
        for place, op in enumerate(self.pending):
            mask = chosen(place, op)
            if mask is None:
                _apply(data, op)
            elif op.kind == "write":
                for sector, keeps in enumerate(mask):
                    if keeps:
                        start = sector * SECTOR_BYTES
                        part = op.data[start : start + SECTOR_BYTES]
                        _apply(data, Op("write", "", op.offset + start, part))
        return bytes(data)


def _apply(data: bytearray, op: Op) -> None:
    if op.kind == "size":
        del data[op.offset :]
        data.extend(bytes(op.offset - len(data)))
        return
    end = op.offset + len(op.data)
    data.extend(bytes(max(0, end - len(data))))
    data[op.offset : end] = op.data


class Directory:
    """In place of a File: nothing but a name."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A name made (with what it names) or removed (None), not certain yet. `after`: never there without that one."""

    name: str
    what: File | Directory | None
    after: Change | None = None

    @property
    def directory(self) -> str:
        return self.name.rpartition("/")[0]


State = dict[str, bytes | None]
"""Every file's content by its name; None for a directory."""


class TracedDisk:
    """Files by name, as the running system sees them; `names` as they are certain."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, File | Directory] = {}
        for path in sorted(root.rglob("*")):
            if path.is_dir() or path.is_file():
                self.seen[str(path)] = Directory() if path.is_dir() else File(path.read_bytes())
        self.names: dict[str, File | Directory] = dict(self.seen)
        self.changes: list[Change] = []
        """In the order in which they were made."""

    def take(self, op: Op) -> None:
        """One more operation has happened."""
        if op.kind in ("create", "mkdir"):
            if op.path not in self.seen:
                self.seen[op.path] = what = File() if op.kind == "create" else Directory()
                self.changes.append(Change(op.path, what))
        elif op.kind in ("write", "size"):
            self._file(op.path).pending.append(op)
        elif op.kind == "sync":
            if op.path in self.seen and isinstance(self.seen[op.path], File):
                file = self._file(op.path)
                file.synced = file.content(lambda _place, _op: None)
                file.pending.clear()
            else:
                self._sync_directory(op.path)
        elif op.kind == "rename":
            file = self._file(op.path)
            self.seen[op.target] = self.seen.pop(op.path)
            made = Change(op.target, file)
            self.changes += [made, Change(op.path, None, after=made)]
        elif op.kind == "link":
            self.seen[op.target] = self._file(op.path)
            self.changes.append(Change(op.target, self._file(op.path)))
        elif op.kind == "unlink" and op.path in self.seen:
            del self.seen[op.path]
            self.changes.append(Change(op.path, None))

    def _file(self, path: str) -> File:
        found = self.seen[path]
        assert isinstance(found, File), f"{path} is a directory: what becomes of a renamed one is not modelled"
        return found

    def _sync_directory(self, path: str) -> None:
        certain = [one for one in self.changes if one.directory == path]
        moved = {one.after.name for one in certain if one.after is not None and one.after in self.changes}
        certain = [one for one in self.changes if one in certain or one.name in moved]
        for one in certain:
            _enter(self.names, one)
        self.changes = [one for one in self.changes if one not in certain]

    def states(self, dice: random.Random, samples: int) -> Iterator[tuple[str, State]]:
        """Some legal states at this moment: a label, and what is there."""
        known = [*self.seen.values(), *self.names.values(), *(one.what for one in self.changes)]
        files = {id(file): file for file in known if isinstance(file, File)}
        pending = [(key, place) for key, file in files.items() for place in range(len(file.pending))]
        every = self.changes
        yield "nothing of what is not synced", self._state([], lambda _file, _place, _op: b"")
        yield "everything", self._state(every, lambda _file, _place, _op: None)
        yield "all names, no data", self._state(every, lambda _file, _place, _op: b"")
        yield "all data, no names", self._state([], lambda _file, _place, _op: None)
        for number in range(min(samples, len(pending))):
            lost = dice.choice(pending)
            yield (
                f"one write missing ({number})",
                self._state(every, lambda file, place, _op, lost=lost: b"" if (file, place) == lost else None),
            )
        names = sorted({one.name for one in every})
        if len(names) > 1:
            for number, name in enumerate(dice.sample(names, min(samples, len(names)))):
                label = f"{name[len(str(self.root)) + 1 :]} ({number})"
                others = [one for one in every if one.name != name]
                yield f"without the change of {label}", self._state(others, lambda _file, _place, _op: None)
                alone = [one for one in every if one.name == name]
                yield f"of names only the change of {label}", self._state(alone, lambda _file, _place, _op: None)
        for number in range(samples):
            masks = {one: _mask(dice) for one in pending}
            kept = self._some(dice)
            yield (
                f"torn at random ({number})",
                self._state(kept, lambda file, place, op, masks=masks: masks[file, place](op)),
            )

    def _some(self, dice: random.Random) -> list[Change]:
        """Changes of names as far as they have come: of all in one order, of each directory, or of each name."""
        group = dice.choice([lambda _one: "", lambda one: one.directory, lambda one: one.name])
        far: dict[str, int] = {}
        for key in dict.fromkeys(map(group, self.changes)):
            far[key] = dice.randrange(sum(group(one) == key for one in self.changes) + 1)
        kept = []
        for one in self.changes:
            far[group(one)] -= 1
            if far[group(one)] >= 0:
                kept.append(one)
        return kept

    def names_with(self, kept: list[Change]) -> dict[str, File | Directory]:
        """What has a name when of the changes only these are there, a directory before what is in it."""
        found = dict(self.names)
        stays: set[str] = set()
        for one in kept:
            if one.after is not None and one.after in self.changes and one.after not in kept:
                stays.add(one.name)  # the file would be nowhere
            if one.name not in stays:
                _enter(found, one)
        names: dict[str, File | Directory] = {}
        for name, what in sorted(found.items()):
            above = name.rpartition("/")[0]
            if above == str(self.root) or above in names:
                names[name] = what
        return names

    def _state(self, kept: list[Change], chosen: Callable[[int, int, Op], bytes | None]) -> State:
        return {
            name: what.content(partial(chosen, id(what))) if isinstance(what, File) else None
            for name, what in self.names_with(kept).items()
        }

    def put(self, state: State) -> None:
        """Have the directories below the root hold exactly this."""
        for path in sorted(self.root.rglob("*"), reverse=True):  # what is in a directory before it
            if str(path) not in state:
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink()
        for name, data in state.items():
            path = Path(name)
            if data is None:
                path.mkdir(mode=0o700, exist_ok=True)
            elif not path.is_file() or path.read_bytes() != data:
                path.write_bytes(data)


def _enter(names: dict[str, File | Directory], change: Change) -> None:
    if change.what is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.what


def _mask(dice: random.Random) -> Callable[[Op], bytes | None]:
    """There, missing, or torn: for one write."""
    kind, seed = dice.random(), dice.randrange(1 << 30)
    if kind < 0.4:
        return lambda _op: None
    if kind < 0.7:
        return lambda _op: b""
    return lambda op: bytes(random.Random(seed).choices((0, 1), k=len(op.data) // SECTOR_BYTES + 1))
