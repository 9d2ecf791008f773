"""What a supplier answers a consumer whose vector it cannot serve: the refusals of a start by vector.

Guarantees: each names the origin, both numbers and what to do. Leaves to others: the decision (model/ruv.py), and how
vectors are looked up. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from replicate.errors import ReplicateError
from replicate.model.ruv import Forked, Gone, NotHeld
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode

BY_VECTOR = 0
"""The `next_seqno` of a restart that says: look for the start by my vector. It comes from suppliers alone."""
KNOWN_THERE = "known there"
"""The reason of a NULL record in such a stream that stands for what the consumer is taken to have."""

MERGED_HERE = "merged here"
"""The reason of a transaction told in other words in a supplier's journal: what it came to there as it was merged."""


def refused(decision: NotHeld | Forked, names: Mapping[int, str]) -> ReplicateError:
    """The error of a start that cannot be. `names`: of the instances, by their origins' keys."""
    match decision:
        case NotHeld(gone):
            first = gone[0]
            return refusal(
                RefuseCode.JOURNAL_MISSING,
                "; ".join(_told(one, names) for one in gone[:4]) + ": another supplier may still have them",
                origin=first.origin,
                consumer=max(0, first.consumer),
                held_from=first.held_from,
            )
        case Forked(origin, origin_seqno, ours, theirs):
            return refusal(
                RefuseCode.DIVERGED,
                f"number {origin_seqno} of {_name(origin, names)} is another transaction here ({ours:016x}) than there "
                f"({theirs:016x})",
                origin=origin,
                origin_seqno=origin_seqno,
            )


def _told(gone: Gone, names: Mapping[int, str]) -> str:
    has = f"up to {gone.consumer}" if gone.consumer >= 0 else "nothing"
    return f"of {_name(gone.origin, names)} the consumer has {has}, and this journal begins with {gone.held_from}"


def _name(origin: int, names: Mapping[int, str]) -> str:
    return f"{names[origin]} (origin {origin:08x})" if origin in names else f"origin {origin:08x}"
