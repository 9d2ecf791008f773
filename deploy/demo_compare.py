"""Two SQLite files compared row by row with nothing but the standard library: a second opinion on `replicate compare`.

Guarantees: what counts is type and value of every column, the hidden rowid, the order of keys, `sqlite_sequence`, and
the text of every table, index, trigger and view; what Dualsite keeps for itself (`_replicate_*`) is left out. The
files are never opened where they are, only as copies; the caller sees to it that nobody writes to them meanwhile.
Leaves to others: how the files came to be equal or different.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

OURS: Final = "_replicate_"
DIFFERENCES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows by table, and the first differences as lines of text (none: the files are equal)."""

    rows: dict[str, int]
    differences: tuple[str, ...]


def compare_files(left: Path, right: Path, workspace: Path) -> Comparison:
    """Compare two databases that nobody has open. `workspace` is a directory for the copies; it must exist.

    Raises OSError if a file cannot be copied, sqlite3.Error if a copy is no database.
    """
    first, second = (_open_copy(path, workspace / f"copy-{index}.db") for index, path in enumerate((left, right)))
    try:
        differences = [f"schema: {line}" for line in _differing(_schema(first), _schema(second))]
        rows: dict[str, int] = {}
        for table in _tables(first):
            if table not in _tables(second):
                continue  # told by the schema
            rows[table] = 0
            for one, other in zip_longest(_rows(first, table), _rows(second, table)):
                rows[table] += 1
                if one != other:
                    differences.append(f"{table}: {one!r} against {other!r}"[:500])
                if len(differences) >= DIFFERENCES_SHOWN:
                    return Comparison(rows, tuple(differences))
        return Comparison(rows, tuple(differences))
    finally:
        first.close()
        second.close()


def _open_copy(path: Path, copy: Path) -> sqlite3.Connection:
    shutil.copyfile(path, copy)
    log = path.with_name(path.name + "-wal")
    if log.exists():
        shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
    connection = sqlite3.connect(copy)
    connection.text_factory = bytes  # text that is no UTF-8 is compared too; typeof tells it from a blob
    return connection


def _schema(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema"
        f" WHERE substr(name, 1, {len(OURS)}) <> '{OURS}' AND substr(tbl_name, 1, {len(OURS)}) <> '{OURS}'"
        " ORDER BY type, name"
    ).fetchall()


def _differing(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> list[str]:
    return [repr(entry) for entry in one if entry not in other] + [repr(entry) for entry in other if entry not in one]


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [
        name.decode()
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_stat%'"
            f" AND substr(name, 1, {len(OURS)}) <> '{OURS}' ORDER BY name"
        )
    ]


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Every row as (rowid unless there is none, then type and value of each column), in the order of its key."""
    quoted = _quoted(table)
    facts = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
    names = [_quoted(fact[1].decode()) for fact in facts]
    values = ", ".join(f"typeof({name}), {name}" for name in names)
    keys = [_quoted(fact[1].decode()) for fact in sorted(facts, key=lambda fact: int(fact[5])) if fact[5]]
    (without_rowid,) = connection.execute(
        "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,)
    ).fetchone()
    if without_rowid:
        cursor = connection.execute(f"SELECT {values} FROM {quoted} ORDER BY {', '.join(keys)}")
    else:
        cursor = connection.execute(f"SELECT rowid, {values} FROM {quoted} ORDER BY rowid")
    for row in cursor:
        # repr: 1 and 1.0, and 0.0 and -0.0, are equal to Python but not to us.
        yield tuple(repr(value) if isinstance(value, float) else value for value in row)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
