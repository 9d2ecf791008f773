"""What a backup of a region is good for: read as it is, written to when it was made plain, never put in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.admin.region_release import release_copy
from replicate.admin.regions import add_region
from replicate.errors import AlreadyExistsError, NotFoundError, RegionReplacedError
from replicate.instance.instance import Instance

BACKUP = """
import sqlite3, sys
source, target = map(sqlite3.connect, sys.argv[1:])
source.backup(target)
target.close()
"""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    database = apsw.Connection(str(tmp_path / "shop.db"))
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item VALUES (1, 'one')")
    database.close()
    made = Instance.create(tmp_path / "east", role="primary")
    add_region(made, tmp_path / "shop.db")
    return Instance.open(made.path)


@pytest.mark.parametrize("how", ["vacuum into", "backup of another process"])
def test_a_backup_is_read_and_made_plain(instance: Instance, tmp_path: Path, how: str) -> None:
    copy = tmp_path / "copy.db"
    connection = replicate.connect(str(instance.path))
    connection.execute("INSERT INTO item VALUES (2, 'two')")
    connection.commit()
    if how == "vacuum into":
        connection.execute("VACUUM INTO ?", (str(copy),))
    else:
        subprocess.run([sys.executable, "-c", BACKUP, str(tmp_path / "shop.db"), str(copy)], check=True)
    connection.close()
    opened = apsw.Connection(str(copy))
    assert opened.execute("SELECT count(*) FROM item").fetchall() == [(2,)]
    with pytest.raises(apsw.SQLError, match="replicate_connect_is_required"):
        opened.execute("INSERT INTO item VALUES (3, 'three')")
    opened.close()
    release_copy(copy)
    opened = apsw.Connection(str(copy))
    opened.execute("INSERT INTO item VALUES (3, 'three')")
    names = [name for (name,) in opened.execute("SELECT name FROM sqlite_schema")]
    opened.close()
    assert names == ["item"]
    with pytest.raises(RegionReplacedError, match="it is plain SQLite already") as caught:
        release_copy(copy)
    assert "INSTANCE" not in caught.value.do
    two = Instance.create(tmp_path / "two", role="primary", name="two")
    assert add_region(two, copy).name == "main"


def test_the_region_itself_is_refused(instance: Instance, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError, match=r"replicate -i \S+ region release main"):
        release_copy(tmp_path / "shop.db")
    with pytest.raises(NotFoundError):
        release_copy(tmp_path / "nowhere.db")
    replicate.connect(str(instance.path)).close()
