"""Incremental writes to BLOBs that wait to be told: the first image counts, and each row is told once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from replicate.errors import InternalError
from replicate.region.sqlite.capture.blobs import BlobWrites, find_row, read_row
from replicate.region.sqlite.capture.tables import CapturedTable, read_table_map
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema import read_definitions
from tests.harness.regions import make_database, make_region


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    make_region(
        tmp_path / "main.db",
        'CREATE TABLE aliased (id INTEGER PRIMARY KEY, "od""d" BLOB); CREATE TABLE hidden (rowid, b BLOB)',
    )
    made = open_region(tmp_path / "main.db")
    made.execute("INSERT INTO aliased VALUES (4, x'aa'); INSERT INTO hidden (_rowid_, rowid, b) VALUES (9, 'x', x'bb')")
    yield made
    made.close()


def tables(connection: apsw.Connection) -> dict[str, CapturedTable]:
    return dict(read_table_map(connection, read_definitions(connection, region="main")).tables)


def test_the_row_before_the_first_write_is_kept(connection: apsw.Connection) -> None:
    table, writes = tables(connection)["aliased"], BlobWrites()
    asked = writes.rows
    assert not writes
    writes.note(table, 4, [4, b"first"])
    writes.note(table, 4, [4, b"second"])
    writes.note(table, 5, [5, b"other"])
    assert writes
    assert asked is writes.rows, "the hook has kept it"
    assert writes.take(table, 4) == [4, b"first"]
    assert writes.take(table, 4) is None
    assert [(one.definition.table, rowid, before) for one, rowid, before in writes.take_all()] == [
        ("aliased", 5, [5, b"other"])
    ]
    assert not writes


def test_what_is_noted_while_all_are_told_is_told_next(connection: apsw.Connection) -> None:
    table, writes = tables(connection)["aliased"], BlobWrites()
    writes.note(table, 1, [1, b"a"])
    for _, rowid, _ in writes.take_all():
        writes.note(table, rowid + 1, [rowid + 1, b"b"])
    assert [rowid for _, rowid, _ in writes.take_all()] == [2]
    writes.note(table, 3, [3, b"c"])
    writes.clear()
    assert list(writes.take_all()) == []


def test_a_row_is_read_by_its_rowid_whatever_the_columns_are_called(connection: apsw.Connection) -> None:
    known = tables(connection)
    assert read_row(connection, known["aliased"], 4) == [4, b"\xaa"]
    assert read_row(connection, known["hidden"], 9) == [9, "x", b"\xbb"]
    assert find_row(connection, known["hidden"], 8) is None
    with pytest.raises(InternalError, match="a row of table hidden is gone"):
        read_row(connection, known["hidden"], 8)


def test_a_row_of_an_attached_region(connection: apsw.Connection, tmp_path: Path) -> None:
    make_database(
        tmp_path / "other.db",
        """CREATE TABLE aliased (id INTEGER PRIMARY KEY, "od""d" BLOB); INSERT INTO aliased VALUES (4, x'cc')""",
    )
    connection.execute("ATTACH ? AS other", (str(tmp_path / "other.db"),))
    assert find_row(connection, tables(connection)["aliased"], 4, "other") == [4, b"\xcc"]
