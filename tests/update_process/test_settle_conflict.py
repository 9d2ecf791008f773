"""Transactions left out by a decision: the number stays in step, the rest goes on, and recovery, the journal and a
third site meet nothing that is not in the regions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.verify import verify_journal
from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.errors import NotSupportedError, UsageError
from replicate.journal.reader import ChainReader
from replicate.journal.record import decode
from replicate.model.transaction import Kind, NullRecord
from tests.harness.conflicting import conflicting_pair, skip, spoil, stops_at
from tests.harness.pair import Pair, run, work_all
from update_process.conflict_commands import DECIDED, LEFT_OUT, WAITS, look_at_conflicts
from update_process.conflict_decision import Decision, read_decision, write_decision

LARGE = 700


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    return conflicting_pair(tmp_path)


def found_at(pair: Pair, seqno: int) -> object:
    reader = ChainReader(make_chain(pair.secondary), seqno)
    found = reader.read(1, seqno)
    reader.close()
    return decode(found.data)  # type: ignore[union-attr]


def test_it_goes_on_and_the_journal_says_why(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        first = pair.last_seqno() + 1
        run(pair, *(f"UPDATE t SET a = 'new' WHERE id = {number}; INSERT INTO u VALUES (1)" for number in range(1, 7)))
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        assert seqno == first + 2
        (one,) = look_at_conflicts(pair.secondary.conflict_directory, seqno - 1)
        assert (one.seqno, one.table, one.state) == (seqno, "main.t", WAITS)
        decision = skip(pair, seqno)
        assert look_at_conflicts(pair.secondary.conflict_directory, seqno - 1)[0].state == DECIDED
        with pair.applier(pool) as applier:
            done = work_all(applier)
            assert done.left_out == ((seqno, decision.by),)
            assert applier.applied_seqno == pool.applied_seqno == pair.last_seqno()
    assert look_at_conflicts(pair.secondary.conflict_directory, pair.last_seqno())[0].state == LEFT_OUT
    assert len(pair.rows("u")) == 5  # all of it is left out
    assert [row[0] for row in pair.rows("t") if row[2] == "new"] == [1, 2, 4, 5, 6]
    told, original = found_at(pair, seqno), None
    reader = ChainReader(make_chain(pair.primary), seqno)
    original = decode(reader.read(1, seqno).data)  # type: ignore[union-attr]
    reader.close()
    assert isinstance(told.content[0], NullRecord)  # type: ignore[attr-defined]
    assert told.kind is Kind.NULL  # type: ignore[attr-defined]
    assert decision.by in told.content[0].reason  # type: ignore[attr-defined]
    for name in ("seqno", "chain", "origin", "origin_seqno", "csn"):
        assert getattr(told, name) == getattr(original, name)
    assert not verify_journal(pair.secondary, None, None).findings
    # What comes later continues it.
    run(pair, "INSERT INTO u VALUES (2)")
    assert pair.catch_up().transactions == 1


def test_vectors_of_both_sites_are_equal_afterwards(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3; INSERT INTO u VALUES (1)")
        pair.deliver(pool)
        skip(pair, stops_at(pair, pool))
        with pair.applier(pool) as applier:
            work_all(applier)
            position = applier.session.position
    with pair.session() as session:
        assert session.position == position
    run(pair, "UPDATE t SET a = 'more' WHERE id = 4; INSERT INTO u VALUES (1)")
    pair.catch_up()
    with pair.session() as session:
        skipped = session.position
    with door_of(pair.primary) as door:
        assert not dict(door.catalogue_now().vector.beyond(skipped.vector))


def test_a_range_of_one_table(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id IN (2, 4, 6)", "INSERT INTO u(rowid, x) VALUES (1, 9)")
    with pair.receive_pool() as pool:
        run(pair, *(f"UPDATE t SET a = 'new' WHERE id = {number}" for number in range(1, 6)))
        run(pair, "INSERT INTO u VALUES (0)", "UPDATE t SET a = 'new' WHERE id = 6")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        skip(pair, seqno, until=seqno + 100, table="main.t")
        assert stops_at(pair, pool) == seqno + 4  # a row of another table
        skip(pair, seqno + 4)
        with pair.applier(pool) as applier:
            assert [one for one, _ in work_all(applier).left_out] == [seqno + 4, seqno + 5]
    assert [row[0] for row in pair.rows("t") if row[2] == "new"] == [1, 3, 5]


def test_one_that_is_mended_meanwhile_is_applied(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3")
        pair.deliver(pool)
        skip(pair, stops_at(pair, pool))
        spoil(pair, "INSERT INTO t VALUES (3, 'old', 3)")
        with pair.applier(pool) as applier:
            assert work_all(applier).left_out == ()
    assert (3, 3, "new", 3) in pair.rows("t")


def test_another_transaction_of_that_number_is_not_meant(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        decision = skip(pair, seqno)
        write_decision(
            pair.secondary.conflict_directory,
            Decision(seqno, decision.transaction[:-1] + "?", seqno, "", decision.by, decision.at),
        )
        assert stops_at(pair, pool) == seqno


def test_a_change_of_the_schema_is_never_left_out(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3; CREATE TABLE v (y)")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        skip(pair, seqno)
        assert stops_at(pair, pool) == seqno


def large(pair: Pair, first: int, *more: str) -> None:
    connection = pair.connect()
    for number in range(LARGE):
        connection.execute("INSERT INTO t VALUES (?, ?, ?)", (first + number, "x" * 20_000, first + number))
    for statement in more:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_large_one(pair: Pair) -> None:
    spoil(pair, "INSERT INTO t VALUES (1500, 'here', 1500)")
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        large(pair, 1000)
        seqno = pair.last_seqno()
        run(pair, "INSERT INTO u VALUES (5)")
        pair.deliver(pool)
        assert stops_at(pair, pool) == seqno
        with pytest.raises(UsageError, match="a large one"):
            skip(pair, seqno, until=seqno + 1)
        skip(pair, seqno)
    with pair.receive_pool(64 * 1024 * 1024) as pool:  # it comes again from its first part
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            assert [one for one, _ in work_all(applier).left_out] == [seqno]
    assert not list(pair.secondary.journal_directory.glob("*.spool"))
    assert len(pair.rows("t")) == 10
    assert len(pair.rows("u")) == 1
    assert not verify_journal(pair.secondary, None, None).findings


def test_a_large_one_within_a_range(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (1500, 'here', 1500)")
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3")
        large(pair, 1000)
        seqno = pair.last_seqno()
        pair.deliver(pool)
        skip(pair, stops_at(pair, pool), until=seqno)
        with pair.applier(pool) as applier:
            assert [one for one, _ in work_all(applier).left_out] == [seqno - 1]
            assert pool.restart_requested()
    noted = read_decision(pair.secondary.conflict_directory, seqno)
    assert noted is not None
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            assert [one for one, _ in work_all(applier).left_out] == [seqno]


def test_a_large_one_that_changes_the_schema(pair: Pair) -> None:
    spoil(pair, "INSERT INTO t VALUES (1500, 'here', 1500)")
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        large(pair, 1000, "CREATE TABLE v (y)")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        skip(pair, seqno)
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            with pytest.raises(NotSupportedError, match="changes the schema"):
                work_all(applier)
            assert applier.applied_seqno == seqno - 1


def test_killed_between_journal_and_region_it_is_not_redone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3; INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (2)")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        skip(pair, seqno)

        class Killed(BaseException):
            """Here the process is gone: the record is in the journal, the region is not committed."""

        def kill(_session: ApplySession, _seqno: int) -> None:
            raise Killed

        with monkeypatch.context() as patched, pair.applier(pool) as applier:
            patched.setattr(ApplySession, "_commit_regions", kill)
            with pytest.raises(Killed):
                work_all(applier)
        assert isinstance(found_at(pair, seqno).content[0], NullRecord)  # type: ignore[attr-defined]
        with pair.applier(pool) as applier:
            work_all(applier)
            assert applier.applied_seqno == pair.last_seqno()
    assert [row[1] for row in pair.rows("u")] == [2]
    assert not verify_journal(pair.secondary, None, None).findings
