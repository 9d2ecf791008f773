"""region/sqlite/create.py: an empty database in WAL mode, where nothing was; and nothing after a failure."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from replicate.errors import AlreadyExistsError, JournalIOError, NotFoundError
from replicate.region.sqlite import create
from replicate.region.sqlite.create import create_database, plain_connection, versions


def test_it_is_what_sqlite_makes_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    create_database(path)
    assert os.listdir(tmp_path) == ["x.db"]
    assert path.read_bytes()[18:20] == b"\x02\x02"  # the file's format says WAL
    assert path.stat().st_mode & 0o777 == 0o644 & ~_umask()
    with plain_connection(path) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
        assert connection.pragma("journal_mode") == "wal"
    assert versions()["sqlite"] == apsw.sqlite_lib_version()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_that_is_there_is_touched(tmp_path: Path, ending: str, is_link: bool) -> None:
    there = tmp_path / f"x.db{ending}"
    if is_link:
        there.symlink_to(tmp_path / "elsewhere")
    else:
        there.write_text("of somebody")
    with pytest.raises(AlreadyExistsError) as caught:
        create_database(tmp_path / "x.db")
    assert str(there) in str(caught.value)
    assert os.listdir(tmp_path) == [there.name]


def test_a_directory_that_is_missing_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="mkdir -p"):
        create_database(tmp_path / "no such" / "x.db")


@pytest.mark.parametrize("kind", [apsw.FullError, OSError, KeyboardInterrupt])
def test_after_a_failure_there_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise kind(5, "no")

    monkeypatch.setattr(create, "to_wal", fails)
    with pytest.raises(KeyboardInterrupt if kind is KeyboardInterrupt else JournalIOError):
        create_database(tmp_path / "x.db")
    assert os.listdir(tmp_path) == []
