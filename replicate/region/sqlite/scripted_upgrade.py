"""A region whose schema a script changes outside of the stream: a secondary's, before its filter speaks that schema.

Guarantees: the script's changes, the recorded definitions, the guards and the schema version are one transaction, which
is committed at the end of the block, or not at all; then no WAL holds anything older.
Leaves to others: when that may be (admin/region_upgrade.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from replicate.errors import BusyError, ConflictError, UsageError
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.bookkeeping import APPLIED_FROM, store_schema_version, write_state
from replicate.region.sqlite.guards import install_guards
from replicate.region.sqlite.open import open_region, translate
from replicate.region.sqlite.schema import guarded_tables, record_definitions
from replicate.region.sqlite.sql.names import OWN_PREFIX

_DENIED: Final = (
    apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA,
)  # fmt: skip


@contextmanager
def upgraded_by(script: str, path: Path, *, region: bytes, name: str) -> Iterator[tuple[TableDefinition, ...]]:
    """The definitions after the script, in the open transaction. Raises UsageError (it ends the transaction),
    ConflictError (SQLite refuses a statement), NotSupportedError, BusyError; the region is as it was then."""
    connection = open_region(path, applier=True, region=region)
    where = str(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        _run(connection, script, where)
        definitions = record_definitions(connection, region=name).definitions
        install_guards(connection, guarded_tables(connection))
        store_schema_version(connection)
        write_state(connection, APPLIED_FROM, 1)
        yield definitions
        connection.execute("COMMIT")
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise BusyError("somebody reads the region: its WAL could not be emptied", where=where, do="Do it again")
    except apsw.Error as error:
        raise translate(error, where=where) from error
    finally:
        connection.close(True)


def _run(connection: apsw.Connection, script: str, where: str) -> None:
    before, connection.authorizer = connection.authorizer, _allowed
    try:
        connection.execute(script)
    except apsw.AuthError as error:
        raise UsageError(
            "the script ends its transaction, attaches a file, sets a pragma or touches our own tables",
            where=where,
            do="Take that out of it; nothing was changed",
        ) from error
    except apsw.Error as error:
        raise ConflictError(
            f"the script cannot be run: {error}", where=where, do="Mend it; nothing was changed"
        ) from error
    finally:
        connection.authorizer = before


def _allowed(action: int, first: str | None, second: str | None, *_: object) -> int:
    is_ours = any(name is not None and name.lower().startswith(OWN_PREFIX) for name in (first, second))
    return apsw.SQLITE_DENY if is_ours or action in _DENIED else apsw.SQLITE_OK
