"""Applying from a real receive pool through the real door into a real region."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import apsw
import pytest

from replicate.door.barrier import Barrier
from replicate.door.recovery.opening import close_door, make_chain
from replicate.door.secondary import open_apply_session
from replicate.errors import BusyError, ConflictError, DivergedError, GapError
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import pack_frame, read_head
from replicate.pool import control as word
from replicate.pool.receive_pool import RecordKind
from replicate.settings.table import UpdateConfig
from replicate.status.collect import collect
from replicate.system.locks import FileLock
from tests.harness.instances import ROOT
from tests.harness.pair import Pair, assert_equal, work_all
from update_process import applier as applying
from update_process.work_result import Waiting


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is ended by its limits, not by the clock of a machine that has much to do."""
    monkeypatch.setattr(applying, "BATCH_S", 60.0)


def write(pair: Pair, count: int, *, first: int = 1) -> None:
    with pair.connect() as connection:
        for number in range(first, first + count):
            connection.execute("INSERT INTO account VALUES (?, ?, ?, NULL)", (number, f"owner {number}", number * 10))
            connection.commit()
    connection.close()


@pytest.mark.usefixtures("unhurried")
def test_single_row_transactions_arrive_in_batches(pair: Pair) -> None:
    write(pair, 50)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            done = work_all(applier)
            assert (done.transactions, done.batches, done.waiting) == (50, 1, Waiting.NOTHING)
            assert applier.applied_seqno == pair.last_seqno() == pool.applied_seqno == pool.durable_seqno
            assert pool.used_bytes == 0
            assert work_all(applier).transactions == 0
    assert_equal(pair)


@pytest.mark.usefixtures("unhurried")
def test_batches_keep_to_their_limit(pair: Pair) -> None:
    write(pair, 25)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_transactions=10)) as applier:
            assert work_all(applier).batches == 3
    assert_equal(pair)


def test_updates_deletes_rollbacks_and_types(pair: Pair) -> None:
    write(pair, 5)
    connection = pair.connect()
    connection.execute("UPDATE account SET balance = -1, note = 1.0 WHERE id = 2")
    connection.execute("DELETE FROM account WHERE id = 3")
    connection.execute("INSERT INTO entry VALUES ('a', 1.5, x'00ff')")
    connection.execute("INSERT INTO entry VALUES (NULL, NULL, NULL)")
    connection.commit()
    connection.execute("DELETE FROM account")
    connection.rollback()
    connection.execute("UPDATE account SET id = 100 WHERE id = 1")
    connection.execute("UPDATE entry SET data = 'text' WHERE at IS NULL")
    connection.commit()
    connection.close()
    pair.catch_up()
    assert_equal(pair)
    assert (2, 2, "owner 2", -1, 1.0) in pair.rows("account")


def test_schema_changes_come_in_their_place(pair: Pair) -> None:
    write(pair, 3)
    connection = pair.connect()
    connection.execute("ALTER TABLE account ADD COLUMN extra TEXT DEFAULT 'none'")
    connection.execute("CREATE TABLE later (a TEXT PRIMARY KEY, b) WITHOUT ROWID")
    connection.commit()
    connection.execute("INSERT INTO later VALUES ('x', 1)")
    connection.execute("UPDATE account SET extra = 'some' WHERE id = 1")
    connection.commit()
    connection.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
        assert_equal(pair)
        connection = pair.connect()
        connection.execute("INSERT INTO later VALUES ('y', 2)")
        connection.commit()
        connection.close()
        pair.deliver(pool)
        with pair.applier(pool) as applier:  # a restarted process knows the new definitions too
            assert work_all(applier).transactions == 1
    assert_equal(pair)


def test_duplicates_are_skipped_and_counted(pair: Pair) -> None:
    write(pair, 10)
    with pair.receive_pool() as pool:
        start = pool.last_received_seqno
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
            write(pair, 5, first=20)
            pool.words[17] = start  # LAST_RECEIVED_SEQNO: as if the source had begun again too early
            pair.deliver(pool)
            done = work_all(applier)
            assert (done.skipped, done.transactions) == (10, 5)
    assert_equal(pair)


def test_the_barrier_holds_and_expires(pair: Pair) -> None:
    write(pair, 10)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        door = applier.session.door
        start = applier.applied_seqno
        with Barrier(door, timeout_s=3600) as barrier:
            barrier.raise_to(start + 4)
            pair.deliver(pool)
            done = work_all(applier)
            assert (done.waiting, done.transactions) == (Waiting.BARRIER, 4)
            assert applier.applied_seqno == start + 4
            door.words[word.BARRIER_EXPIRES_NS] = 1
            assert work_all(applier).transactions == 6
    assert_equal(pair)


def test_a_barrier_falls_with_its_holder(pair: Pair) -> None:
    write(pair, 5)
    script = """
import sys
from pathlib import Path
from replicate.door.barrier import Barrier
from replicate.instance.instance import Instance
from replicate.door.recovery.opening import open_door
barrier = Barrier(open_door(Instance.open(Path(sys.argv[1]))), timeout_s=3600)
barrier.hold()
print("held", flush=True)
sys.stdin.read()
"""
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        command = [sys.executable, "-c", script, str(pair.secondary.path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            pair.deliver(pool)
            assert work_all(applier).waiting is Waiting.BARRIER
            (found,) = [finding for finding in collect(pair.secondary).findings if "holds the Update" in finding.text]
            assert (found.code, found.severity) == ("BARRIER_HELD", "info")
            holder.kill()
        assert all("holds the Update" not in finding.text for finding in collect(pair.secondary).findings)
        assert work_all(applier).transactions == 5
        assert applier.session.door.words[word.BARRIER_SEQNO] == 0
    assert_equal(pair)


def test_a_gap_before_anything_was_applied_asks_for_a_restart(pair: Pair) -> None:
    write(pair, 4)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pool.words[17] += 1
        pair.deliver(pool)
        done = work_all(applier)
        assert done.waiting is Waiting.RESTART
        assert pool.restart_requested()
        assert work_all(applier).waiting is Waiting.RESTART
        pool.restart(pool.applied_seqno)
        pair.deliver(pool)
        assert work_all(applier).transactions == 4
    assert_equal(pair)


def test_a_gap_later_is_refused_by_both_numbers(pair: Pair) -> None:
    write(pair, 2)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        last = pair.deliver(pool)
        work_all(applier)
        write(pair, 3, first=10)
        pool.words[17] += 1
        pair.deliver(pool)
        with pytest.raises(GapError) as caught:
            work_all(applier)
        assert caught.value.facts == {"expected": last + 1, "got": last + 2}
        assert applier.applied_seqno == last


def spoil(pair: Pair, sql: str) -> None:
    """Change the secondary behind our back, as no guard can prevent for somebody who drops it."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(sql)
    connection.close()


def test_a_conflict_commits_what_came_before_and_stops(pair: Pair) -> None:
    write(pair, 5)
    with pair.receive_pool() as pool:
        first = pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
        spoil(pair, "UPDATE account SET owner = x'00ff' WHERE id = 3")
        connection = pair.connect()
        for number in range(1, 6):
            connection.execute("UPDATE account SET balance = 0 WHERE id = ?", (number,))
            connection.commit()
        connection.close()
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            with pytest.raises(ConflictError) as caught:
                work_all(applier)
            assert applier.applied_seqno == first + 2 == pool.applied_seqno
        error = caught.value
        assert (error.facts["table"], error.facts["seqno"]) == ("account", first + 3)
        assert "owner 3" not in str(error)
        assert "owner 3" not in str(error.facts)
        path = pair.secondary.conflict_directory / f"{first + 3}.json"
        assert path.stat().st_mode & 0o777 == 0o600
        written = json.loads(path.read_text())
        assert written["expected"]["owner"] == "owner 3"
        assert written["found"]["owner"] == {"blob": "00ff"}
        assert written["after"]["balance"] == 0
        # Mended, it goes on where it stopped: what was committed is skipped.
        spoil(pair, "UPDATE account SET owner = 'owner 3' WHERE id = 3")
        with pair.applier(pool) as applier:
            done = work_all(applier)
            assert (done.skipped, done.transactions) == (2, 3)
    assert_equal(pair)


def test_a_conflict_in_the_first_transaction(pair: Pair) -> None:
    spoil(pair, "INSERT INTO account VALUES (1, 'x', 0, 0)")
    write(pair, 2)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            before = applier.applied_seqno
            with pytest.raises(ConflictError):
                work_all(applier)
            assert applier.applied_seqno == before


def test_other_content_is_noticed_before_anything_is_applied(pair: Pair) -> None:
    write(pair, 2)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        reader = ChainReader(make_chain(pair.primary), applier.next_seqno)
        found = reader.read(10**6, pair.last_seqno())
        reader.close()
        head = read_head(found.data)  # type: ignore[union-attr]
        forged, _ = pack_frame(
            1, head.seqno, 0, 12345, head.origin, head.origin_seqno, head.csn, b"\x06\x00\x00\x90", 4
        )
        pool.offer(forged, head.seqno, head.seqno, 1, RecordKind.FRAMES)
        with pytest.raises(DivergedError):
            work_all(applier)
        assert applier.applied_seqno == head.seqno - 1


def test_our_own_journal_holds_the_very_same_frames(pair: Pair) -> None:
    write(pair, 20)
    with pair.receive_pool() as pool:
        start = pool.last_received_seqno + 1
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_transactions=7)) as applier:
            work_all(applier)

    frames = []
    for instance in (pair.primary, pair.secondary):
        reader = ChainReader(make_chain(instance), start)
        frames.append(reader.read(10**6, pair.last_seqno()))
        reader.close()
    assert frames[0] == frames[1]


def test_a_lock_taken_while_a_conflict_is_looked_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pair, 3)
    spoil(pair, "INSERT INTO account VALUES (3, 'x', 0, 0)")
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            first = applier.next_seqno
            real, begins = applier.session.begin, 0

            def begin() -> None:
                nonlocal begins
                begins += 1
                if begins in (2, 5):  # for the first one alone; to commit what came before the conflict
                    raise BusyError("somebody was quicker")
                real()

            monkeypatch.setattr(applier.session, "begin", begin)
            for _ in range(2):
                done = work_all(applier)
                assert (done.waiting, done.text) == (Waiting.LOCK, "BUSY: somebody was quicker")
                assert applier.next_seqno == first
            with pytest.raises(ConflictError):
                work_all(applier)
            assert applier.next_seqno == first + 2


def test_the_setting_bounds_the_wait_for_a_lock(pair: Pair) -> None:
    (pair.secondary.path / "replicate.toml").write_text("[update]\nlock_timeout_s = 0.05\n")
    secondary = Instance.open(pair.secondary.path)
    write(pair, 1)
    held = FileLock(secondary.locks_directory / f"region-{secondary.region('main').region_id}.lock")
    session = open_apply_session(secondary)
    try:
        held.acquire(1)
        with pytest.raises(BusyError, match=r"held by another connection or thread of this process for 0\.05 s"):
            session.begin()
        held.release()
        session.begin()
    finally:
        held.close()
        session.close()
        close_door(session.door)


def wide(pair: Pair, count: int, *, first: int = 1) -> None:
    """Transactions of which a window takes about a dozen."""
    connection = pair.connect()
    for number in range(first, first + count):
        row = (number, "o" * 80_000, number)
        connection.execute("INSERT INTO account VALUES (?, ?, ?, NULL)", row)
        connection.commit()
    connection.close()


@pytest.mark.usefixtures("unhurried")
def test_a_batch_takes_several_windows(pair: Pair) -> None:
    wide(pair, 40)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            done = work_all(applier)
            assert (done.transactions, done.batches) == (40, 1)
            assert pool.used_bytes == 0
    assert_equal(pair)


@pytest.mark.usefixtures("unhurried")
def test_a_small_receive_pool_and_the_setting_bound_a_batch(pair: Pair) -> None:
    wide(pair, 40)
    with pair.receive_pool(4 * 1024 * 1024) as pool:
        with pair.applier(pool, UpdateConfig(batch_bytes=200_000)) as applier:
            pair.deliver(pool)
            assert applier.work(60).batches >= 13
            pair.deliver(pool)
        with pair.applier(pool) as applier:
            while pair.deliver(pool) > applier.applied_seqno:
                done = applier.work(60)
                assert done.bytes / done.batches <= pool.capacity / 4 + 100_000
    assert_equal(pair)


@pytest.mark.usefixtures("unhurried")
def test_each_batch_is_told_when_it_is_committed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who waits on the primary, or looks at `status`, need not wait for the batches after it."""
    wide(pair, 40)
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool, UpdateConfig(batch_transactions=10)) as applier:
            first, told = applier.next_seqno, []
            commit = applier._commit_batch

            def note_and_commit(batch: Any) -> None:
                told.append((pool.applied_seqno, pool.durable_seqno))
                commit(batch)

            monkeypatch.setattr(applier, "_commit_batch", note_and_commit)
            assert applier.work(60).batches == 4
            assert told == [(seqno, seqno) for seqno in range(first - 1, first + 39, 10)]
    assert_equal(pair)


def test_a_conflict_in_a_later_window_commits_all_before_it(pair: Pair) -> None:
    wide(pair, 40)
    spoil(pair, "INSERT INTO account VALUES (30, 'x', 0, 0)")
    with pair.receive_pool(32 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            first = applier.next_seqno
            with pytest.raises(ConflictError) as caught:
                work_all(applier)
            assert caught.value.facts["seqno"] == first + 29
            assert applier.next_seqno == first + 29
            assert pool.applied_seqno == first + 28
    assert len(pair.rows("account")) == 30  # 29 of ours, and the rival


def test_frames_that_diverge_in_a_later_window_commit_all_before_them(pair: Pair) -> None:
    wide(pair, 40)
    with pair.receive_pool(32 * 1024 * 1024) as pool, pair.applier(pool) as applier:
        first = applier.next_seqno
        pair.deliver(pool, upto=first + 29)
        reader = ChainReader(make_chain(pair.primary), first + 30)
        found = reader.read(1, pair.last_seqno())
        reader.close()
        head = read_head(found.data)  # type: ignore[union-attr]
        forged, _ = pack_frame(
            1, head.seqno, 0, 12345, head.origin, head.origin_seqno, head.csn, b"\x06\x00\x00\x90", 4
        )
        pool.offer(forged, head.seqno, head.seqno, 1, RecordKind.FRAMES)
        with pytest.raises(DivergedError):
            work_all(applier)
        assert applier.applied_seqno >= first + 18  # at least all windows but the one that was forged
        assert len(pair.rows("account")) == applier.applied_seqno - first + 1
