"""What one table costs does not depend on how many others there are."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from replicate.errors import NotSupportedError
from replicate.limits import PARTITION_DEFAULT
from replicate.region.sqlite.schema import read_definition


def steps_of(tables: int) -> int:
    """Steps of SQLite's machine for the definition of one table among so many."""
    connection = apsw.Connection(":memory:")
    for number in range(tables):
        connection.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, value TEXT)")
    read_definition(connection, "t3", region="main")  # prepares
    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    read_definition(connection, "t3", region="main")
    connection.trace_v2(0)
    connection.close()
    return steps


def test_a_definition_among_many_tables() -> None:
    assert 0 < steps_of(300) <= steps_of(5)


@pytest.mark.parametrize("name", ["O'Neil", 'a "b"', "ÄÖ", "select", "x;--"])
def test_names_are_names(name: str) -> None:
    connection = apsw.Connection(":memory:")
    quoted = '"' + name.replace('"', '""') + '"'
    connection.execute(f"CREATE TABLE {quoted} (id INTEGER PRIMARY KEY); CREATE TABLE other (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE VIEW v AS SELECT 1; CREATE TEMP TABLE temporary (id)")
    found = read_definition(connection, name, region="main")
    assert (found.table, found.partition) == (name, PARTITION_DEFAULT)
    assert read_definition(connection, "OTHER", region="main").table == "other"
    for missing in ("v", "temporary", "nothing", ""):
        with pytest.raises(NotSupportedError):
            read_definition(connection, missing, region="main")
    connection.close()
