"""Journal segments in blocks, and blocks as flat rows: what Spark reads, without Spark.

A block is a run of whole frames of one segment, of about BLOCK_BYTES, or one whole large transaction. It carries its
first and last number, so that a hole is found before anything is read, and what is in force at its beginning, so that
it can be read alone.

Guarantees: every frame of a block is verified (check, number) where it is decoded; images and keys are rows' packed
bytes: equal bytes mean equal values, storage class included. A key that an UPDATE changes gives two rows: the old key
with no image after, the new one with no image before.
Leaves to others: chain hashes (a replay verifies them), Spark, and what a row means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgpack
from msgspec import Struct, field

from replicate.errors import FormatUnknownError, GapError, JournalDamagedError
from replicate.journal.catalogue import with_frame
from replicate.journal.chain import Chain
from replicate.journal.frame import FIXED_ELEMENTS, FRAME_PREFIX_BYTES
from replicate.journal.reader import LargeTransaction, large_transaction
from replicate.journal.record import (
    CHANGES_BEGIN,
    DEFINE_MARK,
    UNPACK_ERRORS,
    Buffer,
    changes_of,
    check_frame,
    decode_batch,
    read_part,
    unpacker,
)
from replicate.journal.segment import open_segment, read_exactly
from replicate.journal.walk import measure, walk
from replicate.limits import MIB
from replicate.model.moment import wall_us
from replicate.model.transaction import Catalogue, History, Kind, Op, TableDefinition, changed_of

BLOCK_BYTES: Final = 8 * MIB
BATCH_ROWS: Final = 16 * 1024
BATCH_BYTES: Final = 64 * MIB
"""Of frames; their rows are three times as long at most: no column of a batch comes near Arrow's 2 GiB, unless one
value does."""
STEP_BYTES: Final = 4 * MIB
_pack = msgpack.Packer(use_bin_type=True).pack
_UPDATE: Final = int(Op.UPDATE)

CHANGE_COLUMNS: Final = (
    ("seqno", "bigint"),
    ("place", "bigint"),
    ("instance", "string"),
    ("incarnation", "bigint"),
    ("origin", "bigint"),
    ("origin_seqno", "bigint"),
    ("csn", "bigint"),
    ("wall", "timestamp"),
    ("partition", "bigint"),
    ("region", "string"),
    ("table_name", "string"),
    ("table_id", "bigint"),
    ("table_version", "bigint"),
    ("op", "string"),
    ("key", "binary"),
    ("before", "binary"),
    ("after", "binary"),
    ("text", "string"),
)
"""Of a row of `changes`. `place` orders the rows of one transaction; `text`: SQL of a schema change, or a comment."""
TRANSACTION_COLUMNS: Final = (
    ("seqno", "bigint"),
    ("kind", "string"),
    ("instance", "string"),
    ("incarnation", "bigint"),
    ("origin", "bigint"),
    ("origin_seqno", "bigint"),
    ("csn", "bigint"),
    ("wall", "timestamp"),
    ("chain", "binary"),
    ("changes", "bigint"),
    ("bytes", "bigint"),
)
"""Of a row of `transactions`."""
COLUMNS: Final = {"changes": CHANGE_COLUMNS, "transactions": TRANSACTION_COLUMNS}


class Block(Struct, frozen=True):
    """Frames `first_seqno` to `last_seqno` at `offset` to `end` of a segment; all of it when `large`.

    `known`: packed table definitions and histories in force before it.
    """

    path: str
    offset: int
    end: int
    first_seqno: int
    last_seqno: int
    large: bool
    known: bytes


def plan_blocks(chain: Chain, first_seqno: int, last_seqno: int, block_bytes: int = BLOCK_BYTES) -> list[Block]:
    """The blocks that hold `first_seqno` to `last_seqno` (and perhaps some more at both ends), without a hole.

    JournalMissingError, GapError, JournalDamagedError and what opening a segment raises.
    """
    blocks: list[Block] = []
    if last_seqno < first_seqno:
        return blocks
    numbers = chain.first_seqnos()
    here = chain.find(first_seqno).first_seqno
    for place in range(numbers.index(here), len(numbers)):
        first = numbers[place]
        if first > last_seqno:
            break
        bound = numbers[place + 1] - 1 if place + 1 < len(numbers) else last_seqno
        blocks.extend(_of_segment(chain, first, bound, block_bytes))
    wanted = blocks[0].first_seqno if blocks else first_seqno
    for block in blocks:
        if block.first_seqno != wanted:
            raise GapError(f"transaction {wanted} should stand here", where=block.path, expected=wanted)
        wanted = block.last_seqno + 1
    if wanted <= last_seqno:
        raise GapError(f"transaction {wanted} is not in the journal", where=chain.directory, expected=wanted)
    return [block for block in blocks if block.last_seqno >= first_seqno and block.first_seqno <= last_seqno]


def _of_segment(chain: Chain, first: int, bound: int, block_bytes: int) -> Iterator[Block]:
    with chain.open(first) as segment:
        catalogue, offset = segment.read_catalogue()
        if segment.header.adopted:
            yield Block(segment.path, 0, 0, first, first, True, _known(catalogue))
            return
        seqno = first
        while seqno <= bound:
            start, block_first, known = offset, seqno, _known(catalogue)
            while seqno <= bound and offset - start < block_bytes:
                data = segment.read_some(STEP_BYTES, offset)
                found = measure(data, next_seqno=seqno, last_seqno=bound, verify=False)
                if not found.frames:
                    raise GapError(f"transaction {seqno} is not in the journal", where=segment.path, expected=seqno)
                if DEFINE_MARK in data[: found.end] or b"\x03\xcf" in data[: found.end]:
                    catalogue = _after(catalogue, data[: found.end])
                offset += found.end
                seqno = found.last_seqno + 1
            yield Block(segment.path, start, offset, block_first, seqno - 1, False, known)


def _after(catalogue: Catalogue, data: bytes) -> Catalogue:
    for offset, head in walk(data):
        end = offset + head.frame_bytes
        if head.kind == Kind.HISTORY or (data.find(DEFINE_MARK, offset, end) >= 0 and _defines(data[offset:end])):
            catalogue = with_frame(catalogue, data[offset:end])
    return catalogue


def _defines(frame: bytes) -> bool:
    """Whether a frame with the mark really defines a table: a value of 4 and a large number look the same, and come in
    many frames. What `with_frame` does with one costs twenty times as much."""
    return int(Op.DEFINE) in decode_batch(frame, tuples=True)[2][FIXED_ELEMENTS::4]


def _known(catalogue: Catalogue) -> bytes:
    return bytes(_pack(catalogue.pack()))


class ChangeRows(Struct):
    """Rows of `changes` by columns, each list as long as `keys`. What many rows share stands once, and rows have its
    index: `transactions` (the columns from seqno to wall, without place), `tables` (partition to table_version)."""

    transactions: list[tuple[Any, ...]] = field(default_factory=list)
    tables: list[tuple[Any, ...]] = field(default_factory=list)
    transaction_at: list[int] = field(default_factory=list)
    table_at: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    befores: list[bytes | None] = field(default_factory=list)
    afters: list[bytes | None] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """By row: few have any."""
    table_of: dict[int, int] = field(default_factory=dict)
    """Table id to index in `tables`."""

    def add(self, table_at: int, op: int, key: bytes | None, before: bytes | None, after: bytes | None) -> None:
        """One more row of the last transaction."""
        self.table_at.append(table_at)
        self.ops.append(op)
        self.keys.append(key)
        self.befores.append(before)
        self.afters.append(after)


class _Mask(NamedTuple):
    """What an UPDATE sets. `key`: the ordinal of a one-column key that is not among it, else -1. `length`: of the
    table's images."""

    ordinals: tuple[int, ...]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a mask
    key: int
    length: int


class LargeBlock(Struct, frozen=True):
    """A large transaction: the elements of the frame that commits it, and its change stream."""

    body: Sequence[Any]
    found: LargeTransaction

    def slices(self) -> Iterator[memoryview]:
        """Its change stream in slices, each verified."""
        for part in self.found.parts():
            yield read_part(part)[2]


Flat = tuple[Sequence[Any], Sequence[Any], int, int, int]
"""A body, flat changes, where they begin in them, how many bytes they were, and the place of the first, if it is the
body's first here. The same body again: more of a large transaction."""


class BlockReader:
    """Turns one block into rows; what it knows of tables and origins grows with what it reads."""

    def __init__(self, block: Block) -> None:
        self.block = block
        catalogue = Catalogue.unpack(msgpack.unpackb(block.known, max_array_len=2**20))
        self.tables: dict[int, TableDefinition] = dict(catalogue.definitions)
        self.origins = {one.origin.key: (one.instance.hex(), one.incarnation) for one in catalogue.histories}
        self._masks: dict[Any, _Mask] = {}

    # Reading: FrameDamaged, GapError, JournalDamagedError, FormatUnknownError, named by file.

    def transactions_of(self, data: bytes, first: int, last: int) -> Iterator[tuple[Any, ...]]:
        """The rows of `transactions` from number `first` to `last` of one of `steps`."""
        for length, body in self._bodies(data):
            if first <= body[1] <= last:
                count = len(changes_of(body)) // 4
                yield self._transaction_row(body, count, length)

    def changes(self, first: int, last: int) -> Iterator[ChangeRows]:
        """The rows of `changes` from number `first` to `last`, some BATCH_ROWS at a time."""
        if self.block.large:
            large = self.large()
            return self._rows(self._large_changes(large.body, large.slices(), 0), first, last)
        return self._rows(self._small_changes(self._frames()), first, last)

    def changes_of(self, data: bytes, first: int, last: int) -> Iterator[ChangeRows]:
        """The same of one of `steps`."""
        return self._rows(self._small_changes(self._bodies(data)), first, last)

    def rest_of(self, large: LargeBlock, slices: Iterable[Buffer], place: int) -> Iterator[ChangeRows]:
        """The same of the end of a large transaction: from a slice that begins with its change number `place`."""
        return self._rows(self._large_changes(large.body, slices, place), 0, large.body[1])

    def _rows(self, found: Iterator[Flat], first: int, last: int) -> Iterator[ChangeRows]:
        rows = ChangeRows()
        current: Sequence[Any] = ()
        place = taken_bytes = 0
        for body, flat, start, length, after in found:
            if not first <= body[1] <= last:
                self._define(flat, start)
                continue
            if body is not current or not rows.keys:
                place, current = place if body is current else after, body
                self._begin(rows, body)
            before = len(rows.keys)
            taken_bytes += length
            try:
                self._take(rows, flat, start)
            except (TypeError, IndexError, KeyError, ValueError) as error:
                raise JournalDamagedError(
                    f"a change of transaction {body[1]} makes no sense: {error!r}", where=self.block.path
                ) from error
            count = len(rows.keys) - before
            rows.places.extend(range(place, place + count))
            rows.transaction_at.extend(repeat(len(rows.transactions) - 1, count))
            place += count
            if len(rows.keys) >= BATCH_ROWS or taken_bytes >= BATCH_BYTES:
                yield rows
                rows = ChangeRows()
                taken_bytes = 0
        if rows.keys:
            yield rows

    def steps(self) -> Iterator[bytes]:
        """The frames of a block that is not large, verified, some STEP_BYTES at a time."""
        block = self.block
        with open_segment(block.path) as segment:
            offset, seqno = block.offset, block.first_seqno
            while offset < block.end:
                data = read_exactly(segment.fd, min(STEP_BYTES, block.end - offset), offset, block.path)
                try:
                    found = measure(data, next_seqno=seqno)
                except JournalDamagedError as error:
                    raise type(error)(error.what, where=f"{block.path}, offset {offset}") from error
                yield data[: found.end]
                offset += found.end
                seqno = found.last_seqno + 1

    def _frames(self) -> Iterator[tuple[int, Sequence[Any]]]:
        """Length and body of every frame."""
        for data in self.steps():
            yield from self._bodies(data)

    def _bodies(self, data: bytes) -> Iterator[tuple[int, Sequence[Any]]]:
        flat = decode_batch(data, tuples=True)
        for length, body in zip(flat[0::3], flat[2::3], strict=True):
            if body[0] == Kind.HISTORY:
                self._learn(body)
            yield length + FRAME_PREFIX_BYTES, body

    def _learn(self, body: Sequence[Any]) -> None:
        history = History.unpack(body[FIXED_ELEMENTS:], body[1])
        self.origins[history.origin.key] = (history.instance.hex(), history.incarnation)

    def _transaction_row(self, body: Sequence[Any], changes: int, length: int) -> tuple[Any, ...]:
        kind, seqno, _, chain, origin, origin_seqno, csn = body[:FIXED_ELEMENTS]
        instance, incarnation = self.origins.get(origin, (None, None))
        return (
            seqno, Kind(kind).name.lower(), instance, incarnation, origin, origin_seqno, csn, wall_us(csn),
            chain.to_bytes(8, "big"), changes, length,
        )  # fmt: skip

    def _small_changes(self, frames: Iterator[tuple[int, Sequence[Any]]]) -> Iterator[Flat]:
        for length, body in frames:
            if body[0] in CHANGES_BEGIN:
                yield body, body, CHANGES_BEGIN[body[0]], length, 0

    def _large_changes(self, body: Sequence[Any], slices: Iterable[Buffer], place: int) -> Iterator[Flat]:
        stream = unpacker(tuples=True)
        waiting: list[Any] = []
        waiting_bytes = 0
        for part in slices:
            try:
                stream.feed(part)
                waiting.extend(stream)
            except UNPACK_ERRORS as error:
                raise JournalDamagedError(f"a part does not decode: {error}", where=self.block.path) from error
            waiting_bytes += len(part)
            if whole := len(waiting) & ~3:
                yield body, waiting[:whole], 0, waiting_bytes, place
                del waiting[:whole]
                waiting_bytes = 0
        if waiting:
            raise JournalDamagedError("a large transaction ends inside a change", where=self.block.path)

    def large(self) -> LargeBlock:
        """The large transaction that is this block, its LARGE frame verified."""
        with open_segment(self.block.path) as segment:
            found = large_transaction(segment)
        check_frame(found.commit_frame)
        return LargeBlock(decode_batch(found.commit_frame)[2], found)

    def large_transaction(self, changes: int) -> tuple[Any, ...]:
        """The row of `transactions` of a large transaction with so many changes."""
        large = self.large()
        return self._transaction_row(large.body, changes, large.found.payload_bytes)

    def _begin(self, rows: ChangeRows, body: Sequence[Any]) -> None:
        _, seqno, _, _, origin, origin_seqno, csn = body[:FIXED_ELEMENTS]
        instance, incarnation = self.origins.get(origin, (None, None))
        wall = wall_us(csn)
        rows.transactions.append((seqno, instance, incarnation, origin, origin_seqno, csn, wall))

    def _define(self, flat: Sequence[Any], start: int) -> None:
        """Learn what changes define that are not wanted themselves."""
        if Op.DEFINE in flat[start::4]:
            for at in range(start, len(flat), 4):
                if flat[at] == Op.DEFINE:
                    self._learn_table(TableDefinition.unpack(flat[at + 3]))

    def _learn_table(self, definition: TableDefinition) -> None:
        self.tables[definition.table_id] = definition
        self._masks.clear()

    def _take(self, rows: ChangeRows, flat: Sequence[Any], start: int) -> None:
        """Add all changes. The most frequent case is unrolled: a call for each row would cost a third more."""
        masks, tables, pack = self._masks, rows.table_of, _pack
        keys, befores, afters = rows.keys.append, rows.befores.append, rows.afters.append
        for at in range(start, len(flat), 4):
            op, table_id, argument, values = flat[at : at + 4]
            table = tables.get(table_id)
            if op == _UPDATE and table is not None:
                mask = masks.get((table_id, argument))
                if mask is not None and mask.key >= 0 and len(values) == mask.count + mask.length:
                    before = values[mask.count :]
                    after = list(before)
                    for place, ordinal in enumerate(mask.ordinals):
                        after[ordinal] = values[place]
                    rows.table_at.append(table)
                    rows.ops.append(op)
                    keys(pack((before[mask.key],)))
                    befores(pack(before))
                    afters(pack(after))
                    continue
            self._take_one(rows, op, table_id, argument, values)

    def _take_one(self, rows: ChangeRows, op: int, table_id: Any, argument: Any, values: Sequence[Any]) -> None:
        if op == Op.DEFINE:
            definition = TableDefinition.unpack(values)
            self._learn_table(definition)
            rows.table_of.pop(definition.table_id, None)
        if op in (Op.SEEN, Op.RESOLVED):
            return
        if op in (Op.SCHEMA, Op.COMMENT, Op.REGION):
            if op != Op.COMMENT and not isinstance(argument, str):
                raise ValueError("a region's name is no text")
            rows.tables.append((None, None if op == Op.COMMENT else argument, None, None, None))
            rows.texts[len(rows.keys)] = str(values[0])
            rows.add(len(rows.tables) - 1, op, None, None, None)
            return
        known = self.tables.get(table_id)
        if known is None:
            raise JournalDamagedError(
                f"transaction {rows.transactions[-1][0]} changes table id {table_id}, which was not defined before it",
                where=self.block.path,
            )
        table = rows.table_of.get(table_id)
        if table is None:
            table = rows.table_of[table_id] = len(rows.tables)
            rows.tables.append((known.partition, known.region, known.table, table_id, known.version))
        if op == Op.UPDATE:
            mask = self._masks.get((table_id, argument)) or self._mask(known, argument)
            before = _image(known, values[mask.count :])
            after = _changed(before, mask, values)
            old, new = _key(known, before), _key(known, after)
            if old == new:
                rows.add(table, op, old, _pack(before), _pack(after))
            else:
                rows.add(table, op, old, _pack(before), None)
                rows.add(table, op, new, None, _pack(after))
        elif op == Op.INSERT:
            rows.add(table, op, _key(known, _image(known, values)), None, _pack(values))
        elif op == Op.DELETE:
            rows.add(table, op, _key(known, _image(known, values)), _pack(values), None)
        elif op == Op.SEQUENCE:
            rows.add(table, op, b"", _pack(values[0]), _pack(values[1]))
        elif op == Op.DEFINE:
            rows.add(table, op, None, None, _pack(values))
        else:
            raise FormatUnknownError(f"a change of kind {op} is of a later release", where=self.block.path)

    def _mask(self, known: TableDefinition, argument: Any) -> _Mask:
        ordinals = changed_of(argument, known.image_length)
        stays = len(known.key) == 1 and known.key[0] not in ordinals
        made = _Mask(ordinals, len(ordinals), known.key[0] if stays else -1, known.image_length)
        self._masks[known.table_id, argument] = made
        return made


def _image(known: TableDefinition, values: Sequence[Any]) -> Sequence[Any]:
    """ValueError when it is no image of that table."""
    if not isinstance(values, tuple) or len(values) != known.image_length:
        raise ValueError(f"an image does not fit table {known.table}")
    return values


def _changed(before: Sequence[Any], mask: _Mask, values: Sequence[Any]) -> list[Any]:
    after = list(before)
    for place, ordinal in enumerate(mask.ordinals):
        after[ordinal] = values[place]
    return after


def _key(known: TableDefinition, image: Sequence[Any]) -> bytes:
    return bytes(_pack([image[ordinal] for ordinal in known.key]))


def unpack_image(packed: bytes) -> list[Any]:
    """The values of a packed image or key."""
    made: list[Any] = msgpack.unpackb(packed)
    return made
