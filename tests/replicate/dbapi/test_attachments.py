"""ATTACH: what can be attached, and how: regions, plain files for reading, databases in memory; what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from replicate.admin.regions import add_region
from replicate.door import primary
from replicate.door.region_part import RegionPart, in_order_of_locks
from replicate.errors import NotSupportedError
from replicate.instance.instance import Instance
from tests.harness.regions import make_database
from tests.harness.several import SCHEMA, Several

# What is attached, and what is not.


def test_what_cannot_be_attached_is_refused_and_nothing_is_attached(
    several: Several, attached: Any, tmp_path: Path
) -> None:
    other = Instance.create(tmp_path / "strange", role="primary", name="strange")
    add_region(other, make_database(tmp_path / "strange.db", SCHEMA))
    attached.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
    (tmp_path / "link").symlink_to(several.path("two"))
    before = attached.execute("PRAGMA database_list").fetchall()
    for name, why in (
        (several.path("two"), "region two is open on this connection already, as two"),
        (tmp_path / "link", "region two is open on this connection already, as two"),
        (several.path("main"), "region main is open on this connection already, as main"),
        (tmp_path / "copy.db", "a copy of a region: nobody keeps it up to date"),
        ("file:x.db?mode=rwc", "a URI cannot be attached"),
    ):
        with pytest.raises(sqlite3.NotSupportedError, match=why):
            attached.execute("ATTACH ? AS more", (str(name),))
    with pytest.raises(sqlite3.OperationalError, match="none is created"):
        attached.execute("ATTACH 'not-there.db' AS more")
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        attached.execute("ATTACH ? AS more", (str(tmp_path / "text"),))
    attached.execute("ATTACH ? AS strange", (str(tmp_path / "strange.db"),))  # for reading, as a plain one
    assert attached.execute("SELECT count(*) FROM strange.t").fetchone() == (0,)
    with pytest.raises(sqlite3.NotSupportedError, match="strange is no region of this instance"):
        attached.execute("INSERT INTO strange.t VALUES (1, 2)")
    with pytest.raises(sqlite3.NotSupportedError, match="attached for reading only"):
        attached.execute("CREATE TABLE strange.u (a)")
    attached.execute("DETACH strange")
    plain = str(make_database(tmp_path / "plain.db", "CREATE TABLE p (a)"))
    for text in ("ATTACH ? AS two", "ATTACH ? AS Main"):  # the name is taken
        with pytest.raises(sqlite3.OperationalError, match="already in use"):
            attached.execute(text, (plain,))
    assert attached.execute("PRAGMA database_list").fetchall() == before
    attached.execute("INSERT INTO two.t VALUES (1, 'still there')")
    attached.commit()
    several.same()


def test_a_region_is_attached_and_detached_outside_of_transactions(several: Several) -> None:
    connection = replicate.connect(several.primary.path)
    attach = f"ATTACH DATABASE '{several.path('two')}' AS [Other One]"
    connection.execute("BEGIN")
    with pytest.raises(sqlite3.NotSupportedError, match="cannot be attached within a transaction"):
        connection.execute(attach)
    connection.rollback()
    connection.execute(attach)
    connection.execute('INSERT INTO "other one".t VALUES (1, 2)')
    with pytest.raises(sqlite3.NotSupportedError, match="cannot be detached within a transaction"):
        connection.execute("DETACH 'Other One'")
    connection.commit()
    connection.execute("DETACH DATABASE ?", ("other one",))
    with pytest.raises(sqlite3.OperationalError, match="no such database"):
        connection.execute("DETACH 'Other One'")
    connection.execute("INSERT INTO t VALUES (1, 2)")
    with replicate.connect(several.primary.path, "two", timeout=0) as free:  # its lock is no longer taken
        free.execute("INSERT INTO t VALUES (2, 3)")
    free.close()
    connection.commit()
    connection.execute(attach)
    connection.execute("INSERT INTO [other one].t VALUES (3, 2)")
    connection.commit()
    connection.close()
    several.same()
    assert sqlite3.connect(several.path("two")).execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_a_region_is_attached_by_its_name(several: Several) -> None:
    with replicate.connect(several.primary.path, "two") as connection:
        connection.attach("main", "first")
        with pytest.raises(sqlite3.OperationalError, match="'three'"):
            connection.attach("three")
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute("INSERT INTO first.t VALUES (1, 'b')")
    connection.close()
    assert several.held() == dict.fromkeys(several.names, several.last_seqno())
    several.same()
    reader = replicate.connect(several.secondary.path)
    reader.attach("two")
    assert reader.execute("SELECT o.v, h.v FROM two.t AS o JOIN main.t AS h USING (id)").fetchall() == [("a", "b")]
    reader.close()


def test_a_plain_file_is_attached_for_reading(several: Several, attached: Any, tmp_path: Path) -> None:
    path = make_database(
        tmp_path / "pläin %.db", "CREATE TABLE p (a); INSERT INTO p VALUES (1), (2); CREATE TABLE q (a)"
    )
    attached.execute("ATTACH ? AS plain", (str(path),))
    attached.execute("INSERT INTO two.t SELECT a, 'read' FROM plain.p")
    attached.execute("CREATE TEMP TRIGGER away AFTER INSERT ON main.t BEGIN INSERT INTO plain.p VALUES (new.id); END")
    for text in (
        "INSERT INTO plain.p VALUES (3)",
        "INSERT INTO p VALUES (3)",
        "UPDATE p SET a = 1",
        "DELETE FROM plain.p",
        "CREATE TABLE plain.n (a)",
        "CREATE INDEX plain.i ON p (a)",
        "DROP TABLE q",
        "ALTER TABLE plain.p ADD COLUMN b",
        "INSERT INTO t VALUES (9, 'by the trigger')",
    ):
        with pytest.raises(sqlite3.NotSupportedError, match="plain is no region of this instance, and attached"):
            attached.execute(text)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        attached.execute("PRAGMA plain.user_version = 5")
    attached.commit()
    attached.execute("DROP TRIGGER away")
    attached.execute("DETACH plain")
    attached.execute("INSERT INTO t VALUES (50, 'a plain file comes and goes within a transaction')")
    attached.execute("ATTACH ? AS plain", (str(path),))
    attached.execute("INSERT INTO two.t SELECT a + 50, 'read' FROM p")
    attached.commit()
    attached.execute("DETACH plain")
    with sqlite3.connect(path) as same_process:  # it is not watched any more
        assert same_process.execute("SELECT a FROM p").fetchall() == [(1,), (2,)]
    same_process.close()
    assert several.same()
    assert (several.ids("main"), several.ids("two")) == ([50], [1, 2, 51, 52])


def test_databases_in_memory_stay_where_they_are(several: Several, attached: Any) -> None:
    before = several.last_seqno()
    attached.executescript("ATTACH ':memory:' AS m; ATTACH '' AS e; CREATE TABLE m.x (a); CREATE TABLE e.y (a);")
    attached.executescript("INSERT INTO m.x VALUES (1); INSERT INTO y VALUES (2); PRAGMA m.user_version = 3;")
    assert several.last_seqno() == before
    attached.executescript("BEGIN; INSERT INTO two.t SELECT a, 'm' FROM x; INSERT INTO t SELECT a, 'e' FROM y; END;")
    attached.executescript("DROP TABLE x; DETACH m; DETACH e;")
    assert several.same() == before + 1


def test_bookkeeping_and_pragmas_of_an_attached_region_are_ours(several: Several, attached: Any) -> None:
    for text in (
        "DELETE FROM two._replicate_ring",
        "UPDATE two._replicate_state SET value = 0",
        "DROP TABLE two._replicate_scr",
        "CREATE TABLE two._replicate_more (a)",
        "DROP TRIGGER two._replicate_guard_insert_t",
        "PRAGMA two.journal_mode = DELETE",
        "PRAGMA two.synchronous = OFF",
        "PRAGMA two.writable_schema = ON",
        "VACUUM two",
        "CREATE TEMP TRIGGER z AFTER INSERT ON t BEGIN DELETE FROM two._replicate_ring; END;"
        "INSERT INTO t VALUES (1, 1)",
    ):
        with pytest.raises(sqlite3.NotSupportedError):
            attached.executescript(text)
        attached.rollback()
    attached.execute("DROP TRIGGER IF EXISTS z")
    attached.create_function("mine", 1, lambda value: value, deterministic=True)
    with pytest.raises(sqlite3.NotSupportedError, match="mine"):
        attached.execute("CREATE INDEX two.i ON t (mine(v))")
    attached.execute("CREATE INDEX two.i ON t (lower(v))")
    with pytest.raises(sqlite3.NotSupportedError, match="lower"):
        attached.create_function("lower", 1, lambda value: value)
    several.same()


def test_a_function_in_place_of_sqlites_own_is_felt_at_attach(several: Several, attached: Any) -> None:
    attached.execute("CREATE INDEX two.i ON t (lower(v))")
    other = replicate.connect(several.primary.path)
    other.create_function("lower", 1, lambda value: value, deterministic=True)
    with pytest.raises(sqlite3.NotSupportedError, match="lower"):
        other.execute("ATTACH ? AS two", (str(several.path("two")),))
    assert [row[1] for row in other.execute("PRAGMA database_list")] == ["main"]
    other.execute("INSERT INTO t VALUES (1, 1)")
    other.commit()
    other.close()


def test_an_interrupt_after_sqlites_attach_leaves_nothing_that_can_be_written(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = replicate.connect(several.primary.path)
    attach = f"ATTACH '{several.path('two')}' AS two"
    with monkeypatch.context() as patch:
        use = primary.RegionSession._use
        patch.setattr(
            primary.RegionSession, "_use", lambda me, parts: use(me, parts) if len(parts) < 2 else interrupted(parts)
        )
        with pytest.raises(KeyboardInterrupt):
            connection.execute(attach)
    with pytest.raises(sqlite3.NotSupportedError, match="attached for reading only"):
        connection.execute("INSERT INTO two.t VALUES (1, 'unseen')")
    connection.rollback()
    connection.close()
    assert several.ids("two") == []


def interrupted(parts: list[RegionPart]) -> list[RegionPart]:
    """Once the other region is attached; a session of its own looks at it before."""
    if len(parts) > 1:
        raise KeyboardInterrupt
    return in_order_of_locks(parts)


_INITS = """
def first(connection):
    connection.create_function("same", 1, lambda value: f"first {value}", deterministic=True)
def lowering(connection):
    connection.create_function("lower", 1, lambda value: value, deterministic=True)
def second(connection):
    connection.create_function("same", 1, lambda value: f"second {value}", deterministic=True)
def third(connection):
    connection.create_function("mine", 1, lambda value: f"third {value}", deterministic=True)
"""


@pytest.mark.parametrize(
    ("inits", "clash", "others"),
    [
        ("main=attach_inits:first, two=attach_inits:second", "same", ""),
        ("main=attach_inits:lowering", "lower", ""),  # the other region's index uses SQLite's own
        ("two=attach_inits:third", "mine", "mine"),  # the application has one of that name
        ("two=attach_inits:third", "", "another"),
        ("attach_inits:third", "", "mine"),
    ],
)
def test_functions_of_the_schema_that_two_regions_have_different_ones_of(
    several: Several, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inits: str, clash: str, others: str
) -> None:
    with replicate.connect(several.primary.path, "two") as before:
        before.execute("CREATE INDEX i ON t (lower(v))")
    before.close()
    (tmp_path / "attach_inits.py").write_text(_INITS)
    monkeypatch.syspath_prepend(tmp_path)
    for instance in (several.primary, several.secondary):
        (instance.path / "replicate.toml").write_text(f'[region]\ninit = "{inits}"\n')
    several.primary, several.secondary = Instance.open(several.primary.path), Instance.open(several.secondary.path)
    connection = replicate.connect(several.primary.path)
    if others:
        connection.create_function(others, 1, lambda value: value, deterministic=True)
    attach = f"ATTACH '{several.path('two')}' AS two"
    if clash:
        with pytest.raises(sqlite3.NotSupportedError, match=f"needs another function or collation {clash}"):
            connection.execute(attach)
        assert [row[1] for row in connection.execute("PRAGMA database_list")] == ["main"]
    else:
        connection.execute(attach)
        if others != "mine":
            connection.execute("CREATE TABLE two.g (a, b AS (mine(a)) STORED)")
            connection.execute("INSERT INTO two.g VALUES ('x')")
            connection.commit()
    connection.execute("INSERT INTO t VALUES (1, 'X')")
    connection.commit()
    connection.close()
    several.same()


def test_the_application_is_asked_and_told_of_attach(several: Several) -> None:
    connection = replicate.connect(several.primary.path)
    asked: list[Any] = []
    told: list[str] = []
    connection.set_trace_callback(told.append)
    connection.set_authorizer(lambda *what: asked.append(what) or (what[0] == apsw.SQLITE_ATTACH))
    text = f"ATTACH '{several.path('two')}' AS two"
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        connection.execute(text)
    assert [what[:2] for what in asked] == [(apsw.SQLITE_ATTACH, str(several.path("two")))]
    connection.set_authorizer(None)
    connection.execute(text)
    assert told == [text, text]
    with pytest.raises(NotSupportedError, match="standard library"):
        sqlite3.connect(several.path("two"))
    connection.close()
    sqlite3.connect(several.path("two")).close()


def test_a_secondary_attaches_for_reading(several: Several, attached: Any) -> None:
    attached.execute("INSERT INTO two.t VALUES (1, 'x')")
    attached.commit()
    several.same()
    reader = replicate.connect(several.secondary.path)
    reader.execute("ATTACH ? AS two", (str(several.secondary.region("two").path),))
    assert reader.execute("SELECT v FROM two.t").fetchall() == [("x",)]
    for text in ("INSERT INTO two.t VALUES (2, 'y')", "CREATE TABLE two.n (a)", "PRAGMA two.user_version = 1"):
        with pytest.raises(sqlite3.OperationalError, match="secondary: its regions are read-only"):
            reader.execute(text)
    reader.close()


def test_counters_written_by_hand_travel_in_each_region(several: Several, attached: Any) -> None:
    """Of no table, and in both databases at once: each names its own region only."""
    attached.execute("INSERT INTO k (v) VALUES (1)")
    attached.execute("INSERT INTO main.sqlite_sequence VALUES ('nowhere', 1), ('only here', 2)")
    attached.execute("INSERT INTO two.sqlite_sequence VALUES ('nowhere', 3)")
    attached.commit()
    several.same()
    attached.execute("UPDATE two.sqlite_sequence SET seq = 4, name = 'elsewhere'")
    attached.execute("DELETE FROM main.sqlite_sequence WHERE name = 'only here'")
    attached.commit()
    several.same()
