"""The next batch, which is put off while the one before it is being committed: it is as if it had been taken later."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from receiver_server.flow import Flow
from replicate.door.barrier import Barrier
from replicate.errors import BusyError, ConflictError, DamagedError, DiskFullError
from replicate.journal import walk as cutting
from replicate.limits import FRAME_BYTES_MAX, RECEIVE_POOL_BYTES_MIN
from replicate.pool.ring import HEAD_BYTES
from replicate.settings.load import Config
from replicate.settings.table import JournalConfig, ReceiverConfig, UpdateConfig
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.instances import lose_pool
from tests.harness.pair import Pair, assert_equal, run, work_all
from tests.harness.waiting import wait_until
from tests.update_process.conftest import ROWS
from update_process import applier as applying
from update_process.applier import Applier
from update_process.batch import open_batch as opening
from update_process.batch.open_batch import OpenBatch, most_bytes
from update_process.work_result import Waiting

BATCH = UpdateConfig(batch_transactions=100)

pytestmark = pytest.mark.usefixtures("small_windows")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


@pytest.fixture
def pair(filled: Pair) -> Pair:
    """The primary has 350 random updates more."""
    update(filled, 350)
    return filled


def update(pair: Pair, count: int, column: str = "balance") -> None:
    dice = random.Random(count)
    run(pair, *(f"UPDATE account SET {column} = {n} WHERE id = {dice.randint(1, ROWS)}" for n in range(count)))


def ahead(applier: Applier, monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None] | None = None) -> list[int]:
    """Of each commit beside which it is read on: how many transactions are put off when it ends. `then`: called with
    the commit's number (from 1) when they are."""
    found: list[int] = []
    real, real_ahead = applier._commit_batch, applier._take_ahead
    after: list[Any] = []

    def take_ahead(window: Any, batch: Any, limit: int) -> bool:
        after.append(batch)
        return real_ahead(window, batch, limit)

    def commit(batch: Any) -> None:
        if applier._is_beside:
            # The other thread reads on until there is no more, or no more room.
            unread = applier._intake.pool.last_received_seqno - batch.position.last_seqno
            wanted = min(unread, applier._settings.batch_transactions)
            next_seqno = batch.position.last_seqno + 1

            def count() -> int:
                return max((one.transactions for one in after if one.first_seqno == next_seqno), default=0)

            wait_until(lambda: count() >= wanted, what="it is read on")
            found.append(count())
            if then is not None:
                then(len(found))
        real(batch)

    monkeypatch.setattr(applier, "_commit_batch", commit)
    monkeypatch.setattr(applier, "_take_ahead", take_ahead)
    return found


def test_what_is_read_beside_a_commit_is_the_next_batch(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            found = ahead(applier, monkeypatch)
            done = work_all(applier)
            assert found == [100, 100, 50]
            assert (done.batches, done.transactions, done.waiting) == (4, 350, Waiting.NOTHING)
            assert pool.used_bytes == 0
    assert_equal(pair)


@pytest.mark.parametrize("is_long", [True, False])
def test_beside_a_long_batch_what_arrives_late_is_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """When the batch ended, since there was no more, and not since it was full."""
    monkeypatch.setattr(opening, "LONG_BYTES", 10_000 if is_long else 10_000_000)
    after: list[int] = []
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, upto=first + 200, record_bytes=2000)
        with pair.applier(pool) as applier:
            real = applier._commit_batch

            def commit(batch: Any) -> None:
                if not after:
                    after.append(batch.transactions)
                    pair.deliver(pool, record_bytes=2000)
                    if applier._is_beside:
                        wait_until(lambda: applier._next is not None and applier._next.transactions >= 150, what="read")
                        after.append(150)
                real(batch)

            monkeypatch.setattr(applier, "_commit_batch", commit)
            done = work_all(applier)
            assert after == [200, 150][: 1 + is_long]
            assert done.waiting is Waiting.NOTHING
            assert (done.transactions, done.batches) == (350, 2)
    assert_equal(pair)


def test_what_cannot_be_read_beside_a_commit_is_tried_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    looked: list[int] = []
    seen: list[int] = []
    asked = [0]

    def refuse(window: Any, _batch: Any, _limit: int) -> bool:
        tried.append(window)
        return False

    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            read_on, real, peek = applier._read_on, applier._commit_batch, applier._intake.peek

            def counted(*arguments: Any) -> bool:
                asked[0] += 1
                return read_on(*arguments)

            def commit(batch: Any) -> None:
                if applier._is_beside and not seen:
                    wait_until(lambda: asked[0] > 50, what="it is asked again and again")
                    seen.append(asked[0])
                    assert len(tried) == 1
                    assert len(looked) == len(set(looked))
                real(batch)

            def peeked(room_bytes: int) -> Any:
                if applier._is_beside:
                    looked.append(applier._intake._borders[-1][1])
                return peek(room_bytes)

            monkeypatch.setattr(applier, "_take_ahead", refuse)
            monkeypatch.setattr(applier, "_read_on", counted)
            monkeypatch.setattr(applier, "_commit_batch", commit)
            monkeypatch.setattr(applier._intake, "peek", peeked)
            assert work_all(applier).transactions == 350
    assert seen
    assert looked
    assert_equal(pair)


@pytest.mark.parametrize("percent", [10, 50, 90, 95])
def test_two_batches_are_in_the_pool_before_the_source_is_told_to_pause(percent: int) -> None:
    config = replace(Config(), receiver=ReceiverConfig(xoff_percent=percent, xon_percent=5))
    pool_bytes = config.receiver.pool_bytes
    most = most_bytes(config.update, config, pool_bytes)
    assert 0.95 * percent <= 100 * 2 * most / pool_bytes < percent
    boundless = replace(config, journal=JournalConfig(segment_bytes=2**32), update=UpdateConfig(batch_bytes=2**30))
    for size_bytes in (36 * 2**20, pool_bytes, 2**30):
        assert 2 * most_bytes(boundless.update, boundless, size_bytes) < Flow(size_bytes, percent, 5).xoff_bytes
    least = replace(config, journal=JournalConfig(segment_bytes=2 * FRAME_BYTES_MAX))
    assert most_bytes(config.update, least, RECEIVE_POOL_BYTES_MIN) > 100_000
    assert most <= 0.94 * config.journal.segment_bytes
    assert most_bytes(UpdateConfig(batch_bytes=1_000_000), config, pool_bytes) == 1_000_000
    short = replace(config, journal=JournalConfig(segment_bytes=8_000_000))
    assert most_bytes(short.update, short, 2**31) == 7_500_000


def test_kinds_that_were_not_met_before_wait_for_the_session(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether their rows may be moved is asked of the region, which the other thread is using."""
    update(pair, 150, "note")
    asked: list[bool] = []
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, UpdateConfig(batch_transactions=340)) as applier:
            for rows in applier.session.rows.values():
                real = rows.place_of

                def place_of(*kind: Any, real: Any = real) -> Any:
                    asked.append(applier._is_beside)
                    return real(*kind)

                monkeypatch.setattr(rows, "place_of", place_of)
            assert work_all(applier).transactions == 500
    assert asked
    assert not any(asked)
    assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize("held", [105, 150, 199, 200, 230])
def test_a_barrier_that_is_set_meanwhile_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            with Barrier(applier.session.door, timeout_s=3600) as barrier, monkeypatch.context() as patched:
                ahead(applier, patched, lambda number: barrier.raise_to(first + held) if number == 1 else None)
                assert work_all(applier).waiting is Waiting.BARRIER
                assert applier.applied_seqno == first + held
            assert work_all(applier).waiting is Waiting.NOTHING
    assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize("twice", [0, 1, 30])
@pytest.mark.parametrize("held", [105, 150, 200])
def test_what_is_read_again_after_a_barrier_is_not_counted_as_skipped_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, held: int, twice: int
) -> None:
    """`twice`: so many transactions have come twice, in front of what is read beside the first commit."""
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, upto=first + 120, record_bytes=2000)
        pool.words[17] = first + 120 - twice  # LAST_RECEIVED_SEQNO: as if the source had begun again too early
        pair.deliver(pool, upto=first + 160, record_bytes=10_000)
        pair.deliver(pool, record_bytes=700)
        with pair.applier(pool, BATCH) as applier:
            with Barrier(applier.session.door, timeout_s=3600) as barrier, monkeypatch.context() as patched:
                found = ahead(applier, patched, lambda number: barrier.raise_to(first + held) if number == 1 else None)
                before = work_all(applier)
                assert (found[0], before.waiting) == (100, Waiting.BARRIER)
                assert applier.applied_seqno == first + held
            after = work_all(applier)
            assert before.transactions + after.transactions == 350
            assert before.skipped + after.skipped == twice
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_a_commit_that_fails_takes_the_next_batch_with_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise DiskFullError("no room for the second batch")

    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            ahead(applier, monkeypatch, fail)
            with pytest.raises(DiskFullError):
                work_all(applier)
            assert applier._next is None
            assert applier.applied_seqno == pool.applied_seqno == first + 100
            assert work_all(applier).transactions == 250
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_a_lock_that_somebody_took_meanwhile_is_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            real, calls = applier.session.begin, 0

            def begin() -> None:
                nonlocal calls
                calls += 1
                if calls == 2:
                    raise BusyError("somebody has it")
                real()

            monkeypatch.setattr(applier.session, "begin", begin)
            found = ahead(applier, monkeypatch)
            assert work_all(applier).waiting is Waiting.LOCK
            assert applier.applied_seqno == first + 100
            assert found == [100]
            assert work_all(applier).waiting is Waiting.NOTHING
            assert found == [100, 100, 50]
    assert_equal(pair)


def test_a_conflict_in_it_is_the_first_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    dice = random.Random(350)
    rows = [dice.randint(1, ROWS) for _ in range(350)]
    late = next(row for row in range(1, 1 + ROWS) if row not in rows[:110] and row in rows[110:190])
    place = rows.index(late)
    connection.execute("UPDATE account SET balance = -1 WHERE id = ?", (late,))
    connection.close()
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno + 1
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            found = ahead(applier, monkeypatch)
            with pytest.raises(ConflictError) as caught:
                work_all(applier)
            assert found[0] == 100
            assert caught.value.facts["seqno"] == first + place == applier.applied_seqno + 1


@pytest.mark.slow
@pytest.mark.parametrize("step", ["append.after_write", "append.after_piece", "apply.after_commit"])
def test_what_failed_after_its_append_is_not_taken_again(pair: Pair, step: str) -> None:
    run(pair, *(f"INSERT INTO entry VALUES ('{number}', 1, NULL)" for number in range(200)))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            failpoint.arm(f"{step}:3:raise")
            with pytest.raises(FailpointError):
                work_all(applier)
            failpoint.disarm()
            assert work_all(applier).waiting is Waiting.NOTHING
            assert pool.used_bytes == 0
    assert_equal(pair)


def test_the_next_batch_is_no_longer_than_its_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def takes_long(batch: OpenBatch, room_s: float, change_s: float, last_seqno: Callable[[], int]) -> bool:
        del room_s, change_s
        assert last_seqno() == pool.last_received_seqno
        return batch.transactions >= 30

    monkeypatch.setattr(OpenBatch, "takes_long", takes_long)
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            real = applier._commit_batch

            def commit(batch: OpenBatch) -> None:
                batches.append(batch.transactions)
                real(batch)

            monkeypatch.setattr(applier, "_commit_batch", commit)
            assert work_all(applier).transactions == sum(batches) == 350
    assert min(batches[:-1]) >= 30
    assert max(batches) < 100
    assert_equal(pair)


def test_a_first_batch_is_short_because_nobody_knows_what_it_takes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "UNKNOWN_CHANGE_S", 2.0)  # BATCH_S is 60 here
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            assert work_all(applier).batches == 2
    assert_equal(pair)


@pytest.mark.parametrize("place", [20, 130])
def test_a_pool_that_changes_under_an_open_batch_commits_nothing_of_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Of the batch that is being committed, and of the one after it: whatever was decoded of it."""

    def spoil(number: int) -> None:
        if number == 1:
            record = records[place * len(records) // 350]
            at = pool.place_of_data(record) + len(record.data) // 2
            pool.memory_of_data[at] ^= 1
            changed.append(at)

    changed: list[int] = []
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, record_bytes=2000)
        records = list(pool.peek())
        with pair.applier(pool, BATCH) as applier:
            ahead(applier, monkeypatch, spoil)
            with pytest.raises(DamagedError):
                work_all(applier)
            assert applier.applied_seqno == pool.applied_seqno == first + (0 if place < 100 else 100)
            pool.memory_of_data[changed[0]] ^= 1
            assert work_all(applier).waiting is Waiting.NOTHING
    assert_equal(pair)


@pytest.mark.slow
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("piece", [1, 2, 5])
def test_killed_between_the_pieces_of_a_batch(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, piece: int, reboot: bool
) -> None:
    """`raise` leaves behind what a kill would."""
    monkeypatch.setattr(cutting, "SHORT_BYTES", 3000)
    with pair.receive_pool() as pool:
        first = pool.last_received_seqno
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            failpoint.arm(f"append.after_piece:{piece}:raise")
            with pytest.raises(FailpointError):
                work_all(applier)
    if reboot:
        lose_pool(pair.secondary)
    with pair.receive_pool() as pool:
        assert first <= pool.last_received_seqno <= first + 200  # what was whole is rolled forward
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, BATCH) as applier:
            work_all(applier)
    assert_equal(pair)


def test_a_batch_of_records_of_every_length_is_in_our_journal_as_it_came(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "SHORT_BYTES", 700)
    dice = random.Random(9)
    with pair.receive_pool() as pool:
        while pool.last_received_seqno < pair.last_seqno():
            upto = min(pair.last_seqno(), pool.last_received_seqno + dice.choice([1, 1, 3, 20]))
            pair.deliver(pool, upto=upto, record_bytes=dice.choice([300, 900, 5000]))
        assert pool.used_bytes > HEAD_BYTES
        with pair.applier(pool, UpdateConfig(batch_transactions=77)) as applier:
            assert work_all(applier).batches == 5
    assert_equal(pair)
