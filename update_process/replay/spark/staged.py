"""Net rows in Parquet files of the stage, as Spark writes them. Images are unpacked a batch at a time, in C.

A row without a key (of no bytes) is a table's AUTOINCREMENT counter.

Guarantees: files are read in the order of their names, rows in the order they have there; of what is not asked for
nothing is unpacked; what is in memory at once is a batch, however many rows there are and however wide they are. An
image that does not unpack, or is missing, is damage named by its file.
Leaves to others: Spark, and what becomes of the rows.
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
from replicate.limits import MIB
from update_process.replay.net import NetColumns, NetRow, Part

BATCH_ROWS: Final = 16 * 1024
BATCH_BYTES: Final = 16 * MIB
"""Of a batch of rows of their file's mean width; as Arrow's columns, bytes, values and statements it is there some five
times."""
COLUMNS: Final = ("table_id", "key", "before", "after", "seqno")
_HAVING: Final = {"before": Part.GONE | Part.STAYED, "after": Part.CAME | Part.STAYED}
"""The parts of which an image is there."""
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


def staged_columns(folder: Path, parts: Part) -> Iterator[NetColumns]:
    """The same rows by columns: of each batch those of one table and part together. Images are tuples. DamagedError."""
    for path, batch in _batches(folder, COLUMNS):
        rows = batch.filter(pc.greater(pc.binary_length(batch.column("key")), 0))
        table_ids = pc.unique(rows.column("table_id")).to_pylist()
        for table_id in table_ids:
            of_table = rows if len(table_ids) == 1 else rows.filter(pc.equal(rows.column("table_id"), table_id))
            for part in parts:
                found = _part_of(of_table, part)
                if found.num_rows:
                    befores, afters = (
                        _unpacked(path, found.column(name), tuples=True) if part in having else ()
                        for name, having in _HAVING.items()
                    )
                    yield NetColumns(table_id, part, found.num_rows, befores, afters)


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
            for batch in file.iter_batches(_batch_rows(file.metadata, columns), columns=list(columns)):
                yield path, batch


def _batch_rows(file: pq.FileMetaData, columns: tuple[str, ...]) -> int:
    """How many rows to take together."""
    length = 0
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        chunks = (group.column(at) for at in range(group.num_columns))
        length += sum(one.total_uncompressed_size for one in chunks if one.path_in_schema in columns)
    return min(BATCH_ROWS, max(1, BATCH_BYTES * int(file.num_rows) // max(1, length)))


def _part_of(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    """Its rows of one part."""
    before, after = (
        (pc.is_valid if part in having else pc.is_null)(batch.column(name)) for name, having in _HAVING.items()
    )
    return batch.filter(pc.and_(before, after))


def _rows_of(path: Path, batch: pa.RecordBatch, part: Part) -> Iterator[NetRow]:
    has_before, has_after = (part in having for having in _HAVING.values())
    batch = _part_of(batch, part)
    if not batch.num_rows:
        return
    before, after = batch.column("before"), batch.column("after")
    nothing = repeat(None)
    table_ids, seqnos = batch.column("table_id").to_pylist(), batch.column("seqno").to_pylist()
    befores = _unpacked(path, before) if has_before else nothing
    afters = _unpacked(path, after) if has_after else nothing
    passed = nothing if has_before or has_after else _unpacked(path, batch.column("key"))
    yield from map(NetRow, table_ids, befores, afters, seqnos, passed)


def _unpacked(path: Path, column: Any, *, tuples: bool = False) -> list[Any]:
    """What each value of a column without nulls holds, a list each, or a tuple: they lie one after the other."""
    data, kind = b"".join(column.to_pylist()), tuple if tuples else list
    stream = unpacker(max(len(data), 1), tuples=tuples)
    try:
        stream.feed(data)
        found = list(stream)
        whole = stream.tell() == len(data)
    except UNPACK_ERRORS as error:
        raise DamagedError(f"a staged image does not unpack: {error}", where=str(path), do=_AGAIN) from error
    if not whole or len(found) != len(column) or set(map(type, found)) != {kind}:
        raise DamagedError(f"{len(column)} staged images are {len(found)} other values", where=str(path), do=_AGAIN)
    return found
