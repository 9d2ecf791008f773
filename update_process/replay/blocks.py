"""Journal segments in blocks, and blocks as flat rows: what Spark reads, without Spark.

A block is a run of whole frames of one segment, of about BLOCK_BYTES, or one whole large transaction. It carries its
first and last number, so that a hole is found before anything is read, and what is in force at its beginning, so that
it can be read alone.

Guarantees: every frame of a block is verified (check, number) where it is decoded; images and keys are rows' packed
bytes: equal bytes mean equal values, storage class included. A key that an UPDATE changes gives two rows: the old key
with no image after, the new one with no image before.
Refuses to know: chain hashes (a replay verifies them), Spark, and what a row means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from replicate.errors import GapError, JournalDamagedError
from replicate.journal.chain import Chain
from replicate.journal.reader import large_transaction
from replicate.journal.record import (
    DEFINE_MARK,
    FIXED_ELEMENTS,
    UNPACK_ERRORS,
    check_frame,
    decode_batch,
    measure,
    read_part,
    unpacker,
    walk,
)
from replicate.journal.segment import open_segment, read_exactly
from replicate.limits import MIB
from replicate.transaction import Catalogue, History, Kind, Op, TableDefinition, changed_of

BLOCK_BYTES: Final = 8 * MIB
_STEP_BYTES: Final = 4 * MIB
_Images = tuple[bytes | None, bytes | None, bytes | None, str | None]
"""Key, image before, image after, text."""
_pack = msgpack.Packer(use_bin_type=True).pack

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
CSN_COUNTER_BITS: Final = 12
"""A csn is microseconds of wall time, shifted by this (door/door.py)."""


@dataclass(frozen=True, slots=True)
class Block:
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
                data = segment.read_some(_STEP_BYTES, offset)
                found = measure(data, next_seqno=seqno, last_seqno=bound, verify=False)
                if not found.frames:
                    raise GapError(f"transaction {seqno} is not in the journal", where=segment.path, expected=seqno)
                if DEFINE_MARK in data[: found.end] or b"\x03\xcf" in data[: found.end]:
                    catalogue = _behind(catalogue, data[: found.end])
                offset += found.end
                seqno = found.last_seqno + 1
            yield Block(segment.path, start, offset, block_first, seqno - 1, False, known)


def _behind(catalogue: Catalogue, data: bytes) -> Catalogue:
    from replicate.journal.catalogue import with_frame

    for offset, head in walk(data):
        end = offset + head.frame_bytes
        if head.kind == Kind.HISTORY or data.find(DEFINE_MARK, offset, end) >= 0:
            catalogue = with_frame(catalogue, data[offset:end])
    return catalogue


def _known(catalogue: Catalogue) -> bytes:
    return bytes(_pack(catalogue.pack()))


class BlockReader:
    """Turns one block into rows; what it knows of tables and origins grows with what it reads."""

    def __init__(self, block: Block) -> None:
        self._block = block
        catalogue = Catalogue.unpack(msgpack.unpackb(block.known, max_array_len=2**20))
        self._tables: dict[int, TableDefinition] = dict(catalogue.definitions)
        self._origins = {one.origin.key: (one.instance.hex(), one.incarnation) for one in catalogue.histories}
        self._ordinals: dict[Any, tuple[int, ...]] = {}

    def rows(self, what: str) -> Iterator[tuple[Any, ...]]:
        """Rows of `changes` or `transactions`. FrameDamaged, GapError, JournalDamagedError, named by file."""
        if self._block.large:
            return self._large_changes() if what == "changes" else self._large_transaction()
        return self._changes() if what == "changes" else self._transactions()

    def _frames(self) -> Iterator[tuple[int, list[Any]]]:
        """Length and body of every frame."""
        block = self._block
        with open_segment(block.path) as segment:
            offset, seqno = block.offset, block.first_seqno
            while offset < block.end:
                data = read_exactly(segment.fd, min(_STEP_BYTES, block.end - offset), offset, block.path)
                try:
                    found = measure(data, next_seqno=seqno)
                except JournalDamagedError as error:
                    raise type(error)(error.what, where=f"{block.path}, offset {offset}") from error
                flat = decode_batch(data[: found.end])
                for place in range(2, len(flat), 3):
                    body = flat[place]
                    self._learn(body)
                    yield flat[place - 2] + 10, body
                offset += found.end
                seqno = found.last_seqno + 1

    def _learn(self, body: list[Any]) -> None:
        if body[0] == Kind.HISTORY:
            history = History.unpack(body[FIXED_ELEMENTS:], body[1])
            self._origins[history.origin.key] = (history.instance.hex(), history.incarnation)

    def _transactions(self) -> Iterator[tuple[Any, ...]]:
        for length, body in self._frames():
            count = (len(body) - FIXED_ELEMENTS) // 4 if body[0] == Kind.TRANSACTION else 0
            yield self._transaction_row(body, count, length)

    def _transaction_row(self, body: Sequence[Any], changes: int, length: int) -> tuple[Any, ...]:
        kind, seqno, _, chain, origin, origin_seqno, csn = body[:FIXED_ELEMENTS]
        instance, incarnation = self._origins.get(origin, (None, None))
        return (
            seqno, Kind(kind).name.lower(), instance, incarnation, origin, origin_seqno, csn, csn >> CSN_COUNTER_BITS,
            chain.to_bytes(8, "big"), changes, length,
        )  # fmt: skip

    def _changes(self) -> Iterator[tuple[Any, ...]]:
        for _, body in self._frames():
            if body[0] == Kind.TRANSACTION:
                yield from self._of_flat(self._head(body), body[FIXED_ELEMENTS:], 0)

    def _head(self, body: Sequence[Any]) -> tuple[Any, ...]:
        _, seqno, _, _, origin, origin_seqno, csn = body[:FIXED_ELEMENTS]
        instance, incarnation = self._origins.get(origin, (None, None))
        return seqno, (instance, incarnation, origin, origin_seqno, csn, csn >> CSN_COUNTER_BITS)

    def _of_flat(self, head: tuple[Any, ...], flat: Sequence[Any], place: int) -> Iterator[tuple[Any, ...]]:
        seqno, who = head
        for at in range(0, len(flat), 4):
            op, table_id, argument, values = flat[at : at + 4]
            if op == Op.DEFINE:
                definition = TableDefinition.unpack(values)
                self._tables[definition.table_id] = definition
            if op in (Op.SCHEMA, Op.COMMENT, Op.REGION):
                region = None if op == Op.COMMENT else argument
                table: tuple[Any, ...] = (None, region, None, None, None)
                made: list[_Images] = [(None, None, None, str(values[0]))]
            else:
                known = self._tables.get(table_id)
                if known is None:
                    raise JournalDamagedError(
                        f"transaction {seqno} changes table id {table_id}, which was not defined before it",
                        where=self._block.path,
                    )
                table = (known.partition, known.region, known.table, table_id, known.version)
                made = self._images(op, known, argument, values)
            for key, before, after, text in made:
                yield (seqno, place, *who, *table, Op(op).name.lower(), key, before, after, text)
                place += 1

    def _images(self, op: int, known: TableDefinition, argument: Any, values: list[Any]) -> list[_Images]:
        """Key, image before, image after and text of the rows of one change."""
        if op == Op.UPDATE:
            ordinals = self._ordinals.get(argument)
            if ordinals is None:
                ordinals = self._ordinals[argument] = changed_of(argument)
            before = values[len(ordinals) :]
            after = list(before)
            for place, ordinal in enumerate(ordinals):
                after[ordinal] = values[place]
            old, new = _key(known, before), _key(known, after)
            if old == new:
                return [(old, _pack(before), _pack(after), None)]
            return [(old, _pack(before), None, None), (new, None, _pack(after), None)]
        if op == Op.INSERT:
            return [(_key(known, values), None, _pack(values), None)]
        if op == Op.DELETE:
            return [(_key(known, values), _pack(values), None, None)]
        if op == Op.SEQUENCE:
            return [(b"", _pack(values[0]), _pack(values[1]), None)]
        return [(None, None, _pack(values), None)]

    # A large transaction.

    def _large_transaction(self) -> Iterator[tuple[Any, ...]]:
        with open_segment(self._block.path) as segment:
            large = large_transaction(segment)
        body = decode_batch(large.commit_frame)[2]
        count = sum(1 for _ in self._large_changes())
        yield self._transaction_row(body, count, large.payload_bytes)

    def _large_changes(self) -> Iterator[tuple[Any, ...]]:
        with open_segment(self._block.path) as segment:
            large = large_transaction(segment)
        check_frame(large.commit_frame)
        head = self._head(decode_batch(large.commit_frame)[2])
        stream = unpacker()
        waiting: list[Any] = []
        place = 0
        for part in large.parts():
            try:
                stream.feed(read_part(part)[2])
                waiting.extend(stream)
            except UNPACK_ERRORS as error:
                raise JournalDamagedError(f"a part does not decode: {error}", where=self._block.path) from error
            whole = len(waiting) & ~3
            for row in self._of_flat(head, waiting[:whole], place):
                place = row[1] + 1
                yield row
            del waiting[:whole]


def _key(known: TableDefinition, image: Sequence[Any]) -> bytes:
    return bytes(_pack([image[ordinal] for ordinal in known.key]))


def unpack_image(packed: bytes) -> list[Any]:
    """The values of a packed image or key."""
    made: list[Any] = msgpack.unpackb(packed)
    return made
