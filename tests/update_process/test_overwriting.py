"""Conflicts overwritten by a decision: both sites are equal afterwards, and our journal says what was really here, so
that redo, rollback and a third site come out at the same rows.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.verify import verify_journal
from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession
from replicate.errors import ConflictError
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import decode
from replicate.model.transaction import Kind, LogComment, RowChange
from tests.harness.conflicting import conflicting_pair, decided, spoil, stops_at
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.pair import Pair, assert_equal, run, work_all
from update_process.conflict_commands import OVERWRITTEN, look_at_conflicts
from update_process.conflict_decision import OVERWRITE, Decision, decision_path, read_decision, write_decision

LARGE = 40
BIG = "x" * 20_000


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    return conflicting_pair(tmp_path)


def told(pair: Pair, seqno: int) -> Any:
    """What the secondary's journal has under that number, decoded."""
    reader = ChainReader(make_chain(pair.secondary), seqno)
    found = reader.read(1, seqno)
    reader.close()
    return decode(found.commit_frame if isinstance(found, LargeTransaction) else found.data)  # type: ignore[union-attr]


def overwritten(pair: Pair, *transactions: str, until: int = 0) -> int:
    """Run them on the primary, overwrite the conflict that the first of them is, and apply all; its number."""
    with pair.receive_pool() as pool:
        run(pair, *transactions)
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        decided(pair, seqno, OVERWRITE, until=until or None)
        with pair.applier(pool) as applier:
            done = work_all(applier)
            assert seqno in [number for number, _ in done.overwritten]
            assert applier.applied_seqno == pool.applied_seqno == pair.last_seqno()
    assert not verify_journal(pair.secondary, None, None).findings
    return seqno


def test_its_before_image_is_what_was_here(pair: Pair) -> None:
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3")
    seqno = overwritten(
        pair, "UPDATE t SET a = 'new' WHERE id = 3; INSERT INTO u VALUES (1)", "INSERT INTO u VALUES (2)"
    )
    assert_equal(pair)
    one = told(pair, seqno)
    assert one.kind is Kind.RESTATED
    assert isinstance(one.content[0], LogComment)
    assert one.content[0].text.startswith("overwritten: decided by ")
    change = one.content[1]
    assert isinstance(change, RowChange)
    assert (change.before, change.after) == ((3, "foreign", 3), (3, "new", 3))
    (seen,) = look_at_conflicts(pair.secondary.conflict_directory, pair.last_seqno())
    assert seen.state == OVERWRITTEN
    # What comes later continues it.
    run(pair, "UPDATE t SET a = 'later' WHERE id = 3")
    assert pair.catch_up().transactions == 1
    assert_equal(pair)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("spoiled", "transaction"),
    [
        ("DELETE FROM t WHERE id = 3", "UPDATE t SET a = 'new' WHERE id = 3"),
        ("UPDATE t SET a = 'foreign' WHERE id = 3", "DELETE FROM t WHERE id = 3"),
        ("INSERT INTO t VALUES (20, 'foreign', 20)", "INSERT INTO t VALUES (20, 'new', 21)"),
        ("INSERT INTO t VALUES (20, 'foreign', 30)", "INSERT INTO t VALUES (21, 'new', 30)"),
        ("INSERT INTO t VALUES (20, 'foreign', 30)", "UPDATE t SET b = 30 WHERE id = 3"),
        ("INSERT INTO t VALUES (20, 'foreign', 30)", "UPDATE t SET id = 20 WHERE id = 3"),
        ("INSERT INTO t VALUES (20, 'f', 30), (21, 'f', 31)", "UPDATE t SET id = 20, b = 31 WHERE id = 3"),
        ("DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (20, 'f', 3)", "UPDATE t SET a = 'new' WHERE id = 3"),
        ("INSERT INTO u(rowid, x) VALUES (1, 9)", "INSERT INTO u VALUES (1)"),
        ("UPDATE t SET b = b + 100", "UPDATE t SET b = b + 50 WHERE id > 5; DELETE FROM t WHERE id = 1"),
    ],
)
def test_each_kind_of_conflict(pair: Pair, spoiled: str, transaction: str) -> None:
    spoil(pair, *spoiled.split(";"))
    before = pair.rows("t"), pair.rows("u")
    seqno = overwritten(pair, transaction, "INSERT INTO u VALUES (7)", until=pair.last_seqno() + 2)
    touched = {(image or (None,))[0] for one in told(pair, seqno).content[1:] for image in (one.before, one.after)}
    for table, rows in zip("tu", before, strict=True):
        others = [row for row in pair.rows(table, pair.primary) if row[0] not in touched]
        if table == "t":
            assert [row for row in others if row in rows] == [row for row in pair.rows(table) if row in others]
    changed_there = {row[0] for row in pair.rows("t", pair.primary)} & touched
    there = {row[0]: row for row in pair.rows("t", pair.primary)}
    here = {row[0]: row for row in pair.rows("t")}
    assert {key: there[key] for key in changed_there} == {key: here[key] for key in changed_there}


def test_a_row_that_is_gone_already_is_nothing_to_do(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id = 3")
    seqno = overwritten(pair, "DELETE FROM t WHERE id = 3")
    assert told(pair, seqno).kind is Kind.NULL
    assert "overwritten" in told(pair, seqno).content[0].reason
    assert_equal(pair)


def nothing_gives_way(rows: Any, change: list[Any]) -> list[Any]:
    rows.apply_all(change)
    return change


def test_what_no_row_is_in_the_way_of_stops_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the transaction is done, and it is not tried for ever."""
    monkeypatch.setattr("update_process.routes.overwrite", nothing_gives_way)
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "INSERT INTO u VALUES (1); UPDATE t SET a = 'new' WHERE id = 3")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        decided(pair, seqno, OVERWRITE)
        assert stops_at(pair, pool) == seqno
    assert pair.rows("u") == []
    assert (3, 3, "foreign", 3) in pair.rows("t")


def test_a_decision_of_skip_is_read_by_a_release_that_knows_nothing_else(pair: Pair) -> None:
    directory = pair.secondary.conflict_directory
    directory.mkdir(exist_ok=True)
    for how, is_named in (("skip", False), (OVERWRITE, True)):
        decision = Decision(5, "a/b", 5, "", "me", "now", how)
        write_decision(directory, decision)
        assert read_decision(directory, 5) == decision
        assert ("how" in decision_path(directory, 5).read_text()) is is_named
    text = decision_path(directory, 5).read_text()
    decision_path(directory, 5).write_text(text.replace('"overwrite"', '"guess"'))
    assert read_decision(directory, 5) is None


class Killed(BaseException):
    """Here the process is gone: the record is in the journal, the region is not committed."""


def kill(_session: ApplySession, _seqno: int) -> None:
    raise Killed


def test_killed_between_journal_and_region_it_is_redone_as_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3", "INSERT INTO u VALUES (2)")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
        decided(pair, seqno, OVERWRITE)
        with monkeypatch.context() as patched, pair.applier(pool) as applier:
            patched.setattr(ApplySession, "_commit_regions", kill)
            with pytest.raises(Killed):
                work_all(applier)
        assert told(pair, seqno).kind is Kind.RESTATED
        assert (3, 3, "foreign", 3) in pair.rows("t")
        with pair.applier(pool) as applier:
            assert work_all(applier).overwritten == ()  # it was redone, not decided again
    assert_equal(pair)


def test_an_older_copy_of_the_region_is_rolled_forward_over_it(pair: Pair, tmp_path: Path) -> None:
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3", "DELETE FROM t WHERE id = 5")
    save_region(pair.secondary.region("main").path, tmp_path / "aside")
    overwritten(pair, "UPDATE t SET a = 'new' WHERE id IN (3, 5)", "UPDATE t SET a = 'more' WHERE id = 3")
    restore_region(pair.secondary.region("main").path, tmp_path / "aside")
    lose_pool(pair.secondary)
    with pair.session():
        pass
    assert_equal(pair)


def large(pair: Pair, first: int) -> int:
    connection = pair.connect()
    for number in range(LARGE):
        connection.execute("INSERT INTO t VALUES (?, ?, ?)", (first + number, BIG, first + number))
    connection.commit()
    connection.close()
    return pair.last_seqno()


def overwritten_large(pair: Pair) -> int:
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        seqno = large(pair, 1000)
        run(pair, "INSERT INTO u VALUES (5)")
        pair.deliver(pool)
        assert stops_at(pair, pool) == seqno
        decided(pair, seqno, OVERWRITE)
    with pair.receive_pool(64 * 1024 * 1024) as pool:  # it comes again from its first part
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            assert [one for one, _ in work_all(applier).overwritten] == [seqno]
    return seqno


def test_a_large_one(pair: Pair, tmp_path: Path) -> None:
    spoil(pair, "INSERT INTO t VALUES (1020, 'here', 1020), (90, 'unique', 1030)")
    save_region(pair.secondary.region("main").path, tmp_path / "aside")
    seqno = overwritten_large(pair)
    assert told(pair, seqno).kind is Kind.RESTATED_LARGE
    assert not list(pair.secondary.journal_directory.glob("*.spool"))
    assert_equal(pair)
    assert not verify_journal(pair.secondary, None, None).findings
    restore_region(pair.secondary.region("main").path, tmp_path / "aside")
    lose_pool(pair.secondary)
    with pair.session():
        pass
    assert_equal(pair)


def test_a_large_one_that_does_not_fit_stops_again_and_leaves_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("update_process.routes.overwrite", nothing_gives_way)
    spoil(pair, "INSERT INTO t VALUES (1030, 'here', 1030)")
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        seqno = large(pair, 1000)
        pair.deliver(pool)
        assert stops_at(pair, pool) == seqno
        decided(pair, seqno, OVERWRITE)
    with pair.receive_pool(64 * 1024 * 1024) as pool:
        pair.deliver(pool)
        assert stops_at(pair, pool) == seqno
        assert not pool.restart_requested()
    assert not list(pair.secondary.journal_directory.glob("*.spool"))
    assert len(pair.rows("t")) == 10


def test_any_spoiled_rows_and_any_transactions(pair: Pair) -> None:
    """Every row that differs is written by the primary afterwards: then both sites are equal."""
    dice = random.Random(26)
    for _ in range(4):
        spoil(pair, *(f"UPDATE OR IGNORE t SET b = {dice.randint(1, 15)}, a = 'f' WHERE id = {dice.randint(1, 9)}"
                      for _ in range(3)), f"DELETE FROM t WHERE id = {dice.randint(1, 9)}",
              f"INSERT OR IGNORE INTO t VALUES ({dice.randint(10, 12)}, 'f', {dice.randint(1, 15)})")  # fmt: skip
        run_all = [f"UPDATE t SET a = 'n{dice.random()}' WHERE id = {number}" for number in range(1, 10)]
        run_all += [f"INSERT INTO t VALUES ({number}, 'n', {number + 90})" for number in range(10, 13)]
        run_all += [f"DELETE FROM t WHERE id = {number}" for number in range(10, 13)]
        overwritten(pair, *run_all, until=pair.last_seqno() + len(run_all))
        for _ in range(3):  # a row that gave way to another one is missed by nobody until it is written
            with pair.receive_pool() as pool:
                run(pair, *(f"UPDATE t SET a = 'again {dice.random()}' WHERE id = {number}" for number in range(1, 10)))
                pair.deliver(pool)
                with pair.applier(pool) as applier:
                    try:
                        work_all(applier)
                        continue
                    except ConflictError:
                        decided(pair, applier.next_seqno, OVERWRITE, until=pair.last_seqno())
                with pair.applier(pool) as applier:
                    work_all(applier)
        assert_equal(pair)
