"""Where a connection's transaction stands, and the door as a connection needs it.

Guarantees: names only. Refuses to know: who goes from one stage to the next (dbapi/transaction.py).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import apsw

from replicate.database.capture import CapturedChanges


class Stage(Enum):
    """Where a connection stands: no transaction; one that has only read; one that holds the region."""

    NONE = 0
    READER = 1
    WRITER = 2


class Session(Protocol):
    """The door as a connection needs it (commit.RegionSession). `schema`: the region's schema version when the open
    transaction took the region."""

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
