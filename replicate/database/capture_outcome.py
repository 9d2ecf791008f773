"""After a statement failed: are its rows still there? (ABORT takes them back, FAIL keeps them, triggers may do either.)

Guarantees: says *kept* or *taken back* only when the rows themselves prove it; else None, and the transaction must
not be committed. SQLite's own counters do not tell (measured): total_changes() keeps what a trigger did although an
ABORT took it back, and changes() is 0 where FAIL has left nothing but a trigger's rows.
Refuses to know: what happens to the transaction then.

A statement is taken back whole or not at all, so one row decides: its net change within the statement, against what
is in the table now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import apsw
import msgpack

from replicate.database.capture_marks import Mark
from replicate.database.capture_tables import CapturedTable
from replicate.database.names import quote
from replicate.database.schema import rowid_name
from replicate.limits import MIB
from replicate.transaction import Op

if TYPE_CHECKING:
    from replicate.database.capture import Capture

_ROW_OPS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE)
_VALUE_BYTES_MAX: Final = 1024 * MIB

_Image = tuple[Any, ...] | None


def kept(connection: apsw.Connection, capture: Capture, mark: Mark, text: str) -> bool | None:
    """Whether the rows captured behind `mark` by the failed statement `text` are still in the database."""
    if capture.changes == mark.changes:
        return False
    packed = capture.behind(mark)
    if packed is None:
        # A part has left memory. Without the word FAIL anywhere, SQLite takes every failed statement back.
        fail = "fail" in text.lower() or any(_schema_says_fail(connection, one) for one in (capture.schema, "temp"))
        return None if fail else False
    states = _net_states(packed, {t.definition.table_id: t for t in capture.tables.tables.values()})
    if states is None:
        return None
    doubt = False
    for (table, key), (before, after) in states.items():
        if _same_signs(before, after):
            continue
        now = _read(connection, table, key, capture.schema)
        if _same(before, after):  # but for the sign of a zero, which proves something only where it has come
            if _same_signs(now, after):
                return True
            continue
        if _same(now, after):
            return True
        if _same(now, before):
            return False
        doubt = True  # under its collation two keys of these are one row's
    return None if doubt else False  # no net change at all: both answers give the same database


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
    unpacker = msgpack.Unpacker(
        max_buffer_size=_VALUE_BYTES_MAX, max_str_len=_VALUE_BYTES_MAX, max_bin_len=_VALUE_BYTES_MAX
    )
    unpacker.feed(packed)
    flat = list(unpacker)
    states: dict[tuple[_Table, tuple[Any, ...]], tuple[_Image, _Image]] = {}
    for at in range(0, len(flat), 4):
        op, number, argument, values = flat[at : at + 4]
        table = wrapped.get(number)
        if op not in _ROW_OPS or table is None:
            return None
        before, after = _images(table.captured, op, argument, values)
        for image, is_after in ((before, False), (after, True)):
            if image is None:
                continue
            key = (table, tuple(image[ordinal] for ordinal in table.captured.definition.key))
            first = states[key][0] if key in states else (None if is_after else image)
            states[key] = (first, image if is_after else None)
    return states


def _images(table: CapturedTable, op: int, argument: Any, values: list[Any]) -> tuple[_Image, _Image]:
    if op == Op.INSERT:
        return None, tuple(values)
    if op == Op.DELETE:
        return tuple(values), None
    length = table.definition.image_length
    mask = argument if isinstance(argument, int) else int.from_bytes(argument, "little")
    before = values[-length:]
    after, changed = list(before), iter(values)
    for ordinal in range(length):
        if mask >> ordinal & 1:
            after[ordinal] = next(changed)
    return tuple(before), tuple(after)


def _read(connection: apsw.Connection, table: _Table, key: tuple[Any, ...], schema: str) -> _Image:
    definition = table.captured.definition
    names = [quote(column.name) for column in definition.columns]
    if definition.rowid:
        names.insert(0, str(rowid_name([column.name for column in definition.columns])))
    where = " AND ".join(f"{names[ordinal]} IS ?" for ordinal in definition.key)
    found = connection.execute(
        f"SELECT {', '.join(names)} FROM {quote(schema)}.{quote(definition.table)} WHERE {where}", key, can_cache=False
    ).fetchall()
    return tuple(found[0]) if found else None


def _same(one: _Image, other: _Image) -> bool:
    """Equal values of equal types. 0.0 and -0.0 are the same: a REAL column keeps no sign, whatever the hook says."""
    if one is None or other is None:
        return one is other
    return one == other and all(type(a) is type(b) for a, b in zip(one, other, strict=True))


def _same_signs(one: _Image, other: _Image) -> bool:
    packed: bool = msgpack.packb(one) == msgpack.packb(other)
    return packed
