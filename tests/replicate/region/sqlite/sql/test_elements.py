"""region/sqlite/sql/elements.py: each kind of statement that travels as its text."""

from __future__ import annotations

import pytest

from replicate.model.elements import DATA, DEFINITION, SECTION, STORAGE
from replicate.region.sqlite.allowed_definitions import counter_statements
from replicate.region.sqlite.apply.statements import LEGACY_ALTER
from replicate.region.sqlite.sql.elements import element_of_text

TEXTS = {
    DEFINITION: (
        "CREATE TABLE t (a)",
        "create table if not exists main.t (a)",
        "CREATE TABLE 'index' (a)",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE VIEW trigger_ AS SELECT 1",
        "DROP TABLE t",
        "DROP VIEW v",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE t DROP COLUMN a",
        "PRAGMA user_version = 7",
        "PRAGMA main.application_id = 7",
        *LEGACY_ALTER,
    ),
    STORAGE: (
        "CREATE INDEX i ON t (a)",
        "CREATE UNIQUE INDEX IF NOT EXISTS i ON t (a)",
        "/* TABLE */ DROP INDEX i",
        "REINDEX t",
        "ANALYZE",
        "ANALYZE t",
    ),
    SECTION: (
        "CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM u; END",
        "DROP TRIGGER IF EXISTS r",
    ),
    DATA: tuple(counter_statements("t", 5, where="main")),
}


@pytest.mark.parametrize(("element", "text"), [(one, text) for one, texts in TEXTS.items() for text in texts])
def test_each_kind_of_statement(element: str, text: str) -> None:
    assert element_of_text(text) == element
