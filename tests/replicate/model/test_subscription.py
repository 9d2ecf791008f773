"""model/subscription.py: every state that the moves lead to, from a whole and from a partial secondary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from replicate.limits import PARTITION_STREAM
from replicate.model.subscription import FROZEN, HERE, LOADING, NOT_WANTED, WAITS, Subscription

ALL = (1, 2)
SUBSETS = [(1,), (2,), (1, 2)]


def moves(now: Subscription) -> Iterator[tuple[str, Subscription]]:
    yield "wanting all", now.wanting(None, ALL)
    yield "seeded", now.seeded()
    for some in SUBSETS:
        yield f"wanting {some}", now.wanting(some, ALL)
        yield f"begun {some}", now.begun(some)
        yield f"given up {some}", now.given_up(some)
        yield f"loaded {some}", now.loaded(some)
        yield f"dropped {some}", now.dropped(some)
        yield f"streaming {some}", now.streaming_from(7, some)


def reachable(first: Subscription) -> dict[str, tuple[Subscription, str, Subscription]]:
    """What each move leads to: by its text, (before, the move, after)."""
    seen, waiting, found = {repr(first)}, deque([first]), {}
    while waiting:
        now = waiting.popleft()
        for name, then in moves(now):
            found[f"{now} {name}"] = now, name, then
            if repr(then) not in seen:
                seen.add(repr(then))
                waiting.append(then)
    return found


@pytest.fixture(scope="module")
def steps() -> list[tuple[Subscription, str, Subscription]]:
    whole, partial = reachable(Subscription()), reachable(Subscription((1,), (1,)))
    assert len(partial) > 1000, len(partial)
    return [*whole.values(), *partial.values()]


def test_nothing_becomes_held_but_by_a_load_whose_stream_has_begun_or_a_seed(
    steps: list[tuple[Subscription, str, Subscription]],
) -> None:
    for before, name, after in steps:
        for one in ALL:
            if after.holds(one) and not before.holds(one):
                assert name == "seeded" or (name.startswith("loaded") and before.streamed[one] == 7), (before, name)


def test_only_removing_takes_away_what_is_held(steps: list[tuple[Subscription, str, Subscription]]) -> None:
    for before, name, after in steps:
        for one in ALL:
            if before.holds(one) and not after.holds(one):
                assert name.startswith("wanting") or name == "seeded", (before, name)
                assert after.state(one) in (FROZEN, NOT_WANTED)
                assert one not in after.streamed  # added again, it is loaded again
                assert (after.state(one) == FROZEN) == (name != "seeded")


def test_what_is_asked_for_is_held_or_on_its_way(steps: list[tuple[Subscription, str, Subscription]]) -> None:
    for _, _, now in steps:
        assert (now.asked is None) == (now.held is None)
        assert now.is_unbegun == any(not first for first in now.streamed.values())
        assert now.state(PARTITION_STREAM) == HERE
        for one in ALL:
            state = now.state(one)
            assert (state == HERE) == now.holds(one)
            assert (state == LOADING) == (one in now.loading)
            assert (state == WAITS) <= (now.wants(one) and not now.holds(one))
            if now.asked is not None:
                assert (one in now.asked) == (state in (HERE, LOADING))


def test_a_move_that_does_not_fit_changes_nothing() -> None:
    now = Subscription((1, 2), (1,), {}, (3,))
    same: list[Callable[[Subscription], Subscription]] = [
        lambda one: one.loaded((2,)),
        lambda one: one.begun((1,)),
        lambda one: one.given_up((2, 3)),
        lambda one: one.streaming_from(5, (1, 2)),
        lambda one: one.dropped((1,)),
    ]
    for move in same:
        assert move(now) == now
    begun = now.begun((2,))
    assert begun.loaded((2,)) == begun  # its stream has not begun
    assert begun.streaming_from(5, (1,)) == begun  # which was not asked for it
    assert begun.streaming_from(5, (1, 2)).streaming_from(9, (1, 2)).streamed == {2: 5}
    assert begun.streaming_from(5, (1, 2)).loaded((2,)).held == (1, 2)
    assert Subscription().loaded((1,)) == Subscription()


def test_who_begins_too_early() -> None:
    now = Subscription((1, 2), (1, 2), {2: 10})
    assert now.lacking_below((1, 2), 9) == (2,)
    assert now.lacking_below((1, 2), 10) == ()
    assert now.lacking_below((1,), 1) == ()


T, U = ("main", "t"), ("main", "u")


def test_a_condition_is_in_force_with_a_copy_of_its_tables_rows_only() -> None:
    now = Subscription((1, 2), (1, 2)).filtering(T, "a = 1").filtering(U, "b = 2")
    assert (now.rows, now.held_rows, now.uncopied) == ({T: "a = 1", U: "b = 2"}, {}, (T, U))
    seeded = now.seeded()
    assert (seeded.held_rows, seeded.uncopied) == (now.rows, ())
    other = seeded.filtering(T, "a = 3").filtering(U, None)
    assert (other.held_rows, other.uncopied) == (seeded.held_rows, (T, U))
    tables = {1: [T], 2: [U]}
    same_moves = other.wanting((1, 2), ALL), other.begun((1,), tables), other.given_up((1,)), other.loaded((1,))
    for same in (*same_moves, other.dropped((1,))):
        assert (same.rows, same.held_rows) == (other.rows, other.held_rows)
    begun = other.wanting((1,), ALL).wanting((1, 2), ALL).begun((2,), tables)
    assert (begun.held_rows, begun.uncopied) == ({T: "a = 1"}, (T,))
    # What is wanted meanwhile is not what the stream was begun by.
    meanwhile = begun.filtering(U, "b = 9").begun((2,), tables).streaming_from(7, (1, 2)).loaded((2,))
    assert (meanwhile.held, meanwhile.held_rows, meanwhile.uncopied) == ((1, 2), {T: "a = 1"}, (T, U))
