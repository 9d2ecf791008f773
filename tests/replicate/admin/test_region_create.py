"""`replicate region add --create`: an empty database is made where nothing is; else nothing is touched."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import replicate
from replicate.admin import region_create
from replicate.admin.region_create import add_created_region
from replicate.cli.root import root
from replicate.errors import AlreadyExistsError, BusyError, NotFoundError, PermissionRefusedError
from replicate.instance.instance import Instance


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    return Instance.create(tmp_path / "east", role="primary")


def add(instance: Instance, path: Path, *options: str) -> str:
    words = ["-i", str(instance.path), "region", "add", str(path), *options]
    result = CliRunner().invoke(root, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_an_empty_database_is_made_and_written_to(primary: Instance, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    assert f"region main: {file}" in add(primary, file, "--create")
    with closing(replicate.connect(primary.path)) as connection, connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
        connection.execute("INSERT INTO item VALUES (1, 'ä')")
    with closing(sqlite3.connect(tmp_path / "plain.db")) as plain, closing(sqlite3.connect(file)) as made:
        plain.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
        for pragma in ("page_size", "encoding", "auto_vacuum"):
            asked = f"PRAGMA {pragma}"
            assert made.execute(asked).fetchone() == plain.execute(asked).fetchone(), pragma
        assert made.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert made.execute("SELECT note FROM item").fetchone() == ("ä",)


def test_without_the_word_the_error_says_it(primary: Instance, tmp_path: Path) -> None:
    file = tmp_path / "not here.db"
    said = rf"there is no such database file .*replicate -i INSTANCE region add '{file}' --name main --create"
    with pytest.raises(NotFoundError, match=said):
        add(primary, file)
    assert not file.exists()


@pytest.mark.parametrize("name", ["new.db", "new.db-wal", "new.db-journal"])
def test_what_is_there_is_named_and_left(primary: Instance, tmp_path: Path, name: str) -> None:
    there, file = tmp_path / name, tmp_path / "new.db"
    there.write_bytes(b"")
    with pytest.raises(AlreadyExistsError, match=rf"something is there already \[{there}\]") as caught:
        add(primary, file, "--create")
    assert f"replicate -i {primary.named} region add {file} --name main" in caught.value.do
    assert (there.read_bytes(), sorted(os.listdir(tmp_path))) == (b"", sorted(["east", "shm", name]))
    there.unlink()
    there.symlink_to(tmp_path / "elsewhere.db")  # a link that leads nowhere is something, too
    with pytest.raises(AlreadyExistsError):
        add(primary, file, "--create")
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_directory_that_is_missing_is_named(primary: Instance, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=rf"there is no such directory \[{tmp_path / 'a'}\]. Make it: mkdir -p"):
        add(primary, tmp_path / "a" / "new.db", "--create")
    (tmp_path / "a").write_text("")
    with pytest.raises(NotFoundError, match="there is no such directory"):
        add(primary, tmp_path / "a" / "new.db", "--create")


def test_a_failure_leaves_nothing(primary: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(primary, tmp_path / "one.db", "--create", "--name", "one")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(AlreadyExistsError, match="there is a region 'one' already"):
        add(primary, tmp_path / "two.db", "--create", "--name", "one")
    secondary = Instance.create(tmp_path / "west", role="secondary", network=primary.content.network)
    with pytest.raises(PermissionRefusedError, match="it gets its regions from the primary"):
        add(secondary, tmp_path / "two.db", "--create")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "west"])


def test_a_region_that_is_only_half_added_stays(
    primary: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(instance: Instance, file: Path, *, name: str, **_: object) -> None:
        instance.register_region(name, b"u" * 16, file)
        raise BusyError("somebody writes")

    monkeypatch.setattr(region_create, "add_region", half)
    with pytest.raises(BusyError):
        add_created_region(primary, tmp_path / "new.db", name="main")
    assert (tmp_path / "new.db").exists()
