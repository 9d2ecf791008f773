"""Differing rows of a secondary repaired: equal afterwards, both images on the disk before, and nothing half done."""

from __future__ import annotations

import json
import random
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.admin.regions import add_region
from replicate.compare import repair as module
from replicate.compare.compare import compare
from replicate.compare.last_compare import look_at_compared, note_seeded
from replicate.compare.repair import Repair, repair
from replicate.errors import ConflictError, TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.region.sqlite.bookkeeping import read_state
from replicate.region.sqlite.open import open_region
from tests.harness.pair import Pair, run, work_all
from tests.harness.regions import make_database
from tests.harness.sites import kill_at

SCHEMA = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a, b UNIQUE);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE loose (x);
CREATE TABLE pair (a TEXT, b REAL, c BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE untouched (x);
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = Pair.create(tmp_path, SCHEMA)
    run(
        made,
        *(f"INSERT INTO t VALUES ({number}, 'old', {number})" for number in range(1, 10)),
        "INSERT INTO counted (v) VALUES (1); INSERT INTO counted (v) VALUES (2)",
        "INSERT INTO loose VALUES (1), (2), (3); INSERT INTO untouched VALUES (x'00ff'), (1.5)",
        "INSERT INTO pair VALUES ('x', 1.5, x'01'), ('y', 2.5, NULL)",
    )
    made.seed()
    return made


def spoil(pair: Pair, *statements: str, region: str = "main") -> None:
    """Past every guard."""
    connection = apsw.Connection(str(pair.secondary.region(region).path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def repaired(pair: Pair, **options: Any) -> Repair:
    return repair(pair.primary, pair.secondary, by="me", timeout_s=30, **options)


def assert_equal(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found


def lines(pair: Pair) -> list[Any]:
    return [json.loads(line) for line in (pair.secondary.path / "log" / "repair.jsonl").read_text().splitlines()]


EACH = (
    "UPDATE t SET a = 'foreign' WHERE id = 3",
    "DELETE FROM t WHERE id = 5",
    "INSERT INTO t VALUES (40, 'foreign', 5)",
    "UPDATE counted SET v = x'00' WHERE id = 1",
    "UPDATE sqlite_sequence SET seq = 77",
    "DELETE FROM loose WHERE x = 2",
    "UPDATE pair SET c = 'x' WHERE a = 'x'",
    "INSERT INTO pair VALUES ('z', 0.5, 9)",
)


def test_each_kind_of_difference(pair: Pair) -> None:
    spoil(pair, *EACH)
    would = repaired(pair, dry_run=True)
    assert not would.is_done
    assert not (pair.secondary.path / "log" / "repair.jsonl").exists()
    found = repaired(pair)
    assert found.tables == would.tables
    assert {one.table: (one.changed, one.added, one.removed) for one in found.tables} == {
        "main.counted": (1, 0, 0),
        "main.loose": (0, 1, 0),
        "main.pair": (1, 0, 1),
        "main.t": (1, 1, 1),
    }
    assert (found.is_done, found.rows, found.left, found.mended) == (True, 7, {}, "west")
    assert_equal(pair)
    # It is level, and goes on.
    run(pair, "UPDATE t SET a = 'later'; INSERT INTO counted (v) VALUES (3); DELETE FROM loose")
    pair.catch_up()
    assert_equal(pair)


def test_both_images_are_in_a_file_of_the_owner(pair: Pair) -> None:
    spoil(pair, *EACH)
    found = repaired(pair)
    path = Path(found.file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    head, *rows, last = lines(pair)
    assert (head["repair"], head["by"], head["like"]) == (found.seqno, "me", "east")
    assert last == {"repaired": found.seqno, "rows": 7}
    images = [(one["table"], one["here"], one["there"]) for one in rows if "here" in one]
    assert ("t", [3, "foreign", 3], [3, "old", 3]) in images
    assert ("t", [40, "foreign", 5], None) in images
    assert ("counted", [1, {"blob": "00"}], [1, 1]) in images
    assert ("loose", None, [2, 2]) in images
    assert {"region": "main", "table": "counted", "counter_here": 77, "counter_there": 2} in rows
    spoil(pair, "DELETE FROM t")
    assert repaired(pair).rows == 9
    assert len([one for one in lines(pair) if "repair" in one]) == 2


def test_status_and_the_region_say_so_until_it_is_seeded(pair: Pair) -> None:
    spoil(pair, *EACH)
    found = repaired(pair)
    noted = look_at_compared(pair.secondary.path).repaired
    assert noted is not None
    assert (noted.seqno, noted.rows, noted.like) == (found.seqno, 7, "east")
    connection = open_region(pair.secondary.region("main").path)
    assert read_state(connection, "repaired_at") == found.seqno
    connection.close()
    note_seeded(pair.secondary)
    assert look_at_compared(pair.secondary.path).repaired is None


def test_nothing_to_repair_changes_nothing(pair: Pair) -> None:
    found = repaired(pair)
    assert (found.rows, found.is_done, look_at_compared(pair.secondary.path).repaired) == (0, False, None)


def test_no_checkpoint_record_moves(pair: Pair) -> None:
    spoil(pair, *EACH)
    with pair.session() as session:
        before = session.checkpoint(), session.position
    repaired(pair)
    with pair.session() as session:
        assert (session.checkpoint(), session.position) == before
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()


def test_unique_values_that_were_exchanged(pair: Pair) -> None:
    spoil(pair, "UPDATE t SET b = b + 100", "UPDATE t SET b = 110 - b")
    assert repaired(pair).rows == 8  # 5 has its own again
    assert_equal(pair)


def test_tables_that_are_not_the_same_are_named_and_left_alone(pair: Pair) -> None:
    spoil(
        pair, "UPDATE t SET a = 'foreign' WHERE id = 3", "UPDATE untouched SET x = CAST(x'ff' AS TEXT) WHERE rowid = 1"
    )
    primary = apsw.Connection(str(pair.primary.region("main").path))
    primary.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    primary.execute("PRAGMA writable_schema = ON")
    primary.execute("UPDATE sqlite_master SET sql = replace(sql, '(x)', '(x INTEGER)') WHERE name = 'loose'")
    primary.close()
    found = repaired(pair)
    assert [one.table for one in found.tables] == ["main.t"]
    assert "definitions differ" in found.left["main.loose"]
    assert "UTF-8" in found.left["main.untouched"]


def test_only_a_secondary_is_repaired(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only the rows of a secondary"):
        repair(pair.primary, pair.primary, by="me", timeout_s=1)
    with pytest.raises(UsageError, match="only the rows of a secondary"):
        repair(pair.secondary, pair.secondary, by="me", timeout_s=1)
    with pytest.raises(UsageError):
        repair(
            Instance.create(tmp_path / "x", role="primary", name="x", network=pair.primary.content.network),
            pair.primary,
            by="me",
            timeout_s=1,
        )


def test_a_row_that_is_changed_meanwhile(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a client past the guards, between the comparison and the change: nothing of the region is changed."""
    spoil(pair, *EACH)
    mend = module._Repairing.mend

    def meanwhile(self: Any, tables: Any) -> None:
        spoil(pair, "UPDATE t SET a = 'again' WHERE id = 3")
        mend(self, tables)

    monkeypatch.setattr(module._Repairing, "mend", meanwhile)
    with pytest.raises(ConflictError, match="differs from its before-image"):
        repaired(pair)
    assert (3, 3, "again", 3) in pair.rows("t")
    assert (40, 40, "foreign", 5) in pair.rows("t")
    assert look_at_compared(pair.secondary.path).repaired is None


def test_a_secondary_that_has_gone_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The barrier had expired: what was compared is not what is there."""
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3")
    mend = module._Repairing.mend

    def meanwhile(self: Any, tables: Any) -> None:
        self._held.barrier.lift()
        monkeypatch.setattr(module.word, "LAST_SEQNO", module.word.LAST_PUBLISHED_SEQNO)
        self._held.door.words[module.word.LAST_PUBLISHED_SEQNO] += 1
        mend(self, tables)

    monkeypatch.setattr(module._Repairing, "mend", meanwhile)
    with pytest.raises(TryAgainError, match="has gone on"):
        repaired(pair)
    assert (3, 3, "foreign", 3) in pair.rows("t")


def repair_by_path(primary: Instance, secondary: Instance) -> None:
    """For a process of its own."""
    repair(primary, secondary, by="me", timeout_s=30)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["repair.written_down:1", "repair.region_mended:1", "repair.region_mended:2"])
def test_killed_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, SCHEMA)
    add_region(pair.primary, make_database(tmp_path / "two.db", SCHEMA), name="two")
    run(pair, *(f"INSERT INTO t VALUES ({number}, 'old', {number})" for number in range(1, 10)))
    pair.seed()
    spoil(pair, "UPDATE t SET a = 'foreign' WHERE id = 3")
    spoil(pair, "INSERT INTO loose VALUES (7)", region="two")
    call = "tests.replicate.compare.test_repair:repair_by_path"
    assert kill_at(place, call, pair.primary.path, pair.secondary.path) == -signal.SIGKILL
    images = [one for one in lines(pair) if "here" in one]
    assert len(images) == 2
    repaired(pair)
    assert_equal(pair)


def test_while_both_go_on(pair: Pair) -> None:
    """A writer, and an applier that carries: the repair holds it, and lets it go."""
    spoil(pair, *(f"UPDATE t SET a = 'foreign' WHERE id = {number}" for number in range(5, 10)))
    stop, failed = threading.Event(), []

    def go_on() -> None:
        try:
            with pair.receive_pool() as pool, pair.applier(pool) as applier:
                dice = random.Random(1)
                while not stop.is_set():
                    run(pair, f"UPDATE t SET a = 'n{dice.random()}' WHERE id = {dice.randint(1, 4)}")
                    pair.deliver(pool)
                    work_all(applier)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert repaired(pair).rows == 5
    finally:
        stop.set()
        thread.join(60)
    assert not failed
    pair.catch_up()
    assert_equal(pair)
