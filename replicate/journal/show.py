"""What `replicate journal show` tells: one record for each transaction, with the changes in it, tables by name.

Guarantees: reads files only and takes no lock; stops at the last whole frame, so it may run beside a writer. `lines()`
shorten values and leave the rows of large transactions out; the fields have everything, a part at a time.
Refuses to know: how the records are printed (the command prints `lines()`, or the fields as JSON).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from replicate.errors import JournalDamagedError, UsageError
from replicate.journal.catalogue import with_frame
from replicate.journal.chain import Chain
from replicate.journal.frames import walk
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import UNPACK_ERRORS, decode, decode_changes, unpacker
from replicate.limits import BATCH_BYTES_MAX
from replicate.transaction import (
    Catalogue,
    Content,
    DefinitionChange,
    History,
    LargeCommit,
    LargePart,
    LogComment,
    NullRecord,
    RegionChange,
    RowChange,
    SchemaChange,
    SequenceChange,
    TableDefinition,
    Transaction,
)

if TYPE_CHECKING:
    from replicate.instance.instance import Instance

_VALUE_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class ShownChange:
    """One change: `what` it does, to which `table` ("" when to none), and a text of it, in which values are shortened.

    Of a row also its image `before` and `after`, whole, and what `columns` these are; () where nobody knows. A BLOB is
    {"blob": HEX}, an infinite number {"real": TEXT}: JSON knows neither.
    """

    what: str
    table: str
    text: str
    columns: tuple[str, ...] = ()
    before: tuple[object, ...] | None = None
    after: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShownTransaction:
    """One transaction. `origin`: its key in hexadecimal. `frame_bytes`: of its frame; a large one has parts as well,
    which are records of their own behind it, of the kind PART and the same number."""

    seqno: int
    kind: str
    origin: str
    origin_seqno: int
    csn: int
    mark: int
    chain: str
    frame_bytes: int
    changes: tuple[ShownChange, ...]

    def lines(self) -> Iterator[str]:
        """For people: a head line, and one for each change."""
        count = len(self.changes)
        yield (
            f"{self.seqno}  {self.kind}  origin {self.origin}/{self.origin_seqno}  csn {self.csn}  "
            f"durable {self.mark}  chain {self.chain}  {self.frame_bytes} bytes  "
            f"{count} change{'' if count == 1 else 's'}"
        )
        for change in self.changes:
            yield f"    {change.what:<8}  {change.table + '  ' if change.table else ''}{change.text}"


def show_journal(
    instance: Instance, first_seqno: int | None = None, last_seqno: int | None = None, *, parts: bool = False
) -> Iterator[ShownTransaction]:
    """`show_chain` over an instance's journal."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    return show_chain(chain, first_seqno, last_seqno, parts=parts)


def check_order(first_seqno: int | None, last_seqno: int | None) -> None:
    """UsageError when a range ends before it begins."""
    if first_seqno is not None and last_seqno is not None and first_seqno > last_seqno:
        raise UsageError(f"--from {first_seqno} is behind --to {last_seqno}", do="Give the smaller number as --from")


def not_held(oldest_seqno: int, last_seqno: int, where: str) -> UsageError:
    """The error for a range that goes beyond what the journal holds."""
    held = f"transactions {oldest_seqno} to {last_seqno}" if oldest_seqno <= last_seqno else "no transaction yet"
    return UsageError(
        f"the journal holds {held}", where=where, do="Give --from and --to within that, or leave them out"
    )


def show_chain(
    chain: Chain, first_seqno: int | None = None, last_seqno: int | None = None, *, parts: bool = False
) -> Iterator[ShownTransaction]:
    """The transactions from `first_seqno` (None: the oldest there is) to `last_seqno` (None: the newest), in order;
    with `parts` the changes of large ones, too.

    JournalMissingError when the first was pruned; UsageError when one is not there yet, or they are the wrong way
    round; JournalDamagedError and its kin at the first that does not verify.
    """
    check_order(first_seqno, last_seqno)
    oldest = chain.oldest_seqno()
    first = oldest if first_seqno is None else first_seqno
    end = chain.scan_last()[1].last_seqno
    last = end if last_seqno is None else last_seqno
    if (first_seqno or 0) > end or (last_seqno is not None and not oldest <= last_seqno <= end):
        raise not_held(oldest, end, chain.directory)
    if first > last:
        return  # an empty journal
    reader = ChainReader(chain, first)
    try:
        catalogue = reader.catalogue_at(first)
        while (found := reader.read(BATCH_BYTES_MAX, last)) is not None:
            if isinstance(found, LargeTransaction):
                commit = shown(decode(found.commit_frame), len(found.commit_frame), {})
                yield commit
                if parts:
                    yield from _parts(found, commit, catalogue.definitions)
                catalogue = reader.catalogue_at(found.seqno + 1)
                continue
            for offset, head in walk(found.data):
                frame = found.data[offset : offset + head.frame_bytes]
                catalogue = with_frame(catalogue, frame)
                yield shown(decode(frame), len(frame), catalogue.definitions)
    finally:
        reader.close()


def shown(transaction: Transaction, frame_bytes: int, definitions: Mapping[int, TableDefinition]) -> ShownTransaction:
    """The record of one decoded frame; a table that `definitions` does not hold is shown by its id."""
    return ShownTransaction(
        transaction.seqno,
        transaction.kind.name,
        f"{transaction.origin:08x}",
        transaction.origin_seqno,
        transaction.csn,
        transaction.mark,
        f"{transaction.chain:016x}",
        frame_bytes,
        tuple(_change(content, definitions) for content in transaction.content),
    )


def _parts(
    large: LargeTransaction, commit: ShownTransaction, definitions: Mapping[int, TableDefinition]
) -> Iterator[ShownTransaction]:
    """A record for each part: the changes that end in it. JournalDamagedError and its kin."""
    stream, pending, known = unpacker(), list[Any](), dict(definitions)
    for frame in large.parts():
        (content,) = decode(frame).content
        assert isinstance(content, LargePart)
        try:
            stream.feed(content.data)
            pending.extend(stream)
        except UNPACK_ERRORS as error:
            text = f"part {content.part_number} of transaction {large.seqno} does not decode: {error}"
            raise JournalDamagedError(text, where=large.path, seqno=large.seqno) from error
        whole = len(pending) & ~3
        changes, pending = decode_changes(pending[:whole]), pending[whole:]
        known |= {one.definition.table_id: one.definition for one in changes if isinstance(one, DefinitionChange)}
        told = tuple(_change(one, known) for one in changes)
        yield replace(commit, kind="PART", frame_bytes=len(frame), changes=told)


def _change(content: Content, definitions: Mapping[int, TableDefinition]) -> ShownChange:
    if isinstance(content, RowChange):
        definition = definitions.get(content.table_id)
        before = None if content.before is None else _image(content.before, definition)
        after = None if content.after is None else _image(content.after, definition)
        text = " -> ".join(image for image in (before, after) if image is not None)
        return ShownChange(
            content.op.name,
            _table(content.table_id, definitions),
            text,
            tuple(_names(content.before or content.after or (), definition)),
            None if content.before is None else tuple(map(_whole, content.before)),
            None if content.after is None else tuple(map(_whole, content.after)),
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
        return ShownChange("REGION", "", f"{content.region} {content.what} ({content.region_uuid.hex()})")
    if isinstance(content, NullRecord):
        return ShownChange("NULL", "", content.reason)
    if isinstance(content, History):
        return ShownChange(
            "HISTORY",
            "",
            f"{content.name} incarnation {content.incarnation} begins after origin {content.previous_origin:08x}: "
            f"{content.reason}",
        )
    if isinstance(content, LargeCommit):
        return ShownChange(
            "LARGE", "", f"{content.part_count} parts, {content.payload_bytes} bytes of changes (--json: with them)"
        )
    if isinstance(content, Catalogue):
        return ShownChange("CATALOGUE", "", f"{len(content.definitions)} definitions")
    return ShownChange("PART", "", f"part {content.part_number}, {len(content.data)} bytes")


def _name(definition: TableDefinition) -> str:
    return f"{definition.region}.{definition.owner}.{definition.table}"


def _table(table_id: int, definitions: Mapping[int, TableDefinition]) -> str:
    definition = definitions.get(table_id)
    return _name(definition) if definition is not None else f"table {table_id:08x}"


def _names(values: tuple[object, ...], definition: TableDefinition | None) -> list[str]:
    if definition is None or definition.image_length != len(values):
        return []
    return ["rowid"] * definition.rowid + [column.name for column in definition.columns]


def _image(values: tuple[object, ...], definition: TableDefinition | None) -> str:
    names = _names(values, definition)
    shortened = [_value(value) for value in values]
    if names:
        shortened = [f"{name}={value}" for name, value in zip(names, shortened, strict=True)]
    return "(" + ", ".join(shortened) + ")"


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"


def _whole(value: object) -> object:
    """As ShownChange has it."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"blob": bytes(value).hex()}
    return {"real": repr(value)} if isinstance(value, float) and math.isinf(value) else value
