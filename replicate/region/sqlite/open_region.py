"""A region's file that is open: what each purpose asks of it.

Guarantees: as `ReadRegion` of region/protocol.py says.
Leaves to others: what is done with it (writing.py, applying.py, recovering.py), locks of ours, the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import apsw

from replicate.limits import OPENING_S
from replicate.model.transaction import TableDefinition
from replicate.model.vector import Position
from replicate.model.writers import Writers
from replicate.region.protocol import Gap, MergedRow, ScrRow, Unmergeable, scr_chains, scr_vector
from replicate.region.sqlite.bookkeeping import (
    RegionIdentity,
    check_region_identity,
    read_scr,
    read_seen,
    read_writers,
    region_seqno,
)
from replicate.region.sqlite.forensics.older_than_wal import find_gap
from replicate.region.sqlite.mergeable import unmergeable, unsummable
from replicate.region.sqlite.open import open_region, translate
from replicate.region.sqlite.row_stamps import count_open, read_absorbed, read_merged
from replicate.region.sqlite.schema import recorded_definitions


class Naming:
    """What SQLite raises within, at the file `where`, is raised as an error of ours."""

    # Each batch that is applied goes through four of them: one of contextlib's runs three times as much.
    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.Error):
            raise translate(error, where=self._where) from error


class OpenedFile:
    """One region's file, by a connection of its own. `region`: the UUID that it should have."""

    def __init__(self, connection: apsw.Connection, where: str | os.PathLike[str], region: bytes) -> None:
        self.connection = connection
        self.where = os.fspath(where)
        self._uuid = region

    def close(self) -> None:
        """Close the connection."""
        self.connection.close(True)

    def seqno(self) -> int:
        """The last transaction that it holds."""
        return region_seqno(self.connection)

    def checkpoint(self) -> list[ScrRow]:
        """Its checkpoint records."""
        with Naming(self.where):
            return read_scr(self.connection)

    def position(self, last_seqno: int) -> Position:
        """The position that they tell, at the journal's `last_seqno`."""
        rows = self.checkpoint()
        return Position(last_seqno, scr_vector(rows), scr_chains(rows))

    def writers(self) -> Writers:
        """Which supplier writes what of it."""
        with Naming(self.where):
            return read_writers(self.connection)

    def absorbed(self) -> int:
        """Up to where rows' stamps are those of the journal; 0 where nothing was ever shared."""
        return read_absorbed(self.connection) if self.writers().was_shared else 0

    def merges(self) -> Iterator[MergedRow]:
        """What was lost in merges, oldest first."""
        return read_merged(self.connection)

    def seen(self) -> dict[int, dict[int, int]]:
        """Of each origin what it has told that it has seen."""
        return read_seen(self.connection)

    def open_merges(self) -> int:
        """How many values that were lost in merges were not looked at."""
        return count_open(self.connection)

    def tables(self) -> Sequence[TableDefinition]:
        """What is recorded of its tables."""
        return tuple(recorded_definitions(self.connection))

    def unmergeable(self, definition: TableDefinition, *, keys_chosen: bool) -> Unmergeable | None:
        """Why several suppliers cannot write a table of it."""
        return unmergeable(self.connection, definition, keys_chosen=keys_chosen)

    def unsummable(self, definition: TableDefinition, column: str) -> str:
        """Why what several suppliers add to a column of a table cannot be added up; "" where it can."""
        return unsummable(self.connection, definition, column)

    def check_identity(self, *, network: bytes, instance: bytes) -> RegionIdentity:
        """Raises as `check_region_identity`."""
        return check_region_identity(
            self.connection, region=self._uuid, network=network, instance=instance, where=self.where
        )

    def find_gap(self, *, primary: bool, missed: Callable[[Gap], int]) -> tuple[Gap, int] | None:
        """As older_than_wal.py says."""
        return find_gap(self.connection, self.where, region=self._uuid, primary=primary, missed=missed)


def open_to_read(path: str | os.PathLike[str], *, region: bytes, opening_s: float | None = None) -> OpenedFile:
    """A connection of its own that only looks how far a region is. Raises as `open_region`."""
    wait_s = OPENING_S if opening_s is None else opening_s
    return OpenedFile(open_region(path, readonly=True, bare=True, region=region, opening_s=wait_s), path, region)
