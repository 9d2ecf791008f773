"""Whether what came of an origin is taken: who may write what, retired ones, our own incarnation, clocks."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from replicate.door.snapshot import door_of
from replicate.errors import (
    ClockAheadError,
    DivergedError,
    NotFoundError,
    NotWriterError,
    PoolReplacedError,
    TurnedBackError,
)
from replicate.journal.record import Head, pack_null
from replicate.model.moment import first_csn, wall_ns
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.settings.table import UpdateConfig
from tests.harness.suppliers import Suppliers, last_head, work_through, write_later
from update_process.supplied_transactions import SupplierApplier
from update_process.work_result import Waiting


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def test_a_change_of_what_its_origin_does_not_write_is_refused(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was restored would send it."""
    with monkeypatch.context() as patch:
        patch.setattr("replicate.door.writer_check.WriterCheck.refuse_others", lambda *_: None)
        two.write("b", 1, table="ta")
    with pytest.raises(NotWriterError, match="has changed partition DEFAULT, which another supplier writes"):
        two.carry("b", "a")
    assert two.rows("a")["ta"] == []


def work_asking_again(two: Suppliers, pool: ReceivePool, applier: SupplierApplier) -> None:
    """One that begins with what is not to be taken asks what a has now."""
    while work_through(applier).waiting is Waiting.RESTART:
        pool.restart(0)
        two.offer("a", pool, two.agreed("a", "b"))


@pytest.mark.parametrize("size", [10, 2_000_000], ids=["small", "large"])
def test_a_transaction_from_the_future_stops_us_until_that_is_allowed(
    size: int, two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before it is applied, and our own transactions do not bear its time."""
    two.write("a", 2)
    write_later(two, 2, monkeypatch, size=size)
    agreed = two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        two.offer("a", pool, agreed)
        for _ in range(2):
            with (
                two.applier("b", pool) as applier,
                pytest.raises(ClockAheadError, match=r"of a bears the time .* too far ahead of this host"),
            ):
                work_asking_again(two, pool, applier)
            assert len(two.rows("b")["ta"]) == 2
    two.write("b")
    with door_of(two.by["b"]) as door:
        assert wall_ns(door.words[word.LAST_CSN]) < time.time_ns() + 3_600_000_000_000
    agreed = two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        two.offer("a", pool, agreed)
        with two.applier("b", pool, UpdateConfig(clock_ahead_max_s=3 * 86_400)) as applier:
            work_through(applier)
    assert len(two.rows("b")["ta"]) == 3
    two.level()
    two.assert_converged()


def take_forged(two: Suppliers, head: Head, settings: UpdateConfig | None = None) -> None:
    """b gets one record that bears this head, after all that a has."""
    agreed = two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool:
        with two.applier("b", pool, settings) as applier:
            while True:
                pool.offer(pack_null(head, "x", ()), head.seqno, head.seqno, 1, RecordKind.FRAMES)
                if work_through(applier).waiting is not Waiting.RESTART:
                    break
                pool.restart(0)


def test_another_transaction_of_the_same_number_is_diverged(two: Suppliers) -> None:
    two.write("a", 2)
    two.carry("a", "b")
    head = last_head(two, "a")
    with pytest.raises(DivergedError, match="one transaction here and another"):
        take_forged(two, head._replace(chain=head.chain ^ 1))


def test_an_origin_that_nobody_has_announced_is_refused_by_name(two: Suppliers) -> None:
    two.write("a", 2)
    two.carry("a", "b")
    head, before = last_head(two, "a"), two.vector("b")
    with pytest.raises(NotFoundError, match="of origin 12345678 came, and no record has said who that is"):
        take_forged(two, head._replace(seqno=head.seqno + 1, origin=0x12345678, origin_seqno=1))
    assert dict(two.vector("b")) == dict(before)
    two.write("a")
    two.level()
    two.assert_converged()


def test_what_it_should_have_written_itself_is_never_taken(two: Suppliers) -> None:
    """Also where it comes whole, and is just the next one: an application may take that number at any moment."""
    two.write("b", 2)
    two.level()
    head, own, before = last_head(two, "a"), last_head(two, "b"), two.vector("b")
    forged = own._replace(seqno=head.seqno + 1, origin_seqno=own.origin_seqno + 1)
    with pytest.raises(TurnedBackError, match="a source has more of what b writes itself than b has"):
        take_forged(two, forged)
    assert dict(two.vector("b")) == dict(before)


@pytest.mark.parametrize("after", [1, 2])
def test_what_it_has_written_since_its_pool_was_made_again_is_not_taken_for_more(two: Suppliers, after: int) -> None:
    """As after a failed disk: its session knows nothing of that, and says so."""
    two.write("b", 2)
    two.level()
    two.write("a")
    agreed = two.agreed("a", "b")
    with two.receive_pool("b", agreed.from_seqno) as pool, two.applier("b", pool) as applier:
        two.offer("a", pool, agreed)
        work_through(applier)
        head, own = last_head(two, "a"), last_head(two, "b")
        own = own._replace(
            origin=two.by["b"].content.origin.key, origin_seqno=dict(two.vector("b"))[two.by["b"].content.origin.key][0]
        )
        applier.session.door.poison(errno.EIO)
        two.write("b", after)
        came = own._replace(seqno=head.seqno + 1, origin_seqno=own.origin_seqno + after)
        pool.offer(pack_null(came, "x", ()), came.seqno, came.seqno, 1, RecordKind.FRAMES)
        with pytest.raises(PoolReplacedError):
            work_through(applier)
    two.level()
    two.assert_converged()


def test_a_time_from_2100_on_is_never_taken_whatever_is_allowed(two: Suppliers) -> None:
    two.write("a", 2)
    two.carry("a", "b")
    head, before = last_head(two, "a"), two.vector("b")
    late = first_csn(4_102_444_800_000_000)
    forged = head._replace(seqno=head.seqno + 1, origin_seqno=head.origin_seqno + 1, csn=late)
    with pytest.raises(ClockAheadError, match="of a bears the time 2100-01-01 00:00:00"):
        take_forged(two, forged, UpdateConfig(clock_ahead_max_s=100 * 366 * 86_400))
    assert dict(two.vector("b")) == dict(before)
