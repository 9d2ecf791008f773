"""Which supplier writes what: each partition of a network of suppliers is written by one of them, so that no two ever
change a row at the same time.

The supplier that writes a partition gives it to another one by a transaction of its own (a REGION change, `written`).
All that it has written there stands before that transaction in every journal, and the other one begins to write behind
it; so a partition has one writer at each place of each journal, and all suppliers agree on it. Who writes everything
may change the schema: nobody else writes meanwhile.

Guarantees: a partition that was never given belongs to who has the rest (REST).
Refuses to know: where this is kept (region/), who asks. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicate.limits import PARTITION_NONE, PARTITION_STREAM

SUPPLIER: Final = "supplier"
"""The role of an instance that writes and receives, as people and peers are told."""
REST: Final = 0
"""All partitions that were never given by name, and those that there will be."""
_NOBODYS: Final = frozenset((PARTITION_STREAM, PARTITION_NONE))
"""What is for everybody (comments), and what never leaves its instance: anybody writes it."""


@dataclass(frozen=True, slots=True)
class Writers:
    """`by`: partition, or REST -> UUID (16 bytes) of the supplier that writes it. Empty: there are no suppliers."""

    by: Mapping[int, bytes] = field(default_factory=dict)

    def of(self, partition: int) -> bytes:
        """Who writes that partition; b"" where nobody was named."""
        return self.by.get(partition, self.by.get(REST, b""))

    def not_of(self, instance: bytes, partitions: Collection[int]) -> tuple[int, ...]:
        """Those of `partitions` that another one than `instance` writes, ascending."""
        return tuple(sorted(one for one in partitions if one not in _NOBODYS and self.of(one) != instance))

    def all_by(self, instance: bytes) -> bool:
        """Whether nobody else writes anything."""
        return bool(self.by) and all(one == instance for one in self.by.values())

    def given(self, partition: int, writer: bytes) -> Writers:
        """With that writer of one partition, or of REST."""
        return Writers({**self.by, partition: writer})
