"""The regions of one connection, its own and those that are attached, and what is captured of their changes.

Guarantees: there is always the connection's own region, "main"; while we work for ourselves (`inside`), the
application's authorizer, progress handler and interrupts are kept away.
Leaves to others: transactions, the door, and how a region is attached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from replicate.region.sqlite.capture.capture import Capture
from replicate.region.sqlite.capture.several_regions import SeveralCaptures
from replicate.region.sqlite.capture.tables import TableMap
from replicate.region.sqlite.guards import OURS
from replicate.region.sqlite.sql.names import fold, quote
from replicate.region.sqlite.sql.statements import Statement

if TYPE_CHECKING:
    from replicate.journal.spool import Spool
    from replicate.model.partitions import Partitions

_T = TypeVar("_T")


class Regions:
    """The regions of one connection. `region`: the name of its own one. `capture`: of all that it has. `own_changes`:
    rows that we changed for our bookkeeping, to be taken off total_changes."""

    def __init__(
        self,
        connection: apsw.Connection,
        region: str,
        spool_factory: Callable[[], Spool],
        partitions: Callable[[], Partitions],
    ) -> None:
        self.connection = connection
        self.region = region
        self.capture: Capture | SeveralCaptures = Capture(connection, region, spool_factory)
        self.partitions = partitions
        """The instance's, as they are now."""
        self.inside = False
        self.own_changes = 0
        self.schemas: tuple[str, ...] = ("main",)
        """The names under which they are attached, as they were written."""
        self.guarded: frozenset[str | None] = OURS
        """Names of databases whose bookkeeping is kept from the application."""
        self.execute = connection.cursor().execute  # a kept cursor, for short questions of ours
        self._spool_factory = spool_factory
        self._names = {"": "main", "main": "main"}

    # Which databases are regions.

    def is_region(self, schema: str) -> bool:
        """Whether the qualifier `schema` (in lower case; "" for none) is that of a region."""
        return schema in self._names

    def name_of(self, schema: str) -> str:
        """The name under which the region of a qualifier is attached, as it was written."""
        return self._names[schema]

    def capture_of(self, schema: str) -> Capture:
        """The capture of one region, by the name under which it is attached."""
        capture = self.capture
        return capture.of(schema) if isinstance(capture, SeveralCaptures) else capture

    def add(self, region: str, schema: str, tables_of: Callable[[str], TableMap]) -> None:
        """A region has been attached under the name `schema`. `tables_of`: as SeveralCaptures asks."""
        capture = self.capture
        if not isinstance(capture, SeveralCaptures):
            capture = self.capture = SeveralCaptures(capture, self._spool_factory, tables_of)
        capture.home.foreign = True
        capture.add(self.connection, region, schema)
        self.schemas += (schema,)
        self._names[fold(schema)] = schema
        self.guarded |= {schema}

    def remove(self, schema: str) -> None:
        """It has been detached."""
        self.schemas = tuple(name for name in self.schemas if name != schema)
        del self._names[fold(schema)]
        self.guarded -= {schema}
        capture = self.capture
        assert isinstance(capture, SeveralCaptures)
        capture.remove(schema)
        if len(self.schemas) == 1:
            self.capture = capture.home

    # Questions of ours.

    def quietly(self, ask: Callable[[], _T]) -> _T:
        """What `ask` gives, with the application's callbacks kept away."""
        # No context manager: an interrupt at the first line of its __exit__ would leave `inside` set for ever.
        inside, self.inside = self.inside, True
        try:
            return ask()
        finally:
            self.inside = inside

    def schema_version(self, schema: str = "main") -> int:
        """SQLite's schema version of one region."""
        version: Any = self.execute(f"PRAGMA {quote(schema)}.schema_version").get
        return int(version)

    def settle(self) -> None:
        """Have changes captured of which no hook has told yet. Raises what SQLite says."""
        inside, self.inside = self.inside, True
        try:
            self.capture.settle()
        finally:
            self.inside = inside

    def may_count(self, statement: Statement) -> bool:
        """Whether a statement may move a counter of AUTOINCREMENT."""
        capture = self.capture
        # By itself or by a trigger; nobody has read the temporary ones.
        return capture.counted and (statement.counts or capture.foreign or capture.tables.triggers_count)

    def watch_sequences(self) -> None:
        """Before a statement that `may_count`."""
        # Quietly: in sqlite3 there is nothing here that the application's progress handler could stop.
        self.inside = True  # what an application runs never comes from within us
        try:
            self.capture.watch_sequences()
        finally:
            self.inside = False
