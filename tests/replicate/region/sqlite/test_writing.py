"""The SQLite side of a writer's transactions: what a region of the connection tells, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.errors import BusyError
from replicate.instance.instance import Instance
from replicate.region.sqlite.bookkeeping import schema_version
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.open_region import open_to_read
from replicate.region.sqlite.writing import FileWriter
from tests.harness.instances import make_primary

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def primary(tmp_path: Path) -> Instance:
    return make_primary(tmp_path / "p", regions=("main", "two"))


@pytest.fixture
def writer(primary: Instance) -> Iterator[FileWriter]:
    entry = primary.region("main")
    with closing(FileWriter(entry.path, region=entry.uuid, writable=True, opening_s=1)) as made:
        yield made


def attach(writer: FileWriter, primary: Instance) -> None:
    region = writer.attach(primary.region("two").path, "two", writer.connection.execute)
    assert region.schema == "two"


def test_a_slot_is_there_after_commit_and_not_after_rollback(primary: Instance, writer: FileWriter) -> None:
    entry = primary.region("main")
    with closing(open_to_read(entry.path, region=entry.uuid)) as reader:
        before = reader.seqno()
        writer.begin()
        writer.own.write_slot(before + 7, b"record")
        assert (writer.own.seqno(), reader.seqno()) == (before + 7, before)
        writer.rollback()
        writer.rollback()  # nothing is open: nothing happens
        assert writer.own.seqno() == before
        writer.begin()
        writer.own.write_slot(before + 8, None)
        writer.commit()
        assert (writer.own.seqno(), reader.seqno()) == (before + 8, before + 8)


def test_a_transaction_takes_the_write_lock_of_every_region(primary: Instance, writer: FileWriter) -> None:
    attach(writer, primary)
    writer.begin()
    for name in ("main", "two"):
        with closing(open_region(primary.region(name).path, busy_timeout_ms=0)) as other:
            with pytest.raises(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
    writer.rollback()


def test_where_attaching_fails_after_sqlites_attach_nothing_is_attached(
    primary: Instance, writer: FileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("replicate.region.sqlite.writing.slot_writer", failing)
    with pytest.raises(KeyboardInterrupt):
        attach(writer, primary)
    assert [row[1] for row in writer.connection.execute("PRAGMA database_list")] == ["main"]


def test_the_version_is_the_open_transactions_and_is_stored_where_it_belongs(
    primary: Instance, writer: FileWriter
) -> None:
    two = writer.attach(primary.region("two").path, "two", writer.connection.execute)
    writer.begin()
    untouched = two.read_version()
    before = writer.own.read_version()
    writer.connection.execute("CREATE TABLE made (a)")
    assert writer.own.read_version() == before + 1 == schema_version(writer.connection)
    assert two.read_version() == untouched
    writer.own.store_version()
    stored = "SELECT value FROM main._replicate_state WHERE key = 'schema_version'"
    assert writer.connection.execute(stored).get == before + 1
    writer.rollback()
    assert writer.connection.execute(stored).get == before


def test_a_reader_takes_the_write_lock_unless_it_reads_an_older_state(primary: Instance, writer: FileWriter) -> None:
    with closing(open_region(primary.region("main").path, busy_timeout_ms=0)) as other:
        writer.connection.execute("BEGIN")
        writer.own.seqno()
        assert writer.own.take_write_lock()
        with pytest.raises(apsw.BusyError):
            other.execute("BEGIN IMMEDIATE")
        writer.rollback()
        writer.connection.execute("BEGIN")
        writer.own.seqno()
        other.execute("INSERT INTO t VALUES (1, 'x')")
        assert not writer.own.take_write_lock()
        writer.rollback()


def test_a_violated_constraint_is_told_before_commit(writer: FileWriter) -> None:
    writer.connection.pragma("foreign_keys", True)
    writer.begin()
    writer.connection.execute("CREATE TABLE a (k PRIMARY KEY)")
    writer.connection.execute("CREATE TABLE b (k REFERENCES a DEFERRABLE INITIALLY DEFERRED)")
    assert writer.violations()[0] == 0
    writer.connection.execute("INSERT INTO b VALUES (1)")
    assert writer.violations()[0] > 0
    with pytest.raises(apsw.ConstraintError):
        writer.commit()
    assert writer.connection.in_transaction
    writer.rollback()


def test_a_region_that_was_released_says_so(writer: FileWriter) -> None:
    assert not writer.own.is_released()
    writer.connection.execute("DROP TABLE _replicate_region")
    assert writer.own.is_released()


def test_errors_are_sqlites_until_they_are_named(writer: FileWriter) -> None:
    with pytest.raises(writer.Error) as missing:
        writer.connection.execute("SELECT * FROM nowhere")
    assert writer.is_missing(missing.value)
    busy = apsw.BusyError("planted")
    assert not writer.is_missing(busy)
    assert isinstance(writer.named(busy, "here"), BusyError)
    assert writer.errno_of(apsw.FullError("planted")) == 28
