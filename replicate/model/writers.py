"""Which supplier writes what: each partition of a network of suppliers is one's, who may let others write it, too.

Whose a partition is gives it to another one by a transaction of its own (a REGION change, `written`). All that it has
written there stands before that transaction in every journal, and the other one begins behind it; so no two ever change
a row at the same time, and all suppliers agree on it. It may have others write the partition beside it instead
(`shared`), and each of these ends that for itself (`left`): rows that two change at the same time are merged
(registers.py). Who alone writes everything may change the schema: all that others wrote is known there by then.

Guarantees: a partition that was never given belongs to who has the rest (REST).
Refuses to know: where this is kept (region/), who asks. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from replicate.errors import JournalDamagedError
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import SHARED, WRITTEN

SUPPLIER: Final = "supplier"
"""The role of an instance that writes and receives, as people and peers are told."""
REST: Final = 0
"""All partitions that were never given by name, and those that there will be."""
_NOBODYS: Final = frozenset((PARTITION_STREAM, PARTITION_NONE))
"""What is for everybody (comments), and what never leaves its instance: anybody writes it."""


@dataclass(frozen=True, slots=True)
class Writers:
    """`by`: partition, or REST -> UUID (16 bytes) of the supplier whose it is. Empty: there are no suppliers. `shared`:
    the same -> those who write it, too, or have (then with a place below 0) -> their places, from 1 on. `by_row`: those
    whose rows are merged whole, not column by column."""

    by: Mapping[int, bytes] = field(default_factory=dict)
    shared: Mapping[int, Mapping[bytes, int]] = field(default_factory=dict)
    by_row: frozenset[int] = frozenset()

    def of(self, partition: int) -> bytes:
        """Whose that partition is; b"" where nobody was named."""
        return self.by.get(partition, self.by.get(REST, b""))

    def others(self, partition: int) -> dict[bytes, int]:
        """Who writes it beside the one whose it is, and their places."""
        return {one: place for one, place in self.shared.get(self._named(partition), {}).items() if place > 0}

    def place(self, partition: int, instance: bytes) -> int:
        """Of an instance among those who write a partition: 0 of whose it is, -1 where it does not write there."""
        return 0 if self.of(partition) == instance else self.others(partition).get(instance, -1)

    def free_place(self, partition: int, instance: bytes) -> int:
        """The place that an instance gets there, or gets again."""
        known = self.shared.get(partition, {})
        return abs(known.get(instance, 0)) or max(map(abs, known.values()), default=0) + 1

    def was_merged(self, partition: int) -> bool:
        """Whether several write that partition, or have."""
        return partition not in _NOBODYS and bool(self.shared.get(self._named(partition)))

    def _named(self, partition: int) -> int:
        return partition if partition in self.by else REST

    def is_by_row(self, partition: int) -> bool:
        """Whether rows of that partition are merged whole."""
        return self._named(partition) in self.by_row

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

    def members(self) -> frozenset[bytes]:
        """All that write a partition which several write, or have: what these have not seen, they may write beside."""
        return frozenset(one for shared in self.shared for one in (self.of(shared), *self.others(shared)))

    def given(self, partition: int, writer: bytes) -> Writers:
        """With that supplier as the one whose a partition, or REST, is."""
        return Writers({**self.by, partition: writer}, self.shared, self.by_row)

    def told(self, partition: int, values: Sequence[object]) -> Writers:
        """As a REGION change (OF_WRITERS) says it. JournalDamagedError where it makes no sense."""
        what, instance = values[0], values[1]
        assert isinstance(instance, bytes)
        if what == WRITTEN:
            return self.given(partition, instance)
        known = self.shared.get(partition, {})
        place = values[2] if what == SHARED else -abs(known.get(instance, 0))
        if type(place) is not int or not place:
            raise JournalDamagedError(f"partition {partition} was left by who did not share it")
        shared = {**self.shared, partition: {**known, instance: place}}
        if what != SHARED:
            return Writers(self.by, shared, self.by_row)
        by_row = self.by_row - {partition} | ({partition} if len(values) > 3 else set())
        return Writers(self.by, shared, by_row)
