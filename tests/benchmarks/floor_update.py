"""What bench_catch_up.py is measured beside under `--peers floor`: the least that one SQLite connection takes for rows.

Updates by key, of as many rows a batch as the Update Process takes (BATCH_ROWS), with the same statement, which
compares the whole row before, in the order of the rows, and the same rule for checkpoints. The rows wait as bytes, in
the right order, and are decoded by one call for each CHUNK_ROWS; a journal of the same size is written and flushed
beside that, in a thread. Nothing is received, verified, numbered, packed, sorted or proved to continue anything, no
position is kept, and nobody else has the processors: what is left is what no arrangement around a connection that
makes its own checkpoints could leave out, with all the rest done elsewhere for nothing.

Guarantees: rows a second from the first batch's begin to the last one's COMMIT. Refuses to know: our own daemons.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import apsw
import msgpack

from replicate.bench.street import make_database, value
from replicate.database.sqlite import WAL_APPLIER_BYTES

BATCH_ROWS: Final = 206_000
CHUNK_ROWS: Final = 512
FRAME_BYTES: Final = 277
"""Of one row's change in a journal."""
STEP_BYTES: Final = 1024 * 1024
UPDATE: Final = 'UPDATE main."item" SET "value" = ?1 WHERE "id" = ?2 AND +"value" IS ?3'
SETTINGS: Final = {"batch": BATCH_ROWS, "journal": "written and flushed beside", "synchronous": "NORMAL"}


def catch_up(kind: str, count: int, value_bytes: int) -> dict[str, float]:
    """Rows a second (`from_first`) and CPU µs a row. Kinds: update."""
    if kind != "update":
        raise ValueError(f"no floor was written for {kind!r}")
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as name, ThreadPoolExecutor(1) as beside:
        directory = Path(name)
        database = directory / "floor.db"
        make_database(database, count, value_bytes)
        batches = _batches(count, value_bytes)
        journal = os.open(directory / "journal", os.O_RDWR | os.O_CREAT, 0o600)
        connection = apsw.Connection(str(database))
        try:
            _write(journal, max(map(_rows, batches)))  # as segments are: written before they are used
            connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
            connection.wal_autocheckpoint(WAL_APPLIER_BYTES // int(connection.pragma("page_size")))
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            for batch in batches:
                connection.execute("BEGIN IMMEDIATE")
                written = beside.submit(_write, journal, _rows(batch))
                for chunk in batch:
                    connection.executemany(UPDATE, msgpack.unpackb(chunk, use_list=False))
                written.result()
                connection.execute("COMMIT")
            wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
            if connection.total_changes() != count:
                raise RuntimeError(f"{connection.total_changes()} rows were changed, and not {count}")
        finally:
            connection.close()
            os.close(journal)
    return {"from_first": count / wall_s, "cpu_us": cpu_s / count * 1e6}


def _batches(count: int, value_bytes: int) -> list[list[bytes]]:
    """The rows of each batch, packed a chunk at a time: what is bound to UPDATE."""
    keys = list(range(1, count + 1))
    random.Random(6).shuffle(keys)
    made = []
    for at in range(0, count, BATCH_ROWS):
        batch = sorted(keys[at : at + BATCH_ROWS])
        rows = [(value(key, 1, value_bytes), key, value(key, 0, value_bytes)) for key in batch]
        made.append([msgpack.packb(rows[place : place + CHUNK_ROWS]) for place in range(0, len(rows), CHUNK_ROWS)])
    return made


def _rows(batch: list[bytes]) -> int:
    return (len(batch) - 1) * CHUNK_ROWS + len(msgpack.unpackb(batch[-1]))


def _write(journal: int, rows: int) -> None:
    """A journal's frames of so many rows, and a flush."""
    data, left, at = bytes(STEP_BYTES), rows * FRAME_BYTES, 0
    while left:
        at += os.pwrite(journal, data[: min(left, STEP_BYTES)], at)
        left = rows * FRAME_BYTES - at
    os.fdatasync(journal)
