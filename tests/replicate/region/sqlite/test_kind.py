"""SQLite as a kind of region: errors are SQLite's own until they are named."""

from __future__ import annotations

import apsw
import pytest

from replicate.errors import BusyError
from replicate.region.sqlite.kind import SqliteKind


def test_errors_of_sqlite_are_named_at_their_file() -> None:
    kind = SqliteKind()
    with pytest.raises(BusyError, match="locked") as raised, kind.naming("/there/r.db"):
        raise apsw.BusyError("locked")
    assert raised.value.where == "/there/r.db"
    assert issubclass(apsw.BusyError, kind.Error)
