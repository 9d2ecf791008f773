"""A client of the campaign: commits transactions and writes down what it was told of each, outside of what is killed.

One line a transaction when it begins and one when it ends, each by a single write into a file of its own (on another
file system where that of the instance is lost): a killed client leaves at most its last transaction without an end.

Guarantees: a transaction is called `ok` only after its commit has returned, `failed` only when we were told that
nothing happened (or rolled back ourselves), else `unknown`.
Leaves to others: who kills whom, and what comes of it (oracle.py judges).
"""

from __future__ import annotations

import enum
import json
import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import replicate
from replicate.errors import ReplicateError

SCHEMA: Final = """
CREATE TABLE op (id INTEGER PRIMARY KEY, client INTEGER NOT NULL, number INTEGER NOT NULL, value);
CREATE TABLE total (client INTEGER PRIMARY KEY, n INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE filler (id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB);
CREATE INDEX op_client ON op(client, number);
"""
SIDE_SCHEMA: Final = """
CREATE TABLE twin (id INTEGER PRIMARY KEY, client INTEGER NOT NULL, number INTEGER NOT NULL, value);
CREATE TABLE ballast (id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB);
"""
"""Of the region "side", which most clients attach."""
HUGE_BYTES: Final = 12_000_000
NUMBERS: Final = 1_000_000
"""Transactions that one client can number."""


class Where(enum.Enum):
    """In which regions a transaction has its row."""

    MAIN = "op"
    SIDE = "twin"
    BOTH = "op and twin"


def where(op: int, value: int) -> Where:
    """Where the row of a transaction is, or must be: anybody who finds it in one region knows of the other. Every third
    client has one region only."""
    if op // NUMBERS % 3 == 0:
        return Where.MAIN
    return (Where.BOTH, Where.SIDE, Where.BOTH, Where.MAIN)[value % 4]


class Record:
    """The file of one client."""

    def __init__(self, path: Path, *, synced: bool = False) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._synced = synced

    def write(self, **facts: Any) -> None:
        os.write(self._fd, json.dumps({"t": time.monotonic_ns(), **facts}).encode() + b"\n")
        if self._synced:
            os.fdatasync(self._fd)


def run(
    instance: Path, record: Record, client: int, mode: str, seed: int, count: int = 0, pause_s: float = 0.0
) -> None:
    """Commit `count` transactions (0: for ever). `mode`: mixed, filler (large rows), spooler (large transactions), huge
    (rows that somebody must hold in memory), several (always in both regions)."""
    dice = random.Random(seed)
    connection: Any = None
    schema = ""
    number = 0
    while count == 0 or number < count:
        number += 1
        op = client * NUMBERS + number
        record.write(op=op)
        seqno = 0
        try:
            if connection is None:
                connection, schema = _connect(instance, client)
            result, seqno = _one(connection, client, number, op, mode, dice, schema)
        except (ReplicateError, sqlite3.OperationalError) as error:
            # What SQLite says of a disk is passed on as it is: nothing has happened then.
            code = getattr(error, "code", "SQLITE")
            result = "unknown" if code == "OUTCOME_UNKNOWN" else "failed"
            record.write(op=op, result=result, error=str(error))
            if connection is not None and connection.in_transaction:
                connection.rollback()
            if code in ("POOL_REPLACED", "OUTCOME_UNKNOWN", "IO", "DISK_FULL"):
                return
            time.sleep(0.01)
            continue
        record.write(op=op, result=result, seqno=seqno)
        if pause_s:
            time.sleep(pause_s)
    if connection is not None:
        connection.close()


def _connect(instance: Path, client: int) -> tuple[Any, str]:
    """A connection, and the name of the schema that has the region "main". In turns: with "side" attached, to
    "side" with "main" attached, and without another region."""
    home, other, name = (("main", "", ""), ("main", "side", "side"), ("side", "main", "first"))[client % 3]
    connection = replicate.connect(instance, home, timeout=30, isolation_level=None)
    if other:
        connection.attach(other, name)
    return connection, name if other == "main" else "main"


def _one(
    connection: Any, client: int, number: int, op: int, mode: str, dice: random.Random, schema: str
) -> tuple[str, int]:
    connection.execute("BEGIN IMMEDIATE")
    value = dice.randrange(1 << 40)
    if mode == "several":
        value &= ~1  # in both regions, if there are two
    place = where(op, value)
    if place is not Where.MAIN:
        connection.execute("INSERT INTO twin VALUES (?, ?, ?, ?)", (op, client, number, value))
    if place is Where.SIDE:
        _fill(connection, "ballast", mode, number, dice)
    else:
        connection.execute("INSERT INTO op VALUES (?, ?, ?, ?)", (op, client, number, value))
        connection.execute(
            "INSERT INTO total VALUES (?, 1, ?) ON CONFLICT (client) DO UPDATE SET n = n + 1, last = excluded.last",
            (client, number),
        )
        _fill(connection, "filler", mode, number, dice)
    kind = dice.random()
    if mode == "mixed" and kind > 0.995:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.made_{client} (id INTEGER PRIMARY KEY, a)")
        connection.execute(f"INSERT INTO {schema}.made_{client}(a) VALUES (?)", (number,))
    if mode == "mixed" and 0.90 < kind < 0.92:
        connection.rollback()
        return "failed", 0
    connection.execute("COMMIT")
    return "ok", connection.last_seqno


def _fill(connection: Any, table: str, mode: str, number: int, dice: random.Random) -> None:
    insert = f"INSERT INTO {table}(content) VALUES (?)"
    if mode == "spooler" and number % 3 == 2:
        for _ in range(6):
            connection.execute(insert, (dice.randbytes(150_000),))
    elif mode == "huge":
        connection.execute(insert, (dice.randbytes(HUGE_BYTES),))
    elif mode == "filler":
        connection.execute(insert, (dice.randbytes(60_000),))
    elif dice.random() < 0.2:
        connection.execute(insert, (dice.randbytes(dice.randrange(1, 6000)),))
    connection.execute(f"DELETE FROM {table} WHERE id < (SELECT max(id) - 20 FROM {table})")
