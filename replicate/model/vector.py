"""Positions: who made a transaction, how far each origin has been seen, and the hash that proves a common past.

Guarantees: every type here is immutable; a vector only ever rises (`raised`, `merged` give the higher number); packing
is canonical, so equal vectors are equal bytes. Numbers are exact integers of 64 bits.
Leaves to others: where a position is stored, who sends it, and what is in a transaction. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from crc32c import crc32c
from msgspec import Struct, field

from replicate.errors import InternalError, JournalDamagedError
from replicate.limits import PARTITION_STREAM

U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


class Origin(Struct, frozen=True):
    """One life of one instance: the unit that numbers transactions without a gap.

    `instance`: the instance's UUID, 16 bytes. `incarnation`: rises whenever the instance's numbers could be reused.
    """

    instance: bytes
    incarnation: int

    def __post_init__(self) -> None:
        if len(self.instance) != 16 or not 0 <= self.incarnation <= U32_MAX:
            raise InternalError("an origin is 16 bytes of UUID and an incarnation of 32 bits")

    @property
    def key(self) -> int:
        """The number that stands for this origin in frames and vectors: CRC-32C of both, never 0 (0 = no origin)."""
        return crc32c(self.instance + self.incarnation.to_bytes(4, "big")) or 1


def _entry_ok(origin: object, partition: object, origin_seqno: object) -> bool:
    return (
        type(origin) is int
        and 0 < origin <= U32_MAX
        and type(partition) is int
        and 0 <= partition <= U32_MAX
        and type(origin_seqno) is int
        and 0 < origin_seqno <= U64_MAX
    )


class SynchronizationVector(Mapping[tuple[int, int], int]):
    """(origin key, partition) -> last origin_seqno seen; what is absent has been seen up to nothing (0).

    Partition 0 is the whole stream of that origin: every transaction up to there has been seen, whatever it carried.
    The SCR array, the replication update vector and a row of an epoch matrix are all this one type.
    """

    __slots__ = ("_entries", "_hash")

    def __init__(self, entries: Mapping[tuple[int, int], int] | None = None) -> None:
        """Zero entries are left out. InternalError when a number does not fit its field."""
        kept = {key: last for key, last in (entries or {}).items() if last != 0}
        for (origin, partition), last in kept.items():
            if not _entry_ok(origin, partition, last):
                raise InternalError(f"no entry of a vector: origin {origin!r}, partition {partition!r}, {last!r}")
        self._entries = kept
        self._hash: int | None = None

    @classmethod
    def _of(cls, entries: dict[tuple[int, int], int]) -> SynchronizationVector:
        """Of entries that have been looked at, and are nobody else's."""
        made = cls.__new__(cls)
        made._entries = entries
        made._hash = None
        return made

    # The mapping.

    def __getitem__(self, key: tuple[int, int]) -> int:
        return self._entries[key]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SynchronizationVector):
            return self._entries == other._entries
        return NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._entries.items()))
        return self._hash

    def __repr__(self) -> str:
        rows = ", ".join(f"{o:08x}/{p}: {n}" for (o, p), n in sorted(self._entries.items()))
        return f"SynchronizationVector({{{rows}}})"

    # What it is for.

    def last(self, origin: int, partition: int = PARTITION_STREAM) -> int:
        """The last origin_seqno seen of that origin in that partition; 0 when nothing was."""
        return self._entries.get((origin, partition), 0)

    def raised(self, origin: int, partition: int, origin_seqno: int) -> SynchronizationVector:
        """This vector with one entry raised to `origin_seqno`; unchanged when it stands there or higher already."""
        if self._entries.get((origin, partition), 0) >= origin_seqno:
            return self
        if not _entry_ok(origin, partition, origin_seqno):
            raise InternalError(f"no entry of a vector: origin {origin!r}, partition {partition!r}, {origin_seqno!r}")
        return self._of({**self._entries, (origin, partition): origin_seqno})

    def merged(self, other: SynchronizationVector) -> SynchronizationVector:
        """The higher of both, entry by entry."""
        if self.covers(other):
            return self
        entries = dict(self._entries)
        for key, last in other._entries.items():
            if entries.get(key, 0) < last:
                entries[key] = last
        return SynchronizationVector(entries)

    def covers(self, other: SynchronizationVector) -> bool:
        """True when everything that `other` has seen has been seen here too (equal vectors cover each other)."""
        get = self._entries.get
        return all(get(key, 0) >= last for key, last in other._entries.items())

    def beyond(self, other: SynchronizationVector) -> SynchronizationVector:
        """The entries in which this vector stands higher than `other`; empty when `other` covers it."""
        get = other._entries.get
        return self._of({key: last for key, last in self._entries.items() if last > get(key, 0)})

    def origins(self) -> tuple[int, ...]:
        """The origin keys that occur, ascending."""
        return tuple(sorted({origin for origin, _ in self._entries}))

    def pack(self) -> list[int]:
        """Flat and sorted: origin, partition, origin_seqno, origin, …"""
        return [number for key in sorted(self._entries) for number in (*key, self._entries[key])]

    @classmethod
    def unpack(cls, packed: object) -> SynchronizationVector:
        """The vector that `pack` gave. JournalDamagedError when it is not such a list in canonical order."""
        if not isinstance(packed, list | tuple) or len(packed) % 3:
            raise JournalDamagedError("a vector should be a flat list of threes")
        entries: dict[tuple[int, int], int] = {}
        previous = (-1, -1)
        for origin, partition, last in _threes(packed):
            if not _entry_ok(origin, partition, last) or (origin, partition) <= previous:
                raise JournalDamagedError("a vector holds a number out of its range or order")
            previous = (origin, partition)
            entries[previous] = last
        return cls(entries)


def _threes(flat: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    iterator = iter(flat)
    return zip(iterator, iterator, iterator, strict=True)


Chains = Mapping[int, tuple[int, int]]
"""origin key -> (last origin_seqno, chain hash there)."""


def pack_chains(chains: Chains) -> list[int]:
    """Flat and sorted: origin, origin_seqno, chain, origin, …"""
    return [number for origin in sorted(chains) for number in (origin, *chains[origin])]


def unpack_chains(packed: object) -> dict[int, tuple[int, int]]:
    """What `pack_chains` gave. JournalDamagedError when it is not such a list in canonical order."""
    if not isinstance(packed, list | tuple) or len(packed) % 3:
        raise JournalDamagedError("chain hashes should be a flat list of threes")
    chains: dict[int, tuple[int, int]] = {}
    previous = 0
    for origin, last, chain in _threes(packed):
        well = type(origin) is int and type(last) is int and type(chain) is int
        if not (well and previous < origin <= U32_MAX and 0 <= last <= U64_MAX and 0 <= chain <= U64_MAX):
            raise JournalDamagedError("a chain hash is out of its range or order")
        previous = origin
        chains[origin] = (last, chain)
    return chains


class Position(Struct, frozen=True):
    """A place in one journal: its last seqno, the vector there, and each origin's chain hash there.

    Invariant: no transaction with a seqno above `last_seqno` is in `vector` or `chains`. Hold `chains` as read-only.
    """

    last_seqno: int = 0
    vector: SynchronizationVector = field(default_factory=SynchronizationVector)
    chains: Chains = field(default_factory=dict)

    def advanced(
        self, last_seqno: int, origin: int, origin_seqno: int, chain: int, partitions: Iterable[int] = ()
    ) -> Position:
        """The position after one more transaction; raises that origin's whole-stream row and those of `partitions`."""
        vector = self.vector
        for partition in (PARTITION_STREAM, *partitions):
            vector = vector.raised(origin, partition, origin_seqno)
        return Position(last_seqno, vector, {**self.chains, origin: (origin_seqno, chain)})
