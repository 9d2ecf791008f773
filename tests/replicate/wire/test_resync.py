"""Where a source can serve a secondary: one test for each answer, and a model of two real histories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import DivergedError, HardResyncNeededError, RollbackNeededError
from replicate.model.transaction import History
from replicate.model.vector import Origin, Position, SynchronizationVector
from replicate.wire.codec import encode
from replicate.wire.introduction import as_refuse
from replicate.wire.message import Restart
from replicate.wire.resync import (
    Decision,
    Diverged,
    JournalMissing,
    LargeHead,
    RollbackFirst,
    SecondaryAhead,
    SourceView,
    StartAt,
    decide,
    is_reachable,
)

A1 = Origin(b"a" * 16, 1).key
B1 = Origin(b"b" * 16, 1).key
C1 = Origin(b"c" * 16, 1).key


def path(*origins: int, salt: int = 0) -> list[Position]:
    """Positions 0..n of a journal whose n-th transaction is of the n-th origin."""
    positions = [Position()]
    for seqno, origin in enumerate(origins, 1):
        last = positions[-1]
        number, chain = last.chains.get(origin, (0, 0))
        positions.append(last.advanced(seqno, origin, number + 1, hash((chain, number, salt)) & (2**64 - 1)))
    return positions


def asks(position: Position, **more: int) -> Restart:
    return Restart(position.last_seqno + 1, position.vector, position.chains, **more)  # type: ignore[arg-type]


def view(
    positions: list[Position], restart: Restart, oldest: int = 1, histories: tuple[History, ...] = ()
) -> SourceView:
    last = positions[-1].last_seqno
    before = positions[restart.next_seqno - 1] if is_reachable(restart, last, oldest) else None
    return SourceView(positions[-1], oldest, histories, before)


def answer(ours: list[Position], theirs: Position, oldest: int = 1, histories: tuple[History, ...] = ()) -> Decision:
    restart = asks(theirs)
    return decide(restart, view(ours, restart, oldest, histories))


def test_every_place_in_a_common_past_is_a_start() -> None:
    ours = path(A1, A1, B1, A1, B1)
    for theirs in ours:
        assert answer(ours, theirs) == StartAt(theirs.last_seqno + 1, 0)


def test_a_new_secondary_starts_at_one_or_must_be_seeded() -> None:
    assert answer([Position()], Position()) == StartAt(1, 0)
    decision = answer(path(*[A1] * 9), Position(), oldest=4)
    assert decision == JournalMissing(1, 4)
    assert isinstance(decision.error(), HardResyncNeededError)
    assert "wants transaction 1" in str(decision.error())
    assert "begins at 4" in str(decision.error())


def test_the_oldest_transaction_is_still_there_and_the_one_before_it_is_not() -> None:
    ours = path(*[A1] * 9)
    assert answer(ours, ours[3], oldest=4) == StartAt(4, 0)
    assert answer(ours, ours[2], oldest=4) == JournalMissing(3, 4)
    assert answer(ours, ours[9], oldest=10) == StartAt(10, 0)


def test_the_secondary_has_more_of_the_living_origin() -> None:
    """Fault 13 (REPLAHEAD): the primary lost its tail."""
    ours = path(*[A1] * 5)
    decision = answer(ours[:4], ours[5])
    assert decision == RollbackFirst(A1, 5, 3, more_from=4)
    assert "has more begins in its journal at N = 4" in str(decision.error())
    assert "rollback" not in str(decision.error()), "the secondary has the only copy"
    assert isinstance(decision.error(), RollbackNeededError)


def test_the_secondary_was_primary_and_has_what_nobody_took_over() -> None:
    """Fault 12, 75: the old primary returns, ahead of the point at which the other site took over."""
    common = path(*[A1] * 990)
    took_over = History(b"b" * 16, "oslo", 1, A1, common[990].vector, "promote", 991)
    ours = path(*[A1] * 990, *[B1] * 100)
    decision = answer(ours, path(*[A1] * 1000)[-1], histories=(took_over,))
    assert decision == RollbackFirst(A1, 1000, 990, "oslo", 991)
    assert "up to 1000" in str(decision.error())
    assert "ends at 990, where oslo took over (replicate -i SECONDARY rollback --to 990 keeps" in str(decision.error())
    assert "at N = 991. Look at what the secondary has more" in str(decision.error())
    assert answer(ours, common[990], histories=(took_over,)) == StartAt(991, 0)


def test_the_secondary_knows_an_origin_that_the_source_never_met() -> None:
    """Fault 80: both were primary."""
    decision = answer(path(A1, A1, A1, A1, A1), path(A1, A1, C1)[-1])
    assert decision == RollbackFirst(C1, 1, 0)


def test_the_origin_that_parted_first_is_named_and_the_others_with_it() -> None:
    """T3: an old primary that has raised its own incarnation since; whose key is less is chance."""
    common = path(*[A1] * 22)
    for others in ((C1,), (Origin(b"0" * 16, 7).key, C1)):
        for ended in (A1, C1):  # of which the source knows the end
            known = path(*[ended] * 22)
            took_over = History(b"b" * 16, "oslo", 1, ended, known[22].vector, "promote", 23)
            ours = path(*[ended] * 22, *[B1] * 10)
            unmet = [one for one in (A1, *others) if one != ended]
            decision = answer(ours, path(*[ended] * 25, *unmet)[-1], histories=(took_over,))
            assert isinstance(decision, RollbackFirst)
            assert (decision.origin, decision.more_from, decision.ended_by) == (ended, 23, "oslo")
            assert sorted(decision.others) == sorted((one, 0) for one in unmet)
            facts = dict(as_refuse(decision.error()).facts)
            assert facts["ended_by"] == "oslo"
            assert {facts["origin_1"]} <= set(unmet)
            assert facts["common_1"] == 0
    assert common


def test_more_origins_than_a_refusal_can_carry() -> None:
    many = [Origin(bytes([number]) * 16, 1).key for number in range(1, 20)]
    decision = answer(path(A1), path(A1, *many)[-1])
    assert isinstance(decision, RollbackFirst)
    assert len(decision.others) == 18
    encode(as_refuse(decision.error()))


def test_an_origin_that_has_written_nothing_but_its_beginning() -> None:
    """The secondary was primary for a moment: its record of that stands where the source has another one."""
    ours = path(A1, A1, B1, B1)
    alone = Position(3, ours[2].vector, {**ours[2].chains, C1: (0, 99)})
    assert answer(ours, alone) == RollbackFirst(C1, 0, 0)
    took_over = History(b"c" * 16, "oslo", 1, A1, ours[2].vector, "promote", 3)
    known = SourceView(ours[4], 1, (took_over,), Position(3, ours[2].vector, {**ours[2].chains, C1: (0, 99)}))
    assert not isinstance(decide(asks(alone), known), RollbackFirst)


def test_ahead_in_number_alone() -> None:
    ours = path(A1, A1)
    restart = Restart(9, ours[2].vector, ours[2].chains)
    decision = decide(restart, view(ours, restart))
    assert decision == SecondaryAhead(8, 2)
    assert "8" in str(decision.error())
    assert isinstance(decision.error(), RollbackNeededError)


def test_equal_numbers_with_other_content() -> None:
    ours, theirs = path(A1, A1, A1), path(A1, A1, A1, salt=1)
    decision = answer(ours, theirs[2])
    assert isinstance(decision, Diverged)
    assert isinstance(decision.error(), DivergedError)
    assert f"{ours[2].chains[A1][1]:016x}" in str(decision.error())
    assert f"{theirs[2].chains[A1][1]:016x}" in str(decision.error())


def test_the_same_seqno_with_other_origins() -> None:
    assert isinstance(answer(path(A1, B1, A1, B1), path(A1, A1)[-1]), Diverged)
    # A secondary that lacks an origin which the source has at that place is no prefix either.
    ours = path(A1, B1, A1)
    restart = Restart(3, path(A1)[-1].vector, path(A1)[-1].chains)
    assert isinstance(decide(restart, view(ours, restart)), Diverged)


def test_a_chain_row_that_contradicts_the_vector() -> None:
    ours = path(A1, A1, A1)
    restart = replace(asks(ours[2]), chains={A1: (1, ours[1].chains[A1][1])})
    assert isinstance(decide(restart, view(ours, restart)), Diverged)
    restart = replace(asks(ours[2]), chains={})
    assert isinstance(decide(restart, view(ours, restart)), Diverged)


def test_hashes_that_the_source_no_longer_holds() -> None:
    ours = path(A1, B1, A1, B1)
    restart = asks(ours[3])
    source = view(ours, restart)
    assert source.before_restart is not None
    only_a = replace(source.before_restart, chains={A1: ours[3].chains[A1]})
    assert decide(restart, replace(source, before_restart=only_a)) == StartAt(4, 0)
    nothing = replace(source.before_restart, chains={})
    # A's last one is still the newest of A, so the end of the journal knows its hash.
    assert decide(restart, replace(source, before_restart=nothing)) == StartAt(4, 0)
    restart = asks(ours[2])
    nothing = replace(ours[2], chains={})
    decision = decide(restart, SourceView(ours[4], 1, (), nothing))
    assert decision == JournalMissing(3, 1)
    assert "cannot prove" in str(decision.error())
    assert decide(restart, SourceView(ours[4], 1, (), None)) == JournalMissing(3, 1)


def test_a_history_record_without_a_transaction_needs_no_proof() -> None:
    begun = Position(1, SynchronizationVector(), {A1: (0, 77)})
    assert decide(Restart(2), SourceView(begun, 1, (), begun)) == StartAt(2, 0)
    assert decide(Restart(2, chains={A1: (0, 77)}), SourceView(begun, 1, (), begun)) == StartAt(2, 0)
    assert isinstance(decide(Restart(2, chains={A1: (0, 78)}), SourceView(begun, 1, (), begun)), Diverged)


@pytest.mark.parametrize(
    ("large", "part"),
    [(LargeHead(99, 10), 4), (LargeHead(99, 4), 4), (LargeHead(99, 3), 0), (LargeHead(98, 10), 0), (None, 0)],
)
def test_parts_go_on_only_in_the_same_large_transaction(large: LargeHead | None, part: int) -> None:
    ours = path(A1, A1, A1)
    restart = asks(ours[1], next_part=4, token=99)
    assert decide(restart, replace(view(ours, restart), large=large)) == StartAt(2, part)


ORIGINS = st.lists(st.sampled_from([A1, B1, C1]), max_size=12)


@given(ORIGINS, ORIGINS, ORIGINS, st.integers(0, 24), st.integers(1, 26))
def test_a_start_is_only_ever_given_to_a_prefix(
    common: list[int], ours_only: list[int], theirs_only: list[int], at: int, oldest: int
) -> None:
    """Two histories with a common beginning; each goes on alone with content of its own."""
    ours = path(*common, *ours_only)
    theirs = path(*common, *theirs_only) if theirs_only else ours
    tail = path(*common)
    for seqno, origin in enumerate(theirs_only, len(common) + 1):
        number, chain = tail[-1].chains.get(origin, (0, 0))
        tail.append(tail[-1].advanced(seqno, origin, number + 1, (chain ^ 0xDEAD_BEEF) + 1 & (2**64 - 1)))
    theirs = tail if theirs_only else ours
    position = theirs[min(at, len(theirs) - 1)]
    oldest = min(oldest, len(ours))
    decision = answer(ours, position, oldest)
    is_prefix = position.last_seqno <= len(common) or not theirs_only
    if is_prefix and position.last_seqno + 1 >= oldest:
        assert decision == StartAt(position.last_seqno + 1, 0)
    elif is_prefix:
        assert decision == JournalMissing(position.last_seqno + 1, oldest)
    else:
        assert not isinstance(decision, StartAt)
        assert decision.error().do
