"""`replicate region release --force`: the way out where the file of a region is gone, damaged, or another's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import replicate
from replicate.admin.instance_removal import remove_instance
from replicate.admin.region_release import Released, release_region
from replicate.admin.regions import add_region
from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyRunningError, NotFoundError, RegionDamagedError, RegionReplacedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.transfer.seed.make import kept_seed, make_seed
from tests.harness.pair import Pair


def make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
        database.executemany("INSERT INTO item (note) VALUES (?)", [("x" * 500,)] * 100)
        database.commit()


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    made = Instance.create(tmp_path / "east", role="primary")
    make_database(tmp_path / "shop.db")
    add_region(made, tmp_path / "shop.db", name="main")
    return Instance.open(made.path)


def another_region(file: Path) -> None:
    other = Instance.create(file.parent / "other", role="primary")
    file.rename(file.parent / "kept.db")
    make_database(file)
    add_region(other, file, name="main")


def damage(file: Path) -> None:
    """In the bookkeeping: half of its tables, as a bad restore may leave it."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE _replicate_ring")
        database.commit()


@pytest.mark.parametrize("before", [[], ["BEGIN", "SELECT * FROM item"]])
def test_an_application_is_told_that_its_region_was_released(
    primary: Instance, tmp_path: Path, before: list[str]
) -> None:
    make_database(tmp_path / "more.db")
    add_region(primary, tmp_path / "more.db", name="more")
    with closing(replicate.connect(primary.path, "more")) as connection:
        connection.execute("INSERT INTO item (note) VALUES ('a')")
        connection.commit()
        release_region(Instance.open(primary.path), "more", timeout_s=5)
        for sql in before:
            connection.execute(sql).fetchall()
        with pytest.raises(NotFoundError, match="region more of east was released") as caught:
            connection.execute("INSERT INTO item (note) VALUES ('b')")
        connection.rollback()
    assert str(tmp_path / "more.db") in str(caught.value)
    assert "region add" in caught.value.do


@pytest.mark.parametrize(
    ("spoil", "error", "what"),
    [
        (Path.unlink, NotFoundError, "no such database file"),
        (lambda file: file.write_bytes(b"no database" * 1000), RegionDamagedError, "not an SQLite database"),
        (damage, RegionDamagedError, "the bookkeeping is incomplete"),
        (another_region, RegionReplacedError, "belongs to region"),
    ],
)
def test_a_lost_region_is_released_by_force_and_the_instance_goes_on(
    primary: Instance, tmp_path: Path, spoil: Callable[[Path], object], error: type[ReplicateError], what: str
) -> None:
    file = tmp_path / "shop.db"
    spoil(file)
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(error, match=what):
        release_region(primary, "main", timeout_s=5)
    assert [entry.name for entry in Instance.open(primary.path).regions] == ["main"]
    assert what in release_region(primary, "main", timeout_s=5, force=True).left
    assert (file.read_bytes() if file.exists() else None) == before
    opened = Instance.open(primary.path)
    assert opened.regions == ()
    make_database(tmp_path / "again.db")
    add_region(opened, tmp_path / "again.db", name="main")
    with closing(replicate.connect(opened.path)) as connection, connection:
        connection.execute("INSERT INTO item (note) VALUES ('new')")
    opened = Instance.open(primary.path)
    assert release_region(opened, "main", timeout_s=5) == Released()
    remove_instance(Instance.open(primary.path))


def test_no_update_process_begins_under_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    pair.seed()

    def finish() -> None:
        with pytest.raises(AlreadyRunningError, match="a release of this instance is under way"):
            DaemonFiles(pair.secondary.path, "update").lock.acquire()

    assert release_region(pair.secondary, "main", timeout_s=5, finish=finish) == Released()
    assert not pair.secondary.regions


def test_a_seed_made_of_it_before_is_not_sent_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secondary that could not install it at once got the rows of before from the next `seed`, and stopped at the
    region that had been added again: it had to be seeded twice."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    other = tmp_path / "other.db"
    make_database(other)
    add_region(pair.primary, other, name="other")
    primary = Instance.open(pair.primary.path)
    kept = kept_seed(primary, "west")
    kept.parent.mkdir(mode=0o700)
    for region, is_there in (("main", True), ("other", False)):
        make_seed(primary, "west", kept, replace=True, regions=["other"])
        release_region(primary, region, timeout_s=5, force=True)
        assert kept.exists() is is_there
