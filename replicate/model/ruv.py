"""Replication update vectors: what a supplier has that a consumer lacks, decided by the vectors of both.

A vector says of each origin its last transaction there, and the chain hash of it. A journal is in the order of arrival
and is only appended to, so what a consumer lacks is looked for once, at the start: from the first frame that its vector
does not cover. All that comes later stands after that place.

Guarantees: what one side alone knows is normal, and never a refusal: the consumer's own news, an origin that only one
has met. Two different transactions of one number are DIVERGED; what the supplier's journal has no more is named, origin
by origin. A record that opens an incarnation (number 0 of its origin) counts as known where its hash is.
Leaves to others: journals, connections, who asks. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from replicate.model.vector import Chains

NOTHING: Final = -1
"""Where an origin stands that was never met, not even by the record that opens it."""


class Relation(Enum):
    """Of one origin: what the consumer has of it, beside what the supplier has."""

    LEVEL = "level"
    BEHIND = "behind"
    AHEAD = "ahead"
    UNKNOWN_THERE = "unknown to the consumer"
    UNKNOWN_HERE = "unknown to the supplier"
    DIVERGED = "diverged"


class Supplied(Struct, frozen=True):
    """What a supplier has: `end`, its vector now, and `begin`, its vector just before the oldest transaction that its
    journal still holds (389 Directory Server's minRUV, less one)."""

    end: Chains
    begin: Chains


class OfOrigin(Struct, frozen=True):
    """One origin on both sides: the number of its last transaction there, NOTHING where it was never met."""

    origin: int
    supplier: int
    consumer: int
    relation: Relation

    @property
    def is_sent(self) -> bool:
        """Whether the consumer lacks something of it that the supplier has."""
        return self.relation in (Relation.BEHIND, Relation.UNKNOWN_THERE)


class NothingToSend(Struct, frozen=True):
    """The consumer has all that the supplier has, or more."""


class Send(Struct, frozen=True):
    """The consumer lacks something of each of these origins, and the journal holds all of it."""

    origins: tuple[int, ...]


class Gone(Struct, frozen=True):
    """Of one origin the journal begins after number `held_from` - 1; the consumer has it up to `consumer`."""

    origin: int
    consumer: int
    held_from: int


class NotHeld(Struct, frozen=True):
    """The consumer lacks what the supplier's journal holds no more: another supplier may still have it."""

    gone: tuple[Gone, ...]


class Forked(Struct, frozen=True):
    """Both have number `origin_seqno` of that origin, and it is not the same transaction."""

    origin: int
    origin_seqno: int
    supplier_chain: int
    consumer_chain: int


Decision = NothingToSend | Send | NotHeld | Forked


def lacks(known: Chains, origin: int, origin_seqno: int) -> bool:
    """Whether one that knows that much has not got the transaction of that number."""
    return known.get(origin, (NOTHING, 0))[0] < origin_seqno


def covers(known: Chains, other: Chains) -> bool:
    """Whether one that knows that much has all that `other` says."""
    return not any(lacks(known, origin, last) for origin, (last, _) in other.items())


def compare(consumer: Chains, supplier: Chains) -> tuple[OfOrigin, ...]:
    """Every origin that either side has met, by its key."""
    return tuple(
        OfOrigin(
            origin,
            supplier.get(origin, (NOTHING, 0))[0],
            consumer.get(origin, (NOTHING, 0))[0],
            _relation(consumer.get(origin), supplier.get(origin)),
        )
        for origin in sorted({*consumer, *supplier})
    )


def _relation(consumer: tuple[int, int] | None, supplier: tuple[int, int] | None) -> Relation:
    if supplier is None:
        return Relation.UNKNOWN_HERE
    if consumer is None:
        return Relation.UNKNOWN_THERE
    if consumer[0] != supplier[0]:
        return Relation.BEHIND if consumer[0] < supplier[0] else Relation.AHEAD
    return Relation.LEVEL if consumer[1] == supplier[1] else Relation.DIVERGED


def decide(known: Chains, supplied: Supplied) -> Decision:
    """What the supplier does for a consumer that knows that much; the gravest answer first.

    1. Is there a number of one origin under which they have different transactions? Their pasts fork.
    2. Does the consumer lack what the journal holds no more? Another supplier, or a seed.
    3. Does it lack anything? Send; else there is nothing to send.

    What the consumer writes itself is an origin like any other. It may have written more since it said what it has, so
    less of it than here says nothing; that it lacks what it should have written shows when it comes.
    """
    lacking = []
    for one in compare(known, supplied.end):
        if one.relation is Relation.DIVERGED:
            ours, theirs = supplied.end[one.origin][1], known[one.origin][1]
            return Forked(one.origin, one.consumer, ours, theirs)
        if one.is_sent:
            lacking.append(one)
    gone = tuple(
        Gone(one.origin, one.consumer, supplied.begin[one.origin][0] + 1)
        for one in lacking
        if one.origin in supplied.begin and lacks(known, one.origin, supplied.begin[one.origin][0])
    )
    if gone:
        return NotHeld(gone)
    return Send(tuple(one.origin for one in lacking)) if lacking else NothingToSend()


def minimum(rows: Iterable[Chains]) -> Mapping[int, int]:
    """Of each origin the number up to which all of them have it; an origin that one has not met is left out. Empty for
    no rows."""
    rows = tuple(rows)
    if not rows:
        return {}
    met = set(rows[0]).intersection(*rows[1:])
    return {origin: min(row[origin][0] for row in rows) for origin in sorted(met)}
