"""Every legal state of a disk within a bound; and which states no reader can tell apart.

The bound, with what is not synced: of each file every prefix of its writes, combined with every prefix of every other
file's. Besides, one file at a time, with all others as they were written or as they were synced: every subset of its
writes when they are ALL_SUBSETS at most, else all but one and one alone; each write of more than a sector torn (its
first sector alone, all but the first, all but the last), with all others there and with only those before it. All of
this with every subset of the changes of names when they are ALL_SUBSETS at most, else every prefix, all but one, and
one alone.

Two states are equal when no reader can tell them apart: of a `-shm` nothing counts (who opens first makes it again), of
a `-wal` what SQLite takes from it, its header and whole commits: its check runs over all frames from the first one on,
and the product reads no further (region/sqlite/forensics/older_than_wal.py). A `-wal` with an unknown header, and
every other file, counts byte by byte.
Guarantees: what is counted as enumerated is one state by its bytes; of equal ones one stands for all.
Leaves to others: how a state is judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.faults.disk import SECTOR_BYTES, Directory, File, Op, State, TracedDisk

ALL_SUBSETS: Final = 4
WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
WAL_MAGIC: Final = b"\x37\x7f\x06"
Key = tuple[tuple[str, int | None], ...]
"""Of a state: each name, and what counts of its file; None for a directory."""
Mask = bytes | None
"""What is there of a write, by sectors; None: all."""


def of_wal(content: bytes, known: Sequence[bytes]) -> bytes:
    """What counts of a `-wal`, where `known` are what it was and what was written since."""
    if len(content) <= WAL_HEADER_BYTES or content[:3] != WAL_MAGIC:
        return b"longer than a header" if len(content) > WAL_HEADER_BYTES + FRAME_HEADER_BYTES else b""
    for whole in known:
        if content[:WAL_HEADER_BYTES] == whole[:WAL_HEADER_BYTES]:
            return content[: _commits_end(content, whole)]
    return content


def _commits_end(content: bytes, whole: bytes) -> int:
    """Up to where `content` holds the commits that `whole` does."""
    stride = FRAME_HEADER_BYTES + int.from_bytes(whole[8:12], "big")
    at = end = WAL_HEADER_BYTES
    while at + stride <= len(whole) and whole[at + 8 : at + 16] == whole[16:24]:
        if content[at : at + stride] != whole[at : at + stride]:
            break
        is_commit = whole[at + 4 : at + 8] != b"\0\0\0\0"
        at += stride
        end = at if is_commit else end
    return end


def what_counts(name: str, content: bytes, known: Sequence[bytes]) -> int:
    """A hash of what a reader can tell. `known`: as of of_wal."""
    if name.endswith("-shm"):
        return 0
    return hash(of_wal(content, known) if name.endswith("-wal") else content)


def key_of(disk: TracedDisk, state: State) -> Key:
    """What counts of a state of this disk at this moment."""
    known: dict[str, list[bytes]] = {}
    named = [*disk.seen.items(), *disk.names.items(), *((one.name, one.what) for one in disk.changes)]
    for name, what in named:
        if name.endswith("-wal") and isinstance(what, File):
            known.setdefault(name, []).extend((what.content(lambda _place, _op: None), what.synced))
    return tuple(
        (name, None if content is None else what_counts(name, content, known.get(name, ())))
        for name, content in state.items()
    )


def subsets(count: int) -> list[frozenset[int]]:
    """Of so many things those that are there."""
    if count <= ALL_SUBSETS:
        return [frozenset(one) for size in range(count, -1, -1) for one in itertools.combinations(range(count), size)]
    every = frozenset(range(count))
    found = [frozenset(range(length)) for length in range(count, -1, -1)]
    found += [every - {one} for one in range(count)] + [frozenset({one}) for one in range(count)]
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class Variants:
    """Of a file at one moment, one content for each that can be told apart: `cuts` after each of its writes (the first
    is what is synced, the last all of it), and the `others`; how many there are by their bytes."""

    synced: bytes
    pending: int
    cuts: dict[int, bytes]
    cuts_enumerated: int
    others: dict[int, bytes]
    others_enumerated: int
    first: int
    last: int


def variants(name: str, file: File) -> Variants:
    """All within the bound."""
    pending = file.pending
    whole = file.content(lambda _place, _op: None)
    if name.endswith("-shm"):
        return Variants(file.synced, len(pending), {0: whole}, 1, {}, 0, 0, 0)
    choices: list[Callable[[int, Op], Mask]] = [
        lambda place, _op, kept=kept: None if place in kept else b""  # type: ignore[misc]
        for kept in [frozenset(range(count)) for count in range(len(pending) + 1)] + subsets(len(pending))
    ]
    for torn, op in enumerate(pending):
        sectors = -(-len(op.data) // SECTOR_BYTES)
        if op.kind != "write" or sectors < 2:
            continue
        masks = {b"\1" + bytes(sectors - 1), b"\0" + b"\1" * (sectors - 1), b"\1" * (sectors - 1) + b"\0"}
        choices += [
            lambda place, _op, torn=torn, mask=mask, later=later: (  # type: ignore[misc]
                mask if place == torn else None if place < torn else later
            )
            for mask in sorted(masks)
            for later in (None, b"")
        ]
    cuts: dict[int, bytes] = {}
    others: dict[int, bytes] = {}
    cut_contents: set[int] = set()
    other_contents: set[int] = set()
    first = last = 0
    for number, chosen in enumerate(choices):
        content = file.content(chosen)
        counted = what_counts(name, content, (whole, file.synced))
        if number <= len(pending):
            cut_contents.add(hash(content))
            cuts.setdefault(counted, content)
            first, last = (counted if number == 0 else first), counted
        elif hash(content) not in cut_contents:
            other_contents.add(hash(content))
            if counted not in cuts:
                others.setdefault(counted, content)
    return Variants(file.synced, len(pending), cuts, len(cut_contents), others, len(other_contents), first, last)


class Every:
    """All states after each operation, one operation at a time."""

    def __init__(self, disk: TracedDisk) -> None:
        self._disk = disk
        self._known: dict[int, tuple[File, Variants]] = {}
        """By the file's identity; it is kept, so that no other one comes by it."""

    def _variants(self, name: str, file: File) -> Variants:
        _, known = self._known.get(id(file), (file, None))
        if known is None or known.synced is not file.synced or known.pending != len(file.pending):
            known = variants(name, file)
            self._known[id(file)] = file, known
        return known

    def at(self) -> Iterator[tuple[int, Iterator[tuple[Key, Callable[[], State]]]]]:
        """For each choice of names: how many states there are by their bytes, and those that can be told apart."""
        disk = self._disk
        tried: set[tuple[tuple[str, int], ...]] = set()
        for kept in subsets(len(disk.changes)):
            names = disk.names_with([one for place, one in enumerate(disk.changes) if place in kept])
            identity = tuple((name, id(what)) for name, what in names.items())
            if identity in tried:
                continue
            tried.add(identity)
            files = {name: self._variants(name, what) for name, what in names.items() if isinstance(what, File)}
            count = math.prod(one.cuts_enumerated for one in files.values())
            for name, file in files.items():
                is_one = all(len(one.cuts) == 1 for other, one in files.items() if other != name)
                count += file.others_enumerated * (1 if is_one else 2)
            yield count, self._combined(names, files)

    @staticmethod
    def _combined(
        names: dict[str, File | Directory], files: dict[str, Variants]
    ) -> Iterator[tuple[Key, Callable[[], State]]]:
        chosen: list[dict[str, int]] = [
            dict(zip(files, one, strict=True)) for one in itertools.product(*(file.cuts for file in files.values()))
        ]
        for name, file in files.items():
            for beside in ({at: one.last for at, one in files.items()}, {at: one.first for at, one in files.items()}):
                chosen += [{**beside, name: one} for one in file.others]
        for counted in chosen:

            def state(counted: dict[str, int] = counted) -> State:
                found: State = {}
                for name in names:
                    file = files.get(name)
                    found[name] = None if file is None else (file.cuts | file.others)[counted[name]]
                return found

            yield tuple((name, counted.get(name)) for name in names), state
