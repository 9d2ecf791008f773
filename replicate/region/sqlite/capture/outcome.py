"""After a statement failed: are its rows still there? (ABORT takes them back, FAIL keeps them, triggers may do either.)

Guarantees: says *kept* or *taken back* only when the rows themselves prove it; else None, and the transaction must
not be committed. SQLite's own counters do not tell (measured): total_changes() keeps what a trigger did although an
ABORT took it back, and changes() is 0 where FAIL has left nothing but a trigger's rows.
Leaves to others: what happens to the transaction then.

A statement is taken back whole or not at all, so one row decides: its net change within the statement, against what
is in the table now.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgpack

from replicate.model.rowid import rowid_name
from replicate.region.sqlite.apply.statements import conjunction
from replicate.region.sqlite.capture.stream import ROW_OPS, changes_in, images_of
from replicate.region.sqlite.capture.tables import CapturedTable, TableMap
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.wide_rows import read_row

_Image = tuple[Any, ...] | None


def kept(
    connection: apsw.Connection, schema: str, tables: TableMap, changes: bytes | None, text: str, *, unseen: bool
) -> bool | None:
    """Whether the rows that the failed statement `text` has changed are still in the database.

    `changes`: what was captured of it (None: a part of that has left memory), in a region that is attached as `schema`
    and has these tables. `unseen`: rows may have changed that could not be captured.
    """
    if changes is not None:
        verdict = _by_rows(connection, schema, tables, changes)
        if verdict is not False or not unseen:
            return verdict
    # No row that was captured decides. Without the word FAIL anywhere, SQLite takes every failed statement back.
    fail = "fail" in text.lower() or any(_schema_says_fail(connection, one) for one in (schema, "temp"))
    return None if fail else False


def _by_rows(connection: apsw.Connection, schema: str, tables: TableMap, packed: bytes) -> bool | None:
    """What the captured rows prove; False, too, if they have no net change at all: both answers give the same rows."""
    states = _net_states(packed, {t.definition.table_id: t for t in tables.tables.values()})
    if states is None:
        return None
    doubt = False
    for (table, key), (before, after) in states.items():
        if _same_signs(before, after):
            continue
        now = _read(connection, table, key, schema)
        if _same(before, after):  # but for the sign of a zero, which proves something only where it has come
            if _same_signs(now, after):
                return True
            continue
        if _same(now, after):
            return True
        if _same(now, before):
            return False
        doubt = True  # under its collation two keys of these are one row's
    return None if doubt else False


def _schema_says_fail(connection: apsw.Connection, schema: str) -> bool:
    found = connection.execute(f"SELECT 1 FROM {quote(schema)}.sqlite_schema WHERE sql LIKE '%fail%' LIMIT 1").get
    return found is not None


class _Table:
    """A table as a dictionary key: by identity, so that equal names of two versions stay apart."""

    __slots__ = ("captured",)

    def __init__(self, captured: CapturedTable) -> None:
        self.captured = captured


def _net_states(
    packed: bytes, tables: dict[int, CapturedTable]
) -> dict[tuple[_Table, tuple[Any, ...]], tuple[_Image, _Image]] | None:
    """(table, key) -> (image before the first change, image after the last); None if there is more than row changes."""
    wrapped = {number: _Table(captured) for number, captured in tables.items()}
    states: dict[tuple[_Table, tuple[Any, ...]], tuple[_Image, _Image]] = {}
    for op, number, argument, values in changes_in((packed,)):
        table = wrapped.get(number)
        if op not in ROW_OPS or table is None:
            return None
        before, after = images_of(table.captured.definition, op, argument, values)
        for image, is_after in ((before, False), (after, True)):
            if image is None:
                continue
            key = (table, tuple(image[ordinal] for ordinal in table.captured.definition.key))
            first = states[key][0] if key in states else (None if is_after else image)
            states[key] = (first, image if is_after else None)
    return states


def _read(connection: apsw.Connection, table: _Table, key: tuple[Any, ...], schema: str) -> _Image:
    definition = table.captured.definition
    names = [quote(column.name) for column in definition.columns]
    if definition.rowid:
        names.insert(0, str(rowid_name([column.name for column in definition.columns])))
    where = conjunction([f"{names[ordinal]} IS ?" for ordinal in definition.key])
    source = f"FROM {quote(schema)}.{quote(definition.table)} WHERE {where}"
    return read_row(connection, names, source, key, can_cache=False)


def _same(one: _Image, other: _Image) -> bool:
    """Equal values of equal types. 0.0 and -0.0 are the same: a REAL column keeps no sign, whatever the hook says."""
    if one is None or other is None:
        return one is other
    return one == other and all(type(a) is type(b) for a, b in zip(one, other, strict=True))


def _same_signs(one: _Image, other: _Image) -> bool:
    packed: bool = msgpack.packb(one) == msgpack.packb(other)
    return packed
