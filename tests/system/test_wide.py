"""Tables as wide as SQLite lets them be, whose hidden rowid comes to their 2,000 columns, from the write to `compare`.

Each kind of key; every way to capture, apply and read an image; what differs is found in the last column too.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.compare.compare import compare
from replicate.errors import ConflictError
from replicate.limits import COLUMNS_MAX
from replicate.region.sqlite.digest import TableVerdict, digest_region
from replicate.region.sqlite.digest import compare as compare_files
from replicate.region.sqlite.open import open_region
from tests.harness.pair import Pair, assert_equal, work_all
from tests.harness.replaying import replayed

COLUMNS = [f"c{number}" for number in range(COLUMNS_MAX)]
LIST = ", ".join(COLUMNS)
KEYS = {
    "hidden rowid": f"CREATE TABLE wide ({LIST.replace('c0,', 'c0 INT UNIQUE,')})",
    "VIRTUAL": f"CREATE TABLE wide ({LIST.replace('c1999', 'c1999 AS (c1998) VIRTUAL')})",
    "alias": f"CREATE TABLE wide ({LIST.replace('c0,', 'c0 INTEGER PRIMARY KEY,')})",
    "no rowid": f"CREATE TABLE wide ({LIST.replace('c0,', 'c0 TEXT PRIMARY KEY,')}) WITHOUT ROWID",
    "all columns": f"CREATE TABLE wide ({LIST}, PRIMARY KEY ({LIST})) WITHOUT ROWID",
}
HIDDEN = ("hidden rowid", "VIRTUAL")


def row(number: int, kind: str) -> list[object]:
    """One that is unlike any other. A generated column takes no value."""
    values: list[object] = [number, *(f"{number} {column}" for column in COLUMNS[1:])]
    return values[:-1] if kind == "VIRTUAL" else values


@pytest.fixture(params=KEYS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Pair:
    """A seeded pair, with two rows on both sides."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, f"{KEYS[kind]}; CREATE TABLE other (a)")
    with closing(made.connect()) as connection:
        insert(connection, row(1, kind), row(2, kind))
        connection.commit()
    made.seed()
    return made


def insert(connection: object, *rows: list[object]) -> None:
    for values in rows:
        names = ", ".join(COLUMNS[: len(values)])
        connection.execute(f"INSERT INTO wide ({names}) VALUES ({', '.join('?' * len(values))})", values)  # type: ignore[attr-defined]


def write(pair: Pair, kind: str) -> None:
    """Of every kind of change, in several transactions."""
    with closing(pair.connect()) as connection:
        insert(connection, row(3, kind), row(4, kind), row(5, kind))
        connection.commit()
        connection.execute("UPDATE wide SET c1998 = 'changed' WHERE c0 = 3")
        every = COLUMNS[: len(row(3, kind))]
        assignments = ", ".join(f"{name} = ?" for name in every)
        connection.execute(f"UPDATE wide SET {assignments} WHERE c0 = 4", row(40, kind))
        connection.commit()
        connection.execute("DELETE FROM wide WHERE c0 = 5")
        if kind in HIDDEN:
            connection.execute("UPDATE wide SET rowid = 77, c1 = x'00ff' WHERE c0 = 1")
        if kind == "hidden rowid":  # what a statement that failed has left is read from the table
            with pytest.raises(replicate.IntegrityError):
                connection.execute("UPDATE OR FAIL wide SET c0 = iif(c0 = 3, 300, 1) WHERE c0 IN (3, 40)")
        if kind != "all columns":
            connection.execute("REPLACE INTO wide (c0, c1998) VALUES (2, 'again')")
        connection.commit()
        connection.execute("CREATE TABLE copied AS SELECT * FROM wide")
        connection.execute("CREATE INDEX wide_last ON wide (c1998)")
        connection.commit()
        connection.execute("UPDATE copied SET c1998 = c1998 || '!'")
        connection.commit()


def write_blob(pair: Pair) -> None:
    """The image of the row is read, before and after: the hook does not give it."""
    with closing(pair.connect()) as connection:
        connection.execute("UPDATE wide SET c1999 = zeroblob(4) WHERE c0 = 2")
        connection.commit()
        (rowid,) = connection.execute("SELECT rowid FROM wide WHERE c0 = 2").fetchone()
        with connection.blobopen("wide", "c1999", rowid) as blob:
            blob.write(b"abcd")
        connection.commit()


@pytest.mark.slow
def test_it_arrives_whole_and_compares(wide: Pair, kind: str) -> None:
    write(wide, kind)
    if kind in ("hidden rowid", "alias"):  # SQLite opens no blobs elsewhere
        write_blob(wide)
    wide.catch_up()
    assert_equal(wide)
    with (
        closing(open_region(wide.primary.region("main").path, readonly=True)) as here,
        closing(open_region(wide.secondary.region("main").path, readonly=True)) as there,
    ):
        assert digest_region(here) == digest_region(there)
        assert {table.table: table.rows for table in digest_region(here).tables}["wide"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hidden rowid", "all columns"])
def test_a_replay_gives_the_same(wide: Pair, kind: str) -> None:
    write(wide, kind)
    replayed(wide)
    assert_equal(wide)


@pytest.mark.slow
def test_what_differs_in_the_last_column_is_found(wide: Pair, kind: str) -> None:
    path = wide.secondary.region("main").path
    with closing(open_region(path, applier=True)) as connection:
        connection.execute("UPDATE wide SET c1998 = 'drifted' WHERE c0 = 2")
    found = compare(wide.primary, wide.secondary, timeout_s=60)
    assert not found.equal
    with closing(pair_file(wide)) as here, closing(open_region(path, readonly=True)) as there:
        (table,) = (table for table in compare_files(here, there).tables if table.status is not TableVerdict.EQUAL)
        columns = [column.column for difference in table.differences for column in difference.columns]
        assert columns == ([] if kind == "all columns" else ["c1998"])  # there it is another row
    with closing(wide.connect()) as connection:
        connection.execute("DELETE FROM wide WHERE c0 = 2")
        connection.commit()
    with wide.receive_pool() as pool, wide.applier(pool) as applier:
        wide.deliver(pool)
        with pytest.raises(
            ConflictError, match="missing" if kind == "all columns" else "differs from its before-image"
        ):
            work_all(applier)


def pair_file(pair: Pair) -> apsw.Connection:
    return open_region(pair.primary.region("main").path, readonly=True)


def test_text_that_is_not_utf_8_doubles_the_columns(tmp_path: Path) -> None:
    """It is read as pairs of class and value: three result sets."""
    digests = []
    for name in ("one.db", "two.db"):
        with closing(apsw.Connection(str(tmp_path / name))) as connection:
            connection.execute(
                f"CREATE TABLE wide ({LIST}); INSERT INTO wide (c0, c1999) VALUES (1, CAST(x'ff' AS TEXT))"
            )
            digests.append(digest_region(connection))
            if name == "two.db":
                with closing(apsw.Connection(str(tmp_path / "one.db"))) as other:
                    assert compare_files(connection, other).equal
                connection.execute("UPDATE wide SET c1999 = CAST(x'fe' AS TEXT)")
                with closing(apsw.Connection(str(tmp_path / "one.db"))) as other:
                    (table,) = compare_files(connection, other).tables
                    assert [column.column for column in table.differences[0].columns] == ["c1999"]
    assert digests[0] == digests[1]
