"""Rows that an INSERT … SELECT adds behind all others of a table: read back in runs, in place of a hook for each row.

Guarantees: `fitting` names a table only if nothing but rows of it can come from such a statement: no row goes for
another one (REPLACE), none is counted elsewhere (AUTOINCREMENT), and each can be read as the hook would have given it.
Then, if the statement made as many changes as there are rows behind the last one from before it, these are all its
changes: each of these rows is new, and there are no other new ones. `packed` gives them as the hook would have.
Refuses to know: which statement that is, and what is done where the numbers differ (dbapi/appended.py).

Why: the driver's hook alone costs more than SQLite's INSERT. Measured, µs of CPU a row of three columns: the INSERT
0.31; with a hook that does nothing 0.50; that takes the row and packs it 0.95; that does all that is needed 1.25.
Reading the rows back 0.34, and packing them in runs 0.13. (bench_commit.py has the other ways.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple

import apsw
import msgpack

from replicate.database.capture_tables import CapturedTable
from replicate.database.names import quote
from replicate.database.row_statements import local_rowid_name
from replicate.limits import PART_BYTES
from replicate.transaction import Op

ROWS_MIN: Final = 8
ROWS_MAX: Final = 128
"""Rows in memory at once. How many is judged by those before, so that they are about PART_BYTES."""


class Appended(NamedTuple):
    """A table, and how to ask for its last rowid, and for the images of all rows behind one."""

    table: CapturedTable
    last: str
    behind: str


def fitting(connection: apsw.Connection, table: CapturedTable) -> Appended | None:
    """How the rows that are added to a table of the main database can be read back; None if they can not."""
    definition = table.definition
    if definition.without_rowid or table.kept is not None or table.net or table.counts or table.refusal is not None:
        return None
    sql: Any = connection.execute(
        "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (definition.table,)
    ).get
    if "conflict" in str(sql).lower():
        return None  # ON CONFLICT REPLACE takes rows away; ON CONFLICT FAIL leaves some behind a failure
    names = [quote(column.name) for column in definition.columns]
    rowid = local_rowid_name(connection, definition)
    if definition.rowid:
        names.insert(0, rowid)
    else:
        rowid = names[definition.key[0]]
    name = f"main.{quote(definition.table)}"
    return Appended(
        table,
        f"SELECT ifnull(max({rowid}), {-(2**63)}) FROM {name}",
        f"SELECT {', '.join(names)} FROM {name} WHERE {rowid} > ? ORDER BY {rowid}",
    )


def packed(table: CapturedTable, rows: Iterator[Any]) -> Iterator[tuple[bytes, int]]:
    """The INSERTs of those images, as they stand in a change stream, and how many they are, in runs."""
    pack = msgpack.Packer(autoreset=True).pack
    operation, number = int(Op.INSERT), table.definition.table_id
    wanted = ROWS_MIN
    while run := list(islice(rows, wanted)):
        flat = list(chain.from_iterable(zip(repeat(operation), repeat(number), repeat(0), run)))
        stream = pack(flat)
        yield stream[1 if len(flat) < 16 else 3 :], len(run)  # without the head of the list itself
        wanted = max(1, min(ROWS_MAX, wanted * 4, PART_BYTES * len(run) // len(stream)))
