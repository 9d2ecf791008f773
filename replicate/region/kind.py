"""Which kind of region there is: SQLite.

Guarantees: a kind that mypy has held against the protocol. Leaves to others: all of it (region/sqlite/).
"""

from __future__ import annotations

from typing import Final

from replicate.region.protocol import RegionKind
from replicate.region.sqlite.kind import SqliteKind

KIND: Final[RegionKind] = SqliteKind()
