"""model/column_list.py: blanks, and which tables and statements bear them, one line for each way to be unfit."""

from __future__ import annotations

import pytest

from replicate.errors import UsageError
from replicate.model.column_list import (
    ALL_SHOWN,
    IndexFacts,
    TableFacts,
    affinity_of,
    blank_of,
    blanked,
    names_in_expressions,
    unfit_statement,
    unfit_table,
)
from replicate.model.transaction import Column, TableDefinition

COLUMNS = (
    Column("id", "INTEGER", False, "BINARY"),
    Column("Name", "TEXT", False, "BINARY"),
    Column("mail", "TEXT", True, "BINARY"),
    Column("age", "INT", True, "BINARY"),
    Column("size", "REAL", True, "BINARY"),
    Column("data", "BLOB", True, "BINARY"),
    Column("kind", "DATE", True, "BINARY"),
)


def definition(key: tuple[int, ...] = (0,), *, rowid: bool = False, strict: bool = False) -> TableDefinition:
    return TableDefinition("shop", 1, "main", "person", 1, COLUMNS, key, rowid, strict, False)


@pytest.mark.parametrize(
    ("declared", "strict", "affinity", "blank"),
    [
        ("INTEGER", False, "INTEGER", 0),
        ("POINT", False, "INTEGER", 0),
        ("VARCHAR(9)", False, "TEXT", ""),
        ("CLOB", False, "TEXT", ""),
        ("BLOB", False, "BLOB", b""),
        ("", False, "BLOB", b""),
        ("DOUBLE PRECISION", False, "REAL", 0.0),
        ("DECIMAL(9, 2)", False, "NUMERIC", 0),
        ("ANY", False, "NUMERIC", 0),
        ("ANY", True, "BLOB", b""),
    ],
)
def test_blanks(declared: str, strict: bool, affinity: str, blank: object) -> None:
    column = Column("a", declared, True, "BINARY")
    assert affinity_of(column, strict=strict) == affinity
    found = blank_of(column, strict=strict)
    assert (type(found), found) == (type(blank), blank)
    assert blank_of(Column("a", declared, False, "BINARY"), strict=strict) is None


@pytest.mark.parametrize("rowid", [False, True])
def test_what_is_left_out(rowid: bool) -> None:
    made = blanked(definition((0,), rowid=rowid), ("ID", "name", "age"))
    assert made.by_name == {"mail": "", "size": 0.0, "data": b"", "kind": 0}
    assert made.blanks == {2 + rowid: "", 4 + rowid: 0.0, 5 + rowid: b"", 6 + rowid: 0}
    assert made.sql == {"mail": "''", "size": "0.0", "data": "x''", "kind": "0"}
    image = [*([77] * rowid), 1, "n", "m@x", 3, 1.5, b"d", "2020"]
    assert made.shown(image) == [*([77] * rowid), 1, "n", "", 3, 0.0, b"", 0]
    shown = made.shown(image)
    assert made.shown(shown) is shown
    assert ALL_SHOWN.shown(image) is image
    other = [*([77] * rowid), 1, "n", "", 3, 0.0, "", 0]  # '' is no x''
    assert made.shown(other) is not other


def test_what_cannot_be_listed_so() -> None:
    for columns, told in (
        (("id", "weight"), "table person has no column weight, or computes it"),
        (("name",), "cannot do without what is not listed: column id is of the key"),
    ):
        with pytest.raises(UsageError, match=told):
            blanked(definition(), columns)
    assert blanked(definition((0,), rowid=True), ("name",)).by_name.keys() == {
        "id", "mail", "age", "size", "data", "kind"
    }  # fmt: skip


def computing(sql: str) -> IndexFacts:
    return IndexFacts("i", False, (None,), False, f"CREATE INDEX i {sql}")


def partial(sql: str) -> IndexFacts:
    return IndexFacts("i", True, ("id",), True, f"CREATE UNIQUE INDEX i {sql}")


LEFT = {"mail": "", "note": None, "age": 0}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (TableFacts("CREATE TABLE t (id, mail, note)"), ""),
        (TableFacts("", primary=("id", "Mail")), "column Mail is of the primary key"),
        (TableFacts("CREATE TABLE t (id, mail CHECK (length(mail) > 3))"), "column mail is in a CHECK"),
        (TableFacts("CREATE TABLE t (id CHECK (id IN ('mail', 'note')), mail)"), ""),
        (TableFacts("CREATE TABLE t (id, mail DEFAULT (1 + 2), CONSTRAINT c CHECK ((id > 3) OR [Note]))"), "in a"),
        (TableFacts("CREATE TABLE t (id, low AS (lower(\"mail\")) STORED, mail)"), "or another column is"),
        (TableFacts("CREATE TABLE t (id, /* CHECK (mail) */ mail) -- CHECK (note)"), ""),
        (TableFacts("", indexes=(IndexFacts("i", False, ("mail",), False, "…"),)), ""),
        (TableFacts("", indexes=(IndexFacts("i", True, ("mail",), False, ""),)), "column mail is never NULL"),
        (TableFacts("", indexes=(IndexFacts("i", True, ("id", "AGE"), False, ""),)), "column AGE is never NULL"),
        (TableFacts("", indexes=(IndexFacts("i", True, ("mail", "note"), False, ""),)), ""),
        (TableFacts("", indexes=(IndexFacts("i", True, ("id",), False, ""),)), ""),
        (TableFacts("", indexes=(computing("ON t (lower(note))"),)), "index i computes with column note"),
        (TableFacts("", indexes=(computing("ON t (lower(id))"),)), ""),
        (TableFacts("", indexes=(partial("ON t (id) WHERE `note` IS NULL"),)), "index i computes with column note"),
        (TableFacts("", references=("note",)), ""),
        (TableFacts("", references=("note", "age")), "column age is never NULL, and refers to another table"),
        (TableFacts("", referred=("id",)), ""),
        (TableFacts("", referred=("Note",)), "rows of other tables refer to column Note"),
        (TableFacts("", indexed_by=("words",)), "the virtual table words has all of its columns as content"),
    ],
)  # fmt: skip
def test_tables(facts: TableFacts, told: str) -> None:
    found = unfit_table(facts, LEFT)
    assert (told in found) if told else not found
    assert unfit_table(facts, {}) == ""


def test_names_in_expressions() -> None:
    sql = "CREATE TABLE t (a CHECK (a > (b + 1)), c, d GENERATED ALWAYS AS (e || 'f'), CHECK (g), h REFERENCES u (i))"
    assert names_in_expressions(sql) == {"a", "b", "e", "g"}


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("ALTER TABLE person ADD COLUMN more", ""),
        ("alter table main . \"PERSON\" add more TEXT REFERENCES other (id)", ""),
        ("ALTER TABLE [person] ADD COLUMN more DEFAULT 3", ""),
        ("ALTER TABLE 'person' ADD COLUMN more TEXT NOT NULL DEFAULT ''", ""),
        ("ALTER TABLE person ADD COLUMN more 'DEFAULT'", ""),
        ("ALTER TABLE person ADD more CHECK (more > 3)", "column more comes with a CHECK"),
        ("ALTER TABLE person ADD COLUMN more AS (lower(name))", ""),
        ("ALTER TABLE person ADD COLUMN more AS (lower(mail))", "column more is computed from mail"),
        ("ALTER TABLE person ADD COLUMN name", "column name is made again"),
        ("ALTER TABLE person ADD CONSTRAINT c CHECK (mail <> '')", "it gets a constraint"),
        ("ALTER TABLE person ADD CHECK (mail <> '')", "it gets a constraint"),
        ("ALTER TABLE person DROP COLUMN mail", ""),
        ("ALTER TABLE person DROP note", ""),
        ("ALTER TABLE person DROP CONSTRAINT c", ""),
        ("ALTER TABLE person DROP COLUMN Name", "column name is gone"),
        ("ALTER TABLE person RENAME COLUMN mail TO email", ""),
        ("ALTER TABLE person RENAME mail TO name", "column name is another one"),
        ("ALTER TABLE person RENAME COLUMN name TO mail", "column name is another one"),
        ("ALTER TABLE person RENAME TO people", ""),  # RowSelection sees to that
        ("ALTER TABLE person ALTER COLUMN mail DROP NOT NULL", "column mail may be NULL, or may not"),
        ("ALTER TABLE person ALTER COLUMN name SET NOT NULL", ""),
        ("ALTER TABLE person TURN AROUND", "it is not known"),
        ("ALTER TABLE other ADD COLUMN person DEFAULT 3", ""),
        ("CREATE INDEX i ON person (mail)", ""),
        ("CREATE INDEX IF NOT EXISTS main.i ON person (mail COLLATE NOCASE DESC, name)", ""),
        ("CREATE INDEX i ON person (lower(name)) WHERE id > 3", ""),
        ("CREATE INDEX i ON person (lower(mail))", "column mail"),
        ("CREATE INDEX i ON person (name) WHERE mail IS NULL", "column mail"),
        ("CREATE UNIQUE INDEX i ON person (name)", ""),
        ("CREATE UNIQUE INDEX i ON person (mail, name)", "an index keeps unique, or computes with, column mail"),
        ("CREATE UNIQUE INDEX person ON other (mail)", ""),
        ("CREATE VIEW v AS SELECT mail FROM person", ""),
        ("CREATE TRIGGER g AFTER INSERT ON person BEGIN SELECT 1; END", ""),
        ("CREATE VIRTUAL TABLE v USING fts5 (mail, content=person)", "a virtual table is made that names it"),
        ("CREATE TABLE other (id, of REFERENCES person (id))", ""),
        ("CREATE TABLE person (id)", "it is made again"),
        ("CREATE TABLE IF NOT EXISTS main.person (id)", "it is made again"),
        ("CREATE TABLE \"new__person\" (id)", "it is made again, by this name or by one that is to take its place"),
        ("CREATE TABLE _alembic_tmp_person (id)", "it is made again"),
        ("CREATE TABLE other (id, low AS (lower(id)), of REFERENCES person)", ""),
        ("CREATE TABLE personal (mail DEFAULT 3)", ""),
        ("DROP TABLE person", ""),
        ("DROP INDEX person", ""),
        ("REINDEX person", ""),
        ("ANALYZE main.person", ""),
        ("/* person */ CREATE TABLE other AS SELECT 1 -- person", ""),
        ("BUILD person", "it is not known"),
        ("", ""),
    ],
)  # fmt: skip
def test_statements(sql: str, told: str) -> None:
    found = unfit_statement(sql, "Person", ("id", "Name"), LEFT)
    assert (told in found) if told else not found
