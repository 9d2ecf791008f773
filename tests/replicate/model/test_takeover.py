"""A takeover is made of a record that the speaker can prove, and comes through a refusal's facts as it was."""

from __future__ import annotations

import pytest

from replicate.model.takeover import TAKEOVERS_MAX, Takeover, takeover_from, takeovers_of
from replicate.model.transaction import History
from replicate.model.vector import Origin, SynchronizationVector

A, B, C = bytes(16), bytes([1] * 16), bytes([2] * 16)
A1, B2 = Origin(A, 1).key, Origin(B, 2).key


def record(who: bytes, name: str, incarnation: int, previous: int, base: dict[int, int], seqno: int) -> History:
    vector = SynchronizationVector()
    for origin, place in base.items():
        vector = vector.raised(origin, 0, place)
    return History(who, name, incarnation, previous, vector, "because", seqno)


FIRST = record(A, "a", 1, 0, {}, 1)
SECOND = record(B, "b", 2, A1, {A1: 9}, 11)
TAKEN = Takeover("b", B, 2, A1, 10, 9, 77)


def test_a_record_that_ended_another_instances_origin_is_one() -> None:
    assert takeovers_of((FIRST, SECOND), {A1: (9, 77), B2: (3, 5)}) == (TAKEN,)
    assert TAKEN.origin == B2
    assert TAKEN.told == "b (incarnation 2) took over after transaction 10"


@pytest.mark.parametrize("chains", [{}, {A1: (8, 77)}, {A1: (10, 77)}])
def test_what_the_speaker_cannot_prove_is_none(chains: dict[int, tuple[int, int]]) -> None:
    assert takeovers_of((FIRST, SECOND), chains) == ()


def test_an_instance_that_began_again_and_an_unknown_origin_are_none() -> None:
    again = record(A, "a", 2, A1, {A1: 9}, 11)
    stranger = record(B, "b", 2, A1, {A1: 9}, 11)
    assert takeovers_of((FIRST, again), {A1: (9, 77)}) == ()
    assert takeovers_of((stranger,), {A1: (9, 77)}) == ()


def test_the_newest_are_told() -> None:
    histories, chains, previous = [FIRST], {A1: (0, 1)}, A1
    for number in range(2, TAKEOVERS_MAX + 5):
        who = A if number % 2 else B
        histories.append(record(who, "ab"[number % 2 == 0], number, previous, {}, number))
        previous = histories[-1].origin.key
        chains[previous] = (0, number)
    found = takeovers_of(histories, chains)
    assert [one.incarnation for one in found] == list(range(5, TAKEOVERS_MAX + 5))


def test_it_comes_through_facts_as_it_was() -> None:
    facts = TAKEN.facts()
    assert takeover_from(facts) == TAKEN
    assert takeover_from({**facts, "later": 1}) == TAKEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("took_over", 1),
        ("took_over_instance", "zz"),
        ("took_over_instance", "00"),
        ("took_over_instance", 3),
        ("took_over_incarnation", 2**32),
        ("ended", -1),
        ("after", 2**64 - 1),
        ("place", "9"),
        ("chain", True),
        ("chain", None),
    ],
)
def test_facts_that_make_no_sense_are_none(name: str, value: object) -> None:
    assert takeover_from({**TAKEN.facts(), name: value}) is None
    assert takeover_from({}) is None
