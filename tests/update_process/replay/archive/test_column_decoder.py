"""archive/column_decoder.py and arrow_rows.py without Spark: what is read by columns is what is read change by change,
no matter who has packed it, whatever is wrong with it, and wherever it is cut."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from replicate.errors import JournalDamagedError, ReplicateError
from replicate.journal.record import decode_batch, pack_frame
from replicate.model.transaction import RAW_TEXT_CODE, Catalogue, Column, Kind, Op, TableDefinition, mask_of
from replicate.model.vector import SynchronizationVector
from update_process.replay.archive import arrow_rows, blocks
from update_process.replay.archive.arrow_rows import arrow_changes, change_batches, transaction_batches
from update_process.replay.archive.blocks import CHANGE_COLUMNS, TRANSACTION_COLUMNS, Block, BlockReader, LargeBlock
from update_process.replay.spark.source import BlockPartition, JournalReader


def table(name: str, columns: int, key: tuple[int, ...], *, rowid: bool = False) -> TableDefinition:
    named = tuple(Column(f"c{at}", "", False, "BINARY") for at in range(columns))
    return TableDefinition("main", 1, "main", name, 1, named, key, rowid, False, not rowid)


TABLES = (
    table("one", 3, (0,)),
    table("loose", 2, (0,), rowid=True),
    table("pair", 4, (2, 1)),
    table("wide", 40, (39, 0, 1)),
)
ONE = TABLES[0]
NAMES = [name for name, _ in CHANGE_COLUMNS]
EDGES = [sign * 2**bits + more for bits in (5, 7, 8, 15, 16, 31, 32) for sign in (1, -1) for more in (-1, 0, 1)]
VALUES = (
    *(one for one in EDGES if not -(2**32) <= one < -(2**31)),
    None, 0, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, float("inf"), "", b"", "ä", "€\0", "x" * 31, "x" * 32, "ü" * 128,
    "x" * 255, "x" * 256, "x" * 65536, b"x" * 255, b"x" * 256, b"x" * 65536, b"\xce\xff\x00\x00\x01" * 2,
)  # fmt: skip
RAW = msgpack.ExtType(RAW_TEXT_CODE, b"\xff")


def packed(*elements: Any) -> bytes:
    return b"".join(map(msgpack.packb, elements))


def change(dice: Random, values: tuple[Any, ...] = VALUES) -> tuple[Any, ...]:
    """Of any table; small values are the most frequent ones."""
    definition = dice.choice(TABLES)
    length = definition.image_length
    image = [dice.choice(values) if dice.random() < 0.3 else dice.randrange(9) for _ in range(length)]
    op = dice.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE, Op.SEQUENCE))
    if op == Op.SEQUENCE:
        return int(op), definition.table_id, 0, [dice.choice((None, 1, 200)), dice.choice((2, 2**40))]
    if op != Op.UPDATE:
        return int(op), definition.table_id, 0, image
    ordinals = [at for at in range(length) if at not in definition.key and at < 28]
    changed = tuple(sorted(dice.sample(ordinals, dice.randint(1, len(ordinals)))))
    return int(op), definition.table_id, mask_of(changed, length), [*(dice.choice(values) for _ in changed), *image]


def frames(*payloads: bytes, kind: int = Kind.TRANSACTION, first: int = 1) -> bytes:
    """A frame for each payload."""
    found, chain = [], 0
    for seqno, payload in enumerate(payloads, first):
        count = sum(1 for _ in _elements(payload))
        frame, chain = pack_frame(kind, seqno, 0, chain, 7, seqno, seqno << 12, payload, count)
        found.append(frame)
    return b"".join(found)


def _elements(payload: bytes) -> Iterator[None]:
    reader = msgpack.Unpacker(max_buffer_size=2**30)
    reader.feed(payload)
    while reader.tell() < len(payload):
        reader.skip()
        yield


def reader_of(data: bytes, *, large: bool = False) -> BlockReader:
    """A reader of these frames."""
    catalogue = Catalogue({one.table_id: one for one in TABLES}, (), SynchronizationVector({}), {})
    made = BlockReader(Block("here", 0, 1, 1, 99, large, msgpack.packb(catalogue.pack())))
    made.steps = lambda: iter([data])  # type: ignore[method-assign]
    return made


def outcome(way: Callable[[], Any]) -> Any:
    """What it gives, or what kind of error it raises."""
    try:
        return way()
    except ReplicateError as error:
        return type(error)


def slowly(data: bytes) -> pa.Table:
    """All columns, change by change."""
    return joined(arrow_changes(rows, NAMES) for rows in reader_of(data).changes(0, 99))


def quickly(data: bytes) -> pa.Table:
    return joined(change_batches(reader_of(data), 0, 99, NAMES))


def joined(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    found = list(batches)
    return pa.Table.from_batches(found).combine_chunks() if found else None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more element for each batch that was made change by change."""
    found: list[int] = []

    def counting(rows: Any, columns: Any) -> Any:
        found.append(len(rows.keys))
        return arrow_changes(rows, columns)

    monkeypatch.setattr(arrow_rows, "arrow_changes", counting)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_what_changes_are_one_by_one(seed: int, slow: list[int]) -> None:
    dice = Random(seed)
    payloads = [b"".join(packed(*change(dice)) for _ in range(dice.randint(1, 16))) for _ in range(16)]
    data = frames(*payloads)
    found = quickly(data)
    assert not slow
    assert found.num_rows > 50
    assert found.equals(slowly(data))
    assert found.slice(1).equals(slowly(data).slice(1))


def update(*values: bytes, mask: int = 2, head: bytes = b"\x94") -> bytes:
    return packed(int(Op.UPDATE), ONE.table_id, mask) + head + b"".join(values)


GOOD = update(b"\x05", b"\x01", b"\x02", b"\x03")


@pytest.mark.parametrize(
    ("payload", "is_quick"),
    [
        (GOOD, True),
        (update(b"\xcc\x05", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xd0\x05", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xd1\xff\xfb", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xcf" + bytes(7) + b"\x05", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xca\x3f\x80\x00\x00", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xd9\x01a", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xc5\x00\x01a", b"\x01", b"\x02", b"\x03"), False),
        (update(b"\x05", b"\x01", b"\x02", b"\x03", head=b"\xdc\x00\x04"), False),
        (update(msgpack.packb(RAW), b"\x01", b"\x02", b"\x03"), False),
        (update(b"\xd3" + (-(2**31) - 1).to_bytes(8, "big", signed=True), b"\x01", b"\x02", b"\x03"), False),
        (update(b"\x07", b"\x05", b"\x02", b"\x03", mask=1), False),  # another key: two rows
        (update(b"\x05", b"\x05", b"\x02", b"\x03", mask=1), True),  # the same
        (packed(int(Op.COMMENT), 0, 0, ["so"]), False),
    ],
)
def test_no_matter_who_has_packed_it_equal_bytes_are_equal_values(
    payload: bytes, is_quick: bool, slow: list[int]
) -> None:
    data = frames(GOOD, payload, GOOD)
    found = quickly(data)
    assert bool(slow) is not is_quick
    assert found.equals(slowly(data))
    for name in ("key", "before", "after"):
        for value in found.column(name).to_pylist():
            assert value is None or value == msgpack.packb(msgpack.unpackb(value))


@pytest.mark.parametrize(
    "value", [b"\xa2\xc3\x28", b"\xa3\xed\xa0\x80", b"\xc1", b"\xa5abc", b"\xc6\xff\xff\xff\xff", b"\x90"]
)
def test_what_is_no_value_is_not_passed_on(value: bytes) -> None:
    def framed(payload: bytes) -> bytes:
        return pack_frame(Kind.TRANSACTION, 1, 0, 0, 7, 1, 1 << 12, payload, 4)[0]

    data = framed(update(value, b"\x01", b"\x02", b"\x03"))
    assert outcome(lambda: quickly(data)) == outcome(lambda: slowly(data))
    if value != b"\x90":  # a list packs well, if it is no database value; the apply refuses it
        assert issubclass(outcome(lambda: quickly(data)), JournalDamagedError)


def test_a_change_that_stands_in_a_value_is_none(slow: list[int]) -> None:
    data = frames(GOOD, packed(int(Op.INSERT), ONE.table_id, 0, [1, GOOD, b"\x01" + packed(ONE.table_id)]), GOOD)
    assert quickly(data).equals(slowly(data))
    assert slow


@pytest.mark.slow
def test_whatever_byte_is_wrong_both_say_the_same() -> None:
    """With a check that fits: this is what a program that packs badly would write."""
    dice = Random(1)
    payloads = [b"".join(packed(*change(dice, VALUES[:60])) for _ in range(3)) for _ in range(2)]
    data = frames(*payloads)
    for _ in range(300):
        harmed = [bytearray(payload) for payload in payloads]
        one = dice.choice(harmed)
        for _ in range(dice.choice((1, 1, 3))):
            at = dice.randrange(min(len(one), 200))
            one[at] = dice.choice((one[at] ^ 1 << dice.randrange(8), dice.randrange(256), 0xCE, 0xDB))
        counts = [len(decode_batch(data)[at]) - 7 for at in (2, 5)]
        chain, made = 0, b""
        for seqno, (payload, count) in enumerate(zip(harmed, counts, strict=True), 1):
            frame, chain = pack_frame(Kind.TRANSACTION, seqno, 0, chain, 7, seqno, seqno << 12, bytes(payload), count)
            made += frame
        left, right = outcome(lambda: quickly(made)), outcome(lambda: slowly(made))  # noqa: B023 (called at once)
        assert left == right if isinstance(left, type) or isinstance(right, type) else left.equals(right)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 7, 100, 4096, 10**6])
@pytest.mark.parametrize("slow_at", [None, 12])
def test_a_large_transaction_wherever_it_is_cut(
    cut: int, slow_at: int | None, monkeypatch: pytest.MonkeyPatch, slow: list[int]
) -> None:
    dice = Random(3)
    changes = [packed(*change(dice, VALUES[:60])) for _ in range(24)]
    if slow_at is not None:
        changes[slow_at] = update(b"\x07", b"\x05", b"\x02", b"\x03", mask=1)
    stream = b"".join(changes)
    slices = [stream[at : at + cut] for at in range(0, len(stream), cut)]
    frame = pack_frame(Kind.LARGE, 1, 0, 0, 7, 1, 1 << 12, b"", 0)[0]
    found: Any = type("Found", (), {"commit_frame": frame, "payload_bytes": len(stream)})()
    monkeypatch.setattr(LargeBlock, "slices", lambda _: iter(slices))
    monkeypatch.setattr(arrow_rows, "STEP_BYTES", 2**20)
    monkeypatch.setattr(BlockReader, "large", lambda _: LargeBlock(decode_batch(frame)[2], found))
    reader = reader_of(b"", large=True)
    assert joined(change_batches(reader, 1, 1, NAMES)).equals(
        joined(arrow_changes(rows, NAMES) for rows in reader.changes(1, 1))
    )
    assert bool(slow) or (slow_at is None and cut > 1)
    rows = joined(transaction_batches(reader, 1, 1, [name for name, _ in TRANSACTION_COLUMNS])).to_pylist()
    assert [(row["kind"], row["changes"], row["bytes"]) for row in rows] == [
        ("large", 24 + (slow_at is not None), len(stream))
    ]
    assert not list(change_batches(reader, 2, 9, NAMES))


def test_transactions_are_read_from_their_heads() -> None:
    dice = Random(4)
    data = frames(*(packed(*change(dice)) * count for count in (1, 2, 3)))
    data += pack_frame(Kind.NULL, 4, 0, 0, 7, 4, 4 << 12, packed("filter", []), 2)[0]
    names = [name for name, _ in TRANSACTION_COLUMNS]
    rows = joined(transaction_batches(reader_of(data), 2, 9, names)).to_pylist()
    assert [(row["seqno"], row["kind"], row["changes"]) for row in rows] == [
        (2, "transaction", 2), (3, "transaction", 3), (4, "null", 0)
    ]  # fmt: skip
    expected = list(reader_of(data).transactions_of(data, 2, 9))
    values = [
        tuple(int(one.timestamp() * 10**6) if name == "wall" else one for name, one in row.items()) for row in rows
    ]
    assert values == expected


def test_batches_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a megabyte: sixteen thousand of them would be beyond what one Arrow column holds."""
    data = frames(*[packed(int(Op.INSERT), ONE.table_id, 0, [at, "x" * 1000, None]) for at in range(20)])
    monkeypatch.setattr(blocks, "BATCH_BYTES", 5000)
    found = list(reader_of(data).changes(0, 99))
    assert [len(rows.keys) for rows in found] == [5, 5, 5, 5]
    assert [place for rows in found for place in rows.places] == [0] * 20


def test_the_collector_is_on_again_no_matter_who_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    data = frames(GOOD)
    monkeypatch.setattr(BlockReader, "steps", lambda _: iter([data, data]))
    source = JournalReader({"path": "here", "columns": "seqno,key"})
    partition = BlockPartition(reader_of(data).block)
    assert gc.isenabled()
    reading = source.read(partition)
    next(reading)
    assert not gc.isenabled()
    reading.close()  # type: ignore[attr-defined]
    assert gc.isenabled()
    assert len(list(source.read(partition))) == 2
    assert gc.isenabled()
