"""An audit as one Parquet file: a row for each change, with the columns that CSV has.

Guarantees: the file is whole, or not there. Memory holds one group of rows.
Leaves to others: what is told (changes.py). PyArrow is an extra (`parquet`), and loaded when a file is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from replicate.errors import PrerequisiteMissingError
from replicate.limits import MIB
from replicate.system.os_errors import io_error

GROUP_ROWS: Final = 50_000
GROUP_CHARACTERS: Final = 16 * MIB
"""A group ends with either: a row may hold many megabytes."""
_NUMBERS: Final = ("seqno", "place", "incarnation", "origin_seqno")


def check_parquet() -> None:
    """PrerequisiteMissingError where PyArrow is not there."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise PrerequisiteMissingError(
            "the Python package pyarrow, which writes Parquet, is not installed",
            where=sys.prefix,
            do=f"Run: {sys.executable} -m pip install 'pyarrow>=15'; --format csv and jsonl need nothing",
        ) from error


def write_parquet(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write them, over a file that is there; how many they were. DiskFullError, JournalIOError, and what `rows` raises:
    there is no such file then."""
    check_parquet()
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64() if name in _NUMBERS else pa.string()) for name in columns])
    aside = path.parent / f".{path.name}.part"  # also of a path without a name
    count = 0
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            group: list[Sequence[Any]] = []
            characters = 0
            for row in rows:
                group.append(row)
                count += 1
                characters += sum(len(cell) for cell in row if type(cell) is str)
                if len(group) == GROUP_ROWS or characters >= GROUP_CHARACTERS:
                    writer.write_table(_table(pa, schema, group))
                    group.clear()
                    characters = 0
            writer.write_table(_table(pa, schema, group))
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError):
            raise io_error(error, "the file cannot be written", str(path)) from error
        raise
    return count


def _table(pa: Any, schema: Any, rows: Sequence[Sequence[Any]]) -> Any:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
