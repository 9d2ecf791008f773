"""Undo and redo: a script of SQL for the changes that were asked for, which changes nothing that is not as it was.

Each statement is the one that the Update Process runs, with the values written out: it compares the whole row before
it. The check after it fails where it hit no row.

Guarantees: a script is one transaction of one region, and leaves no foreign key broken that was not. Values are exact:
64-bit integers, reals to the last bit, texts with any character (control characters as bytes), BLOBs. What SQL cannot
take back is refused by name before the first line: a schema change, and rows of a table whose definition has changed
since. Where triggers of the application write besides, the script stops, unless they are to.
Leaves to others: the counters of AUTOINCREMENT (a number that was given is not given again).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgpack

from replicate.audit.changes import ChangeRecord
from replicate.errors import NotSupportedError, UsageError
from replicate.model.moment import readable
from replicate.model.rowid import RAREST_FIRST, rowid_name
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.apply import statements
from replicate.region.sqlite.sql.statements import tokens

CHECK: Final = "SELECT CASE changes() WHEN 1 THEN 1 ELSE abs(-9223372036854775808) END;"
"""Fails by "integer overflow" where the statement before it has changed no row."""
_BROKEN: Final = (
    "SELECT s.name AS child, c.parent AS parent, c.fkid AS fkid, count(*) AS broken "
    "FROM main.sqlite_schema AS s CROSS JOIN pragma_foreign_key_check(s.name, 'main') AS c WHERE s.type = 'table' "
    "AND (s.name COLLATE NOCASE IN ({tables}) OR EXISTS (SELECT 1 FROM pragma_foreign_key_list(s.name, 'main') AS f "
    'WHERE f."table" COLLATE NOCASE IN ({tables}))) GROUP BY 1, 2, 3'
)
"""How many rows break each foreign key from the tables, or to them. Others it does not look at: SQLite fails at a key
whose columns are not unique where it points to."""
_BEFORE: Final = (
    "PRAGMA foreign_keys = OFF;",  # what a cascade did is among the changes, and would be done twice
    "DROP TABLE IF EXISTS temp.replicate_audit;",
    f"CREATE TEMP TABLE replicate_audit AS {_BROKEN};",
    "DROP TABLE IF EXISTS temp.replicate_audit_began;",
    "CREATE TEMP TABLE replicate_audit_began AS SELECT total_changes() AS changed;",
    "BEGIN IMMEDIATE;",
)
_UNHELPED: Final = (
    "SELECT CASE total_changes() - changed WHEN {count} THEN 1 ELSE abs(-9223372036854775808) END "
    "FROM temp.replicate_audit_began;"
)
"""Fails where triggers have written, too: what they wrote the first time is among the changes, and would come twice."""
_AFTER: Final = (
    f"SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM ({_BROKEN}) AS a LEFT JOIN temp.replicate_audit AS b "
    "USING (child, parent, fkid) WHERE a.broken > coalesce(b.broken, 0)) "
    "THEN 1 ELSE abs(-9223372036854775808) END;",
    "COMMIT;",
)
_CONTROL: Final = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal obeys, an editor changes, or Python reads as another end of a line."""
_PASSED: Final = ("comment", "region", "sequence", "null", "history", "seen", "resolved")


class Script:
    """Makes the statements. `definitions`: by region and table, those in force now; `is_undo`: take back, the last
    first, else do again. `with_triggers`: an application's triggers may write besides."""

    def __init__(
        self, in_force: dict[tuple[str, str], TableDefinition], *, is_undo: bool, with_triggers: bool = False
    ) -> None:
        self._in_force = in_force
        self._with_triggers = with_triggers
        self._count = 0
        self._is_undo = is_undo
        self._region = ""
        self._tables: set[str] = set()

    def check(self, records: Iterable[ChangeRecord]) -> tuple[str, int]:
        """Look at all changes: the region that they are of, and how many rows they change.

        NotSupportedError for what SQL cannot take back or do again; UsageError for rows of two regions."""
        count = 0
        for record in records:
            if record.op in _PASSED:
                continue
            verb = "taken back" if self._is_undo else "done again"
            if record.op in ("schema", "define"):
                raise NotSupportedError(
                    f"transaction {record.seqno} changes the schema, which cannot be {verb}",
                    where=record.table or record.text,
                    do="Select what lies after it (--from), or rows alone: --op insert --op update --op delete",
                )
            known = self._in_force.get((record.region, record.table))
            if known is None or known.table_id != record.table_id:
                raise NotSupportedError(
                    f"table {record.table} was changed after transaction {record.seqno}, whose rows cannot be {verb}",
                    where=record.region,
                    do="Select what lies after that change of the table (--from), or another table",
                )
            if self._region not in ("", record.region):
                raise UsageError(
                    f"these are rows of regions {self._region} and {record.region}",
                    do="Make a script for each: --table REGION.TABLE",
                )
            self._region = record.region
            self._tables.add(record.table)
            count += 1
        self._count = count
        return self._region, count

    def statement(self, record: ChangeRecord) -> str | None:
        """The statement that takes a change back, or does it again; None where there is nothing to do."""
        if record.op in _PASSED:
            return None
        definition = self._in_force[record.region, record.table]
        before, after = record.before, record.after
        if self._is_undo:
            before, after = after, before
        if before is None:
            assert after is not None
            return _filled(definition, "insert", 0, after)
        if after is None:
            return _filled(definition, "delete", 0, before)
        mask = sum(1 << at for at in record.changed)
        return _filled(definition, "update", mask, [*(after[at] for at in record.changed), *before])

    def lines(self, records: Iterable[ChangeRecord]) -> Iterator[str]:
        """The script, a line at a time, for records that were checked."""
        what = "takes back" if self._is_undo else "does again"
        yield f"-- This script {what} what `replicate audit` selected, in one transaction of region {self._region!r}."
        yield "-- It stops where a row is not as it was. Nothing is changed then: roll back."
        yield "-- Run it on the primary by a connection of its own: replicate.connect(…).executescript(text)."
        tables = ", ".join(map(literal, sorted(self._tables)))
        yield from (line.replace("{tables}", tables) for line in _BEFORE)
        seqno = 0
        for record in records:
            text = self.statement(record)
            if text is None:
                continue
            if record.seqno != seqno:
                seqno = record.seqno
                yield f"-- transaction {seqno}, {readable(record.csn)}"
            yield f"{text};"
            yield CHECK
        if not self._with_triggers:
            yield _UNHELPED.replace("{count}", str(self._count))
        yield from (line.replace("{tables}", tables) for line in _AFTER)


@functools.lru_cache(maxsize=4096)
def _template(definition: TableDefinition, what: str, mask: int) -> tuple[str | int, ...]:
    """The statement that applies such a change, cut at its parameters, each of which is the number of a value."""
    names = (column.name for column in definition.columns)
    rowid = (rowid_name(names, RAREST_FIRST) or "") if definition.rowid else ""
    if what == "update":
        text = statements.update(definition, rowid, mask)
    else:
        text = (statements.insert if what == "insert" else statements.delete)(definition, rowid)
    parts: list[str | int] = []
    end = 0
    for token in tokens(text):
        if token.kind == "param":
            parts += [text[end : token.start], int(token.text[1:]) - 1]
            end = token.start + len(token.text)
    return (*parts, text[end:])


def _filled(definition: TableDefinition, what: str, mask: int, values: Sequence[Any]) -> str:
    parts = _template(definition, what, mask)
    return "".join(part if isinstance(part, str) else literal(values[part]) for part in parts)


def literal(value: Any) -> str:
    """A value as SQLite writes it, exactly."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return ("9e999" if value > 0 else "-9e999") if math.isinf(value) else repr(value)
    if isinstance(value, msgpack.ExtType):
        return f"CAST(X'{value.data.hex()}' AS TEXT)"
    if isinstance(value, str):
        if _CONTROL.search(value):
            return f"CAST(X'{value.encode().hex()}' AS TEXT)"
        return "'" + value.replace("'", "''") + "'"
    return f"X'{bytes(value).hex()}'"
