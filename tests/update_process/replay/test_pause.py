"""A replay at a barrier: whenever it is set, nothing goes beyond it while it stands, and its number is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from replicate.door.barrier import Barrier
from replicate.door.door import Door
from replicate.door.snapshot import door_of, take_snapshot
from replicate.journal.prepared_segment import AsideSegment
from replicate.pool import control as word
from replicate.system import failpoint
from tests.harness.pair import Pair, run
from tests.harness.replaying import assert_equal, replayed
from update_process.replay.apply import Progress

COUNT = 10
LOOKS = 3
"""So often a replay is seen to stand still, before the barrier is lifted."""


@dataclass
class Holder:
    """A compare's part: sets a barrier when it is told, looks where the replay stands, and lifts it."""

    door: Door
    barrier: Barrier
    steps: list[int | None]
    """Numbers to hold at, one after another; None: where it stands."""
    stood: list[int] = field(default_factory=list)

    def last_seqno(self) -> int:
        return int(self.door.words[word.LAST_SEQNO])

    def set(self) -> None:
        seqno = self.steps.pop(0)
        if seqno is None:
            self.barrier.hold()
        else:
            self.barrier.raise_to(seqno)

    def told(self, progress: Progress) -> None:
        if progress.what != "held by a compare or digest":
            return
        with take_snapshot(self.door, timeout_s=10) as snapshot:  # anybody who holds it does so for this
            assert snapshot is not None
            assert snapshot.seqno == self.last_seqno()
        self.stood.append(self.last_seqno())
        if len(self.stood) % LOOKS:
            return
        if self.steps:
            self.set()
        else:
            self.barrier.lift()


@pytest.fixture
def holder(pair: Pair) -> Iterator[Holder]:
    with door_of(pair.secondary) as door, Barrier(door, timeout_s=600) as barrier:
        yield Holder(door, barrier, [])
    failpoint.disarm()


def write(pair: Pair) -> int:
    """Transactions that are one piece; the number before them."""
    before = pair.last_seqno(pair.secondary)
    assert run(pair, *(f"UPDATE account SET balance = {number}" for number in range(COUNT))) == before + COUNT
    return before


def at_failpoint(name: str) -> Callable[[Holder, pytest.MonkeyPatch], None]:
    return lambda holder, _patch: failpoint.watch(name, 1, holder.set)


def at_the_last_sync(holder: Holder, patch: pytest.MonkeyPatch) -> None:
    """After the last look that a replay takes without the commit lock."""
    finish = AsideSegment.finish

    def finished(aside: AsideSegment) -> None:
        finish(aside)
        if holder.steps:
            holder.set()

    patch.setattr(AsideSegment, "finish", finished)


MOMENTS: dict[str, Callable[[Holder, pytest.MonkeyPatch], None]] = {
    "before it begins": lambda holder, _patch: holder.set(),
    "while it reads": at_failpoint("replay.read"),
    "while it applies": at_failpoint("replay.changing"),
    "when it has applied": at_failpoint("replay.applied"),
    "an instant before the commit": at_the_last_sync,
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("ahead", [None, 4])
def test_nothing_is_committed_beyond_a_barrier(
    pair: Pair, holder: Holder, moment: str, ahead: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(pair)
    holder.steps = [None if ahead is None else before + ahead]
    MOMENTS[moment](holder, monkeypatch)
    done = replayed(pair, told=holder.told)
    assert holder.stood == [before + (ahead or 0)] * LOOKS
    assert done.seqno == before + COUNT
    assert (done.transactions, done.changes) == (COUNT, COUNT * 3)
    assert done.pieces == (2 if ahead else 1)
    assert_equal(pair)


def test_a_barrier_at_or_after_the_end_holds_nobody(pair: Pair, holder: Holder) -> None:
    before = write(pair)
    holder.steps = [before + COUNT]
    holder.set()
    assert replayed(pair, told=holder.told).pieces == 1
    assert not holder.stood
    assert holder.last_seqno() == before + COUNT


def test_held_and_then_let_go_up_to_a_number(pair: Pair, holder: Holder) -> None:
    """As a compare does it: it holds the secondary, looks where the primary is, and lets the other go there."""
    before = write(pair)
    holder.steps = [None, before + 3, before + 4]
    failpoint.watch("replay.applied", 1, holder.set)
    replayed(pair, told=holder.told)
    assert holder.stood == [before] * LOOKS + [before + 3] * LOOKS + [before + 4] * LOOKS
    assert_equal(pair)


def test_what_is_applied_alone_stands_still_too(pair: Pair, holder: Holder) -> None:
    before = pair.last_seqno(pair.secondary)
    run(pair, "CREATE TABLE more (a)")
    connection = pair.connect()
    connection.executemany("INSERT INTO entry VALUES (?, 1.0, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
    connection.commit()
    connection.close()
    last = run(pair, "INSERT INTO more VALUES (1)")
    assert last == before + 3
    holder.steps = [None]
    holder.set()
    # When the schema change is through, it is held again, in the midst of the large transaction.
    failpoint.watch("replay.alone", 1, lambda: holder.steps.append(before + 1))
    failpoint.watch("replay.large", 1, holder.set)
    replayed(pair, told=holder.told)
    assert holder.stood == [before] * LOOKS + [before + 1] * LOOKS
    assert_equal(pair)


def test_a_dry_run_is_not_held_and_an_expired_barrier_holds_nobody(pair: Pair, holder: Holder) -> None:
    before = write(pair)
    holder.steps = [None]
    holder.set()
    assert replayed(pair, told=holder.told, dry_run=True).seqno == before + COUNT
    assert not holder.stood
    holder.door.words[word.BARRIER_EXPIRES_NS] = 1
    assert replayed(pair, told=holder.told).seqno == before + COUNT
    assert not holder.stood


def test_ctrl_c_ends_the_wait(pair: Pair, holder: Holder) -> None:
    before = write(pair)
    holder.steps = [None]
    holder.set()

    def told(progress: Progress) -> None:
        if progress.what.startswith("held"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replayed(pair, told=told)
    assert holder.last_seqno() == before
    holder.barrier.lift()
    replayed(pair)
    assert_equal(pair)
