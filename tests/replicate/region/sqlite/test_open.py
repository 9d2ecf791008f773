"""Opening regions, installing and removing the bookkeeping: what is promised, and each refusal by its name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from replicate.errors import (
    AlreadyExistsError,
    BusyError,
    ExhaustedError,
    NotFoundError,
    NotSupportedError,
    PermissionRefusedError,
    RegionDamagedError,
    RegionReplacedError,
    SchemaChangedError,
)
from replicate.region.sqlite import bookkeeping, open, schema
from tests.harness.machine_tools import small_disk
from tests.harness.regions import INSTANCE, NETWORK, REGION, make_database

SCRIPT = """
    CREATE TABLE person (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL COLLATE NOCASE UNIQUE, born REAL);
    CREATE TABLE "odd ""name" (a, b DEFAULT 'x', c AS (a + 1));
    CREATE TABLE pair (k TEXT, n INT, v ANY, PRIMARY KEY (k, n)) STRICT, WITHOUT ROWID;
    CREATE INDEX person_born ON person (born) WHERE born IS NOT NULL;
    CREATE VIEW elders AS SELECT * FROM person WHERE born < 1950;
    CREATE TRIGGER person_in AFTER INSERT ON person BEGIN INSERT INTO "odd ""name" (a) VALUES (new.id); END;
    INSERT INTO person (name) VALUES ('Ada');
"""


def everything(path: Path) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        found: list[tuple[object, ...]] = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid"
        ).fetchall()
        for name in ("person", '"odd ""name"', "pair", "sqlite_sequence"):
            found += connection.execute(f"SELECT * FROM {name}").fetchall()
        return found
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_database(tmp_path / "a region.db", SCRIPT)


@pytest.fixture
def region(path: Path) -> Iterator[apsw.Connection]:
    connection = open.open_region(path, plain=True)
    open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    yield connection
    connection.close()


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such database file"):
        open.open_region(tmp_path / "none.db")
    assert not list(tmp_path.iterdir())
    with pytest.raises(NotFoundError):
        open.open_region(make_database(tmp_path / "x.db") / "below.db")


def test_a_symbolic_link_is_refused_and_its_target_named(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(PermissionRefusedError, match="symbolic link") as caught:
        open.open_region(link)
    assert str(path) in str(caught.value)
    with pytest.raises(PermissionRefusedError, match="not a regular file"):
        open.open_region(tmp_path)


def test_a_linked_directory_above_the_file_is_allowed(region: apsw.Connection, path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(path.parent)
    open.open_region(tmp_path / "elsewhere" / path.name).close()


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_bytes(b"this is no database, whatever its name says\n" * 100)
    for readonly in (False, True):
        with pytest.raises(RegionDamagedError, match="not an SQLite database"):
            open.open_region(path, readonly=readonly)


def test_a_database_in_rollback_journal_mode_is_no_region(path: Path) -> None:
    with pytest.raises(RegionReplacedError, match=r"no bookkeeping of ours.*Put the right file"):
        open.open_region(path)
    open.open_region(path, plain=True).close()


def test_a_region_that_another_client_took_out_of_wal_mode(region: apsw.Connection, path: Path) -> None:
    region.close()
    other = apsw.Connection(str(path))
    assert other.pragma("journal_mode", "delete") == "delete"
    other.close()
    with pytest.raises(RegionDamagedError, match=r"journal mode delete.*run: PRAGMA journal_mode=WAL"):
        open.open_region(path)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_file_or_directory_is_refused_for_writers(
    region: apsw.Connection, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Root may write anywhere, so the operating system's answer is set for the test."""
    refused = str(path if what == "file" else path.parent)
    real = os.access
    monkeypatch.setattr(os, "access", lambda name, mode: not (name == refused and mode & os.W_OK) and real(name, mode))
    with pytest.raises(PermissionRefusedError, match=f"the {what} is read-only"):
        open.open_region(path)
    connection = open.open_region(path, readonly=True)
    assert connection.execute("SELECT count(*) FROM person").get == 1
    with pytest.raises(apsw.ReadOnlyError):
        connection.execute("DELETE FROM person")
    connection.close()


def test_who_keeps_a_region_to_himself_is_waited_for_at_opening_only(region: apsw.Connection, path: Path) -> None:
    region.close()
    kept = apsw.Connection(str(path))
    kept.pragma("locking_mode", "exclusive")
    kept.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusyError):
        open.open_region(path, opening_s=0)
    end = threading.Timer(2 * open.BUSY_TIMEOUT_MS / 1000, kept.close)  # so long it keeps it
    end.start()
    with closing(open.open_region(path, opening_s=60)) as opened:
        end.join()
        assert opened.pragma("busy_timeout") == open.BUSY_TIMEOUT_MS


def test_writers_run_in_wal_mode_with_normal_syncing(region: apsw.Connection, path: Path) -> None:
    connection = open.open_region(path)
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 1
    connection.close()


def test_an_applier_fires_no_triggers_and_no_foreign_keys(region: apsw.Connection, path: Path) -> None:
    connection = open.open_region(path, applier=True)
    connection.execute("INSERT INTO person (name) VALUES ('Bob')")
    assert connection.execute('SELECT count(*) FROM "odd ""name"').get == 1
    assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, -1) == 0
    connection.close()


@pytest.mark.parametrize(
    ("page_bytes", "pages", "of_writers"), [(4096, 16_384, 4096), (65_536, 1024, 1000), (512, 131_072, 32_768)]
)
def test_checkpoints_are_seldom_whatever_the_size_of_a_page(
    tmp_path: Path, page_bytes: int, pages: int, of_writers: int
) -> None:
    name = tmp_path / "sized.db"
    connection = apsw.Connection(str(name))
    connection.pragma("page_size", page_bytes)
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE one (a)")
    connection.close()
    for applier, wanted in ((True, pages), (False, of_writers)):
        connection = open.open_region(name, applier=applier)
        assert connection.pragma("wal_autocheckpoint") == wanted
        connection.close()


def test_install_and_remove_leave_everything_as_it_was(path: Path) -> None:
    before = everything(path)
    connection = open.open_region(path, plain=True)
    open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    definitions = schema.recorded_definitions(connection)
    assert [d.table for d in definitions] == ['odd "name', "pair", "person"]
    assert {d.version for d in definitions} == {1}
    assert connection.pragma("journal_mode") == "wal"
    assert bookkeeping.check_schema_version(connection) == bookkeeping.schema_version(connection)
    connection.execute("ANALYZE")
    open.remove(connection)
    assert connection.execute("SELECT count(*) FROM sqlite_stat1 WHERE tbl GLOB '_replicate*'").get == 0
    connection.execute("DROP TABLE sqlite_stat1; DROP TABLE IF EXISTS sqlite_stat4")
    assert connection.pragma("journal_mode") == "delete"
    connection.close()
    assert everything(path) == before


def test_install_works_on_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    connection = open.open_region(tmp_path / "empty.db", plain=True)
    open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    assert not schema.recorded_definitions(connection)
    connection.close()


def test_another_client_is_refused_by_the_guards_and_told_why(region: apsw.Connection, path: Path) -> None:
    stranger = apsw.Connection(str(path))
    for statement in (
        "INSERT INTO person (name) VALUES ('Eve')",
        "UPDATE person SET name = 'Eve'",
        "DELETE FROM person",
        'INSERT INTO "odd ""name" (a) VALUES (1)',
        "DELETE FROM pair",
    ):
        with pytest.raises(apsw.SQLError, match="no such function: replicate_connect_is_required"):
            stranger.execute(statement)
    stranger.close()
    region.pragma("trusted_schema", 0)
    region.execute("INSERT INTO person (name) VALUES ('Carl')")
    assert region.execute("SELECT count(*) FROM person").get == 2


def test_the_standard_library_is_refused_by_the_guards_too(region: apsw.Connection, path: Path) -> None:
    """Its SQLite is usually of another release. In a process of its own: two libraries in one lose locks."""
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('DELETE FROM person')"
    result = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert "OperationalError: no such function: replicate_connect_is_required" in result.stderr


def test_a_second_install_is_refused(region: apsw.Connection) -> None:
    with pytest.raises(AlreadyExistsError, match="a region already: main"):
        open.install(region, network=NETWORK, instance=INSTANCE, region=REGION, name="again")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (a)", "UTF-16le"),
        ("CREATE VIRTUAL TABLE pages USING dbstat", "virtual table pages of module dbstat"),
        ("CREATE TABLE _Replicate_x (a)", "_Replicate_x"),
        ("CREATE TABLE t (rowid, _rowid_, oid)", "named rowid, _rowid_ and oid"),
    ],
)
def test_what_cannot_be_replicated_is_refused_by_name(tmp_path: Path, script: str, message: str) -> None:
    path = make_database(tmp_path / "x.db", script)
    before = path.read_bytes()
    connection = open.open_region(path, plain=True)
    with pytest.raises(NotSupportedError, match=message):
        open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    connection.close()
    assert path.read_bytes() == before


def test_an_index_on_an_applications_own_function_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = apsw.Connection(str(path))
    writer.create_scalar_function("own", lambda value: value, 1, deterministic=True)
    writer.execute("CREATE TABLE t (a); CREATE INDEX i ON t (own(a))")
    writer.close()
    connection = open.open_region(path, plain=True)
    with pytest.raises(NotSupportedError, match=r"table t cannot be written.*own"):
        open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    connection.close()


def test_a_file_in_use_is_not_converted(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN; SELECT * FROM person").fetchall()
    connection = open.open_region(path, plain=True)
    with pytest.raises(BusyError, match="journal mode delete"):
        open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    other.close()
    open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    connection.close()


def test_a_failed_install_takes_everything_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(path)

    def fail(*_: object) -> int:
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(open, "store_schema_version", fail)
    connection = open.open_region(path, plain=True)
    with pytest.raises(open.DiskFullError):
        open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    assert connection.pragma("journal_mode") == "delete"
    connection.close()
    assert everything(path) == before


@pytest.mark.parametrize(("mode", "held"), [("delete", "writers wait"), ("wal", "writers go on")])
def test_how_far_the_check_for_damage_is_is_told_and_who_waits(tmp_path: Path, mode: str, held: str) -> None:
    path = tmp_path / "large.db"
    with closing(apsw.Connection(str(path))) as plain:
        plain.pragma("journal_mode", mode)
        plain.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT NOT NULL)")
        with plain:
            plain.executemany("INSERT INTO t VALUES (?, ?)", ((n, "x" * 1000) for n in range(5000)))
    told: list[tuple[str, int, int]] = []
    waits: list[bool] = []

    def tell(what: str, done: int, whole: int) -> None:
        told.append((what, done, whole))
        if len(told) == 2:  # is it true?
            with closing(apsw.Connection(str(path))) as writer:
                try:
                    writer.execute("INSERT INTO t VALUES (-1, 'meanwhile')")
                    waits.append(False)
                except apsw.BusyError:
                    waits.append(True)

    connection = open.open_region(path, plain=True)
    open.check_undamaged(connection, where=str(path), told=tell)
    connection.close()
    assert {what for what, _, _ in told} == {f"checking ({held})"}
    assert waits == [held == "writers wait"]
    done = [one for _, one, _ in told]
    assert done == sorted(done)
    assert len(set(done)) > 3
    whole = told[0][2]
    assert whole == pytest.approx(2 * path.stat().st_size, rel=0.01)
    assert 0.8 * whole < done[-1] <= whole


def test_damage_is_found_before_a_region_is_made(tmp_path: Path) -> None:
    path = make_database(tmp_path / "x.db", "CREATE TABLE t (a); CREATE INDEX i ON t (a)")
    writer = apsw.Connection(str(path))
    writer.executemany("INSERT INTO t VALUES (?)", ((f"{n:0200}",) for n in range(500)))
    writer.close()
    content = bytearray(path.read_bytes())
    content[8192 * 2 + 100 : 8192 * 2 + 3000] = bytes(2900)
    path.write_bytes(content)
    connection = open.open_region(path, plain=True)
    with pytest.raises(RegionDamagedError, match="damaged"):
        open.install(connection, network=NETWORK, instance=INSTANCE, region=REGION, name="main")
    connection.close()


def test_sqlite_without_memory_may_be_asked_again(region: apsw.Connection, path: Path) -> None:
    """It is no verdict on the disk: a daemon that ends by it is to be started again."""
    statement = "SELECT length(hex(zeroblob(1000000)))"
    before = apsw.hard_heap_limit(apsw.memory_used() + 100_000)
    try:
        with pytest.raises(apsw.NoMemError) as raised:
            region.execute(statement).fetchall()
    finally:
        apsw.hard_heap_limit(before)
    error = open.translate(raised.value, where=str(path))
    assert isinstance(error, ExhaustedError)
    assert (error.exit_code, error.where) == (75, str(path))
    assert "memory" in f"{error.what} {error.do}"
    assert region.execute(statement).fetchall() == [(2_000_000,)]


def test_an_index_of_the_wal_that_cannot_be_mapped_is_a_lack_of_memory(tmp_path: Path) -> None:
    """SQLite calls it an I/O error, and says "not an error" where a page is written before COMMIT (measured)."""
    script = f"""
import resource
import apsw
from replicate.region.sqlite.open import translate
connection = apsw.Connection({str(tmp_path / "a.db")!r})
connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (a)").fetchall()
connection.execute("PRAGMA cache_size = -100000; PRAGMA wal_autocheckpoint = 0").fetchall()
connection.execute("BEGIN IMMEDIATE")
for _ in range(3000):  # 9,000 pages: the index maps one piece of the -shm for each 4,096 of them
    connection.execute("INSERT INTO t VALUES (zeroblob(9000))")
resource.setrlimit(resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
try:
    connection.cache_flush()
except apsw.IOError as error:
    assert error.extendedresult == apsw.SQLITE_IOERR_SHMMAP, error.extendedresult
    found = translate(error, where="a.db")
    print(found.code, found.exit_code, found)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("EXHAUSTED 75 "), done.stderr
    assert "-shm" in done.stdout
    assert "Free memory" in done.stdout


def test_a_full_disk_that_sqlite_calls_an_io_error_is_told_as_what_it_is(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    with small_disk(disk, "256k"):
        with closing(apsw.Connection(str(disk / "a.db"))) as connection:
            connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (a)")
        with suppress(OSError), (disk / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(4096))
        with closing(apsw.Connection(str(disk / "a.db"))) as connection, pytest.raises(apsw.IOError) as raised:
            connection.execute("SELECT * FROM t").fetchall()
    error = open.translate(raised.value, where="a.db")
    assert error.exit_code == 74
    assert "the -shm beside the database cannot grow" in error.what
    assert error.do.startswith("Free space")


def test_the_region_is_told_from_a_replaced_file(region: apsw.Connection, tmp_path: Path) -> None:
    where = region.filename
    found = bookkeeping.check_region_identity(region, region=REGION, network=NETWORK, instance=INSTANCE, where=where)
    assert (found.name, found.inode) == ("main", os.stat(where).st_ino)
    with pytest.raises(RegionReplacedError) as caught:
        bookkeeping.check_region_identity(region, region=b"X" * 16, where=where)
    assert REGION.hex() in str(caught.value)
    assert (b"X" * 16).hex() in str(caught.value)
    plain = apsw.Connection(str(make_database(tmp_path / "plain.db", "CREATE TABLE t (a)")))
    with pytest.raises(RegionReplacedError, match="no bookkeeping"):
        bookkeeping.check_region_identity(plain, region=REGION, where="plain.db")
    plain.close()


def test_a_copy_is_adopted_under_its_own_identity(region: apsw.Connection, tmp_path: Path) -> None:
    bookkeeping.write_slot(region, 7, b"frame")
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    with copy.backup("main", region, "main") as backup:
        backup.step()
    copy.close()
    adopted = open.open_region(tmp_path / "copy.db", plain=True)
    open.adopt_copy(adopted, network=NETWORK, instance=b"J" * 16, region=b"S" * 16, name="main")
    made = bookkeeping.check_region_identity(adopted, region=b"S" * 16, instance=b"J" * 16, where="")
    assert (made.region, made.instance, made.name) == (b"S" * 16, b"J" * 16, "main")
    assert bookkeeping.region_seqno(adopted) == 0
    assert {d.version for d in schema.recorded_definitions(adopted)} == {1}
    adopted.close()


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE other (a)", "ALTER TABLE person ADD x", "DROP TRIGGER _replicate_guard_insert_person", "VACUUM"],
)
def test_a_schema_change_by_another_client_is_noticed(region: apsw.Connection, path: Path, statement: str) -> None:
    region.execute("INSERT INTO person (name) VALUES ('Bob')")
    bookkeeping.check_schema_version(region)
    stranger = apsw.Connection(str(path))
    stranger.execute(statement)
    stranger.close()
    with pytest.raises(SchemaChangedError, match="replicate -i INSTANCE region release"):
        bookkeeping.check_schema_version(region)


def test_schema_changes_of_ours_are_kept_with_the_commit(region: apsw.Connection) -> None:
    region.execute("BEGIN IMMEDIATE; CREATE TABLE other (a)")
    with pytest.raises(SchemaChangedError):
        bookkeeping.check_schema_version(region)
    bookkeeping.store_schema_version(region)
    region.execute("COMMIT")
    bookkeeping.check_schema_version(region)
    region.execute("BEGIN IMMEDIATE; CREATE TABLE more (a)")
    bookkeeping.store_schema_version(region)
    region.execute("ROLLBACK")
    bookkeeping.check_schema_version(region)
