"""`replicate region move`: the instance learns a region's new path, and nothing that is not that region."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.admin.region_move import move_region
from replicate.admin.regions import add_region
from replicate.daemon.files import DaemonFiles
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    NotFoundError,
    PermissionRefusedError,
    RegionReplacedError,
    ReplicateError,
)
from replicate.instance.instance import Instance
from replicate.status.collect import collect


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    made = Instance.create(tmp_path / "east", role="primary")
    for name in ("shop", "stock"):
        database = apsw.Connection(str(tmp_path / f"{name}.db"))
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
        database.close()
        add_region(made, tmp_path / f"{name}.db", name=name)
    (tmp_path / "disk").mkdir()
    return Instance.open(made.path)


def insert(instance: Instance, number: int, region: str = "shop") -> int:
    connection = replicate.connect(str(instance.path), region)
    try:
        with connection:
            connection.execute("INSERT INTO item VALUES (?)", (number,))
        return connection.last_seqno
    finally:
        connection.close()


def moved_away(tmp_path: Path) -> Path:
    """The file with all that belongs to it, at its new place."""
    for file in tmp_path.glob("shop.db*"):
        file.rename(tmp_path / "disk" / file.name)
    return tmp_path / "disk" / "shop.db"


def refused(instance: Instance, path: Path, kind: type[ReplicateError], match: str) -> None:
    before = instance.region("shop").path
    with pytest.raises(kind, match=match):
        move_region(instance, "shop", path)
    assert Instance.open(instance.path).region("shop").path == before


def test_a_moved_region_is_found_again_and_goes_on(instance: Instance, tmp_path: Path) -> None:
    last = insert(instance, 1)
    path = moved_away(tmp_path)
    (finding,) = [one for one in collect(instance).findings if one.subject == "shop"]
    assert f"replicate -i {instance.path} region move NAME NEW_PATH" in finding.do
    assert move_region(instance, "shop", path).path == path
    assert move_region(instance, "shop", path).path == path
    assert insert(instance, 2) == last + 1
    assert insert(instance, 1, "stock") == last + 2
    reader = apsw.Connection(str(path))
    assert reader.execute("SELECT id FROM item").fetchall() == [(1,), (2,)]
    reader.close()
    assert not [one for one in collect(Instance.open(instance.path)).findings if one.subject == "shop"]


def test_a_copy_beside_the_original_or_without_its_wal_is_refused(instance: Instance, tmp_path: Path) -> None:
    insert(instance, 1)
    path = tmp_path / "disk" / "shop.db"
    shutil.copy(tmp_path / "shop.db", path)
    refused(instance, path, AlreadyExistsError, "still a file at the old path")
    (tmp_path / "shop.db").unlink()
    (tmp_path / "shop.db-wal").touch()
    refused(instance, path, AlreadyExistsError, "still a file at the old path")


def test_another_region_or_an_older_copy_is_refused_and_the_old_path_stands(instance: Instance, tmp_path: Path) -> None:
    insert(instance, 1)
    old = tmp_path / "old.db"
    connection = apsw.Connection(str(tmp_path / "shop.db"))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    shutil.copy(tmp_path / "shop.db", old)
    insert(instance, 2)
    path = moved_away(tmp_path)
    refused(instance, old, RegionReplacedError, "old copy")
    plain = tmp_path / "plain.db"
    database = apsw.Connection(str(plain))
    database.execute("PRAGMA journal_mode = WAL; CREATE TABLE item (id INTEGER PRIMARY KEY)")
    database.close()
    refused(instance, plain, RegionReplacedError, "no bookkeeping of ours")
    copy = tmp_path / "stock-copy.db"
    shutil.copy(tmp_path / "stock.db", copy)
    refused(instance, copy, RegionReplacedError, "belongs to region")
    refused(instance, tmp_path / "stock.db", RegionReplacedError, "belongs to region")
    refused(instance, tmp_path / "nowhere.db", NotFoundError, "no such database file")
    assert move_region(instance, "shop", path).path == path


def test_it_is_refused_while_anybody_uses_the_instance(instance: Instance, tmp_path: Path) -> None:
    path = moved_away(tmp_path)
    connection = replicate.connect(str(instance.path), "stock")
    refused(instance, path, AlreadyRunningError, "a process uses the instance")
    connection.close()
    files = DaemonFiles(instance.path, "source-west")
    fd = files.lock.acquire()
    try:
        refused(instance, path, AlreadyRunningError, "source stop --peer west")
    finally:
        os.close(fd)
    with pytest.raises(NotFoundError, match="no region 'other'"):
        move_region(instance, "other", path)


def test_on_a_secondary_the_seed_says_where_regions_are(instance: Instance, tmp_path: Path) -> None:
    west = Instance.create(tmp_path / "west", role="secondary", network=instance.content.network)
    west.register_region("shop", bytes(16), west.path / "regions" / "shop.db")
    refused(west, tmp_path / "shop.db", PermissionRefusedError, "where a seed has put them")
