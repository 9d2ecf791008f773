"""What `replicate journal show` tells: one record for each transaction, with the changes in it, tables by name.

Guarantees: reads files only and takes no lock; stops at the last whole frame, so it may run beside a writer, and memory
does not grow with what is shown. `lines()` shorten values and leave the rows of large transactions out; the fields have
everything, a part at a time.
Leaves to others: how the records are printed (the command prints `lines()`, or the fields as JSON), and how those that
are asked for are found (query.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.changes import history_named, told_history, told_of_suppliers, told_origin
from replicate.audit.query import Matches, Query
from replicate.audit.read import Match, flat_parts
from replicate.audit.record_lines import plain, printable
from replicate.audit.selection import EVERYTHING, Chooser, image_names
from replicate.audit.sources import find_in_instance
from replicate.journal.chain import Chain
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.record import CHANGES_BEGIN, RESTATED_KINDS, content_of, decode_changes
from replicate.model.moment import iso, readable, wall_ns
from replicate.model.schema_fences import SECOND
from replicate.model.transaction import (
    FENCED,
    LEFT,
    OF_FENCES,
    OF_GONE,
    OF_WRITERS,
    PARTED,
    RETIRING,
    SHARED,
    STANDS,
    Catalogue,
    Content,
    DefinitionChange,
    History,
    Kind,
    LargeCommit,
    LogComment,
    NullRecord,
    RegionChange,
    Resolved,
    RowChange,
    SchemaChange,
    Seen,
    SequenceChange,
    TableDefinition,
    Transaction,
    decode_change,
)
from replicate.model.writers import dotted

if TYPE_CHECKING:
    from replicate.instance.instance import Instance

_VALUE_CHARACTERS_MAX = 60
EVERY = Query()


class ShownChange(Struct, frozen=True):
    """One change: `what` it does, to which `table` ("" when to none), and a text of it, in which values are shortened.

    Of a row also its image `before` and `after`, whole, and what `columns` these are; () where nobody knows. A BLOB is
    {"blob": HEX}, an infinite number {"real": TEXT}, text that is not UTF-8 {"text": HEX}: JSON knows none of them.
    """

    what: str
    table: str
    text: str
    columns: tuple[str, ...] = ()
    before: tuple[object, ...] | None = None
    after: tuple[object, ...] | None = None


class ShownTransaction(Struct, frozen=True):
    """One transaction. `wall`, `wall_ns`: when it was committed, by the clock of its origin. `origin`: its key in
    hexadecimal; `origin_name`: the instance that it is an incarnation of, None where nobody knows. `change_count`: how
    many there are in all, where `changes` are only those asked for. `frame_bytes`: of its frame; a large one has parts
    as well, which are records of their own after it, of the kind PART and the same number."""

    seqno: int
    kind: str
    wall: str
    wall_ns: int
    origin: str
    origin_name: str | None
    origin_incarnation: int | None
    origin_seqno: int
    csn: int
    mark: int
    chain: str
    frame_bytes: int
    change_count: int
    changes: tuple[ShownChange, ...]

    def lines(self) -> Iterator[str]:
        """For people: a head line, and one for each change, without control characters."""
        told, count = len(self.changes), self.change_count
        of = f"{told} of " if told != count else ""
        yield (
            f"{self.seqno}  {self.kind}  {readable(self.csn)}  "
            f"origin {told_origin(self.origin, self.origin_name, self.origin_incarnation)}/{self.origin_seqno}  "
            f"durable {self.mark}  chain {self.chain}  {self.frame_bytes} bytes  {of}{count} change{'s' * (count != 1)}"
        )
        for change in self.changes:
            table = f"{printable(change.table)}  " if change.table else ""
            yield f"    {change.what:<8}  {table}{printable(change.text)}"


_OF_TRANSACTION = tuple(name for name in ShownTransaction.__struct_fields__ if name != "changes")
_OF_CHANGE = ShownChange.__struct_fields__


def document(one: ShownTransaction) -> dict[str, object]:
    """A record as JSON has it."""
    made: dict[str, object] = {name: getattr(one, name) for name in _OF_TRANSACTION}
    made["changes"] = [{name: getattr(change, name) for name in _OF_CHANGE} for change in one.changes]
    return made


def show_journal(instance: Instance, query: Query = EVERY, *, parts: bool = False) -> Iterator[ShownTransaction]:
    """The transactions asked for, in order; with `parts` the changes of large ones, too. Raises what
    `find_in_instance` and what it finds raise."""
    return told(find_in_instance(instance, query), parts=parts)


def shown_between(chain: Chain, first: int, last: int, *, parts: bool) -> Iterator[ShownTransaction]:
    """The transactions from `first` to `last`, both of which the chain holds, without a look at where it ends.

    JournalDamagedError and its kin at the first that does not verify."""
    return told(Matches(chain, first, last, EVERYTHING), parts=parts)


def told(found: Iterable[Match], *, parts: bool) -> Iterator[ShownTransaction]:
    """A record for each transaction; with `parts` the changes of large ones, too. JournalDamagedError and its kin."""
    for one in found:
        commit = shown_match(one)
        yield commit
        if one.large is not None and parts:
            yield from shown_parts(one.large.parts(), one.large.path, commit, one.chooser.definitions, one.chooser)


def shown_match(match: Match) -> ShownTransaction:
    """The record of a transaction asked for, with the changes that are."""
    body = match.body
    kind, seqno, start = body[0], body[1], CHANGES_BEGIN.get(body[0])
    if start is not None:
        chosen = match.chooser.chosen(body, start)
        # Of one in other words: who tells it so.
        told = decode_changes(body[FIXED_ELEMENTS:start]) if kind in RESTATED_KINDS else ()
        content: tuple[Content, ...] = (*told, *(decode_change(*body[at : at + 4]) for at in chosen))
        count = len(told) + (len(body) - start >> 2)
    else:
        content = content_of(kind, seqno, body[FIXED_ELEMENTS:])
        count = len(content)
    _, _, mark, chain, origin, origin_seqno, csn = body[:FIXED_ELEMENTS]
    transaction = Transaction(Kind(kind), seqno, mark, chain, origin, origin_seqno, csn, content)
    return _shown(transaction, match.frame_bytes, match.catalogue, count)


def shown(transaction: Transaction, frame_bytes: int, catalogue: Catalogue) -> ShownTransaction:
    """The record of one decoded frame; a table or origin that `catalogue` does not hold is shown by its id."""
    return _shown(transaction, frame_bytes, catalogue, len(transaction.content))


def _shown(transaction: Transaction, frame_bytes: int, catalogue: Catalogue, change_count: int) -> ShownTransaction:
    definitions = catalogue.definitions
    history = history_named(transaction.origin, catalogue.histories)
    return ShownTransaction(
        transaction.seqno,
        transaction.kind.name,
        iso(transaction.csn),
        wall_ns(transaction.csn),
        f"{transaction.origin:08x}",
        None if history is None else history.name,
        None if history is None else history.incarnation,
        transaction.origin_seqno,
        transaction.csn,
        transaction.mark,
        f"{transaction.chain:016x}",
        frame_bytes,
        change_count,
        tuple(_change(one, definitions, catalogue.histories) for one in transaction.content),
    )


def shown_parts(
    frames: Iterable[bytes],
    where: str,
    commit: ShownTransaction,
    definitions: Mapping[int, TableDefinition],
    chooser: Chooser | None = None,
) -> Iterator[ShownTransaction]:
    """A record for each PART frame of the large transaction `commit`, from the first on: the changes that end in it.

    `where`: what they stand in. JournalDamagedError and its kin."""
    selection = EVERYTHING if chooser is None else chooser.selection
    for frame_bytes, flat, known in flat_parts(frames, where, commit.seqno, definitions):
        places = Chooser(selection, known).chosen(flat)
        chosen = tuple(_change(decode_change(*flat[at : at + 4]), known) for at in places)
        if chosen or not selection.chooses_changes:
            yield replace(commit, kind="PART", frame_bytes=frame_bytes, change_count=len(flat) >> 2, changes=chosen)


def _change(
    content: Content, definitions: Mapping[int, TableDefinition], histories: Sequence[History] = ()
) -> ShownChange:
    if isinstance(content, History):
        return ShownChange("HISTORY", "", told_history(content, histories))
    if isinstance(content, RowChange):
        definition = definitions.get(content.table_id)
        return ShownChange(
            content.op.name,
            _table(content.table_id, definitions),
            _row(content.before, content.after, definition),
            tuple(_names(content.before or content.after or (), definition)),
            None if content.before is None else tuple(map(plain, content.before)),
            None if content.after is None else tuple(map(plain, content.after)),
        )
    if isinstance(content, DefinitionChange):
        definition = content.definition
        columns = ", ".join(f"{column.name} {column.type}".rstrip() for column in definition.columns)
        return ShownChange("DEFINE", _name(definition), f"version {definition.version} ({columns})")
    if isinstance(content, SequenceChange):
        return ShownChange("SEQUENCE", _table(content.table_id, definitions), f"{content.old} -> {content.new}")
    if isinstance(content, SchemaChange):
        return ShownChange("SCHEMA", "", f"in {content.region}: {content.sql}")
    if isinstance(content, LogComment):
        return ShownChange("COMMENT", "", content.text)
    if isinstance(content, RegionChange):
        return ShownChange("REGION", "", _told_region(content))
    if isinstance(content, Seen | Resolved):
        return ShownChange(type(content).__name__.upper(), "", told_of_suppliers(content))
    if isinstance(content, NullRecord):
        return ShownChange("NULL", "", content.reason)
    if isinstance(content, LargeCommit):
        return ShownChange(
            "LARGE", "", f"{content.part_count} parts, {content.payload_bytes} bytes of changes (--json: with them)"
        )
    if isinstance(content, Catalogue):
        return ShownChange("CATALOGUE", "", f"{len(content.definitions)} definitions")
    return ShownChange("PART", "", f"part {content.part_number}, {len(content.data)} bytes")


def _told_region(content: RegionChange) -> str:
    if content.what not in OF_WRITERS:
        return f"{content.region} {content.what} ({content.uuid.hex()})"
    if content.what in OF_FENCES:
        return f"{content.region}: {_told_fence(content)}"
    if content.what in OF_GONE:
        said = {RETIRING: "is gone for good, says", PARTED: "is taken nothing from any more by"}
        told = said.get(content.what, "is retired, and what it wrote is written by")
        return f"{content.region}: {content.uuid.hex()} {told} {content.other.hex()}"
    which = f"partition {content.partition}" if content.partition else "all that has no other writer"
    how = {SHARED: "is written by {}, too", LEFT: "is written by {} no longer"}.get(content.what, "is written by {}")
    sums = f"; sums: {', '.join(dotted(content.summed))}" if content.summed else ""
    rows = f"; by row: {', '.join(content.whole)}" if content.whole else "; by row" if content.by_row else ""
    return f"{content.region}: {which} {how.format(content.uuid.hex())}{rows}{sums}"


def _told_fence(content: RegionChange) -> str:
    fencer = content.uuid.hex()
    if content.what == STANDS:
        return f"{content.other.hex()} stands aside for {fencer}{', and has all' if content.turn == SECOND else ''}"
    what = "has all others stand aside" if content.what == FENCED else "lets all others write again"
    return f"{fencer} {what}"


def _name(definition: TableDefinition) -> str:
    return f"{definition.region}.{definition.owner}.{definition.table}"


def _table(table_id: int, definitions: Mapping[int, TableDefinition]) -> str:
    definition = definitions.get(table_id)
    return _name(definition) if definition is not None else f"table {table_id:08x}"


def _names(values: tuple[object, ...], definition: TableDefinition | None) -> list[str]:
    if definition is None or definition.image_length != len(values):
        return []
    return list(image_names(definition))


def _row(
    before: tuple[object, ...] | None, after: tuple[object, ...] | None, definition: TableDefinition | None
) -> str:
    """Both images of a row as one: what differs is marked by a star, and has its value before and after."""
    image = before or after or ()
    names = [f"{name}=" for name in _names(image, definition)] or [""] * len(image)
    pairs = zip(names, before or image, after or image, strict=True)
    return "(" + ", ".join(_column(*one) for one in pairs) + ")"


def _column(name: str, before: object, after: object) -> str:
    if repr(before) == repr(after):  # 1 and 1.0 are two values
        return f"{name}{_value(before)}"
    return f"*{name}{_value(before)} -> {_value(after)}"


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"
