"""What a supplier sends by two vectors: each case of 389 Directory Server's description by name, then drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from replicate.model.ruv import (
    NOTHING,
    Forked,
    Gone,
    NotHeld,
    NothingToSend,
    OfOrigin,
    Relation,
    Send,
    Supplied,
    compare,
    covers,
    decide,
    lacks,
    minimum,
)
from replicate.model.vector import Chains

A, B, C, D = 1, 2, 3, 4


def at(**places: int) -> dict[int, tuple[int, int]]:
    """A vector: of each origin its last number, and a hash that is the same for the same number."""
    return {globals()[name]: (last, 1000 * globals()[name] + last) for name, last in places.items()}


def answer(consumer: Chains, supplier: Chains, *, begin: Chains | None = None) -> object:
    return decide(consumer, Supplied(supplier, begin or {}))


# Identical sets of origins.


def test_the_same_origins_and_the_consumer_level() -> None:
    assert answer(at(A=3, B=5), at(A=3, B=5)) == NothingToSend()


def test_the_same_origins_and_the_consumer_ahead() -> None:
    assert answer(at(A=9, B=5), at(A=3, B=5)) == NothingToSend()


def test_the_same_origins_and_some_behind() -> None:
    assert answer(at(A=3, B=2, C=7), at(A=3, B=5, C=7)) == Send((B,))


def test_the_same_origins_some_behind_and_some_ahead() -> None:
    assert answer(at(A=9, B=2, C=1), at(A=3, B=5, C=7)) == Send((B, C))


# Others.


def test_an_origin_unknown_to_the_supplier_is_ignored() -> None:
    assert answer(at(A=3, D=8), at(A=3)) == NothingToSend()
    assert answer(at(A=2, D=8), at(A=3)) == Send((A,))


def test_an_origin_unknown_to_the_consumer_is_sent_from_its_first() -> None:
    assert answer(at(A=3), at(A=3, B=5)) == Send((B,))


def test_one_that_has_only_its_opening_record_is_sent_too() -> None:
    assert answer(at(A=3), at(A=3, B=0)) == Send((B,))
    assert answer(at(A=3, B=0), at(A=3, B=0)) == NothingToSend()


def test_of_an_unknown_origin_the_journal_lacks_the_first_ones() -> None:
    assert answer(at(A=3), at(A=3, B=5), begin=at(B=2)) == NotHeld((Gone(B, NOTHING, 3),))


def test_of_a_known_origin_the_journal_lacks_what_comes_next() -> None:
    found = answer(at(A=1, B=1, C=7), at(A=3, B=5, C=7), begin=at(A=1, B=2, C=7))
    assert found == NotHeld((Gone(B, 1, 3),))


def test_the_journal_begins_exactly_where_the_consumer_is() -> None:
    assert answer(at(A=1, B=2), at(A=3, B=5), begin=at(A=1, B=2)) == Send((A, B))


def test_what_is_pruned_and_not_lacked_does_not_matter() -> None:
    assert answer(at(A=9, B=5), at(A=3, B=6), begin=at(A=3, B=5)) == Send((B,))


def test_all_of_these_at_once() -> None:
    assert answer(at(A=3, B=1, D=8), at(A=3, B=5, C=0), begin=at(A=2)) == Send((B, C))


# The consumer's own origin.


def test_the_consumers_own_origin_is_like_any_other() -> None:
    """B is the consumer's: level, ahead of what the supplier has, or behind it."""
    assert answer(at(A=3, B=5), at(A=3, B=5)) == NothingToSend()
    assert answer(at(A=3, B=9), at(A=3, B=5)) == NothingToSend()


def test_of_its_own_it_gets_back_what_a_backup_lost() -> None:
    """The description lets these be lost: it ignores the consumer's own origin for the start."""
    assert answer(at(A=3, B=2), at(A=3, B=5)) == Send((B,))
    assert answer(at(A=3, B=2, C=0), at(A=3, B=5)) == Send((B,))


# Different transactions of one number.


def test_equal_numbers_with_other_hashes_have_forked() -> None:
    supplier = at(A=3, B=5)
    assert answer({**at(B=5), A: (3, 77)}, supplier) == Forked(A, 3, 1003, 77)


def test_a_fork_is_graver_than_what_is_not_held() -> None:
    consumer = {**at(B=2), A: (3, 77)}
    assert isinstance(answer(consumer, at(A=3, B=5), begin=at(B=4)), Forked)


# The parts.


def test_every_origin_is_compared() -> None:
    found = compare(at(A=1, B=5, C=2), {**at(A=1, B=6, D=0), C: (2, 8)})
    assert found == (
        OfOrigin(A, 1, 1, Relation.LEVEL),
        OfOrigin(B, 6, 5, Relation.BEHIND),
        OfOrigin(C, 2, 2, Relation.DIVERGED),
        OfOrigin(D, 0, NOTHING, Relation.UNKNOWN_THERE),
    )
    assert compare(at(A=4, B=1), at(B=1, A=2))[0].relation is Relation.AHEAD
    assert compare(at(A=4), {})[0] == OfOrigin(A, NOTHING, 4, Relation.UNKNOWN_HERE)


PLACES = st.dictionaries(st.integers(1, 5), st.integers(0, 6).map(lambda n: (n, n)), max_size=5)


@given(PLACES, PLACES)
def test_covering_is_lacking_nothing(one: Chains, other: Chains) -> None:
    assert covers(one, other) == all(
        not lacks(one, key, n) for key, (last, _) in other.items() for n in range(last + 1)
    )


def test_who_has_not_met_an_origin_lacks_the_record_that_opens_it() -> None:
    """Which has the number 0."""
    opened_only = at(A=0)
    assert lacks({}, A, 0)
    assert not lacks(opened_only, A, 0)
    assert lacks(opened_only, A, 1)
    assert not covers({}, opened_only)


def test_the_minimum_is_what_all_have() -> None:
    assert minimum([]) == {}
    assert minimum([at(A=3, B=5), at(A=4, B=2, C=1)]) == {A: 3, B: 2}


# A model: replicas that write, and send to each other in sessions that go on while both sides change.


@dataclass
class Replica:
    """`journal`: in order of arrival; `pruned`: how many of its first are gone."""

    journal: list[tuple[int, int]] = field(default_factory=list)
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    pruned: int = 0
    dropped: int = 0

    def take(self, frame: tuple[int, int]) -> None:
        origin, number = frame
        if not lacks(self.known, origin, number):
            self.dropped += 1
            return
        assert number == self.known.get(origin, (NOTHING, 0))[0] + 1, f"{frame} leaves a gap after {self.known}"
        self.journal.append(frame)
        self.known[origin] = (number, 10 * origin + number)

    def before(self, place: int) -> dict[int, tuple[int, int]]:
        known: dict[int, tuple[int, int]] = {}
        for origin, number in self.journal[:place]:
            known[origin] = (number, 10 * origin + number)
        return known


@dataclass
class Session:
    supplier: Replica
    consumer: Replica
    known: dict[int, tuple[int, int]]
    cursor: int


def opened(supplier: Replica, consumer: Replica) -> Session | None:
    """None where the supplier's journal has not got it all. The start is the first lacking frame, whatever segment it
    is found in: no segment that begins with a covered vector hides an earlier one."""
    known = dict(consumer.known)
    found = decide(known, Supplied(supplier.known, supplier.before(supplier.pruned)))
    lacking = [place for place, frame in enumerate(supplier.journal) if lacks(known, *frame)]
    if isinstance(found, NotHeld):
        assert lacking[0] < supplier.pruned
        return None
    assert isinstance(found, Send) == bool(lacking)
    start = lacking[0] if lacking else len(supplier.journal)
    assert start >= supplier.pruned
    assert all(covers(known, supplier.before(place)) for place in range(start + 1))
    return Session(supplier, consumer, known, start)


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("open"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("load"), st.integers(0, 9), st.integers(1, 4)),
    st.tuples(st.just("prune"), st.integers(0, 3), st.integers(1, 3)),
)


@given(st.lists(STEPS, max_size=60))
def test_sessions_send_the_difference_in_causal_order_each_once(steps: Sequence[tuple[str, int, int]]) -> None:
    """Several sources at once, writers on all sides, new origins, buffers that are loaded again: reload cases 1, 2, 3.1
    and 3.2 of the description are one here, for the cursor only rises and all news stands after it."""
    replicas = [Replica() for _ in range(4)]
    sessions: list[Session] = []
    seen_at: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for verb, one, other in steps:
        if verb == "write":
            own = replicas[one].known.get(one + 1, (NOTHING, 0))[0] + 1
            seen_at[one + 1, own] = dict(replicas[one].known)
            replicas[one].take((one + 1, own))
        elif verb == "open" and one != other:
            session = opened(replicas[one], replicas[other])
            if session is not None:
                sessions = [
                    s for s in sessions if s.consumer is not session.consumer or s.supplier is not session.supplier
                ]
                sessions.append(session)
        elif verb == "load" and sessions:
            session = sessions[one % len(sessions)]
            for frame in session.supplier.journal[session.cursor : session.cursor + other]:
                if lacks(session.known, *frame):
                    session.consumer.take(frame)
            session.cursor = min(len(session.supplier.journal), session.cursor + other)
        elif verb == "prune":
            cursors = [s.cursor for s in sessions if s.supplier is replicas[one]]
            replicas[one].pruned = min([replicas[one].pruned + other, len(replicas[one].journal), *cursors])
    for replica in replicas:
        assert len(set(replica.journal)) == len(replica.journal)
        for place, frame in enumerate(replica.journal):
            assert covers(replica.before(place), seen_at[frame]), "it came before what its writer had seen"
    for session in sessions:
        for frame in session.supplier.journal[session.cursor :]:
            if lacks(session.known, *frame):
                session.consumer.take(frame)
        assert covers(session.consumer.known, session.supplier.known)
