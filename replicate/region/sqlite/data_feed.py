"""A region of a data feed: beside what is replicated it has tables of its own, which anybody may make and write.

Guarantees: what is replicated is guarded and checked as in any secondary: a change of the schema is taken for another
client's own only while every replicated table is as it was recorded, with its guards. Names tell the two apart: a table
that was recorded from the stream is replicated, every other one is not.
Leaves to others: instances; who writes the others. What VACUUM does to hidden rowids, the before-images find.
"""

from __future__ import annotations

import os
from typing import Final

import apsw

from replicate.errors import SchemaChangedError
from replicate.region.sqlite.bookkeeping import check_schema_version, is_region, read_state, write_state
from replicate.region.sqlite.guards import guards_of
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema import (
    definition_difference,
    guarded_tables,
    read_definition,
    recorded_definitions,
    user_tables,
)

_FEED: Final = "feed"
"""Of a region's state: 1 where others may have tables."""


def let_others_in(connection: apsw.Connection) -> None:
    """From now on the region is one of a data feed. In the caller's transaction, or one of its own."""
    if not is_feed(connection):
        write_state(connection, _FEED, 1)


def is_feed(connection: apsw.Connection) -> bool:
    """Whether others may have tables there. A database that is no region is none."""
    return is_region(connection) and read_state(connection, _FEED) == 1


def own_tables(connection: apsw.Connection) -> frozenset[str]:
    """Those that are not replicated; none but in a data feed."""
    if not is_feed(connection):
        return frozenset()
    return frozenset(user_tables(connection)) - {one.table for one in recorded_definitions(connection)}


def check_schema(connection: apsw.Connection, *, do: str) -> bool:
    """As `check_schema_version`; whether it is another version, by what others have made for themselves in a feed."""
    try:
        check_schema_version(connection, do=do)
        return False
    except SchemaChangedError as error:
        if not is_feed(connection):
            raise
        what = _changed(connection)
        if what:
            raise SchemaChangedError(
                f"another client changed what is replicated: {what}", where=connection.filename, do=do, **error.facts
            ) from error
        return True


def _changed(connection: apsw.Connection) -> str:
    """What of the replicated tables is not as it was recorded; "" when all is."""
    there, bear_guards = set(user_tables(connection)), set(guarded_tables(connection))
    for wanted in recorded_definitions(connection):
        if wanted.table not in there:
            return f"table {wanted.table} is gone"
        difference = definition_difference(
            wanted, read_definition(connection, wanted.table, region=wanted.region, by_key=wanted.is_by_key)
        )
        if difference is not None:
            return f"table {wanted.table}: {difference}"
        if wanted.table in bear_guards and not guards_of(connection, wanted.table):
            return f"table {wanted.table} has lost its guards"
    return ""


def others_tables(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The tables that others have in the region at `path`. Raises what opening a region raises."""
    connection = open_region(path, readonly=True, bare=True)
    try:
        return tuple(sorted(own_tables(connection)))
    finally:
        connection.close(True)
