"""Which columns of a table are listed on this secondary, noted in the region itself.

    _replicate_state   "listed:TABLE" -> msgpack of the names

Guarantees: a column that comes to such a table holds a blank in the rows that are there, whatever its DEFAULT, wherever
its statement is run: applied, redone, or in a copy that is brought forward. A region without such tables has no note.
Leaves to others: what a blank is (model/column_list.py), and which statements come. Inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import apsw
import msgpack

from replicate.model.column_list import blank_sql
from replicate.model.table_wish import fold
from replicate.region.sqlite.bookkeeping import OWN_STATEMENT, write_state
from replicate.region.sqlite.schema import read_definition
from replicate.region.sqlite.sql.names import quote

LISTED: Final = "listed:"


class ListedTable(NamedTuple):
    """Names folded. `known`: all columns that it has."""

    listed: frozenset[str]
    known: frozenset[str]


def note_listed(connection: apsw.Connection, table: str, columns: Sequence[str]) -> None:
    """Of that table these columns are here."""
    write_state(connection, f"{LISTED}{table}", msgpack.packb(list(columns)))


def take_notes(connection: apsw.Connection, tables: Iterable[str], side: str) -> None:
    """Have the notes on these tables be those of the database that is attached as `side`; "" for none."""
    keys = [(f"{LISTED}{table}",) for table in tables]
    connection.executemany("DELETE FROM main._replicate_state WHERE key = ?", keys, prepare_flags=OWN_STATEMENT)
    if side:
        notes = f"SELECT key, value FROM {quote(side)}._replicate_state WHERE key = ?"
        connection.executemany(f"INSERT INTO main._replicate_state {notes}", keys, prepare_flags=OWN_STATEMENT)


def listed_tables(connection: apsw.Connection) -> dict[str, ListedTable]:
    """The tables with a note, as they are now."""
    noted = connection.execute(
        "SELECT substr(key, ?1 + 1), value FROM main._replicate_state WHERE substr(key, 1, ?1) = ?2",
        (len(LISTED), LISTED),
    ).fetchall()
    return {
        str(table): ListedTable(frozenset(map(fold, msgpack.unpackb(packed))), _columns(connection, str(table)))
        for table, packed in noted
        if connection.table_exists("main", str(table))
    }


def _columns(connection: apsw.Connection, table: str) -> frozenset[str]:
    return frozenset(fold(one.name) for one in read_definition(connection, table, region="").columns)


def blank_new_columns(connection: apsw.Connection, before: Mapping[str, ListedTable]) -> None:
    """After a schema change, `before` which the listed tables were so: what has come to them is blank."""
    for table, (listed, known) in before.items():
        if not connection.table_exists("main", table):
            continue
        definition = read_definition(connection, table, region="")
        blanks = [
            f"{quote(one.name)} = {blank_sql(one, strict=definition.strict)}"
            for one in definition.columns
            if fold(one.name) not in known | listed
        ]
        if blanks:
            connection.execute(f"UPDATE OR ABORT main.{quote(table)} SET {', '.join(blanks)}")
