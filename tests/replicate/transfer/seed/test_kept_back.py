"""transfer/seed/kept_back.py: a seed takes nothing away that nobody else has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin import partitions
from replicate.errors import DiskFullError
from replicate.model.partitions import Partitions
from replicate.transfer.seed import kept_back
from replicate.transfer.seed.direct import seed
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The secondary has rows of a table that is in NONE by now: three of `t1`."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, schema="CREATE TABLE t1 (id INTEGER PRIMARY KEY, v); CREATE TABLE t2 (v);")
    with closing(made.connect()) as connection, connection:
        connection.execute("INSERT INTO t1 (v) VALUES ('a'), ('b'), ('c')")
        connection.execute("INSERT INTO t2 VALUES ('public')")
    made.seed()
    partitions.assign(made.primary, "NONE", ["t1"])
    made.catch_up()
    return made


def kept(pair: Pair) -> list[Path]:
    return sorted((pair.secondary.path / kept_back.DIRECTORY).glob("*"))


def test_what_is_of_the_primary_is_not_kept(pair: Pair) -> None:
    """The secondary has put nothing there itself."""
    assert seed(pair.primary, pair.secondary, restart=True).kept_back == ()
    assert kept(pair) == []
    assert pair.rows("t1", pair.secondary) == []


def test_rows_that_only_this_site_has_are_kept(pair: Pair) -> None:
    """It was primary, and put them there."""
    pair.secondary.change_partitions(Partitions.keeping_back)
    made = seed(pair.primary, pair.secondary, restart=True)
    (path,) = kept(pair)
    assert made.kept_back == (str(path),)
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("SELECT v FROM t1").fetchall() == [("a",), ("b",), ("c",)]
        assert plain.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'trigger')").fetchall() == [
            ("t1",)
        ]
    assert b"public" not in path.read_bytes()
    assert pair.rows("t1", pair.secondary) == []
    # There is nothing more: the next one keeps nothing.
    assert seed(pair.primary, pair.secondary, restart=True).kept_back == ()
    assert kept(pair) == [path]


def test_nothing_is_given_up_where_it_cannot_be_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise DiskFullError("the disk is full")

    pair.secondary.change_partitions(Partitions.keeping_back)
    monkeypatch.setattr(kept_back, "require_free", full)
    with pytest.raises(DiskFullError):
        seed(pair.primary, pair.secondary, restart=True)
    assert kept(pair) == []
    assert len(pair.rows("t1", pair.secondary)) == 3
    monkeypatch.undo()
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    assert len(seed(pair.primary, pair.secondary, restart=True).kept_back) == 1


def test_a_region_that_cannot_be_read_bars_no_seed(pair: Pair) -> None:
    pair.secondary.change_partitions(Partitions.keeping_back)
    (entry,) = pair.secondary.regions
    for suffix in ("-wal", "-shm"):
        Path(f"{entry.path}{suffix}").unlink(missing_ok=True)
    entry.path.write_bytes(b"no database" * 1000)
    assert seed(pair.primary, pair.secondary, restart=True).kept_back == ()
    assert pair.rows("t2", pair.secondary) == [(1, "public")]
