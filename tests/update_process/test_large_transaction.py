"""Large transactions: applied part by part, through pools smaller than they are, whatever is interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.errors import ConflictError
from replicate.journal.spool import SPOOL_SUFFIX
from replicate.pool.receive_pool import ReceivePool
from tests.harness.pair import Pair, work_all
from tests.harness.pair import assert_equal as pair_equal
from update_process.applier import Applier
from update_process.work_result import Waiting

ROWS = 6000
"""Of a kilobyte each: two dozen parts, and more than the smallest receive pool holds."""


def write_large(pair: Pair, *, rows: int = ROWS, note: str = "x") -> None:
    connection = pair.connect()
    connection.executemany(
        "INSERT INTO entry VALUES (?, ?, ?)", ((f"{note} {n}", n / 2, os.urandom(1000)) for n in range(rows))
    )
    connection.execute("INSERT INTO account VALUES (1, 'a', 1, 1)")
    connection.execute("DELETE FROM account WHERE id = 1")
    connection.commit()
    connection.close()


def carry(pair: Pair, pool: ReceivePool, applier: Applier) -> int:
    """Deliver and apply in turn until everything is applied; how many parts were applied."""
    parts = 0
    while applier.applied_seqno < pair.last_seqno():
        before = (pool.last_received_seqno, pool.received_parts, applier.applied_seqno)
        pair.deliver(pool)
        done = work_all(applier)
        parts += done.parts
        if done.waiting is Waiting.RESTART:
            pool.restart(pool.applied_seqno)
        else:
            assert before != (pool.last_received_seqno, pool.received_parts, applier.applied_seqno)
    return parts


def spools(pair: Pair) -> list[Path]:
    return [path for path in pair.secondary.journal_directory.iterdir() if path.name.endswith(SPOOL_SUFFIX)]


def assert_equal(pair: Pair) -> None:
    pair_equal(pair)
    assert spools(pair) == []


def test_larger_than_the_pool(pair: Pair) -> None:
    write_large(pair)
    with pair.receive_pool() as pool:
        with pair.applier(pool) as applier:
            pair.deliver(pool)
            assert pool.last_received_seqno < pair.last_seqno(), "it should not fit"
            done = work_all(applier)
            assert done.waiting is Waiting.PART
            assert done.transactions == 0
            assert pair.rows("entry") == []  # a reader sees nothing of it yet
            assert carry(pair, pool, applier) + done.parts >= 20
        assert_equal(pair)
        write_large(pair, rows=3, note="small")
        with pair.applier(pool) as applier:
            carry(pair, pool, applier)
    assert_equal(pair)


def test_a_process_that_died_in_the_middle_has_it_sent_again(pair: Pair) -> None:
    write_large(pair)
    with pair.receive_pool() as pool:
        with pair.applier(pool) as applier:
            pair.deliver(pool)
            assert work_all(applier).waiting is Waiting.PART
            assert len(spools(pair)) == 1
        with pair.applier(pool) as applier:
            pair.deliver(pool)
            assert work_all(applier).waiting is Waiting.RESTART
        with pair.applier(pool) as applier:  # dies once more before the answer comes
            assert work_all(applier).waiting is Waiting.RESTART
            pool.restart(pool.applied_seqno)
            carry(pair, pool, applier)
    assert_equal(pair)


def test_the_source_begins_it_again(pair: Pair) -> None:
    write_large(pair)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        pool.words[18] = 0  # RECEIVED_PARTS: the source has forgotten
        carry(pair, pool, applier)
    assert_equal(pair)


def test_parts_that_come_twice_are_applied_once(pair: Pair) -> None:
    write_large(pair)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        pool.words[18] -= 3
        carry(pair, pool, applier)
    assert_equal(pair)


def test_a_conflict_in_a_late_part(pair: Pair) -> None:
    connection = pair.connect()
    connection.execute("INSERT INTO account VALUES (7, 'seven', 0, NULL)")
    connection.commit()
    connection.close()
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        connection = pair.connect()
        connection.executemany("INSERT INTO entry VALUES (?, 0, ?)", ((str(n), bytes(1000)) for n in range(2000)))
        connection.execute("UPDATE account SET balance = 1 WHERE id = 7")
        connection.commit()
        connection.close()
        applier.session.begin()
        for rows in applier.session.rows.values():
            rows._connection.execute("UPDATE account SET balance = 99 WHERE id = 7")
            rows._connection.execute("COMMIT")
        applier.session.rollback()
        pair.deliver(pool)
        with pytest.raises(ConflictError) as caught:
            work_all(applier)
        seqno = pair.last_seqno()
        assert caught.value.facts["seqno"] == seqno
        assert (pair.secondary.conflict_directory / f"{seqno}.json").exists()
        assert applier.applied_seqno == seqno - 1
        assert pair.rows("entry") == []
        assert spools(pair) == []


def test_whole_ones_before_and_after(pair: Pair) -> None:
    for note in ("first", "second"):
        connection = pair.connect()
        connection.execute("INSERT INTO entry VALUES (?, 1, NULL)", (note,))
        connection.commit()
        connection.close()
        write_large(pair, rows=1000, note=note)
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        carry(pair, pool, applier)
    assert_equal(pair)
