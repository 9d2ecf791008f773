"""AUTOINCREMENT counters of tables that several suppliers write: each site counts in blocks of its own.

The keys (n << BLOCK_BITS) + 1 to (n + 1) << BLOCK_BITS are of the site whose place among a partition's writers
(model/writers.py) is n modulo PLACES. SQLite gives a key above all that are there; so the counter is set ahead to the
next own block after each row that comes from elsewhere, and SQLite goes on from it: writers pay nothing.

Guarantees: a commit that has counted into another site's block is refused; such counters do not travel and are not
compared. Secondaries, which count nothing, have them as their rows leave them.
Leaves to others: rows, transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import apsw

from replicate.model.transaction import TableDefinition
from replicate.model.writers import Writers
from replicate.region.sqlite.apply.statements import set_sequence
from replicate.region.sqlite.bookkeeping import OWN_STATEMENT, is_region, read_writers
from replicate.region.sqlite.schema import is_autoincrement, recorded_definitions, sequence_value
from replicate.region.sqlite.sql.names import quote

BLOCK_BITS: Final = 20
PLACES: Final = 16
_BLOCK: Final = 1 << BLOCK_BITS
_NEARLY: Final = _BLOCK - _BLOCK // 8
"""So many keys of a block are used before the next one is begun, while somebody looks."""


def is_in_own_block(counter: int, place: int) -> bool:
    """Whether a counter stands in a block of that place, or in front of one."""
    return any((at >> BLOCK_BITS) % PLACES == place for at in (max(counter - 1, 0), counter))


def next_block(counter: int, place: int) -> int:
    """Where the counter stands in front of the first block of that place after it."""
    block = -(-counter >> BLOCK_BITS)
    return block + (place - block) % PLACES << BLOCK_BITS


class OwnCounters:
    """Of one connection that applies rows. `forget` at the begin of each transaction, `settle` at its end."""

    def __init__(self, connection: apsw.Connection, schema: str = "main") -> None:
        """`schema`: the name under which the region is attached."""
        self._connection = connection
        self._schema = schema
        self._writers: Writers | None = None
        self.moved: dict[str, int] = {}
        """Table -> its partition, where rows were inserted that `settle` has not seen."""

    def forget(self) -> None:
        """A transaction begins, or a part of it was taken back."""
        self._writers = None

    def is_own(self, partition: int) -> bool:
        """Whether each site counts for itself in the tables of a partition."""
        return self._known_writers().was_merged(partition)

    def may_differ(self) -> bool:
        """Whether a table may have come from a partition that several wrote, where each site counted for itself: the
        counter of its writer counts from the next insert on."""
        return self._known_writers().was_shared

    def expect(self, definition: TableDefinition) -> None:
        """Rows are inserted into a table that counts."""
        if self.is_own(definition.partition):
            self.moved[definition.table] = definition.partition

    def take_places(self) -> None:
        """Partitions may have other writers now: have the counters where a writer's should be."""
        self._writers = None
        for definition in recorded_definitions(self._connection, self._schema):
            if self.is_own(definition.partition) and is_autoincrement(self._connection, definition.table, self._schema):
                self.expect(definition)

    def settle(self) -> None:
        """Before COMMIT."""
        if not self.moved:
            return
        own = self._connection.execute("SELECT instance FROM main._replicate_region").get
        writers = self._read_writers()
        for table, partition in self.moved.items():
            place = writers.place(partition, own)
            if place >= 0 and self._connection.table_exists(self._schema, table):
                self._settle(table, place)
        self.moved.clear()

    def _known_writers(self) -> Writers:
        if self._writers is None:
            self._writers = self._read_writers() if is_region(self._connection) else Writers()
        return self._writers

    def _read_writers(self) -> Writers:
        return read_writers(self._connection, self._schema)

    def _settle(self, table: str, place: int) -> None:
        now = sequence_value(self._connection, table, self._schema) or 0
        newest = self._connection.execute(f"SELECT max(rowid) FROM {quote(self._schema)}.{quote(table)}").get
        counter = max(now, newest or 0)
        if not is_in_own_block(counter, place) or (counter - 1) % _BLOCK >= _NEARLY:
            counter = next_block(counter, place)
        if counter != now:
            set_sequence(self._connection, table, counter, self._schema)


def own_places(connection: apsw.Connection, writers: Writers, own: bytes, schema: str = "main") -> dict[str, int]:
    """Of each table of a region that counts, and that several suppliers write, the place of our instance."""
    if not connection.table_exists(schema, "sqlite_sequence"):
        return {}
    return {
        one.table: place
        for one in recorded_definitions(connection, schema)
        if writers.was_merged(one.partition)
        and (place := writers.place(one.partition, own)) >= 0
        and is_autoincrement(connection, one.table, schema)
    }


def counted_out(connection: apsw.Connection, places: Mapping[str, int], schema: str = "main") -> tuple[str, int] | None:
    """A table whose counter stands in another site's block, and the counter; None: there is none. `places`: as
    `own_places`."""
    rows = connection.execute(f"SELECT name, seq FROM {quote(schema)}.sqlite_sequence", prepare_flags=OWN_STATEMENT)
    for table, counter in rows:
        if table in places and not is_in_own_block(counter, places[table]):
            return str(table), int(counter)
    return None


def counted_apart(connection: apsw.Connection) -> frozenset[str]:
    """The tables whose counters each site has for itself, or had, and may have until the next insert: of suppliers that
    have ever shared a partition, all, since a table may have come from there."""
    if not is_region(connection) or not read_writers(connection).was_shared:
        return frozenset()
    return frozenset(one.table for one in recorded_definitions(connection))
