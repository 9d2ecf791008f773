"""admin/partition_release.py: what was removed is given to the site in plain databases, whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin import dropping_rows, partition_release, subscriptions
from replicate.admin.dropping_rows import drop_rows
from replicate.admin.partition_release import ReleasedTables, release_partitions
from replicate.admin.partitions import assign, create
from replicate.admin.regions import add_region
from replicate.errors import AlreadyExistsError, InternalError, NotFoundError, UsageError
from tests.harness.pair import Pair
from tests.replicate.admin.test_dropping_rows import Died, counts
from tests.replicate.admin.test_dropping_rows import loaded as loaded
from tests.replicate.admin.test_subscriptions import assert_restricted, write
from tests.replicate.cli.test_partition import said
from tests.replicate.transfer.seed.test_partition import SALES, begin, file, fill
from tests.replicate.transfer.seed.test_partition import pair as pair

TABLES = ("hidden", "keyed", "t0", "t1", "words")
ROWS = ("rowid, *", "*", "*", "*", "rowid, *")


def release(pair: Pair, directory: Path) -> list[ReleasedTables]:
    return release_partitions(
        pair.secondary, [SALES], directory, lambda: subscriptions.remove(pair.secondary, ["sales"])
    )


def rows_of(path: Path) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        queries = (f"SELECT {row} FROM {name} ORDER BY 1" for row, name in zip(ROWS, TABLES, strict=True))
        return [connection.execute(query).fetchall() for query in queries]


def test_the_tables_are_the_applications_own(loaded: Pair, tmp_path: Path) -> None:
    before = rows_of(loaded.secondary.region("main").path)
    [released] = release(loaded, tmp_path / "ours")
    assert (released.path, released.region, released.has.tables) == (tmp_path / "ours" / "main.db", "main", TABLES)
    assert rows_of(released.path) == before
    assert min(map(len, before)) > 3
    assert sorted(one.name for one in (tmp_path / "ours").iterdir()) == ["main.db"]
    with closing(sqlite3.connect(released.path)) as connection:  # by any client
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        assert not [name for name in names if name.startswith("_replicate") or name in ("t2", "t3", "t4", "t5")]
        connection.execute("INSERT INTO t0 (v) VALUES ('ours')")
        connection.execute("INSERT INTO words VALUES ('word of ours')")
        assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'ours'").fetchone() == (1,)
        connection.execute("ALTER TABLE t1 RENAME COLUMN v TO w")
        connection.commit()
    # Here it stays as it was, and the others go on.
    assert loaded.secondary.content.choice.state(SALES) == "frozen, as it was"
    fill(loaded)
    write(loaded, "DROP TABLE t1")
    loaded.catch_up()
    assert_restricted(loaded, {1})
    with closing(sqlite3.connect(released.path)) as connection:
        assert connection.execute("SELECT count(*) FROM t0 WHERE v = 'ours'").fetchone() == (1,)


def test_then_the_rows_here_may_go_and_the_partition_may_come_again(loaded: Pair, tmp_path: Path) -> None:
    [released] = release(loaded, tmp_path / "ours")
    before = rows_of(released.path)
    drop_rows(loaded.secondary, [SALES], lambda: subscriptions.remove(loaded.secondary, ["sales"]))
    assert counts(loaded) == [0] * 5
    assert rows_of(released.path) == before
    with pytest.raises(UsageError, match="partition sales: not wanted; only what is here whole"):
        release(loaded, tmp_path / "again")
    subscriptions.add(loaded.secondary, ["sales"])
    begin(loaded, SALES)
    with pytest.raises(UsageError, match="partition sales: is being loaded"):
        release(loaded, tmp_path / "again")
    from replicate.transfer.seed.partition import load_from_file

    load_from_file(loaded.secondary, file(loaded, SALES), [SALES])
    assert_restricted(loaded, {1, SALES})
    assert rows_of(released.path) == before
    assert not (tmp_path / "again").exists()


def test_what_was_frozen_before_is_released_as_it_stayed(loaded: Pair, tmp_path: Path) -> None:
    before = rows_of(loaded.secondary.region("main").path)
    subscriptions.remove(loaded.secondary, ["sales"])
    fill(loaded)
    loaded.catch_up()
    [released] = release(loaded, tmp_path / "ours")
    assert rows_of(released.path) == before


def test_killed_before_it_has_its_name(loaded: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(name: str) -> None:
        assert name == "partition.released"
        raise Died

    before = rows_of(loaded.secondary.region("main").path)
    with monkeypatch.context() as patched:
        patched.setattr(partition_release, "hit", die)
        patched.setattr(partition_release.shutil, "rmtree", lambda *_, **__: None)  # as a killed one
        with pytest.raises(Died):
            release(loaded, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
    assert (tmp_path / ".ours.released").is_dir()
    fill(loaded)
    loaded.catch_up()
    [released] = release(loaded, tmp_path / "ours")
    assert rows_of(released.path) == before
    assert not (tmp_path / ".ours.released").exists()


def test_one_without_a_name_here_is_frozen_too(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come with a connection: where packets come there are none."""
    create(pair.primary, "far", 7)
    assign(pair.primary, "far", ["t3"])
    subscriptions.set_(pair.secondary, ["all"])
    pair.seed(restart=True)
    pair.catch_up()
    rows = pair.rows("t3")
    assert rows

    def once() -> list[ReleasedTables]:
        return release_partitions(
            pair.secondary, [7], tmp_path / "ours", lambda: subscriptions.set_(pair.secondary, ["DEFAULT"])
        )

    def die(_name: str) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(partition_release, "hit", die)
        with pytest.raises(Died):
            once()
    assert pair.secondary.content.choice.state(7) == "frozen, as it was"
    [released] = once()
    assert released.has.tables == ("t3",)
    with closing(sqlite3.connect(released.path)) as connection:
        assert connection.execute("SELECT rowid, * FROM t3 ORDER BY 1").fetchall() == rows


def test_a_drop_that_was_killed_leaves_nothing_to_release(
    loaded: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_name: str) -> None:
        raise Died

    monkeypatch.setattr(dropping_rows, "ROWS_MAX", 1)
    monkeypatch.setattr(dropping_rows, "hit", die)
    with pytest.raises(Died):
        drop_rows(loaded.secondary, [SALES], lambda: subscriptions.remove(loaded.secondary, ["sales"]))
    with pytest.raises(UsageError, match="not wanted; only what is here whole"):
        release(loaded, tmp_path / "ours")


def test_what_is_in_the_way_is_named_and_nothing_is_removed(loaded: Pair, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(AlreadyExistsError, match="something is at the place") as there:
        release(loaded, tmp_path / "there")
    assert "subscription remove sales --drop-rows" in there.value.do
    with pytest.raises(NotFoundError, match="there is no directory for it"):
        release(loaded, tmp_path / "no" / "where")
    with pytest.raises(InternalError, match="not all removed"):
        release_partitions(loaded.secondary, [SALES], tmp_path / "ours", lambda: None)
    subscriptions.add(loaded.secondary, ["stock"])
    with pytest.raises(UsageError, match="partition stock: waits for its rows"):
        release_partitions(loaded.secondary, [3], tmp_path / "ours", lambda: None)
    assert loaded.secondary.content.choice.state(SALES) == "here"
    assert not (tmp_path / "ours").exists()


def test_a_partition_without_tables(loaded: Pair, tmp_path: Path) -> None:
    write(loaded, *(f"DROP TABLE {name}" for name in TABLES))
    loaded.catch_up()
    with pytest.raises(NotFoundError, match="no table is in partition sales"):
        release(loaded, tmp_path / "ours")


def test_each_region_has_a_database_of_its_own(loaded: Pair, tmp_path: Path) -> None:
    path = tmp_path / "more.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE only (id INTEGER PRIMARY KEY); CREATE TABLE other (id INTEGER PRIMARY KEY)")
    add_region(loaded.primary, path, name="more")
    assign(loaded.primary, "sales", ["more.only"])
    loaded.catch_up()
    released = release(loaded, tmp_path / "ours")
    assert [(one.region, one.has.tables) for one in released] == [("main", TABLES), ("more", ("only",))]
    assert sorted(one.name for one in (tmp_path / "ours").iterdir()) == ["main.db", "more.db"]


def test_the_command(loaded: Pair, tmp_path: Path) -> None:
    write(loaded, "CREATE VIEW both AS SELECT t0.id FROM t0, t2", "CREATE VIEW one AS SELECT id FROM t0")
    loaded.catch_up()
    words = "subscription", "remove", "sales", "--release", str(tmp_path / "ours"), "--drop-rows"
    told = said("-i", str(loaded.secondary.path), *words)
    assert f"released: {tmp_path / 'ours' / 'main.db'}, {', '.join(TABLES)}" in told
    assert "  without both, which names what is not there" in told
    assert counts(loaded) == [0] * 5
    with closing(sqlite3.connect(tmp_path / "ours" / "main.db")) as connection:
        assert connection.execute("SELECT count(*) FROM one").fetchone() > (0,)
