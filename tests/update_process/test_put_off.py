"""Changes put off to the end of their batch, and made in the order of their rows: nothing else may be seen of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.admin.regions import add_region
from replicate.barrier import Barrier
from replicate.errors import ConflictError, DiskFullError, JournalDamagedError
from replicate.settings import UpdateConfig
from tests.harness.pair import Pair, assert_equal, work_all
from update_process import applier as applying
from update_process import plain
from update_process.applier import Applier, Waiting
from update_process.batch import Window

ROWS = 60


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has many windows, and is not ended by the clock of a machine that has much to do."""
    monkeypatch.setattr(applying, "WINDOW_BYTES", 4000)
    monkeypatch.setattr(applying, "BATCH_S", 60.0)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Both sites have the same rows."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    run(made, [f"INSERT INTO account VALUES ({number}, 'o{number}', 0, NULL)" for number in range(1, 1 + ROWS)])
    made.seed()
    return made


def run(pair: Pair, statements: list[str]) -> int:
    """A transaction each; the number of the last."""
    connection = pair.connect()
    for statement in statements:
        connection.execute(statement)
        connection.commit()
    connection.close()
    return pair.last_seqno()


def updates(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return [f"UPDATE account SET balance = {n} WHERE id = {dice.randint(1, ROWS)}" for n in range(1, 1 + count)]


def calls(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes are made together, each time that they are."""
    (rows,) = applier.session.rows.values()
    found: list[int] = []
    real = rows.apply_sorted

    def apply_sorted(ops: Any, *others: Any) -> None:
        found.append(len(ops))
        real(ops, *others)

    monkeypatch.setattr(rows, "apply_sorted", apply_sorted)
    return found


def test_changes_of_many_windows_are_made_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, updates(150))
    run(pair, [f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 140)])  # windows of inserts, too
    run(pair, ["DELETE FROM account WHERE id = 5", "UPDATE account SET owner = 'x' WHERE id = 120", *updates(9, 2)])
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            done = work_all(applier)
            assert done.batches == 1
            assert together == [done.transactions] == [201]
    assert_equal(pair)


def test_inserts_alone_are_not_put_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, [f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 200)])
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).batches == 1
            assert together == []
    assert_equal(pair)


def test_a_batch_that_would_take_too_long_is_ended(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            applier._change_s = 60.0  # then it measures anew
            done = work_all(applier)
            assert done.batches == len(together) == 2
            assert 0 < together[0] <= 60
            assert sum(together) == 100
    assert_equal(pair)


@pytest.mark.parametrize("batch_transactions", [1, 7, 20_000])
def test_the_first_conflict_is_the_one_that_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, batch_transactions: int
) -> None:
    first = pair.last_seqno() + 1
    # In the order of rows that of row 3 would come first.
    statements = updates(70)
    statements[40] = "UPDATE account SET balance = 7000 WHERE id = 33"
    statements[50] = "UPDATE account SET balance = 7000 WHERE id = 3"
    statements[:40] = [one for one in statements[:40] if not one.endswith(("= 33", "= 3"))]
    bad_seqno = first + statements.index("UPDATE account SET balance = 7000 WHERE id = 33")
    run(pair, statements)
    spoil(pair, "UPDATE account SET note = 'drifted' WHERE id IN (3, 33)")
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool, UpdateConfig(batch_transactions=batch_transactions)) as applier:
            with pytest.raises(ConflictError) as caught:
                work_all(applier)
            assert applier.applied_seqno == bad_seqno - 1 == pool.applied_seqno
        assert caught.value.facts["seqno"] == bad_seqno
        written = json.loads((pair.secondary.conflict_directory / f"{bad_seqno}.json").read_text())
        assert (written["key"], written["found"]["note"], written["after"]["balance"]) == ([33], "drifted", 7000)
        spoil(pair, "UPDATE account SET note = NULL WHERE id IN (3, 33)")
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).waiting is Waiting.NOTHING
            assert sum(together) == len(statements) - (bad_seqno - first)
    assert_equal(pair)


def spoil(pair: Pair, sql: str) -> None:
    """Change the secondary behind our back, as no guard can prevent for somebody who drops it."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute(sql)
    connection.close()


def test_what_was_put_off_is_made_before_a_schema_change(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, updates(120))
    run(pair, ["ALTER TABLE account ADD COLUMN more DEFAULT 'm'", "UPDATE account SET more = balance WHERE id < 9"])
    run(pair, ["CREATE UNIQUE INDEX one ON account (owner)", *updates(120, 3)])
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            work_all(applier)
            assert len(together) == 2  # around the window that is not plain
            assert min(together) > 50
    assert_equal(pair)


def test_a_barrier_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    last = run(pair, updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            with Barrier(applier.session.door, timeout_s=3600) as barrier:
                barrier.raise_to(last - 30)
                assert work_all(applier).waiting is Waiting.BARRIER
                assert applier.applied_seqno == last - 30
            assert work_all(applier).transactions == 30
    assert_equal(pair)


def test_a_full_disk_is_not_taken_for_a_change_that_does_not_fit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            before = applier.applied_seqno
            (rows,) = applier.session.rows.values()

            def full(*_: Any) -> None:
                raise DiskFullError("no space")

            with monkeypatch.context() as patch:
                patch.setattr(rows, "apply_sorted", full)
                with pytest.raises(DiskFullError):
                    work_all(applier)
            assert applier.applied_seqno == before
            assert work_all(applier).transactions == 100
    assert_equal(pair)


def test_each_region_has_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    other = apsw.Connection(str(tmp_path / "two.db"))
    other.execute("CREATE TABLE far (id INTEGER PRIMARY KEY, v)")
    other.close()
    add_region(pair.primary, tmp_path / "two.db", name="two")
    pair.primary.reload()
    pair.seed()
    dice = random.Random(8)
    near, far = connect(pair.primary.path, region="main"), connect(pair.primary.path, region="two")
    for number in range(1, 31):
        near.execute("INSERT INTO account VALUES (?, 'o', 0, NULL)", (number,))
        near.commit()
        far.execute("INSERT INTO far VALUES (?, 0)", (number,))
        far.commit()
        near.execute("UPDATE account SET balance = ? WHERE id = ?", (number, dice.randint(1, number)))
        near.commit()
        far.execute("UPDATE far SET v = ? WHERE id = ?", (number, dice.randint(1, number)))
        far.commit()
    near.close()
    far.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            rows = applier.session.rows
            made: dict[str, set[int]] = {"main": set(), "two": set()}

            def watched(name: str) -> Any:
                real = rows[name].apply_sorted

                def apply_sorted(ops: Any, table_ids: Any, *others: Any) -> None:
                    made[name].update(table_ids)
                    real(ops, table_ids, *others)

                return apply_sorted

            for name in made:
                monkeypatch.setattr(rows[name], "apply_sorted", watched(name))
            assert work_all(applier).transactions >= 120
            assert [len(table_ids) for table_ids in made.values()] == [1, 1]
            assert made["main"] != made["two"]
    assert_equal(pair)


def test_what_can_not_be_placed_is_told_as_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window whose position can not be told is taken anew as it came, and what is before it is committed."""
    run(pair, updates(100))
    real, failures = Window.position_at, 0

    def position_at(window: Window, before: Any, start: int, stop: int, partition_of: Any) -> Any:
        nonlocal failures
        if not failures and before.last_seqno > 40 + ROWS:
            failures += 1
            raise JournalDamagedError("makes no sense")
        return real(window, before, start, stop, partition_of)

    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            monkeypatch.setattr(Window, "position_at", position_at)
            done = work_all(applier)
            assert failures == 1
            assert (done.transactions, done.waiting) == (100, Waiting.NOTHING)
    assert_equal(pair)


def test_transactions_of_several_changes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = pair.connect()
    dice = random.Random(5)
    for number in range(40):
        for _ in range(dice.randint(1, 5)):
            key = dice.randint(1, ROWS)
            connection.execute("UPDATE account SET balance = balance + 1, note = ? WHERE id = ?", (number, key))
            connection.execute("INSERT INTO entry VALUES (?, ?, NULL)", (str(key), number))
            connection.execute("DELETE FROM entry WHERE at = ?", (str(key + 1),))
        connection.execute("UPDATE account SET id = -id WHERE id = ?", (number + 1,))  # its key changes
        connection.commit()
    connection.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).batches == 1
            assert len(together) == 1
    assert_equal(pair)


def test_inserts_into_many_tables_are_made_table_by_table(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "TABLES_AT_ONCE", 1)
    statements = [f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 150)]
    run(pair, [one for row in statements for one in (row, "INSERT INTO entry VALUES ('now', 1, NULL)")])
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).batches == 1
            assert together == [100]
    assert_equal(pair)


COUNTED = "CREATE TABLE ticket (id INTEGER PRIMARY KEY AUTOINCREMENT, text)"


def counters(path: Path) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = list(connection.execute("SELECT name, seq FROM sqlite_sequence"))
    connection.close()
    return found


def test_a_counter_is_moved_once_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, COUNTED)
    pair.seed()
    run(pair, ["INSERT INTO ticket (text) VALUES ('a')"] * 100)
    run(pair, ["DELETE FROM ticket WHERE id > 90", "INSERT INTO ticket (text) VALUES ('b')"])
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            (rows,) = applier.session.rows.values()
            steps: list[Any] = []
            real = rows._set_sequence
            monkeypatch.setattr(
                rows, "_set_sequence", lambda table, values: (steps.append(values), real(table, values))
            )
            assert work_all(applier).batches == 1
            assert steps == [[None, 101]]
    assert counters(pair.secondary.region("main").path) == [("ticket", 101)]
    assert_equal(pair)


def test_a_counter_that_has_drifted_is_told_where_it_is_first_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, COUNTED)
    run(pair, ["INSERT INTO ticket (text) VALUES ('a')"])
    pair.seed()
    first = run(pair, ["UPDATE ticket SET text = 'c'"])
    run(pair, ["INSERT INTO ticket (text) VALUES ('b')"] * 20)
    spoil(pair, "UPDATE sqlite_sequence SET seq = 7")
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            with pytest.raises(ConflictError, match="sequence differs") as caught:
                work_all(applier)
            assert caught.value.facts["seqno"] == first + 1 == applier.applied_seqno + 1
