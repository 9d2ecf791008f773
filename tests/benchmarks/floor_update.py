"""What bench_catch_up.py is measured beside under `--peers floor`: the least that one SQLite connection takes for rows.

Updates by key, of as many rows a batch as the Update Process takes (BATCH_ROWS), with the same statement, which
compares the whole row before, in the order of the rows, and the same rule for checkpoints. The rows wait as bytes, in
the right order, and are decoded by one call for each CHUNK_ROWS; a journal of the same size is written and flushed
beside that, in a thread. Nothing is received, verified, numbered, packed, sorted or proved to continue anything, no
position is kept, and nobody else has the processors: what is left is what no arrangement around a connection that
makes its own checkpoints could leave out, with all the rest done elsewhere for nothing.

Guarantees: rows a second from the first batch's begin to the last one's COMMIT. Leaves to others: our own daemons.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import apsw
import msgpack

from replicate.bench.street import make_database, value
from replicate.region.sqlite.apply import statements
from replicate.region.sqlite.open import WAL_APPLIER_BYTES
from replicate.region.sqlite.schema import read_definition

BATCH_ROWS: Final = 206_000
CHUNK_ROWS: Final = 512
FRAME_BYTES: Final = 277
"""Of one row's change in a journal."""
STEP_BYTES: Final = 1024 * 1024
VALUE_CHANGED: Final = 0b10
"""Of the columns `id` and `value` the second one."""
SETTINGS: Final = {"batch": BATCH_ROWS, "journal": "written and flushed beside", "synchronous": "NORMAL"}


def catch_up(kind: str, count: int, value_bytes: int) -> dict[str, float]:
    """Rows a second: `from_first`. Kinds: update."""
    if kind != "update":
        raise ValueError(f"no floor was written for {kind!r}")
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as name, ThreadPoolExecutor(1) as beside:
        directory = Path(name)
        database = directory / "floor.db"
        make_database(database, count, value_bytes)
        batches = list(_batches(count, value_bytes))
        journal = os.open(directory / "journal", os.O_RDWR | os.O_CREAT, 0o600)
        connection = apsw.Connection(str(database))
        try:
            _write(journal, BATCH_ROWS)  # as segments are: written before they are used
            connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
            connection.wal_autocheckpoint(WAL_APPLIER_BYTES // int(connection.pragma("page_size")))
            item = read_definition(connection, "item", region="floor")
            update = statements.update(item, "", VALUE_CHANGED)
            begun_s = time.perf_counter()
            for rows, chunks in batches:
                connection.execute("BEGIN IMMEDIATE")
                written = beside.submit(_write, journal, rows)
                for chunk in chunks:
                    connection.executemany(update, msgpack.unpackb(chunk, use_list=False))
                written.result()
                connection.execute("COMMIT")
            wall_s = time.perf_counter() - begun_s
            if connection.total_changes() != count:
                raise RuntimeError(f"{connection.total_changes()} rows were changed, and not {count}")
        finally:
            connection.close()
            os.close(journal)
    return {"from_first": count / wall_s}


def _batches(count: int, value_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Of each batch how many rows it has, and these, packed a chunk at a time: what is bound to UPDATE."""
    keys = list(range(1, count + 1))
    random.Random(6).shuffle(keys)
    for at in range(0, count, BATCH_ROWS):
        batch = sorted(keys[at : at + BATCH_ROWS])
        rows = [(value(key, 1, value_bytes), key, value(key, 0, value_bytes)) for key in batch]
        yield len(rows), [msgpack.packb(rows[place : place + CHUNK_ROWS]) for place in range(0, len(rows), CHUNK_ROWS)]


def _write(journal: int, rows: int) -> None:
    """A journal's frames of so many rows, and a flush."""
    data, left, at = bytes(STEP_BYTES), rows * FRAME_BYTES, 0
    while left:
        at += os.pwrite(journal, data[: min(left, STEP_BYTES)], at)
        left = rows * FRAME_BYTES - at
    os.fdatasync(journal)
