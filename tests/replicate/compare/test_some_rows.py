"""compare/some_rows.py: two instances are compared by the rows that both should have; what should not be is found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin import subscriptions
from replicate.compare.compare import compare, digest
from replicate.compare.digest import compare_digests
from replicate.compare.patrol_rounds import Place
from replicate.compare.range_check import Outcome, take_range, verify
from replicate.compare.repair import repair
from replicate.compare.some_rows import SomeRows
from replicate.errors import UsageError
from replicate.filters.rows import RowSelection
from replicate.model.column_list import TableShare
from replicate.region.sqlite.digest import TableVerdict
from tests.harness.pair import Pair

SCHEMA = "CREATE TABLE t (id INTEGER PRIMARY KEY, a); CREATE TABLE u (id INTEGER PRIMARY KEY);"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    with closing(made.connect()) as connection:
        connection.execute("INSERT INTO t (a) VALUES (1), (5), (9), (NULL)")
        connection.commit()
    subscriptions.filter_(made.secondary, "t", "a > 3")
    made.seed()
    return made


def test_the_side_that_has_all_is_read_by_the_others_condition(pair: Pair) -> None:
    (entry,) = pair.primary.regions
    connection = apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)
    key, other = {("main", "t"): "a > 3"}, {("main", "t"): "a > 4"}
    for first, second, made in (
        ({}, {}, ({}, {}, set())),
        (key, {}, ({}, {"t": TableShare('"a" > 3')}, set())),
        ({}, key, ({"t": TableShare('"a" > 3')}, {}, set())),
        (key, key, ({}, {}, set())),
        (key, other, ({}, {}, {"t"})),
    ):
        found = SomeRows.between("main", first, second, connection)
        assert (found.in_first, found.in_second, found.left_out) == made
    assert SomeRows.between("side", key, {}, connection).in_second == {}
    with pytest.raises(UsageError, match="has no column b"):
        SomeRows.between("main", {("main", "t"): "b > 3"}, {}, connection)
    connection.close()


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        ("", True),
        ("INSERT INTO t VALUES (77, 2)", False),
        ("INSERT INTO t VALUES (77, 5)", False),
        ("DELETE FROM t WHERE a = 5", False),
        ("UPDATE t SET a = 6 WHERE a = 5", False),
    ],
)
def test_what_should_not_be_here_is_a_difference_too(pair: Pair, change: str, equal: bool) -> None:
    (entry,) = pair.secondary.regions
    if change:
        connection = apsw.Connection(str(entry.path))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        connection.execute(change)
        connection.close()
    for one, other in ((pair.primary, pair.secondary), (pair.secondary, pair.primary)):
        assert compare(one, other, timeout_s=60).equal is equal


def test_digests_leave_it_out_and_a_repair_does_not_touch_it(pair: Pair) -> None:
    found = compare_digests(digest(pair.primary, timeout_s=60), digest(pair.secondary, timeout_s=60))
    assert found.equal
    assert found.left_out == ("main.t",)
    assert TableVerdict.LEFT_OUT.value == "left out, its rows are not all in both"
    mended = repair(pair.primary, pair.secondary, by="test", dry_run=True, timeout_s=60)
    assert mended.left == {"main.t": "some of its rows are in one of them only"}


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_the_patrol_passes_it_and_says_why(pair: Pair, what: str) -> None:
    if what == "columns":
        subscriptions.filter_(pair.secondary, "t", "COLUMNS (id)")
        pair.seed(restart=True)
        assert compare(pair.primary, pair.secondary, timeout_s=60).equal
    pair.catch_up()
    place: Place | None = Place(7)
    found = {}
    while place is not None:
        taken = take_range(pair.primary, place, RowSelection(pair.secondary.content.held_rows, {}).goes_whole)
        if taken.check is not None:
            verdict = verify(pair.secondary, taken.check, pair.last_seqno(pair.secondary))
            found[taken.check.table] = verdict.outcome, verdict.why
        place = taken.place
    assert found["t"] == (Outcome.PASSED, f"some of its {what} are here")
    assert found["u"][0] is Outcome.EQUAL
