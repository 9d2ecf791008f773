"""The refusals of a start by vector name the origin, both numbers, and what to do."""

from __future__ import annotations

import pytest

from replicate.errors import DivergedError, HardResyncNeededError, ReplicateError
from replicate.model.ruv import NOTHING, Forked, Gone, NotHeld
from replicate.wire.introduction import as_refuse, refusal_from_peer
from replicate.wire.vector_refusals import refused

NAMES = {7: "east"}


@pytest.mark.parametrize(
    ("decision", "kind", "says"),
    [
        (
            NotHeld((Gone(7, 3, 9), Gone(8, NOTHING, 2))),
            HardResyncNeededError,
            "of east (origin 00000007) the consumer has up to 3, and this journal begins with 9; of origin 00000008 "
            "the consumer has nothing, and this journal begins with 2: another supplier may still have them",
        ),
        (Forked(7, 5, 0xAB, 0xCD), DivergedError, "number 5 of east (origin 00000007) is another transaction here"),
    ],
    ids=["not held", "forked"],
)
def test_each_says_what_it_is_on_both_sides(decision: NotHeld | Forked, kind: type[ReplicateError], says: str) -> None:
    error = refused(decision, NAMES)
    assert isinstance(error, kind)
    assert says in error.what
    assert "replicate help suppliers" in error.do
    assert "seed --restart" not in error.do, "which a supplier refuses"
    there = refusal_from_peer(as_refuse(error), "east")
    assert type(there) is type(error)
    assert (there.facts["reason"], there.do) == (error.facts["reason"], error.do)
