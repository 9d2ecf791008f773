"""PRAGMA: each one that this SQLite knows is judged, and one that is run at once changes nothing that counts."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.pragmas import Verdict, judge

OF_THE_PROCESS = {"hard_heap_limit", "soft_heap_limit"}
"""What they are set to holds for all connections of this process, other tests' too."""
KNOWN = sorted(name for (name,) in apsw.Connection(":memory:").execute("PRAGMA pragma_list"))
ARGUMENTS = ("0", "1", "2", "off", "on", "full", "main", "t", "4096", "delete")


def test_sqlite_has_told_what_it_knows() -> None:
    assert {"journal_mode", "user_version", "table_info"} <= set(KNOWN)


def judged(name: str, argument: str | None) -> Verdict | None:
    """None: it is refused."""
    try:
        return judge(name, argument, lambda: "0")
    except NotSupportedError:
        return None


@pytest.mark.parametrize("name", sorted({*KNOWN} - OF_THE_PROCESS))
def test_what_is_run_at_once_leaves_the_database_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (a, b); CREATE INDEX i ON t (a)").fetchall()
    connection.execute("INSERT INTO t VALUES (1, 2)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = path.read_bytes()
    run = 0
    for argument in (None, *ARGUMENTS):
        if judged(name, argument) is Verdict.READ:
            run += 1
            try:
                connection.execute(f"PRAGMA {name}" + (f" = {argument}" if argument is not None else "")).fetchall()
            except apsw.Error:
                pass  # SQLite takes it for no argument
    connection.execute("PRAGMA query_only = 0; PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert path.read_bytes() == before, run
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


@pytest.mark.parametrize("argument", ["delete", "off", "wal2", "1"])
def test_a_region_stays_in_wal_mode(argument: str) -> None:
    with pytest.raises(NotSupportedError, match="journal_mode"):
        judge("journal_mode", argument)
    assert judge("journal_mode", "WAL") is Verdict.READ


def test_what_sqlite_does_not_know_is_refused_with_an_argument() -> None:
    assert "no_such_thing" not in KNOWN
    assert judge("no_such_thing", None) is Verdict.READ
    with pytest.raises(NotSupportedError, match="no_such_thing"):
        judge("no_such_thing", "1")


def test_what_the_file_keeps_is_a_write_or_refused_or_so_already() -> None:
    assert judge("user_version", "7") is judge("application_id", "7") is Verdict.CAPTURE
    assert judge("user_version", None) is Verdict.READ
    assert judge("auto_vacuum", "FULL", lambda: 1) is judge("auto_vacuum", "1", lambda: 1) is Verdict.NOTHING
    with pytest.raises(NotSupportedError, match="VACUUM"):
        judge("auto_vacuum", "full", lambda: 0)
    with pytest.raises(NotSupportedError, match="renumbers"):
        judge("incremental_vacuum", None)  # it acts without an argument, too
    assert judge("optimize", None) is judge("optimize", "0x10002") is Verdict.NOTHING
