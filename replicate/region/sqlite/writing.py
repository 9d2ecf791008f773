"""The SQLite side of an application's transactions: one connection, and the regions that it has.

Guarantees: `begin` holds SQLite's write lock of every region or of none; `commit` is one COMMIT, which SQLite makes
atomic for each file only: the regions come one after the other, and after a failure `seqno` of each tells which of them
have it. Errors leave as SQLite's own (`Error`) unless it is said otherwise; `named` makes them ours.
Leaves to others: numbers, locks of ours, the journal, and what an error means for the transaction (door/primary.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import apsw

from replicate.errors import ReplicateError
from replicate.model.writers import Writers
from replicate.region.sqlite.bookkeeping import (
    OWN_STATEMENT,
    foreign_since,
    read_writers,
    record_writer,
    region_seqno,
    slot_writer,
    store_schema_version,
    version_reader,
    write_seen,
    write_writer,
)
from replicate.region.sqlite.capture.capture import ELEMENTS_PER_CHANGE
from replicate.region.sqlite.mergeable import unmergeable, unsummable
from replicate.region.sqlite.open import errno_of, open_region, translate
from replicate.region.sqlite.open_region import OpenedFile
from replicate.region.sqlite.own_counters import OwnCounters, counted_out, own_places
from replicate.region.sqlite.row_stamps import forget_stamps
from replicate.region.sqlite.schema import recorded_definitions, tell_by_key
from replicate.region.sqlite.sql.names import quote, quote_text

if TYPE_CHECKING:
    from replicate.model.transaction import TableDefinition
    from replicate.region.protocol import CapturedChanges, Unmergeable

_DEFERRED_FKS: Final = apsw.SQLITE_DBSTATUS_DEFERRED_FKS


class WrittenFile:
    """One region of a writer's connection. `schema`: the name under which the connection has it. `read_version`: its
    schema version as the open transaction has it. `write_slot`: puts a commit's number and record into its ring.
    `move_record`: raises a partition's checkpoint record."""

    __slots__ = ("_connection", "_places", "_places_of", "move_record", "read_version", "schema", "write_slot")

    def __init__(self, connection: apsw.Connection, schema: str) -> None:
        self._connection = connection
        self._places: dict[str, int] = {}
        self._places_of: tuple[int, Writers] | None = None
        """The schema version and the writers that `_places` are of."""
        self.schema = schema
        self.read_version = version_reader(connection, schema)
        self.write_slot = slot_writer(connection, schema)
        self.move_record = record_writer(connection, schema)

    def seqno(self) -> int:
        """The last transaction that it holds."""
        return region_seqno(self._connection, self.schema)

    def writers(self) -> Writers:
        """Which supplier writes what of it."""
        return read_writers(self._connection, self.schema)

    def name_writer(self, partition: int, values: Sequence[object], seqno: int) -> None:
        """What a REGION change (OF_WRITERS) of a partition says is so from transaction `seqno` on."""
        write_writer(self._connection, partition, values, seqno, self.schema)

    def tell_by_key(self, tables: Collection[str]) -> tuple[TableDefinition, ...]:
        """Have rows of those tables be told by their primary keys; the definitions that changed."""
        return tell_by_key(self._connection, tables, self.schema)

    def tables(self) -> Sequence[TableDefinition]:
        """What is recorded of its tables."""
        return tuple(recorded_definitions(self._connection, self.schema))

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> Unmergeable | None:
        """What keeps a table from being written by several suppliers."""
        return unmergeable(self._connection, definition, keys_chosen=keys_chosen, schema=self.schema)

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        """Why what two sites add to that column at once cannot be added up; "" if it can."""
        return unsummable(self._connection, definition, column, self.schema)

    def take_places(self) -> None:
        """Have the counters of tables that several write stand where our instance counts."""
        counters = OwnCounters(self._connection, self.schema)
        counters.take_places()
        counters.settle()

    def forget_stamps(self, seqno: int) -> None:
        """Forget who wrote which row up to that number: the schema changes."""
        forget_stamps(self._connection, seqno, self.schema)

    def counted_out(self, writers: Writers, own: bytes) -> tuple[str, int] | None:
        """A table whose AUTOINCREMENT counter stands in another supplier's block, and the counter; None: there is
        none."""
        seen = self.read_version(), writers
        if self._places_of != seen:
            self._places_of, self._places = seen, own_places(self._connection, writers, own, self.schema)
        return counted_out(self._connection, self._places, self.schema) if self._places else None

    def foreign_since(self, seqno: int, own: int) -> dict[int, int]:
        """Origin -> the last of its transactions here, of those but `own` that have moved from `seqno` on."""
        return foreign_since(self._connection, seqno, own, self.schema)

    def note_seen(self, teller: int, told: Mapping[int, int]) -> None:
        """What we tell that we have seen."""
        write_seen(self._connection, teller, told, self.schema)

    def store_version(self) -> None:
        """Keep the present schema version; the last thing in every transaction that changed the schema."""
        store_schema_version(self._connection, self.schema)

    def take_write_lock(self) -> bool:
        """Make the open transaction, which has only read, one that writes. False: another has written there since."""
        try:
            # An UPDATE that hits no row takes SQLite's write lock, or says that our snapshot is too old.
            self._connection.execute(
                f"UPDATE {quote(self.schema)}._replicate_state SET value = value WHERE 0", prepare_flags=OWN_STATEMENT
            )
        except apsw.BusyError:
            return False
        return True

    def is_released(self) -> bool:
        """Whether our bookkeeping was taken out of the file."""
        text = f"SELECT count(*) FROM {quote(self.schema)}.sqlite_schema WHERE name = '_replicate_region'"
        return not self._connection.execute(text, prepare_flags=OWN_STATEMENT).get


class FileWriter(OpenedFile):
    """One application's connection. `own`: the region that it was opened for, under the name `main`."""

    Error: Final = apsw.Error
    """The class of all errors of SQLite's."""

    def __init__(self, path: str | os.PathLike[str], *, region: bytes, writable: bool, opening_s: float) -> None:
        """Open the file of the region with that UUID. Raises as `open_region`."""
        super().__init__(open_region(path, readonly=not writable, region=region, opening_s=opening_s), path, region)
        self._writable = writable
        try:
            # Bound to a kept cursor, and not methods: every transaction passes them.
            run = self.connection.cursor().execute
            self.begin: Callable[[], object] = partial(run, "BEGIN IMMEDIATE")
            """Begin a transaction that writes: takes SQLite's write lock of every region."""
            self.commit: Callable[[], object] = partial(run, "COMMIT")
            self.violations: Callable[[], tuple[int, int]] = partial(self.connection.status, _DEFERRED_FKS)
            """First of all: whether a constraint that is deferred to COMMIT is violated (0: none is)."""
            self.own = WrittenFile(self.connection, "main")
        except BaseException:
            self.connection.close(True)
            raise

    def named(self, error: Exception, where: str) -> ReplicateError:
        """Our error for one of SQLite's, met in the file `where`."""
        assert isinstance(error, apsw.Error)
        return translate(error, where=where)

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Whether SQLite has said that a table is not there."""
        return isinstance(error, apsw.SQLError)

    def errno_of(self, error: Exception) -> int:
        """The errno of an error of SQLite's that was just met; EIO where there is none."""
        assert isinstance(error, apsw.Error)
        return errno_of(self.connection, error)

    # Regions.

    def attach(self, path: str | os.PathLike[str], schema: str, run: Callable[[str], object]) -> WrittenFile:
        """Attach another region's file under the name `schema`; `run` runs the statement. Outside of a transaction."""
        # No links: SQLite would refuse those on the way.
        run(f"ATTACH {quote_text(os.path.realpath(path))} AS {quote(schema)}")
        try:
            if self._writable:
                self.connection.execute(f"PRAGMA {quote(schema)}.synchronous = NORMAL", can_cache=False)
            region = WrittenFile(self.connection, schema)
        except BaseException:
            self.detach(schema)
            raise
        return region

    def detach(self, schema: str) -> None:
        """Take a region off the connection."""
        self.connection.execute(f"DETACH {quote(schema)}", can_cache=False)

    # A transaction.

    def flush(self) -> None:
        """Write dirty pages into the WAL: a full disk shows up now, while the transaction may still fail."""
        self.connection.cache_flush()

    def rollback(self) -> None:
        """Roll back what is open; nothing happens when nothing is."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def check(self, captured: CapturedChanges, regions: Sequence[tuple[str, str]]) -> None:
        """A commit's changes, checked against (schema, region's name) of each (capture/check.py), before COMMIT."""
        from replicate.region.sqlite.capture.check import check_captured, is_due  # loads what only appliers need

        if not is_due(captured.count // ELEMENTS_PER_CHANGE, plain=not captured.schema_changed):
            return
        stream = [captured.payload] if captured.spool is None else list(captured.spool.stream())
        for schema, name in regions:
            check_captured(self.connection, schema, name, stream)
