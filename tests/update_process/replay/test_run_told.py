"""A replay tells how far it is, lets nobody else in meanwhile (fault 87), and writes many rows a statement."""

from __future__ import annotations

import apsw
import pytest

from replicate.errors import AlreadyRunningError, BusyError, ConflictError
from replicate.transfer.seed.direct import seed
from tests.harness.pair import Pair, run
from tests.harness.replaying import MIXED, assert_equal, replayed
from update_process.replay.apply import CHUNK_CHANGES, Progress


def foreign(pair: Pair, statement: str) -> None:
    """What another client does to the secondary's rows, past our guards."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(statement)
    connection.close()


def test_many_rows_are_inserted_in_runs_and_a_conflict_among_them_is_named(pair: Pair) -> None:
    """Exactly one chunk, and more than one: many rows go into one statement, and one that does not fit still shows."""
    for first, count in ((1000, CHUNK_CHANGES), (10_000, CHUNK_CHANGES + 100)):
        connection = pair.connect()
        for number in range(first, first + count):
            connection.execute("INSERT INTO account VALUES (?, ?, 0, NULL)", (number, f"n{number}"))
            if number % 512 == 0:
                connection.commit()
        connection.commit()
        connection.close()
        assert replayed(pair).inserted == count
        assert_equal(pair)
    before = pair.last_seqno(pair.secondary)
    foreign(pair, "INSERT INTO account VALUES (20050, 'foreign', 0, NULL)")
    run(pair, *(f"INSERT INTO account VALUES ({n}, 'm{n}', 0, NULL)" for n in range(20_000, 20_100)))
    with pytest.raises(ConflictError, match=f"at transaction {before + 51}"):
        replayed(pair)
    assert pair.last_seqno(pair.secondary) == before
    foreign(pair, "DELETE FROM account WHERE id = 20050")
    assert replayed(pair).inserted == 100
    assert_equal(pair)


def test_fault_87_two_replays_at_once_and_a_seed_meanwhile(pair: Pair) -> None:
    """Anybody who has begun goes on to its end; the other is refused, and has changed nothing."""
    last = run(pair, *MIXED)
    refused: list[Exception] = []

    def told(_progress: Progress) -> None:
        if not refused:
            for attempt in (lambda: replayed(pair), lambda: seed(pair.primary, pair.secondary, restart=True)):
                with pytest.raises((AlreadyRunningError, BusyError)) as caught:
                    attempt()
                refused.append(caught.value)

    assert replayed(pair, told=told).seqno == last
    assert len(refused) == 2
    assert_equal(pair)


def test_progress_is_told_in_order_and_whatever_it_raises_ends_the_replay(pair: Pair) -> None:
    before, last = pair.last_seqno(pair.secondary), run(pair, *MIXED)
    heard: list[Progress] = []
    replayed(pair, told=heard.append, dry_run=True)
    assert [(one.what, one.done, one.whole) for one in heard] == [("reading", len(MIXED), len(MIXED))]
    assert heard[0].seqno == last
    assert heard[0].keys > 0

    def stop(progress: Progress) -> None:
        if progress.what == "inserting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replayed(pair, told=stop)
    assert pair.last_seqno(pair.secondary) == before
    heard.clear()
    done = replayed(pair, told=heard.append)
    assert [one.what for one in heard] == ["reading", "collapsing", "removing", "changing", "inserting"]
    assert heard[-1].written == done.deleted + done.updated + done.inserted
    assert heard[-1].changes == done.changes > done.keys > 0
    assert_equal(pair)
