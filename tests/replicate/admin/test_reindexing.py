"""`region reindex`: indexes made again from their rows, on either site."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.admin.reindexing import reindex_region
from replicate.compare.index_found import IndexDamage, IndexesFound, look_at_indexes, note_indexes
from replicate.errors import BusyError, ConflictError, NotFoundError, UsageError
from replicate.instance.instance import Instance
from replicate.region.sqlite.snapshot import reading
from replicate.system.locks import FileLock
from tests.harness.pair import Pair
from tests.harness.stale_index import change_without_index

SCHEMA = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a, b UNIQUE); CREATE INDEX i ON t (a); CREATE INDEX [odd "name] ON t (a, b);
CREATE TABLE w (k PRIMARY KEY, v) WITHOUT ROWID; CREATE INDEX j ON w (v);
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    with closing(made.connect()) as connection:
        connection.executemany("INSERT INTO t VALUES (?1, ?1, ?1)", [(n,) for n in range(9)])
        connection.commit()
    made.seed()
    return made


def is_well(instance: Instance) -> bool:
    with reading(instance.region("main").path) as connection:
        return bool(connection.execute("PRAGMA integrity_check").get == "ok")


@pytest.fixture(params=["primary", "secondary"])
def instance(pair: Pair, request: pytest.FixtureRequest) -> Instance:
    found: Instance = getattr(pair, request.param)
    return found


def test_what_is_damaged_is_made_again_and_nothing_is_journalled(pair: Pair, instance: Instance) -> None:
    change_without_index(instance.region("main").path, "i", "UPDATE t SET a = 'x' WHERE id = 5")
    assert not is_well(instance)
    seqno = pair.last_seqno()
    note_indexes(instance.path, IndexesFound(damaged=(IndexDamage("main", "t", "i", "lacks", "5", 1),)))
    assert reindex_region(instance, "main", [], timeout_s=5) == ["i"]
    assert is_well(instance)
    assert look_at_indexes(instance.path) == IndexesFound()
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO t VALUES (50, 50, 50)")
        connection.commit()
    assert pair.last_seqno() == seqno + 1
    pair.catch_up()


def test_all_of_them_or_those_that_are_named(instance: Instance) -> None:
    names = ['odd "name', "i", "j", "sqlite_autoindex_t_1"]
    assert reindex_region(instance, "main", [], every=True, timeout_s=5) == sorted(names)
    assert reindex_region(instance, "main", ["j", "j"], timeout_s=5) == ["j"]


def test_what_is_not_there(instance: Instance) -> None:
    with pytest.raises(UsageError, match="no index of region main is known to be damaged"):
        reindex_region(instance, "main", [], timeout_s=5)
    with pytest.raises(NotFoundError, match="there is no index gone"):
        reindex_region(instance, "main", ["gone"], timeout_s=5)
    with pytest.raises(NotFoundError):
        reindex_region(instance, "elsewhere", ["i"], timeout_s=5)


def test_rows_that_cannot_both_be_there(instance: Instance) -> None:
    path = instance.region("main").path
    change_without_index(path, "sqlite_autoindex_t_1", "UPDATE t SET b = 1 WHERE id = 2")
    with pytest.raises(ConflictError, match="cannot be made again"):
        reindex_region(instance, "main", ["sqlite_autoindex_t_1"], timeout_s=5)
    with closing(apsw.Connection(str(path))) as connection:
        assert not connection.in_transaction


def test_it_waits_for_writers(instance: Instance) -> None:
    number = instance.region("main").region_id
    with closing(FileLock(instance.locks_directory / f"region-{number}.lock")) as lock:
        assert lock.try_acquire()
        with pytest.raises(BusyError):
            reindex_region(instance, "main", ["i"], timeout_s=0.05)
