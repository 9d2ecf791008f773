"""A takeover: what a primary can show of the record by which an origin of another instance was ended.

Guarantees: one is only made of a record whose origin's last common transaction the speaker has with its chain hash, so
that the instance whose origin was ended can prove it by its own journal.
Leaves to others: what follows for the one that hears it (roles/succession.py), and how it travels (wire). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from replicate.model.transaction import History
from replicate.model.vector import U32_MAX, U64_MAX, Chains, Origin

TAKEOVERS_MAX: Final = 8
"""So many of the newest are told: a site that was away for longer is met by its last record."""


class Takeover(Struct, frozen=True):
    """`name`, `instance` (its UUID, 16 bytes) and `incarnation` took over from the origin with the key `ended`, after
    transaction `after` of the journal. There `ended` stood at its transaction `place`, with the hash `chain`."""

    name: str
    instance: bytes
    incarnation: int
    ended: int
    after: int
    place: int
    chain: int

    @property
    def origin(self) -> int:
        """The key of the origin that began with it."""
        return Origin(self.instance, self.incarnation).key

    @property
    def told(self) -> str:
        """As a part of a sentence."""
        return f"{self.name} (incarnation {self.incarnation}) took over after transaction {self.after}"

    def facts(self) -> dict[str, int | str]:
        """As facts of a refusal."""
        return {
            "took_over": self.name,
            "took_over_instance": self.instance.hex(),
            "took_over_incarnation": self.incarnation,
            "ended": self.ended,
            "after": self.after,
            "place": self.place,
            "chain": self.chain,
        }


def takeovers_of(histories: Iterable[History], chains: Chains) -> tuple[Takeover, ...]:
    """Of a journal's records, oldest first, and its chain hashes of now: of an ended origin that is the last common
    one."""
    wrote: dict[int, bytes] = {}
    found: list[Takeover] = []
    for record in histories:
        ended, instance = record.previous_origin, record.instance
        wrote[record.origin.key] = instance
        place = record.base.last(ended) if ended else 0
        if wrote.get(ended, instance) != instance and ended in chains and chains[ended][0] == place:
            chain = chains[ended][1]
            found.append(Takeover(record.name, instance, record.incarnation, ended, record.seqno - 1, place, chain))
    return tuple(found[-TAKEOVERS_MAX:])


def takeover_from(facts: Mapping[str, object]) -> Takeover | None:
    """What `Takeover.facts` gave, as a peer has sent it; None where it makes no sense, or there is none."""
    name, instance = facts.get("took_over"), facts.get("took_over_instance")
    if type(name) is not str or type(instance) is not str:
        return None
    try:
        raw = bytes.fromhex(instance)
    except ValueError:
        return None
    numbers = [facts.get(word) for word in ("took_over_incarnation", "ended", "after", "place", "chain")]
    limits = (U32_MAX, U32_MAX, U64_MAX - 1, U64_MAX, U64_MAX)
    checked = [one for one, limit in zip(numbers, limits, strict=True) if type(one) is int and 0 <= one <= limit]
    return Takeover(name, raw, *checked) if len(raw) == 16 and len(checked) == len(limits) else None
