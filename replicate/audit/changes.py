"""The changes that were asked for as flat records: one for each, with the row's key, and its values by the columns'
names; what CSV, Parquet and the text for people are made of.

Guarantees: a record is whole and can be read alone; values are those of the journal, in the way of JSON that
`journal show --json` has. Memory holds one part of a large transaction.
Leaves to others: which changes are asked for (selection.py), and how a record is written (record_lines.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from replicate.audit.read import Match, chosen_backwards, large_changes
from replicate.audit.selection import Chooser, image_names, keys_of
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.record import CHANGES_BEGIN, content_of
from replicate.model.transaction import (
    DefinitionChange,
    History,
    Kind,
    LogComment,
    Op,
    RegionChange,
    Resolved,
    RowChange,
    SchemaChange,
    Seen,
    SequenceChange,
    decode_change,
)


class ChangeRecord(NamedTuple):
    """One change, or a transaction without any. `place`: which of its transaction's changes, from 0 on. `op`: its name
    in small letters (`null`, `history` of what has no changes). `names`: of the values in `before` and `after`, None
    where there is no such image. `text`: of a schema change, a comment and the like."""

    seqno: int
    place: int
    csn: int
    origin: int
    origin_name: str | None
    incarnation: int | None
    origin_seqno: int
    op: str
    region: str
    table: str
    table_id: int
    key: tuple[Any, ...] | None
    names: tuple[str, ...]
    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None
    changed: tuple[int, ...]
    text: str


def records_of(match: Match) -> Iterator[ChangeRecord]:
    """Of a transaction that was asked for, in order. JournalDamagedError and its kin."""
    head = head_of(match)
    if match.large is None:
        body = match.body
        start = CHANGES_BEGIN.get(body[0])
        if start is None:
            text = str(body[FIXED_ELEMENTS]) if body[0] == Kind.NULL else ""
            if body[0] == Kind.HISTORY:
                (history,) = content_of(body[0], body[1], body[FIXED_ELEMENTS:])
                assert isinstance(history, History)
                text = told_history(history, match.catalogue.histories)
            yield _record(head, 0, Kind(body[0]).name.lower(), text=text)
            return
        for at in match.chooser.chosen(body, start):
            yield record_of(head, at - start >> 2, body[at : at + 4], match.chooser)
        return
    begin = 0
    for flat, chooser in large_changes(match):
        for at in chooser.chosen(flat):
            yield record_of(head, begin + (at >> 2), flat[at : at + 4], chooser)
        begin += len(flat) >> 2


def records_backwards(match: Match) -> Iterator[ChangeRecord]:
    """The same from the last to the first, without their places (all 0)."""
    if match.large is None:
        yield from reversed(list(records_of(match)))
        return
    head = head_of(match)
    for change in chosen_backwards(match):
        yield record_of(head, 0, change, match.chooser)


Head = tuple[int, int, int, str | None, int | None, int]


def head_of(match: Match) -> Head:
    """seqno, csn, origin, its instance and incarnation, origin_seqno."""
    _, seqno, _, _, origin, origin_seqno, csn = match.body[:FIXED_ELEMENTS]
    known = history_named(origin, match.catalogue.histories)
    name, incarnation = (None, None) if known is None else (known.name, known.incarnation)
    return seqno, csn, origin, name, incarnation, origin_seqno


def _record(head: Head, place: int, op: str, **more: Any) -> ChangeRecord:
    seqno, csn, origin, name, incarnation, origin_seqno = head
    rest: dict[str, Any] = {"region": "", "table": "", "table_id": 0, "key": None, "names": ()}
    rest |= {"before": None, "after": None, "changed": (), "text": ""}
    return ChangeRecord(seqno, place, csn, origin, name, incarnation, origin_seqno, op, **{**rest, **more})


def record_of(head: Head, place: int, change: Sequence[Any], chooser: Chooser) -> ChangeRecord:
    """The record of one flat change."""
    op, ident, argument, values = change
    content = decode_change(op, ident, argument, values)
    name = Op(op).name.lower()
    if isinstance(content, RowChange):
        definition = chooser.definitions.get(ident)
        if definition is None:
            images: dict[str, Any] = {"before": content.before, "after": content.after, "changed": content.changed}
            return _record(head, place, name, table=f"{ident:08x}", table_id=ident, **images)
        key = keys_of(definition, op, argument, values)[-1]
        return _record(
            head,
            place,
            name,
            region=definition.region,
            table=definition.table,
            table_id=ident,
            key=key,
            names=image_names(definition),
            before=content.before,
            after=content.after,
            changed=content.changed,
        )
    if isinstance(content, DefinitionChange):
        made = content.definition
        columns = ", ".join(f"{column.name} {column.type}".rstrip() for column in made.columns)
        text = f"version {made.version} ({columns})"
        return _record(head, place, name, region=made.region, table=made.table, table_id=ident, text=text)
    if isinstance(content, SchemaChange):
        return _record(head, place, name, region=content.region, text=content.sql)
    if isinstance(content, LogComment):
        return _record(head, place, name, text=content.text)
    if isinstance(content, RegionChange):
        return _record(head, place, name, region=content.region, text=content.what)
    if isinstance(content, Seen | Resolved):
        return _record(head, place, name, text=told_of_suppliers(content))
    assert isinstance(content, SequenceChange)
    definition = chooser.definitions.get(ident)
    table = f"{ident:08x}" if definition is None else definition.table
    region = "" if definition is None else definition.region
    old = "NULL" if content.old is None else content.old
    return _record(head, place, name, region=region, table=table, table_id=ident, text=f"{old} → {content.new}")


def told_of_suppliers(content: Seen | Resolved) -> str:
    """In words what a transaction tells of other suppliers' transactions."""
    if isinstance(content, Resolved):
        return "what stands before it is what changes made at once came to here"
    return ", ".join(f"{origin:08x} to {last}" for origin, last in sorted(content.told.items()))


def history_named(origin: int, histories: Sequence[History]) -> History | None:
    """What opened the incarnation that has that key; None where nobody knows."""
    return next((one for one in histories if one.origin.key == origin), None)


def told_origin(key: str, name: str | None, incarnation: int | None) -> str:
    """An origin for people: the instance, and which of its incarnations if that is not the first one."""
    if name is None:
        return key
    return name if incarnation == 1 else f"{name} (incarnation {incarnation})"


def told_history(history: History, histories: Sequence[History]) -> str:
    """In words what begins with a history record."""
    after = ""
    if key := history.previous_origin:
        known = history_named(key, histories)
        named = (None, None) if known is None else (known.name, known.incarnation)
        after = f" after origin {told_origin(f'{key:08x}', *named)}"
    return f"{history.name} incarnation {history.incarnation} begins{after}: {history.reason}"
