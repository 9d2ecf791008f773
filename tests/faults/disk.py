"""A disk as a power loss may leave it: what the system calls of a run said, and legal states between them.

`read_trace` reads what strace has written down; `Disk` takes the operations one by one and knows what is synced.
The model: a write that is not synced may be there, missing or torn at any 512 bytes, also when a later one is there; a
name that was made, changed or removed is only certain once its directory was synced. POSIX allows more: names become
certain in the order in which they were changed here, as journalling file systems do, never a later one alone; and of
all the combinations `states` gives a few extreme ones and as many others, by dice, as it is asked for.

Guarantees: what was synced is in every state; what was never written is in none.
Refuses to know: whose files they are. Pure, but for `Disk.put`, which writes a state into the directories.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SECTOR_BYTES: Final = 512
CALLS: Final = (
    "openat,write,pwrite64,lseek,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate,fallocate"
)
_LINE: Final = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_FD: Final = re.compile(r"^(\d+)<([^>]*)>")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `kind`: write, size, sync, create, rename, unlink, told. `path`: as at that moment."""

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
        elif call.startswith(("rename", "unlink")):
            names = [one.decode() for one in strings]
            if path:  # relative to a directory that is open
                names = [f"{path}/{one}" if not one.startswith("/") else one for one in names]
            if names[0].startswith(below):
                yield Op(call[:6], names[0], target=names[-1] if len(names) > 1 else "")
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


class Disk:
    """Files by name, as the running system sees them; `names` as they are certain."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, File] = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.seen[str(path)] = File(path.read_bytes())
        self.names: dict[str, File] = dict(self.seen)
        self.changes: list[tuple[str, File | None]] = []
        """Names made (with their file) and removed, not certain yet, in order."""

    def take(self, op: Op) -> None:
        """One more operation has happened."""
        if op.kind == "create":
            if op.path not in self.seen:
                self._name(op.path, File())
        elif op.kind in ("write", "size"):
            self.seen[op.path].pending.append(op)
        elif op.kind == "sync":
            if op.path in self.seen:
                file = self.seen[op.path]
                file.synced = file.content(lambda _place, _op: None)
                file.pending.clear()
            else:
                self._sync_directory(op.path)
        elif op.kind == "rename":
            file = self.seen.pop(op.path)
            self.seen[op.target] = file
            self.changes += [(op.target, file), (op.path, None)]
        elif op.kind == "unlink" and op.path in self.seen:
            del self.seen[op.path]
            self.changes.append((op.path, None))

    def _name(self, path: str, file: File) -> None:
        self.seen[path] = file
        self.changes.append((path, file))

    def _sync_directory(self, path: str) -> None:
        kept = []
        for name, file in self.changes:
            if str(Path(name).parent) != path:
                kept.append((name, file))
            elif file is None:
                self.names.pop(name, None)
            else:
                self.names[name] = file
        self.changes = kept

    def states(self, dice: random.Random, samples: int) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Some legal states at this moment: a label, and every file's content."""
        known = [*self.seen.values(), *self.names.values(), *(file for _, file in self.changes if file is not None)]
        files = {id(file): file for file in known}
        pending = [(key, place) for key, file in files.items() for place in range(len(file.pending))]
        yield "nothing of what is not synced", self._state(0, lambda _file, _place, _op: b"")
        yield "everything", self._state(len(self.changes), lambda _file, _place, _op: None)
        yield "all names, no data", self._state(len(self.changes), lambda _file, _place, _op: b"")
        yield "all data, no names", self._state(0, lambda _file, _place, _op: None)
        for number in range(min(samples, len(pending))):
            lost = dice.choice(pending)
            yield (
                f"one write missing ({number})",
                self._state(
                    len(self.changes), lambda file, place, _op, lost=lost: b"" if (file, place) == lost else None
                ),
            )
        for number in range(samples):
            masks = {one: _mask(dice) for one in pending}
            names = dice.randrange(len(self.changes) + 1)
            yield (
                f"torn at random ({number})",
                self._state(names, lambda file, place, op, masks=masks: masks[file, place](op)),
            )

    def _state(self, names: int, chosen: Callable[[int, int, Op], bytes | None]) -> dict[str, bytes]:
        found = dict(self.names)
        for name, file in self.changes[:names]:
            if file is None:
                found.pop(name, None)
            else:
                found[name] = file
        return {
            name: file.content(lambda place, op, file=file: chosen(id(file), place, op)) for name, file in found.items()
        }

    def put(self, state: dict[str, bytes]) -> None:
        """Have the directories below the root hold exactly this. Directories stay what they are, or are made."""
        for path in self.root.rglob("*"):
            if not path.is_dir() and str(path) not in state:
                path.unlink()
        for name, data in state.items():
            path = Path(name)
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.write_bytes(data)


def _mask(dice: random.Random) -> Callable[[Op], bytes | None]:
    """There, missing, or torn: for one write."""
    kind, seed = dice.random(), dice.randrange(1 << 30)
    if kind < 0.4:
        return lambda _op: None
    if kind < 0.7:
        return lambda _op: b""
    return lambda op: bytes(random.Random(seed).choices((0, 1), k=len(op.data) // SECTOR_BYTES + 1))
