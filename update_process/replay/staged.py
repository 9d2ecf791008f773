"""Net rows in Parquet files of the stage, as Spark writes them. Images are unpacked a batch at a time, in C.

A row without a key (of no bytes) is a table's AUTOINCREMENT counter.

Guarantees: files are read in the order of their names, rows in the order they have there; of what is not asked for
nothing is unpacked. An image that does not unpack, or is missing, is damage named by its file.
Refuses to know: Spark, and what becomes of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicate.errors import DamagedError
from replicate.journal.record import UNPACK_ERRORS, unpacker
from update_process.replay.net import NetRow, Part

BATCH_ROWS: Final = 16 * 1024
COLUMNS: Final = ("table_id", "key", "before", "after", "seqno")
_AGAIN: Final = "Run the same command again: nothing of it was applied"


def staged_tables(folder: Path) -> set[int]:
    """Every table that has a row in the files of `folder`."""
    found: set[int] = set()
    for _, batch in _batches(folder, ("table_id",)):
        found.update(pc.unique(batch.column("table_id")).to_pylist())
    return found


def staged_rows(folder: Path, parts: Part) -> Iterator[NetRow]:
    """The rows of those parts. DamagedError."""
    for path, batch in _batches(folder, COLUMNS):
        rows = batch.filter(pc.greater(pc.binary_length(batch.column("key")), 0))
        for part in parts:
            yield from _rows_of(path, rows, part)


def staged_counters(folder: Path) -> list[tuple[int, bytes, bytes]]:
    """Of every counter: its table, and its packed value before and after."""
    found: list[tuple[int, bytes, bytes]] = []
    for _, batch in _batches(folder, COLUMNS[:4]):
        rows = batch.filter(pc.equal(pc.binary_length(batch.column("key")), 0))
        table_ids, _, befores, afters = (column.to_pylist() for column in rows.columns)
        found.extend(zip(table_ids, befores, afters, strict=True))
    return found


def _batches(folder: Path, columns: tuple[str, ...]) -> Iterator[tuple[Path, pa.RecordBatch]]:
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                yield path, batch


def _rows_of(path: Path, batch: pa.RecordBatch, part: Part) -> Iterator[NetRow]:
    has_before, has_after = part in Part.GONE | Part.STAYED, part in Part.CAME | Part.STAYED
    before, after = batch.column("before"), batch.column("after")
    wanted = pc.and_(
        pc.is_valid(before) if has_before else pc.is_null(before),
        pc.is_valid(after) if has_after else pc.is_null(after),
    )
    batch = batch.filter(wanted)
    if not batch.num_rows:
        return
    nothing = repeat(None)
    table_ids, seqnos = batch.column("table_id").to_pylist(), batch.column("seqno").to_pylist()
    befores = _unpacked(path, batch.column("before")) if has_before else nothing
    afters = _unpacked(path, batch.column("after")) if has_after else nothing
    passed = nothing if has_before or has_after else _unpacked(path, batch.column("key"))
    yield from map(NetRow, table_ids, befores, afters, seqnos, passed)


def _unpacked(path: Path, column: Any) -> list[list[Any]]:
    """What each value of a column without nulls holds: they lie one behind the other."""
    data = b"".join(column.to_pylist())
    stream = unpacker(max(len(data), 1))
    try:
        stream.feed(data)
        found = list(stream)
        whole = stream.tell() == len(data)
    except UNPACK_ERRORS as error:
        raise DamagedError(f"a staged image does not unpack: {error}", where=str(path), do=_AGAIN) from error
    if not whole or len(found) != len(column) or set(map(type, found)) != {list}:
        raise DamagedError(f"{len(column)} staged images are {len(found)} other values", where=str(path), do=_AGAIN)
    return found
