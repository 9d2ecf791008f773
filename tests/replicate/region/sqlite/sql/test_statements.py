"""Classification of SQL texts: pure, so a table of texts and what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.pragmas import Verdict, judge
from replicate.region.sqlite.sql.statements import Verb, classify, parameter_names, split, unquote


@pytest.mark.parametrize(
    ("text", "verb", "dml"),
    [
        ("select 1", Verb.READ, False),
        ("-- x\n/* y */ insert into t values(';')", Verb.WRITE, True),
        ("REPLACE INTO t VALUES (1)", Verb.WRITE, True),
        ("with a as (select 1) select * from a", Verb.READ, False),
        ("with a(x) as (select 1), b as not materialized (select 2) insert into t select * from a", Verb.WRITE, False),
        ("with replace as (select 1) select * from replace", Verb.READ, False),
        ("with recursive c(x) as (values(1) union all select x+1 from c) delete from t", Verb.WRITE, False),
        ("explain insert into t values (1)", Verb.READ, False),
        ("", Verb.EMPTY, False),
        (" ; -- nothing", Verb.EMPTY, False),
        ("END TRANSACTION", Verb.COMMIT, False),
        ("vacuum", Verb.VACUUM, False),
        ("; insert into t values(1)", Verb.WRITE, False),
    ],
)
def test_what_a_statement_does(text: str, verb: Verb, dml: bool) -> None:
    found = classify(text)
    assert (found.verb, found.dml, found.several) == (verb, dml, False)


@pytest.mark.parametrize(
    ("text", "verb", "name"),
    [
        ("SAVEPOINT x", Verb.SAVEPOINT, "x"),
        ('release savepoint "A b"', Verb.RELEASE, "a b"),
        ("ROLLBACK TRANSACTION TO SAVEPOINT [x]", Verb.ROLLBACK_TO, "x"),
        ("rollback to `x`;", Verb.ROLLBACK_TO, "x"),
        ("rollback", Verb.ROLLBACK, ""),
    ],
)
def test_savepoints(text: str, verb: Verb, name: str) -> None:
    found = classify(text)
    assert (found.verb, found.name) == (verb, name)


def test_begin_says_its_mode() -> None:
    assert classify("BEGIN").kind == "DEFERRED"
    assert classify("begin immediate transaction").kind == "IMMEDIATE"
    assert classify("BEGIN TRANSACTION").kind == "DEFERRED"


@pytest.mark.parametrize(
    ("text", "kind", "schema", "name", "temporary", "selects"),
    [
        ("create temp table if not exists t(a)", "TABLE", "", "t", True, False),
        ('create table main."T 1" as select 1', "TABLE", "main", "T 1", False, True),
        ("create unique index if not exists temp.i on t(a)", "INDEX", "temp", "i", True, False),
        ("create virtual table v using fts5(a)", "VIRTUAL TABLE", "", "v", False, False),
        ("alter table a.b rename to c", "TABLE", "a", "b", False, False),
        ("drop view if exists main.v", "VIEW", "main", "v", False, False),
        ("analyze", "ANALYZE", "", "", False, False),
        ("reindex t", "REINDEX", "", "t", False, False),
    ],
)
def test_schema_changes(text: str, kind: str, schema: str, name: str, temporary: bool, selects: bool) -> None:
    found = classify(text)
    assert found.verb is Verb.DEFINE
    assert (found.kind, found.schema, found.name, found.temporary, found.selects) == (
        kind,
        schema,
        name,
        temporary,
        selects,
    )


TRIGGER = "create trigger tr after insert on t begin select case when 1 then 2 end; delete from x; end;"


def test_a_trigger_is_one_statement() -> None:
    assert list(split(TRIGGER + " select 1;;  ; -- x\ninsert into t values(';') -- y")) == [
        TRIGGER,
        " select 1;",
        " -- x\ninsert into t values(';') -- y",
    ]
    assert classify(TRIGGER).several is False
    assert classify(TRIGGER + "select 1").several is True


def test_several_statements_are_seen() -> None:
    assert classify("select 1; select 2").several
    assert not classify("select 1; -- foo").several
    assert not classify("select ';'").several
    assert classify("select 1; -").several


def test_parameter_names() -> None:
    assert parameter_names("select :a, @b, $c, ':d', ?1, :a -- :e") == ("a", "b", "c", "1")


def test_unquote() -> None:
    assert [unquote(name) for name in ('"a""b"', "[a b]", "`x`", "'y'", "z")] == ['a"b', "a b", "x", "y", "z"]


@given(st.text(alphabet="abc;'\"-/* \n()[]`createtriggerbeginend:@?1.,=", max_size=60))
def test_any_text_is_classified_and_split_without_loss(text: str) -> None:
    classify(text)
    rest = text
    for piece in split(text):
        assert piece in rest
        rest = rest[rest.index(piece) + len(piece) :]


@pytest.mark.parametrize(
    "text",
    [
        "pragma journal_mode = delete",
        "pragma main.journal_mode(memory)",
        "PRAGMA writable_schema=ON",
        "pragma synchronous = off",
        "pragma synchronous = 0",
        "pragma locking_mode = exclusive",
        "pragma schema_version = 3",
        "pragma incremental_vacuum",
        "pragma nobody_knows_this = 1",
        "pragma auto_vacuum = full",
    ],
)
def test_pragmas_that_would_break_us_are_refused_by_name(text: str) -> None:
    found = classify(text)
    with pytest.raises(NotSupportedError, match=found.name):
        judge(found.name, found.argument)


@pytest.mark.parametrize(
    ("text", "present"),
    [
        ("pragma auto_vacuum = 0", 0),
        ("PRAGMA main.auto_vacuum(NONE)", 0),
        ("pragma auto_vacuum = 'full'", 1),
        ("pragma auto_vacuum = 2", 2),
    ],
)
def test_what_the_database_has_already_is_left_undone(text: str, present: int) -> None:
    found = classify(text)
    assert judge(found.name, found.argument, lambda: present) is Verdict.NOTHING
    for other in {0, 1, 2} - {present}:
        with pytest.raises(NotSupportedError, match=r"auto_vacuum = .* is refused on a region"):
            judge(found.name, found.argument, lambda other=other: other)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("pragma journal_mode", Verdict.READ),
        ("pragma journal_mode = WAL", Verdict.READ),
        ("pragma page_size = 8192", Verdict.READ),
        ("pragma synchronous = FULL", Verdict.READ),
        ("pragma table_info('t')", Verdict.READ),
        ("pragma foreign_keys = on", Verdict.READ),
        ("pragma wal_checkpoint(TRUNCATE)", Verdict.READ),
        ("pragma user_version = 7", Verdict.CAPTURE),
        ("pragma user_version", Verdict.READ),
        ("pragma optimize", Verdict.NOTHING),
    ],
)
def test_other_pragmas(text: str, verdict: Verdict) -> None:
    found = classify(text)
    assert found.verb is Verb.PRAGMA
    assert judge(found.name, found.argument) is verdict
