"""Which supplier writes what: each partition of a network of suppliers is one's, which may let others write it.

Its supplier gives one away by a transaction (a REGION change, `written`). All that it has written there stands
before that in every journal, so no two change a row at once. It may have others write beside it instead (`shared`),
and each of these ends that for itself (`left`): then rows are merged (merged_row.py). One that alone writes all may
change the schema.

One that is gone for good (`retiring`) is waited for no longer once every other one has `parted` from it: one with all
these records has all that any of them ever took from it, and says so (`retired`).

Guarantees: a partition that was never given is of the one with the rest (REST).
Leaves to others: where this is kept (region/), who asks. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.errors import JournalDamagedError
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.schema_fences import Fences
from replicate.model.transaction import OF_FENCES, OF_GONE, PARTED, RETIRED, RETIRING, SHARED, WRITTEN

SUPPLIER: Final = "supplier"
"""The role of an instance that writes and receives, as people and peers are told."""
REST: Final = 0
"""All partitions that were never given by name, and those that there will be."""
_NOBODYS: Final = frozenset((PARTITION_STREAM, PARTITION_NONE))
"""What is for everybody (comments), and what never leaves its instance: anybody writes it."""


Otherwise = Sequence[str | None]
"""How tables of a partition are merged: table and column by turns of what is a sum; a table and None of one whose rows
are merged whole. (Older releases take nothing that has such a one.)"""


def dotted(names: Otherwise) -> tuple[str, ...]:
    """TABLE.COLUMN of each sum, as people write it."""
    pairs = zip(names[0::2], names[1::2], strict=True)
    return tuple(f"{table}.{column}" for table, column in pairs if column is not None)


def whole(names: Otherwise) -> tuple[str, ...]:
    """The tables whose rows are merged whole."""
    pairs = zip(names[0::2], names[1::2], strict=True)
    return tuple(table for table, column in pairs if table is not None and column is None)


def is_otherwise(names: object) -> bool:
    """Whether it is what it should be."""
    return (
        isinstance(names, list | tuple)
        and not len(names) % 2
        and all(type(one) is str for one in names[0::2])
        and all(one is None or type(one) is str for one in names[1::2])
    )


class Writers(Struct, frozen=True):
    """`by`: partition, or REST -> UUID (16 bytes) of the supplier whose it is. Empty: there are no suppliers. `shared`:
    the same -> those that write it, too, or have (then with a place below 0) -> their places, from 1 on. `by_row`:
    those whose rows are merged whole, not column by column. `summed`: the same -> how their tables are merged
    otherwise (Otherwise): columns that are sums, tables whose rows are merged whole. `retiring`: suppliers that are
    gone -> who offers to have what they wrote. `parted`: the same -> who takes nothing more from them. `retired`:
    those that all have parted from. `fences`: who has all others stand aside."""

    by: Mapping[int, bytes] = field(default_factory=dict)
    shared: Mapping[int, Mapping[bytes, int]] = field(default_factory=dict)
    by_row: frozenset[int] = frozenset()
    summed: Mapping[int, tuple[str | None, ...]] = field(default_factory=dict)
    retiring: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)
    parted: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)
    retired: frozenset[bytes] = frozenset()
    fences: Fences = field(default_factory=Fences)

    def of(self, partition: int) -> bytes:
        """Whose that partition is; b"" where nobody was named."""
        return self.by.get(partition, self.by.get(REST, b""))

    def others(self, partition: int) -> dict[bytes, int]:
        """Who writes it beside the one whose it is, and their places."""
        return {one: place for one, place in self.shared.get(self.named(partition), {}).items() if place > 0}

    def place(self, partition: int, instance: bytes) -> int:
        """Of an instance among those who write a partition: 0 of whose it is, -1 where it does not write there."""
        return 0 if self.of(partition) == instance else self.others(partition).get(instance, -1)

    def free_place(self, partition: int, instance: bytes) -> int:
        """The place that an instance gets there, or gets again."""
        known = self.shared.get(partition, {})
        return abs(known.get(instance, 0)) or max(map(abs, known.values()), default=0) + 1

    def was_merged(self, partition: int) -> bool:
        """Whether several write that partition, or have."""
        return partition not in _NOBODYS and bool(self.shared.get(self.named(partition)))

    def named(self, partition: int) -> int:
        """The partition, where it was ever given by name; else REST."""
        return partition if partition in self.by else REST

    def is_by_row(self, partition: int, table: str | None = None) -> bool:
        """Whether rows of that partition, or of that table of it, are merged whole."""
        return self.named(partition) in self.by_row or table in self.all_whole(partition)

    def all_whole(self, partition: int) -> tuple[str, ...]:
        """The tables of that partition whose rows are merged whole, where not all are."""
        return whole(self.summed.get(self.named(partition), ()))

    def sums(self, partition: int, table: str) -> tuple[str, ...]:
        """The columns of a table of that partition that are sums."""
        names = self.summed.get(self.named(partition), ())
        pairs = zip(names[0::2], names[1::2], strict=True)
        return tuple(column for of, column in pairs if of == table and column is not None)

    def all_sums(self, partition: int) -> tuple[str, ...]:
        """Those of all its tables, as TABLE.COLUMN."""
        return dotted(self.summed.get(self.named(partition), ()))

    def merged(self, partitions: Collection[int]) -> tuple[int, ...]:
        """Those of `partitions` that several write, ascending."""
        return tuple(sorted(one for one in partitions if one not in _NOBODYS and self.others(one)))

    def not_of(self, instance: bytes, partitions: Collection[int]) -> tuple[int, ...]:
        """Those of `partitions` that `instance` does not write, ascending."""
        return tuple(sorted(one for one in partitions if one not in _NOBODYS and self.place(one, instance) < 0))

    def all_by(self, instance: bytes) -> bool:
        """Whether nobody else writes anything."""
        return bool(self.by) and set(self.by.values()) == {instance} and not self.sharing

    @property
    def sharing(self) -> tuple[int, ...]:
        """Partitions, or REST, that several write now, ascending."""
        return tuple(sorted(one for one in self.by if self.others(one)))

    @property
    def was_shared(self) -> bool:
        """Whether several have ever written one partition."""
        return bool(self.shared)

    def writing(self) -> frozenset[bytes]:
        """All that write something now."""
        return frozenset(self.by.values()).union(*(self.others(number) for number in self.shared))

    def known(self, begun: Iterable[bytes]) -> frozenset[bytes]:
        """All whose word is waited for: those that write, and those that ever began to, for they merge still what
        others write. `begun`: by their records; who was let write is known before its first one has come."""
        return self.writing().union(begun)

    def members(self) -> frozenset[bytes]:
        """All that write a partition which several write, or have: what these have not seen, they may write beside."""
        return frozenset(one for shared in self.shared for one in (self.of(shared), *self.others(shared)))

    def given(self, partition: int, writer: bytes) -> Writers:
        """With that supplier as the one whose a partition, or REST, is."""
        return replace(self, by={**self.by, partition: writer})

    def told(self, partition: int, values: Sequence[object]) -> Writers:
        """As a REGION change (OF_WRITERS) says it. JournalDamagedError where it makes no sense."""
        if values[0] in OF_FENCES:
            return replace(self, fences=self.fences.told(values))
        what, instance = values[0], values[1]
        assert isinstance(instance, bytes)
        if what == WRITTEN:
            return self.given(partition, instance)
        if what in OF_GONE:
            return self._gone(what, instance, values[2])
        known = self.shared.get(partition, {})
        place = values[2] if what == SHARED else -abs(known.get(instance, 0))
        if type(place) is not int or not place:
            raise JournalDamagedError(f"partition {partition} was left by one that did not share it")
        shared = {**self.shared, partition: {**known, instance: place}}
        if what != SHARED:
            return replace(self, shared=shared)
        by_row = self.by_row - {partition} | ({partition} if len(values) > 3 and values[3] else set())
        summed = {number: names for number, names in self.summed.items() if number != partition}
        if len(values) > 4:
            names = values[4]
            if not is_otherwise(names):
                raise JournalDamagedError(f"partition {partition} has sums that are no tables and columns")
            assert isinstance(names, list | tuple)
            summed[partition] = tuple(names)
        return replace(self, shared=shared, by_row=by_row, summed=summed)

    # Suppliers that are gone for good.

    def _gone(self, what: object, gone: bytes, other: object) -> Writers:
        assert isinstance(other, bytes)
        if gone == other:
            raise JournalDamagedError("a supplier that is gone says something of itself")
        if what == RETIRING:
            return replace(self, retiring={**self.retiring, gone: self.retiring.get(gone, frozenset()) | {other}})
        if what == PARTED:
            return replace(self, parted={**self.parted, gone: self.parted.get(gone, frozenset()) | {other}})
        assert what == RETIRED
        by = {partition: other if writer == gone else writer for partition, writer in self.by.items()}
        shared: dict[int, dict[bytes, int]] = {}
        for partition, places in self.shared.items():
            out = {gone, other} if self.by.get(partition) == gone else {gone}  # whose it is shares it with nobody
            shared[partition] = {one: -abs(place) if one in out else place for one, place in places.items()}
        return replace(self, by=by, shared=shared, retired=self.retired | {gone})

    def is_gone(self, instance: bytes) -> bool:
        """Whether nothing is taken from it any more."""
        return instance in self.retiring or instance in self.retired

    @property
    def leaving(self) -> tuple[bytes, ...]:
        """Those that are gone and not retired yet. One that joins later has nothing to do with the others: it never
        takes anything from them."""
        return tuple(sorted(self.retiring.keys() - self.retired))

    def to_part(self, own: bytes) -> tuple[bytes, ...]:
        """From whom `own` has still to part."""
        if self.is_gone(own):
            return ()
        return tuple(one for one in self.leaving if own not in self.parted.get(one, ()))

    def awaited(self, gone: bytes, known: Collection[bytes]) -> frozenset[bytes]:
        """Who has still to part from one that is gone, of all the suppliers that are known. Nobody waits for others
        that are gone."""
        return frozenset(one for one in known if not self.is_gone(one)) - self.parted.get(gone, frozenset())

    def heir(self, gone: bytes) -> bytes:
        """Who gets what it wrote: of those that have offered it, and are there, the same one everywhere; b"": none.
        One offers it before it parts, so one that has heard all partings knows every offer."""
        return min((one for one in self.retiring.get(gone, ()) if not self.is_gone(one)), default=b"")

    def to_retire(self, own: bytes, known: Collection[bytes]) -> tuple[bytes, ...]:
        """Of whom `own` is to say now that they are retired: once all have parted from all that are gone, since one of
        these may still hand on what another one writes."""
        if any(self.awaited(one, known) for one in self.leaving):
            return ()
        return tuple(one for one in self.leaving if self.heir(one) == own)
