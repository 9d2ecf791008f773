"""ATTACH: regions of one instance in one transaction with one number; others who write at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import Any

import apsw
import pytest

import replicate
from replicate.admin.region_release import release_region
from replicate.errors import BusyError, NotFoundError, SchemaChangedError, SnapshotStaleError
from replicate.instance.instance import Instance
from tests.harness.instances import door_of, read_journal
from tests.harness.several import Several, content


def test_one_transaction_over_two_regions_has_one_number(several: Several, attached: Any) -> None:
    before = several.last_seqno()
    attached.execute("INSERT INTO t VALUES (1, 'a')")
    attached.execute("INSERT INTO two.t VALUES (1, 'b')")
    attached.commit()
    assert attached.last_seqno == several.last_seqno() == before + 1
    assert several.held() == {"main": before + 1, "two": before + 1}
    attached.execute("UPDATE TWO.t SET v = v || 'c'")
    attached.commit()
    assert several.held() == {"main": before + 1, "two": before + 2}
    with attached:
        attached.execute("INSERT INTO t SELECT id + 1, v FROM two.t")
    assert several.held() == {"main": before + 3, "two": before + 2}
    assert attached.execute("SELECT count(*) FROM t JOIN two.t AS o USING (v)").fetchone() == (1,)
    assert not attached.in_transaction
    assert several.same() == before + 3
    assert content(several.secondary, "two")["rows of t"][0][2] == (str, "bc")


def test_a_transaction_that_is_rolled_back_leaves_both_regions_and_the_journal(several: Several, attached: Any) -> None:
    before = several.last_seqno()
    attached.execute("INSERT INTO two.t VALUES (1, 'b')")
    attached.execute("INSERT INTO t VALUES (1, 'a')")
    attached.rollback()
    with several.attached("two") as other:  # nothing is held any more
        other.execute("INSERT INTO t VALUES (2, 'c')")
    other.close()
    assert several.last_seqno() == before + 1
    assert (several.ids("main"), several.ids("two")) == ([], [2])
    several.same()


def test_savepoints_and_failed_statements_over_both(several: Several, attached: Any) -> None:
    attached.executescript(
        """
        CREATE TEMP TRIGGER spread AFTER INSERT ON main.t BEGIN INSERT INTO two.t VALUES (new.id, new.v); END;
        BEGIN;
        INSERT INTO t VALUES (1, 'kept');
        SAVEPOINT a;
        INSERT INTO t VALUES (2, 'taken back');
        INSERT INTO k (v) VALUES (1);
        INSERT INTO two.k (v) VALUES (2);
        SAVEPOINT b;
        DELETE FROM two.t;
        RELEASE b;
        ROLLBACK TO a;
        INSERT INTO two.t VALUES (3, 'kept');
        """
    )
    with pytest.raises(sqlite3.IntegrityError):
        attached.execute("INSERT INTO t VALUES (4, 'no'), (3, 'no')")  # ABORT, by the trigger, in the other region
    with pytest.raises(sqlite3.IntegrityError):
        attached.execute("INSERT OR FAIL INTO two.t VALUES (5, 'kept'), (3, 'no'), (6, 'never')")
    attached.execute("INSERT INTO two.k (v) VALUES (1)")
    attached.commit()
    assert (several.ids("main"), several.ids("two")) == ([1], [1, 3, 5])
    several.same()


def test_schema_changes_in_both_in_one_transaction(several: Several, attached: Any) -> None:
    before = several.last_seqno()
    attached.executescript(
        """
        BEGIN;
        CREATE TABLE two.added (a PRIMARY KEY, b AS (a || 'x') VIRTUAL) ;
        INSERT INTO added VALUES ('one');
        CREATE TABLE here (a);
        INSERT INTO here SELECT a FROM two.added;
        CREATE UNIQUE INDEX two."by a" ON added (a);
        CREATE VIEW two.seen AS SELECT id FROM t;
        CREATE TRIGGER two.again AFTER INSERT ON t WHEN new.id < 100
            BEGIN INSERT INTO t VALUES (new.id + 100, 'again'); END;
        INSERT INTO two.t VALUES (1, 'x');
        ALTER TABLE two.k ADD COLUMN more DEFAULT 5;
        INSERT INTO two.k (v) VALUES ('k');
        CREATE TABLE two.copied AS SELECT * FROM main.here;
        CREATE VIRTUAL TABLE "two".words USING fts5(w);
        INSERT INTO words VALUES ('hello');
        PRAGMA two.user_version = 7;
        COMMIT;
        """
    )
    assert several.same() == before + 1
    attached.executescript(
        """
        BEGIN; ALTER TABLE copied RENAME TO [two]; DROP TABLE added; DROP VIEW two.seen; ANALYZE; REINDEX two;
        INSERT INTO "two" VALUES (9); ALTER TABLE two.two RENAME COLUMN a TO z; COMMIT;
        BEGIN; DROP TABLE two.t; CREATE TABLE two.t (other); INSERT INTO two.t VALUES (1); ROLLBACK;
        """
    )
    several.same()
    with pytest.raises(sqlite3.OperationalError):  # SQLite refuses a table of another database
        attached.execute("CREATE VIEW two.far AS SELECT * FROM main.t")
    for text in (
        "CREATE VIEW two.v AS SELECT * FROM two.t",
        "CREATE TRIGGER two.r AFTER DELETE ON two.t BEGIN SELECT 1; END",
    ):
        with pytest.raises(sqlite3.NotSupportedError, match="could not be opened under another name"):
            attached.execute(text)
    attached.execute("INSERT INTO two.t VALUES (2, 'y')")
    attached.commit()
    assert several.same() == several.last_seqno()
    # Another process finds guards on the new tables.
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('INSERT INTO \"two\" VALUES (1)')"
    path = str(several.path("two"))
    ended = subprocess.run([sys.executable, "-c", program, path], check=False, capture_output=True, text=True)
    assert "replicate_connect_is_required" in ended.stderr


def test_a_deferred_constraint_leaves_the_transaction_open_in_both(several: Several, attached: Any) -> None:
    attached.execute("PRAGMA foreign_keys = ON")
    attached.execute("CREATE TABLE two.child (p REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)")
    before = several.last_seqno()
    attached.execute("INSERT INTO t VALUES (1, 'a')")
    attached.execute("INSERT INTO two.child VALUES (5)")
    # Larger than a frame in both: spools, and one that both are copied into at each try.
    attached.executemany("INSERT INTO t VALUES (?, ?)", ((number, "m" * 3000) for number in range(10, 400)))
    attached.executemany("INSERT INTO two.t VALUES (?, ?)", ((number, "t" * 3000) for number in range(10, 400)))
    for _ in range(2):
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            attached.commit()
        assert attached.in_transaction
    attached.execute("INSERT INTO two.t VALUES (5, 'parent')")
    attached.commit()
    assert several.last_seqno() == before + 1
    assert not list(several.primary.journal_directory.glob("*.spool"))
    several.same()


@pytest.mark.parametrize("large", [("t",), ("two.t",), ("t", "two.t")])
def test_large_transactions_are_one_segment(several: Several, attached: Any, large: tuple[str, ...]) -> None:
    """Too large for a frame in one region, in each, and only both together."""
    before = several.last_seqno()
    for table in ("t", "two.t"):
        count = 500 if table in large else 5
        attached.executemany(
            f"INSERT INTO {table} VALUES (?, ?)", ((number, f"{table}" * 1000) for number in range(count))
        )
    attached.execute("SAVEPOINT s")
    attached.execute("DELETE FROM two.t")
    attached.execute("ROLLBACK TO s")
    attached.commit()
    attached.execute("INSERT INTO two.t VALUES (1000, 'x')")
    attached.commit()
    assert several.last_seqno() == before + 2
    several.same()


def test_two_streams_that_only_together_are_too_large_for_a_frame(several: Several, attached: Any) -> None:
    before = several.last_seqno()
    for table in ("t", "two.t"):
        attached.executemany(f"INSERT INTO {table} (v) VALUES (?)", (("x",) for _ in range(9_000)))
    attached.commit()
    assert several.last_seqno() == before + 1
    several.same()


def test_blobs_and_counters_of_an_attached_region(several: Several, attached: Any) -> None:
    attached.execute("CREATE TEMP TRIGGER also AFTER UPDATE ON two.t BEGIN INSERT INTO k (v) VALUES (new.v); END")
    attached.execute("INSERT INTO two.t VALUES (1, zeroblob(4))")
    attached.commit()
    with attached.blobopen("t", "v", 1, name="two") as blob:
        blob.write(b"abc")
    attached.execute("INSERT INTO two.k (v) VALUES (1), (2)")
    attached.execute("DELETE FROM two.k")
    attached.execute("UPDATE two.t SET v = v || 'd'")
    attached.commit()
    several.same()
    assert content(several.secondary, "two")["counters"] == [("k", 2)]
    with pytest.raises(sqlite3.NotSupportedError, match="bookkeeping"):
        attached.blobopen("_replicate_ring", "record", 1, name="two")


# Others at the same time.


def test_a_reader_that_becomes_a_writer_must_have_the_newest_snapshot_of_each(several: Several, attached: Any) -> None:
    attached.execute("BEGIN")
    assert attached.execute("SELECT count(*) FROM two.t").fetchone() == (0,)
    with replicate.connect(several.primary.path, "two") as other:
        other.execute("INSERT INTO t VALUES (1, 'newer')")
    other.close()
    with pytest.raises(sqlite3.OperationalError) as caught:
        attached.execute("INSERT INTO t VALUES (1, 'a')")
    assert isinstance(caught.value, SnapshotStaleError)
    attached.rollback()
    attached.execute("BEGIN")
    attached.execute("SELECT * FROM t").fetchall()
    attached.execute("INSERT INTO two.t VALUES (2, 'a')")
    attached.execute("INSERT INTO t VALUES (2, 'a')")
    attached.commit()
    several.same()


@pytest.mark.parametrize("written", ["main", "two"])
def test_a_reader_who_is_told_that_its_snapshot_is_old_keeps_no_write_lock(several: Several, written: str) -> None:
    reader = several.attached(timeout=0)
    reader.execute("BEGIN")
    for table in ("main.t", "two.t"):
        assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    writers = {name: replicate.connect(several.primary.path, name, timeout=0) for name in several.names}
    with writers[written] as writer:
        writer.execute("INSERT INTO t VALUES (1, 'newer')")
    for _ in range(2):  # an application may try again, rather than roll back
        with pytest.raises(SnapshotStaleError):
            reader.execute("INSERT INTO two.t VALUES (2, 'a')")
        for writer in writers.values():  # the reader has not rolled back, and they do not wait
            with writer:
                writer.execute("INSERT INTO t (v) VALUES ('b')")
    assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    reader.rollback()
    reader.execute("INSERT INTO two.t (v) VALUES ('c')")
    reader.commit()
    for connection in (reader, *writers.values()):
        connection.close()
    several.same()


def test_a_held_region_is_waited_for_and_nothing_is_held_after_that(several: Several) -> None:
    holder = replicate.connect(several.primary.path, "two")
    holder.execute("BEGIN IMMEDIATE")
    connection = several.attached(timeout=0)
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert isinstance(caught.value, BusyError)
    assert "region two" in str(caught.value)
    with replicate.connect(several.primary.path, timeout=0) as free:
        free.execute("INSERT INTO t VALUES (2, 'b')")
    free.close()
    holder.close()
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.commit()
    connection.close()
    several.same()


def test_a_foreign_change_of_the_schema_stops_the_region_by_name(several: Several, attached: Any) -> None:
    foreign = apsw.Connection(str(several.path("two")))
    foreign.execute("CREATE TABLE foreign_one (a)")
    foreign.close()
    with pytest.raises(sqlite3.OperationalError, match="another client changed the schema of region two") as caught:
        attached.execute("INSERT INTO t VALUES (1, 'a')")
    assert isinstance(caught.value, SchemaChangedError)
    attached.execute("DETACH two")
    attached.execute("INSERT INTO t VALUES (1, 'a')")
    attached.commit()


def test_a_region_is_not_released_in_a_transaction_and_is_refused_afterwards(several: Several, attached: Any) -> None:
    attached.execute("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(BusyError, match="region two"):
        release_region(Instance.open(several.primary.path), "two", timeout_s=0)
    attached.commit()
    release_region(Instance.open(several.primary.path), "two", timeout_s=5)
    with pytest.raises(sqlite3.OperationalError, match=f"region two of {several.primary.name} was released") as caught:
        attached.execute("INSERT INTO t VALUES (2, 'a')")
    assert isinstance(caught.value, NotFoundError)
    attached.execute("BEGIN")
    attached.execute("SELECT count(*) FROM two.t").fetchone()
    with pytest.raises(sqlite3.OperationalError, match=r"region two .*was released"):
        attached.execute("INSERT INTO t VALUES (2, 'a')")
    attached.rollback()
    attached.execute("DETACH two")
    attached.execute("INSERT INTO t VALUES (2, 'a')")
    attached.commit()
    attached.execute("ATTACH ? AS two", (str(several.path("two").with_name("two.db")),))  # a plain file now
    assert attached.execute("SELECT count(*) FROM two.t").fetchone() == (0,)


_CROSSING = """
import sys, replicate
directory, home, other, path = sys.argv[1:]
connection = replicate.connect(directory, home, timeout=60)
connection.execute("ATTACH ? AS other", (path,))
for number in range(20):
    for table in ("main.t", "other.t"):
        connection.execute(f"INSERT INTO {table} (v) VALUES (?)", (home,))
    connection.commit()
"""


def test_connections_that_attach_in_opposite_order_do_not_wait_for_one_another(several: Several) -> None:
    before = several.last_seqno()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _CROSSING, str(several.primary.path), home, other, str(several.path(other))]
        )
        for home, other in (("main", "two"), ("two", "main"))
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert several.last_seqno() == before + 40
    for name in ("main", "two"):
        assert len(several.ids(name)) == 40
    with door_of(several.primary):
        found = read_journal(several.primary, before + 1)
    assert [len(one.content) for one in found.transactions.values()] == [2] * 40  # type: ignore[arg-type]
    several.same()
