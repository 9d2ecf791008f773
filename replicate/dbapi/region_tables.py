"""The tables of a connection's regions, as capturing needs them: read once for each version of a schema.

Guarantees: a map that is given is of the version that was asked for; a schema that depends on a function of this
connection alone is refused when its map is read.
Leaves to others: which version a transaction sees (the door).
"""

from __future__ import annotations

from replicate.dbapi.connection_functions import ConnectionFunctions
from replicate.dbapi.region_access import Neighbours
from replicate.dbapi.regions import Regions
from replicate.region.sqlite.capture.tables import TableMap, read_table_map
from replicate.region.sqlite.schema import recorded_definitions


class RegionTables:
    """The table maps of one connection. `own`: the one of its own region that was read last, with its version."""

    def __init__(self, regions: Regions, functions: ConnectionFunctions, neighbours: Neighbours | None) -> None:
        self.own: tuple[int, TableMap] | None = None
        self._regions = regions
        self._functions = functions
        self._neighbours = neighbours
        self._attached: dict[str, tuple[int, TableMap]] = {}

    def read_own(self) -> TableMap:
        """The tables of the connection's own region, as it stands now."""
        version = self._regions.schema_version()
        if self.own is None or self.own[0] != version:
            self._functions.check()
            connection = self._regions.connection
            self.own = (version, read_table_map(connection, recorded_definitions(connection)))
        return self.own[1]

    def read_attached(self, schema: str) -> TableMap:
        """The tables of an attached region, as the transaction that begins sees them."""
        assert self._neighbours is not None
        version = self._neighbours.version_of(schema)
        known = self._attached.get(schema)
        if known is None or known[0] != version:
            self._functions.check()
            connection = self._regions.connection
            definitions = recorded_definitions(connection, schema)
            known = self._attached[schema] = (version, read_table_map(connection, definitions, schema))
        return known[1]

    def forget(self, schema: str) -> None:
        """The schema of that region changes, or it has been detached."""
        self.own = None
        self._attached.pop(schema, None)
