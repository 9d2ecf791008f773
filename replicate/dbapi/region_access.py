"""What a connection needs of the instance: a session of the commit door, and the databases that it may attach.

Guarantees: names only; `open.py` has all of them for an instance.
Leaves to others: how an instance is opened, locked and closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

import apsw

from replicate.region.protocol import CapturedChanges

if TYPE_CHECKING:
    from replicate.journal.spool import Spool
    from replicate.model.partitions import Partitions


Named = str | os.PathLike[str]
"""An instance as a caller names it: its directory, or its name below REPLICATE_HOME."""
Sites = Named | Sequence[Named]
"""One instance, or several of one network, of which the one that takes writes is meant."""


class Session(Protocol):
    """The commit door as a connection needs it (door.primary.RegionSession). `schema`: the region's schema version when
    the open transaction took the region."""

    connection: apsw.Connection
    schema: int
    last_seqno: int

    @property
    def holds_region(self) -> bool: ...
    def begin(self, *, timeout_s: float) -> None: ...
    def upgrade(self, *, timeout_s: float) -> None: ...
    def commit(self, captured: CapturedChanges) -> int: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Neighbours(Protocol):
    """What else a connection may attach."""

    def region_at(self, file: str) -> str | None:
        """The region of the connection's instance that is in that file; None if it is none."""

    def path_of(self, region: str) -> str:
        """Where the file of a region of the connection's instance is."""

    def attach(self, region: str, schema: str, run: Callable[[str], object], taken: AbstractSet[str]) -> None:
        """Attach that region to the session's connection. `run` runs the statement; `taken`: names of functions and
        collations that the application has given the connection."""

    def attach_plain(self, file: str, schema: str, run: Callable[[str], object]) -> None:
        """Attach a plain database, or a region of another instance, for reading."""

    def detached(self, schema: str) -> None:
        """What was attached under that name is no longer."""

    def version_of(self, schema: str) -> int:
        """The schema version of an attached region as the open transaction found it."""


class Opened(Protocol):
    """What opening gives a connection. `busy_timeout_s`: how long it waits for a lock unless the application says.
    `neighbours`: None where nothing can be attached but databases in memory."""

    region: str

    @property
    def session(self) -> Session: ...
    @property
    def busy_timeout_s(self) -> float: ...
    @property
    def neighbours(self) -> Neighbours | None: ...
    def new_spool(self) -> Spool: ...
    def partitions(self) -> Partitions: ...
    def wait_durable(self, seqno: int) -> None: ...
    def close(self) -> None: ...
