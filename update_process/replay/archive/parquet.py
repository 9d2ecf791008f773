"""A block's rows as one Parquet file in a directory of this machine, written where they are decoded: they need not come
to Java, row by row, for it to do so.

Guarantees: a file is not visible, and so no part of an archive, until its writer's word has reached the process that
collects the names and makes them `seen`: what a task that was killed, or done twice, has left is nobody's. The columns
and their types are those of blocks.COLUMNS, each page has a checksum, and the file may be read by anybody.
Leaves to others: Spark; which blocks make a range, and whether that is complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from replicate.limits import MIB
from replicate.system.os_errors import io_error
from update_process.replay.archive.arrow_rows import arrow_schema

GROUP_BYTES: Final = 64 * MIB
"""A group of rows is in memory while it is written, and again when it is read."""
_UNLIKE: Final = frozenset(("key", "before", "after", "text"))
"""Columns in which hardly a value comes twice."""


def write_hidden(folder: Path, what: str, first_seqno: int, batches: Iterable[pa.RecordBatch]) -> tuple[str, int]:
    """Write all of these rows of `changes` or `transactions` into a new file: its name, hidden still, and how many rows
    it has. DiskFullError, JournalIOError, and what `batches` raises: there is no such file then."""
    path = folder / f".part-{first_seqno:020d}-{uuid.uuid4()}.parquet.part"
    schema = arrow_schema(what)
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in _UNLIKE],
            write_statistics=[name for name in schema.names if name not in _UNLIKE],
            write_page_checksum=True,
            store_schema=False,
        ) as file:
            group: list[pa.RecordBatch] = []
            for batch in batches:
                count += batch.num_rows
                group.append(batch)
                if sum(one.nbytes for one in group) >= GROUP_BYTES:
                    file.write_table(pa.Table.from_batches(group))
                    group = []
            file.write_table(pa.Table.from_batches(group, schema))
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise io_error(error, "the archive cannot be written", str(path)) from error
        raise
    return path.name, count


def seen(folder: Path, hidden: str) -> None:
    """Give a file the name under which it is part of the directory. JournalIOError; where it is not there, nothing: it
    will be missed by its rows."""
    try:
        (folder / hidden).rename(folder / hidden.removeprefix(".").removesuffix(".part"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise io_error(error, "the archive cannot be written", str(folder / hidden)) from error


def forget(folder: Path) -> None:
    """Remove what was not made seen. It would harm nobody."""
    for path in folder.glob(".part-*.part"):
        with suppress(OSError):
            path.unlink()
