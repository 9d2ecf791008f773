"""Changes put off to the end of their batch, and made in the order of their rows: nothing else may be seen of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.admin.regions import add_region
from replicate.door.barrier import Barrier
from replicate.errors import ConflictError, DiskFullError, JournalDamagedError
from replicate.region.sqlite.apply.order import RowRun
from replicate.settings.table import UpdateConfig
from tests.harness.pair import Pair, assert_equal, run, work_all
from tests.update_process.conftest import ROWS
from update_process.applier import Applier
from update_process.batch import deferred as packing
from update_process.batch import open_batch
from update_process.batch.deferred import DeferredChanges
from update_process.plan import Window
from update_process.window import columns
from update_process.work_result import Waiting

pytestmark = pytest.mark.usefixtures("small_windows")


@pytest.fixture
def pair(filled: Pair) -> Pair:
    return filled


def updates(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return [f"UPDATE account SET balance = {n} WHERE id = {dice.randint(1, ROWS)}" for n in range(1, 1 + count)]


def calls(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes are made together, each time that they are."""
    found: list[int] = []
    routes = applier._routes
    apply_runs, apply_plain = routes.apply_runs, routes.apply_plain

    def counted_runs(runs: Iterable[RowRun], seqno: int) -> None:
        found.append(0)

        def counted() -> Iterator[RowRun]:
            for one in runs:
                found[-1] += len(one.ops)
                yield one

        apply_runs(counted(), seqno)

    def counted_plain(changes: Any, seqno: int, *, is_sorted: bool = False) -> None:
        if is_sorted:
            found[-1] += len(changes.ops)
        apply_plain(changes, seqno, is_sorted=is_sorted)

    monkeypatch.setattr(routes, "apply_runs", counted_runs)
    monkeypatch.setattr(routes, "apply_plain", counted_plain)
    return found


@pytest.fixture(params=["packed", "decoded"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How what is put off waits: as bytes, or, where that is not possible, as it was decoded."""
    if request.param == "decoded":
        monkeypatch.setattr(DeferredChanges, "take", lambda *_: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_changes_of_many_windows_are_made_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, *updates(150))
    run(pair, *[f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 140)])  # of inserts, too
    run(pair, "DELETE FROM account WHERE id = 5", "UPDATE account SET owner = 'x' WHERE id = 120", *updates(9, 2))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            done = work_all(applier)
            assert done.batches == 1
            assert together == [done.transactions] == [201]
    assert_equal(pair)


def test_inserts_alone_are_not_put_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, *(f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 200)))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).batches == 1
            assert together == []
    assert_equal(pair)


def test_a_batch_that_would_take_too_long_is_ended(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pair, *updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            applier._change_s = 60.0  # then it measures again
            done = work_all(applier)
            assert done.batches == len(together) == 2
            assert 0 < together[0] <= 60
            assert sum(together) == 100
    assert_equal(pair)


@pytest.mark.turns(4)
@pytest.mark.usefixtures("way")
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
    run(pair, *statements)
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
    run(pair, *updates(120))
    run(pair, "ALTER TABLE account ADD COLUMN more DEFAULT 'm'", "UPDATE account SET more = balance WHERE id < 9")
    run(pair, "CREATE UNIQUE INDEX one ON account (owner)", *updates(120, 3))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            work_all(applier)
            assert len(together) == 2  # around the window that is not plain
            assert min(together) > 50
    assert_equal(pair)


def test_a_barrier_is_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    last = run(pair, *updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            with Barrier(applier.session.door, timeout_s=3600) as barrier:
                barrier.raise_to(last - 30)
                assert work_all(applier).waiting is Waiting.BARRIER
                assert applier.applied_seqno == last - 30
            assert work_all(applier).transactions == 30
    assert_equal(pair)


def test_a_full_disk_is_not_taken_for_a_change_that_does_not_fit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run(pair, *updates(100))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            before = applier.applied_seqno
            (rows,) = applier.session.rows.values()

            def full(*_: Any) -> None:
                raise DiskFullError("no space")

            with monkeypatch.context() as patch:
                patch.setattr(rows, "apply_run" if way == "packed" else "apply_sorted", full)
                with pytest.raises(DiskFullError):
                    work_all(applier)
            assert applier.applied_seqno == before
            assert work_all(applier).transactions == 100
    assert_equal(pair)


def test_each_region_has_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
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
    for number in range(1, 61):
        near.execute("INSERT INTO account VALUES (?, 'o', 0, NULL)", (number,))
        near.commit()
        far.execute("INSERT INTO far VALUES (?, 0)", (number,))
        far.commit()
    borders = [pair.last_seqno()]
    changes = [(near, "UPDATE account SET balance = ? WHERE id = ?"), (far, "UPDATE far SET v = ? WHERE id = ?")]
    for phase in (changes[:1], changes[1:], changes):  # each region's alone, and then in turns
        for number in range(1, 41):
            for connection, sql in phase:
                connection.execute(sql, (number, dice.randint(1, 60)))
                connection.commit()
        borders.append(pair.last_seqno())
    near.close()
    far.close()
    made: dict[tuple[str, str], set[int]] = {}

    def watch(region: str, rows: Any, method: str) -> None:
        real = getattr(rows, method)

        def apply(*columns: Any) -> None:
            made.setdefault((region, method), set()).update(columns[1] if method == "apply_sorted" else columns[1:2])
            real(*columns)

        monkeypatch.setattr(rows, method, apply)

    with pair.receive_pool() as pool:
        pair.deliver(pool, upto=borders[0], record_bytes=2000)
        with pair.applier(pool) as applier:
            work_all(applier)
            for region, rows in applier.session.rows.items():
                watch(region, rows, "apply_run")
                watch(region, rows, "apply_sorted")
            for border in borders[1:]:
                pair.deliver(pool, upto=border, record_bytes=2000)
                assert work_all(applier).batches == 1
    method = "apply_run" if way == "packed" else "apply_sorted"
    assert {found for _, found in made} == {method}
    assert [len(made[region, method]) for region in ("main", "two")] == [1, 1]
    assert made["main", method] != made["two", method]
    assert_equal(pair)


def test_what_cannot_be_placed_is_told_as_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window whose position cannot be told is taken again as it came, and what is before it is committed."""
    run(pair, *updates(100))
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


def test_decoded_changes_end_the_batch_that_they_fill(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed ones wait before them, and are made before them."""
    monkeypatch.setattr(open_batch, "LOOSE_BYTES", 100)
    run(pair, *updates(100))
    connection = pair.connect()
    for number in range(60):
        connection.execute("UPDATE account SET note = ? WHERE id = ?", (f"a{number}", 1 + number % ROWS))
        connection.execute("UPDATE account SET note = ? WHERE id = ?", (f"b{number}", 1 + number * 7 % ROWS))
        connection.commit()
    connection.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            done = work_all(applier)
            assert done.batches == len(together) > 1
            assert together[0] > 100
            assert sum(together) == 220
    assert_equal(pair)


def test_a_batch_is_not_cut_where_the_caller_would_have_a_report(pair: Pair) -> None:
    run(pair, *updates(150))
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            assert applier.work(0.0).batches == 0  # a window is read
            done = applier.work(0.0)
            assert (done.batches, done.transactions) == (1, 150)
    assert_equal(pair)


def test_rows_as_large_as_they_may_be_wait_with_small_ones(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 10_000)
    dice = random.Random(4)
    run(pair, *[
        f"UPDATE account SET owner = '{n}', note = zeroblob({dice.choice([1, 90_000])}) WHERE id = {dice.randint(1, 9)}"
        for n in range(60)
    ])  # fmt: skip
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            together = calls(applier, monkeypatch)
            assert work_all(applier).batches == len(together)
            assert sum(together) == 60
    assert_equal(pair)


def test_inserts_into_many_tables_are_made_table_by_table(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "TABLES_AT_ONCE", 1)
    statements = [f"INSERT INTO account VALUES ({n}, 'new', 0, NULL)" for n in range(100, 150)]
    run(pair, *[one for row in statements for one in (row, "INSERT INTO entry VALUES ('now', 1, NULL)")])
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
    run(pair, *["INSERT INTO ticket (text) VALUES ('a')"] * 100)
    run(pair, "DELETE FROM ticket WHERE id > 90", "INSERT INTO ticket (text) VALUES ('b')")
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
    run(pair, "INSERT INTO ticket (text) VALUES ('a')")
    pair.seed()
    first = run(pair, "UPDATE ticket SET text = 'c'")
    run(pair, *["INSERT INTO ticket (text) VALUES ('b')"] * 20)
    spoil(pair, "UPDATE sqlite_sequence SET seq = 7")
    with pair.receive_pool() as pool:
        pair.deliver(pool, record_bytes=2000)
        with pair.applier(pool) as applier:
            with pytest.raises(ConflictError, match="sequence differs") as caught:
                work_all(applier)
            assert caught.value.facts["seqno"] == first + 1 == applier.applied_seqno + 1
