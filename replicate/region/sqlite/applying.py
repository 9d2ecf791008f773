"""The SQLite side of what a secondary applies: one region, the only writer of which this is.

Guarantees: `prepare` puts checkpoint records, and what is noted beside them, into the open transaction: they move with
the rows or not at all. All errors are ours, but those of `commit` and `schema_version`, which are SQLite's own
(`Error`): only the door knows whether the journal has the batch by then.
Leaves to others: the rows (apply/rows.py), numbers, locks of ours, the journal (door/secondary.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

import apsw

from replicate.model.transaction import TableDefinition
from replicate.region.protocol import RowsOfRegion, ScrRow
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.bookkeeping import (
    APPLIED_FROM,
    read_state,
    record_writer,
    schema_version,
    store_schema_version,
    write_slot,
    write_state,
)
from replicate.region.sqlite.data_feed import check_schema, let_others_in
from replicate.region.sqlite.open import errno_of, open_region, translate
from replicate.region.sqlite.open_region import Naming, OpenedFile
from replicate.region.sqlite.partition_rows import beside, drop_some, take_checkpoint, take_rows
from replicate.region.sqlite.schema_copy import ADDED_AS


class AppliedFile(OpenedFile):
    """One region of a secondary, open for applying."""

    Error: Final = apsw.Error
    """The class of all errors of SQLite's."""

    def __init__(self, path: str | os.PathLike[str], *, region: bytes) -> None:
        """Open the file of the region with that UUID. Raises as `open_region`."""
        super().__init__(open_region(path, applier=True, region=region), path, region)
        self._raise_record = record_writer(self.connection)

    def errno_of(self, error: Exception) -> int:
        """The errno of an error of SQLite's that was just met; EIO where there is none."""
        assert isinstance(error, apsw.Error)
        return errno_of(self.connection, error)

    # What it holds.

    def added_as(self) -> object:
        """The UUID on the primary, if it was made here from the stream; None otherwise."""
        return read_state(self.connection, ADDED_AS)

    def schema_version(self) -> int:
        """As the open transaction has it."""
        return schema_version(self.connection)

    def rows(self, definitions: Mapping[int, TableDefinition], name: str) -> RowApplier:
        """What applies rows to it; `name`: the region's."""
        return RowApplier(self.connection, definitions, region=name)

    def merging(self, rows: RowsOfRegion, *, region: str = "") -> RowMerger:
        """What merges rows into it; `rows` makes the changes. `region`: its name, where there are several."""
        return RowMerger(self.connection, rows, region=region)

    # A batch.

    def begin(self, *, changed_do: str) -> None:
        """Begin a transaction that writes. SchemaChangedError, with `changed_do` as the way out."""
        try:  # as Naming does it, but written out, here and in `prepare`: a reader waits for what comes now
            self.connection.execute("BEGIN IMMEDIATE")
            if check_schema(self.connection, do=changed_do):
                store_schema_version(self.connection)
        except apsw.Error as error:
            raise translate(error, where=self.where) from error

    def let_others_in(self) -> None:
        """As in data_feed.py."""
        with Naming(self.where):
            let_others_in(self.connection)

    def prepare(self, rows: Sequence[ScrRow], *, applied_from: int, defines: bool, slot: int = 0) -> None:
        """Raise the checkpoint records, and note the batch's first number (0: it is not noted). `defines`: the schema
        has changed. `slot`: the batch's last number, where the region has a ring as well; else 0."""
        try:
            if defines:
                store_schema_version(self.connection)
            for row in rows:
                self._raise_record(row.origin, row.partition, row.origin_seqno, row.chain, row.csn, row.seqno)
            if applied_from:
                write_state(self.connection, APPLIED_FROM, applied_from)
            if slot:
                write_slot(self.connection, slot, None)
        except apsw.Error as error:
            raise translate(error, where=self.where) from error

    def beside(self, copy: str | os.PathLike[str]) -> AbstractContextManager[None]:
        """As in partition_rows.py."""
        return beside(self.connection, copy)

    def take_rows(
        self, keeps: Callable[[int], bool], rows: Sequence[ScrRow], told: Callable[[str, int, int], None], *, copy: bool
    ) -> int:
        """In the transaction: replace the rows of partitions, and their checkpoint records, by those of a copy; how
        many tables they have."""
        with Naming(self.where):
            take_checkpoint(self.connection, keeps, rows)
            return take_rows(self.connection, keeps, told, has_copy=copy)

    def drop_some(self, keeps: Callable[[int], bool], rows_max: int) -> int:
        """As in partition_rows.py."""
        with Naming(self.where):
            return drop_some(self.connection, keeps, rows_max)

    def flush(self) -> None:
        """Have what was changed in the WAL before the journal holds the range: a disk that is full is found now, while
        there is a way back."""
        with Naming(self.where), suppress(apsw.BusyError):  # a page is in use: COMMIT will write it
            self.connection.cache_flush()

    def commit(self) -> None:
        """COMMIT."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Take back what is open. Works after any failure."""
        with suppress(apsw.Error):  # SQLite has rolled back by itself
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
