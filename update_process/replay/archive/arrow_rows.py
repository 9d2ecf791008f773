"""Blocks of a journal as Arrow batches: the rows of `changes` and `transactions`, with the columns that are asked for.

Guarantees: nearly all of a journal goes the way of column_decoder.py, by columns; what that does not take, BlockReader
decodes change by change, and the rows are the same. What rows share is made once, and copied in C.
Leaves to others: Spark; where blocks come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from replicate.journal.frame import FIXED_ELEMENTS, FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES, LENGTH, MARKERS, NUMPY_FIELDS
from replicate.model.moment import CSN_COUNTER_BITS
from replicate.model.transaction import Kind, Op
from update_process.replay.archive.blocks import (
    BATCH_ROWS,
    CHANGE_COLUMNS,
    COLUMNS,
    STEP_BYTES,
    TRANSACTION_COLUMNS,
    BlockReader,
    ChangeRows,
)
from update_process.replay.archive.column_decoder import PackedChanges, packed_changes, packed_stream

_ARROW: Final = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_OF_TRANSACTION: Final = tuple(
    one for one in CHANGE_COLUMNS[: CHANGE_COLUMNS.index(("wall", "timestamp")) + 1] if one[0] != "place"
)
_OF_TABLE: Final = CHANGE_COLUMNS[
    CHANGE_COLUMNS.index(("partition", "bigint")) : CHANGE_COLUMNS.index(("op", "string"))
]
_OPS: Final = pa.array([{int(op): op.name.lower() for op in Op}.get(number) for number in range(max(Op) + 1)])
_KINDS: Final = pa.array([{int(one): one.name.lower() for one in Kind}.get(at) for at in range(max(Kind) + 1)])
"""By number."""
_HEAD: Final = np.dtype(list(NUMPY_FIELDS))
_SLOW: Final = (int(Kind.HISTORY), int(Kind.RESTATED), int(Kind.MIXED))
"""What only the rows one by one take."""


def arrow_schema(what: str) -> pa.Schema:
    """Of `changes` or `transactions`."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS[what]])


def batches_of(reader: BlockReader, what: str, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """All columns of `changes` or `transactions`."""
    way = change_batches if what == "changes" else transaction_batches
    return way(reader, first, last, [name for name, _ in COLUMNS[what]])


def change_batches(reader: BlockReader, first: int, last: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of `changes` from number `first` to `last`. Raises what `BlockReader.changes` raises."""
    if reader.block.large:
        if first <= reader.block.first_seqno <= last:
            yield from _large_batches(reader, columns)
        return
    for data in reader.steps():
        heads, begins = _heads(data)
        found = None
        if heads is not None and first <= int(heads["seqno"][0]) and int(heads["seqno"][-1]) <= last:
            taken = np.flatnonzero(heads["kind"] == Kind.TRANSACTION)
            counts = heads["count"][taken].astype(np.int64) - FIXED_ELEMENTS
            # What learns of an origin is for BlockReader, and so are a change that is not whole, and other words.
            if len(taken) and min(counts) > 0 and not np.any(counts & 3) and not np.any(np.isin(heads["kind"], _SLOW)):
                begins, ends = begins[taken] + FRAME_HEAD_BYTES, np.append(begins, len(data))[taken + 1]
                found = packed_changes(data, begins, ends, counts >> 2, reader.tables)
        if found is None or heads is None:
            for rows in reader.changes_of(data, first, last):
                yield arrow_changes(rows, columns)
        else:
            yield _packed_batch(reader, found, heads[taken], 0, columns)


def _heads(data: bytes) -> tuple[Any, Any]:
    """The head of every frame, and where it begins; no heads when they are not as they should be, which decoding will
    find, too."""
    begins = []
    offset, length_at = 0, LENGTH.unpack_from
    while offset < len(data):
        begins.append(offset)
        offset += length_at(data, offset)[0] + FRAME_PREFIX_BYTES
    at = np.array(begins)
    heads = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(FRAME_HEAD_BYTES)].view(_HEAD)[:, 0]
    is_sound = all(np.all(heads[name] == mark) for name, mark in MARKERS.items())
    is_small = not any(np.any(heads[name] >> np.uint64(63)) for name in ("seqno", "origin_seqno", "csn"))
    return (heads if is_sound and is_small else None), at


def _large_batches(reader: BlockReader, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    large = reader.large()
    heads = np.frombuffer(large.found.commit_frame[:FRAME_HEAD_BYTES], _HEAD)
    slices = large.slices()
    waiting = b""
    place = 0
    is_last = False
    while not is_last:
        taken = list(islice(slices, max(1, STEP_BYTES // 2**18)))
        is_last = not taken
        waiting += b"".join(taken)
        found = packed_stream(waiting, reader.tables, whole=is_last) if waiting else None
        if waiting and found is None:
            # Something in here is not for column_decoder.py; or no change ends in here: the next slices may change it.
            for rows in reader.rest_of(large, chain([waiting], slices), place):
                yield arrow_changes(rows, columns)
            return
        if found is not None:
            changes, end = found
            yield _packed_batch(reader, changes, heads, place, columns)
            place += len(changes.ops)
            waiting = waiting[end:]


def _packed_batch(
    reader: BlockReader, found: PackedChanges, heads: Any, place: int, columns: Sequence[str]
) -> pa.RecordBatch:
    """Those columns of changes. `heads`: of their frames; `place`: of the first one in its transaction."""
    count = len(found.ops)
    wanted = set(columns)
    made: dict[str, Any] = {"key": found.keys, "before": found.befores, "after": found.afters}
    if "op" in wanted:
        made["op"] = _OPS.take(pa.array(found.ops))
    if "text" in wanted:
        made["text"] = pa.nulls(count, pa.string())
    if "place" in wanted:
        begins = np.searchsorted(found.frame_at, np.arange(len(heads)))
        made["place"] = pa.array(np.arange(count) - begins[found.frame_at] + place)
    made |= _taken(_of_heads(reader, heads), found.frame_at, columns)
    ids, at = np.unique(found.table_ids, return_inverse=True)
    known = [reader.tables[int(one)] for one in ids]
    shared = [(one.partition, one.region, one.table, one.table_id, one.version) for one in known]
    made |= _taken(_table(_OF_TABLE, shared), at, columns)
    return pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))


def _of_heads(reader: BlockReader, heads: Any) -> pa.RecordBatch:
    origins = heads["origin"].tolist()
    csns = heads["csn"].astype(np.int64)
    known = [reader.origins.get(one, (None, None)) for one in origins]
    values = (
        heads["seqno"].astype(np.int64), [one for one, _ in known], [one for _, one in known], origins,
        heads["origin_seqno"].astype(np.int64), csns, csns >> CSN_COUNTER_BITS,
    )  # fmt: skip
    return _columns_of(_OF_TRANSACTION, values)


def _taken(shared: pa.RecordBatch, at: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Those columns of what rows share, of which each has the one that `at` says."""
    places = pa.array(at)
    is_one = shared.num_rows == 1
    wanted = [name for name in shared.schema.names if name in columns]
    found = {name: shared.column(name) for name in wanted}
    return {name: pa.repeat(one[0], len(at)) if is_one else one.take(places) for name, one in found.items()}


def transaction_batches(reader: BlockReader, first: int, last: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of `transactions`. Of frames, heads are looked at, and nothing is decoded but histories."""
    if reader.block.large:
        if first <= reader.block.first_seqno <= last:
            count = sum(batch.num_rows for batch in _large_batches(reader, ("place",)))
            yield _table(TRANSACTION_COLUMNS, [reader.large_transaction(count)]).select(columns)
        return
    for data in reader.steps():
        heads, _ = _heads(data)
        if heads is None or np.any(np.isin(heads["kind"], _SLOW)):
            found = reader.transactions_of(data, first, last)
            while batch := list(islice(found, BATCH_ROWS)):
                yield _table(TRANSACTION_COLUMNS, batch).select(columns)
            continue
        heads = heads[(heads["seqno"] >= max(first, 0)) & (heads["seqno"] <= last)]
        if len(heads):
            yield _transactions(reader, heads).select(columns)


def _transactions(reader: BlockReader, heads: Any) -> pa.RecordBatch:
    shared = _of_heads(reader, heads)
    kinds = heads["kind"]
    counts = np.where(kinds == Kind.TRANSACTION, (heads["count"].astype(np.int64) - FIXED_ELEMENTS) // 4, 0)
    made = {
        **dict(zip(shared.schema.names, shared.columns, strict=True)),
        "kind": _KINDS.take(pa.array(kinds)),
        "chain": pa.array([one.tobytes() for one in heads["chain"].view("V8")], pa.binary()),
        "changes": pa.array(counts),
        "bytes": pa.array(heads["length"].astype(np.int64) + FRAME_PREFIX_BYTES),
    }
    names = [name for name, _ in TRANSACTION_COLUMNS]
    return pa.RecordBatch.from_arrays([made[name] for name in names], names=names)


def arrow_changes(rows: ChangeRows, columns: Sequence[str]) -> pa.RecordBatch:
    """Those columns of some rows."""
    made = _taken(_table(_OF_TRANSACTION, rows.transactions), np.array(rows.transaction_at, np.int32), columns)
    made |= _taken(_table(_OF_TABLE, rows.tables), np.array(rows.table_at, np.int32), columns)
    made["op"] = _OPS.take(pa.array(rows.ops, pa.int32()))
    made["text"] = pa.nulls(len(rows.keys), pa.string())
    if rows.texts:
        made["text"] = pa.array([rows.texts.get(at) for at in range(len(rows.keys))], pa.string())
    values = {"place": rows.places, "key": rows.keys, "before": rows.befores, "after": rows.afters}
    kinds = dict(CHANGE_COLUMNS)
    made |= {name: pa.array(values[name], _ARROW[kinds[name]]) for name in values if name in columns}
    return pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))


def _table(columns: Sequence[tuple[str, str]], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return _columns_of(columns, zip(*rows, strict=True) if rows else repeat((), len(columns)))


def _columns_of(columns: Sequence[tuple[str, str]], values: Any) -> pa.RecordBatch:
    arrays = [pa.array(one, type=_ARROW[kind]) for one, (_, kind) in zip(values, columns, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
