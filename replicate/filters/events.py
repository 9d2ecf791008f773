"""The changes of a transaction as events for a filter, and the changes that a filter's events make.

    {"op":"insert","region":R,"table":T,"after":{COLUMN:VALUE,…}}
    {"op":"update","region":R,"table":T,"before":{…},"after":{…}}        whole images, both
    {"op":"delete","region":R,"table":T,"before":{…}}
    {"op":"sequence","region":R,"table":T,"old":N,"new":N}               of AUTOINCREMENT; null: there is none
    {"op":"schema","region":R,"sql":TEXT}
    {"op":"define","region":R,"table":T,"definition":[…]}                what the statements before it have made of T
    {"op":"comment","text":TEXT}
    {"op":"region","region":R,"what":"added"|"released","uuid":HEX}

Guarantees: an event that comes back as it went is the change that it was. What comes back is of a table that the
receiving side has, with that table's columns, or is refused by name.
Leaves to others: which events belong together (conversation.py). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgpack

from replicate.errors import DamagedError, FormatUnknownError, JournalDamagedError
from replicate.filters.encoding import Form, Layout, json_event, json_value, msgpack_event, refuse, shown
from replicate.limits import PARTITION_STREAM
from replicate.model.moment import iso, wall_us
from replicate.model.transaction import (
    Op,
    RowChange,
    TableDefinition,
    changed_of,
    decode_change,
    mask_of,
)

_NAMES: Final = {int(op): op.name.lower() for op in Op}
_OPS: Final = {name: op for op, name in _NAMES.items()}
_INSERT, _UPDATE, _DELETE = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)
_ROWS: Final = frozenset((_INSERT, _UPDATE, _DELETE))


class Tables:
    """The definitions that are known on one side, each with its layout."""

    def __init__(self, definitions: Mapping[int, TableDefinition]) -> None:
        """`definitions`: by id, of one table the newest last."""
        self._by_id: dict[int, Layout] = {}
        self._by_name: dict[tuple[object, object], Layout] = {}
        self.current: set[int] = set()
        """The ids of those that are in force."""
        for definition in definitions.values():
            self.define(definition)

    def define(self, definition: TableDefinition) -> None:
        """From here on this definition is in force for its table."""
        layout = self._by_id[definition.table_id] = Layout.of(definition)
        before = self._by_name.get((definition.region, definition.table))
        if before is not None:
            self.current.discard(before.definition.table_id)
        self._by_name[definition.region, definition.table] = layout
        self.current.add(definition.table_id)

    def by_id(self, table_id: object) -> Layout:
        """DamagedError for a table that was never defined."""
        found = self._by_id.get(table_id)  # type: ignore[call-overload]
        if found is None:
            raise DamagedError(f"a change of table id {table_id!r}, which was not defined before it")
        return found  # type: ignore[no-any-return]

    def partitions(self, table_ids: Sequence[int]) -> tuple[int, ...]:
        """Those of the tables with these ids."""
        known = (self._by_id.get(table_id) for table_id in set(table_ids))
        return tuple(sorted({layout.definition.partition for layout in known if layout is not None}))

    def named(self, event: Mapping[str, Any]) -> Layout:
        """The table that an event is about. FilterError where there is none."""
        region, table = event.get("region"), event.get("table")
        try:
            found = self._by_name.get((region, table))
        except TypeError:
            found = None
        if found is None:
            raise refuse(f"there is no table {shown(table)} in region {shown(region)} on the receiving side")
        return found


# To the filter.


class EventWriter:
    """Writes changes for the filter, and learns the definitions among them."""

    def __init__(self, tables: Tables, form: Form) -> None:
        self.tables = tables
        self._is_json = form is Form.JSON
        self._write: Callable[[int, Any, Any, Any], Any] = self._json if self._is_json else self._msgpack
        self._event: Callable[[object], Any] = json_event if self._is_json else msgpack_event
        self._second = (-1, "")

    def write(self, changes: Sequence[Any]) -> bytes:
        """An event for each of the flat changes. DamagedError for what makes no sense."""
        events = self._events(changes)
        return "".join(events).encode() if self._is_json else b"".join(events)

    def transaction(self, body: Sequence[Any], changes: Sequence[Any]) -> bytes:
        """All that is told of a decoded transaction that holds these flat changes. DamagedError as `write`."""
        seqno, origin, origin_seqno, csn = body[1], body[4], body[5], body[6]
        events = self._events(changes)
        if not self._is_json:
            return b"".join((self._begin(seqno, origin, origin_seqno, iso(csn)), *events, self.end(seqno, len(events))))
        second, us = divmod(wall_us(csn), 1_000_000)
        if self._second[0] != second:
            self._second = (second, iso(csn)[:19])
        text = events[0] if len(events) == 1 else "".join(events)
        return (
            f'{{"begin":{seqno},"origin":"{origin:08x}","origin_seqno":{origin_seqno},"time":"{self._second[1]}.'
            f'{us:06}Z"}}\n{text}{{"end":{seqno},"count":{len(events)}}}\n'
        ).encode()

    def begin(self, seqno: int, origin: int) -> bytes:
        """What is told before the changes of a large transaction: less, since its commit is not known yet."""
        return self._begin(seqno, origin, None, None)

    def end(self, seqno: int, count: int) -> bytes:
        """What is told after its changes, of which there are `count`."""
        return self.event({"end": seqno, "count": count})

    def event(self, event: object) -> bytes:
        """One that is of no table."""
        return json_event(event).encode() if self._is_json else msgpack_event(event)

    def _begin(self, seqno: int, origin: int, origin_seqno: int | None, time: str | None) -> bytes:
        return self.event({"begin": seqno, "origin": f"{origin:08x}", "origin_seqno": origin_seqno, "time": time})

    def _events(self, changes: Sequence[Any]) -> list[Any]:
        write = self._write
        try:
            if len(changes) == 4:
                return [write(*changes)]
            return [write(*changes[at : at + 4]) for at in range(0, len(changes), 4)]
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise JournalDamagedError(f"a received change makes no sense: {error}") from error

    def _json(self, op: int, table_id: Any, argument: Any, values: Any) -> str:
        if op not in _ROWS:
            return str(self._other(op, table_id, argument, values))
        layout = self.tables.by_id(table_id)
        if op != _UPDATE:
            name, image = ("insert", "after") if op == _INSERT else ("delete", "before")
            return f'{{"op":"{name}",{layout.place},"{image}":{{{",".join(layout.json_values(values))}}}}}\n'
        changed = _changed(argument)
        before = layout.json_values(values[len(changed) :])
        after = before.copy()
        for ordinal, value in zip(changed, values, strict=False):
            after[ordinal] = layout.keys[ordinal] + json_value(value)
        return f'{{"op":"update",{layout.place},"before":{{{",".join(before)}}},"after":{{{",".join(after)}}}}}\n'

    def _msgpack(self, op: int, table_id: Any, argument: Any, values: Any) -> bytes:
        if op not in _ROWS:
            return bytes(self._other(op, table_id, argument, values))
        layout = self.tables.by_id(table_id)
        event: dict[str, Any] = {"op": _NAMES[op], "region": layout.definition.region, "table": layout.definition.table}
        if op == _UPDATE:
            before, after = _both(argument, values)
            event["before"] = dict(zip(layout.names, before, strict=True))
            event["after"] = dict(zip(layout.names, after, strict=True))
        else:
            event["after" if op == Op.INSERT else "before"] = dict(zip(layout.names, values, strict=True))
        return msgpack_event(event)

    def _other(self, op: int, table_id: Any, argument: Any, values: Any) -> Any:
        if op == Op.SEQUENCE:
            definition = self.tables.by_id(table_id).definition
            old, new = values
            return self._event(
                {"op": "sequence", "region": definition.region, "table": definition.table, "old": old, "new": new}
            )
        if op == Op.SCHEMA:
            place = {"partition": table_id} if table_id else {}
            return self._event({"op": "schema", "region": argument, "sql": values[0], **place})
        if op == Op.DEFINE:
            definition = TableDefinition.unpack(values)
            self.tables.define(definition)
            place = {"op": "define", "region": definition.region, "table": definition.table}
            return self._event({**place, "definition": definition.pack()})
        if op == Op.COMMENT:
            return self._event({"op": "comment", "text": values[0]})
        if op == Op.REGION:
            return self._event({"op": "region", "region": argument, "what": values[0], "uuid": values[1].hex()})
        raise FormatUnknownError(f"operation {op} is of a later release", do="Upgrade this instance first")


_changed = lru_cache(1024)(changed_of)
"""A statement changes the same columns again and again."""


def _both(mask: Any, values: Any) -> tuple[list[Any], list[Any]]:
    """The images of an UPDATE, before and after."""
    changed = _changed(mask)
    before = list(values[len(changed) :])
    after = list(before)
    for ordinal, value in zip(changed, values, strict=False):
        after[ordinal] = value
    return before, after


# From the filter.

_FIELDS: Final[dict[int, frozenset[str]]] = {
    Op.INSERT: frozenset(("op", "region", "table", "after")),
    Op.UPDATE: frozenset(("op", "region", "table", "before", "after")),
    Op.DELETE: frozenset(("op", "region", "table", "before")),
    Op.SEQUENCE: frozenset(("op", "region", "table", "old", "new")),
    Op.SCHEMA: frozenset(("op", "region", "sql")),
    Op.DEFINE: frozenset(("op", "region", "table", "definition")),
    Op.COMMENT: frozenset(("op", "text")),
    Op.REGION: frozenset(("op", "region", "what", "uuid")),
}


def read_change(event: Any, tables: Tables) -> bytes:
    """The flat change, packed, that an event of a filter makes; b"" for an update that changes nothing. A definition is
    in force in `tables` from here on. FilterError for what makes no sense."""
    if type(event) is not dict or type(event.get("op")) is not str:
        raise refuse(f"an event with op should stand here: {shown(event)}")
    op = _OPS.get(event["op"])
    if op is None:
        raise refuse(f"there is no op {shown(event['op'])}")
    odd_fields = event.keys() ^ _FIELDS[op]
    if odd_fields and (op != Op.SCHEMA or odd_fields != {"partition"}):  # it has one where its element has
        odd = ", ".join(sorted(map(str, odd_fields)))
        raise refuse(f"an event {event['op']} has fields too many or too few: {shown(odd)}")
    change = _row(op, event, tables) if op in _ROWS else _other(op, event, tables)
    if change is None:
        return b""
    try:
        return bytes(msgpack.packb(change, use_bin_type=True)[1:])  # without the head of the list of four
    except (ValueError, OverflowError) as error:  # text with half a surrogate pair
        raise refuse(f"an event {event['op']} holds what cannot be stored: {error}") from None


def _row(op: int, event: Mapping[str, Any], tables: Tables) -> list[Any] | None:
    layout = tables.named(event)
    table_id = layout.definition.table_id
    if op == Op.INSERT:
        return [op, table_id, 0, layout.image(event["after"], "the after-image")]
    before = layout.image(event["before"], "the before-image")
    if op == Op.DELETE:
        return [op, table_id, 0, before]
    after = layout.image(event["after"], "the after-image")
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if not _is_same(old, new)]
    if not changed:
        return None
    return [op, table_id, mask_of(changed, len(before)), [*(after[at] for at in changed), *before]]


def _is_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and (old == new and (old != 0 or repr(old) == repr(new)))


def _other(op: int, event: Mapping[str, Any], tables: Tables) -> list[Any]:
    """A change of no row. FilterError."""
    try:
        change = _packed(op, event, tables)
        view = decode_change(*change)
    except (DamagedError, FormatUnknownError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise refuse(f"an event {event['op']} makes no sense: {shown(str(error))}") from None
    assert not isinstance(view, RowChange)
    if op == Op.DEFINE:
        tables.define(TableDefinition.unpack(change[3]))
    return change


def _packed(op: int, event: Mapping[str, Any], tables: Tables) -> list[Any]:
    if op == Op.SEQUENCE:
        return [op, tables.named(event).definition.table_id, 0, [event["old"], event["new"]]]
    if op == Op.SCHEMA:
        return [op, event.get("partition", PARTITION_STREAM), event["region"], [event["sql"]]]
    if op == Op.COMMENT:
        return [op, 0, 0, [event["text"]]]
    if op == Op.REGION:
        return [op, 0, event["region"], [event["what"], bytes.fromhex(event["uuid"])]]
    definition = TableDefinition.unpack(event["definition"])
    if (definition.region, definition.table) != (event["region"], event["table"]):
        raise ValueError(f"it is of {definition.region}.{definition.table}")
    return [op, definition.table_id, definition.version, definition.pack()]
