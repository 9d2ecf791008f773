"""Functions and collations that only one connection has: those that its application registers.

Guarantees: none is registered, and no schema of a region is used, where a region's indexes or generated columns would
depend on one: the other site would hold other values.
Leaves to others: registering them (dbapi/callbacks.py).
"""

from __future__ import annotations

from replicate.dbapi.regions import Regions
from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.names import fold
from replicate.region.sqlite.sql.own_functions import names_used


class ConnectionFunctions:
    """The names of functions and collations that only this connection has, in lower case."""

    def __init__(self, regions: Regions) -> None:
        self.names: set[str] = set()
        self._regions = regions
        self._used: dict[str, tuple[int, frozenset[str]]] = {}

    def bring(self, name: str) -> None:
        """The connection is to get a function or collation of its own. NotSupportedError if that would be felt."""
        known = fold(name) in self.names
        self.names.add(fold(name))
        try:
            self.check()
        except NotSupportedError:
            if not known:
                self.names.discard(fold(name))
            raise

    def check(self) -> None:
        """NotSupportedError if a region, as its schema is now, depends on one of them."""
        if not self.names:
            return
        regions = self._regions
        names = regions.quietly(lambda: {name for schema in regions.schemas for name in self._names_used(schema)})
        used = sorted(self.names & names)
        if used:
            raise NotSupportedError(
                f"an index, a generated column or a collation of this region depends on {used[0]}; with a function or "
                "collation of that name which only this connection has, the other site would hold other values",
                where=regions.region,
                do=f"Register it under another name than {used[0]}",
            )

    def forget(self, schema: str) -> None:
        """That region has been detached."""
        self._used.pop(schema, None)

    def _names_used(self, schema: str) -> frozenset[str]:
        """`names_used`, read once for each version of the schema: an application may register dozens of functions with
        each connection (Django does), and reading all of it for each took seconds."""
        regions = self._regions
        version = regions.schema_version(schema)
        known = self._used.get(schema)
        if known is None or known[0] != version:
            known = (version, names_used(regions.connection, schema))
            if not regions.capture.active:  # else this version may be taken back, and the next schema bear its number
                self._used[schema] = known
        return known[1]
