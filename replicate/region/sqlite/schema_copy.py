"""A database without rows, told as what makes it, and made of that.

Guarantees: `making_of` gives only what it has tried: the statements have made, in a database in memory, exactly the
objects and the header that are there. What cannot be told so (rows, virtual tables, whose modules write rows of their
own, statistics, whatever SQLite refuses to make by its text) is refused by name. `make_at` makes a whole region, with
guards and bookkeeping, in a new file, which is checkpointed and synced when it returns. Statements from another site
pass the same judge as every schema change of the stream.
Leaves to others: how the statements travel (region_record.py), and where the file belongs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from replicate.errors import ConflictError, JournalDamagedError, NotSupportedError
from replicate.model.region_record import Making
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.adopt_copy import becoming_whole
from replicate.region.sqlite.apply.statements import make_schema, set_sequence
from replicate.region.sqlite.bookkeeping import is_region, read_identity, replace_scr, write_state
from replicate.region.sqlite.functions import bring
from replicate.region.sqlite.open import install, open_region, translate, write_transaction
from replicate.region.sqlite.schema import COUNTERS, user_tables
from replicate.region.sqlite.sql.names import is_own, quote
from replicate.region.sqlite.virtual_tables import virtual_tables

ADDED_AS: Final = "added_as"
"""Key in _replicate_state of a region that was made from the stream: its UUID on the primary."""

_NUMBERS: Final = ("page_size", "auto_vacuum", "user_version", "application_id")
"""Pragmas whose values stand in the header of the file; the first two before anything else is in it."""
_HEADER: Final = re.compile(rf"PRAGMA (?:({'|'.join(_NUMBERS)}) = (-?[0-9]{{1,10}})|journal_mode = wal)")
_SEQUENCES: Final = "sqlite_sequence"
_OBJECTS: Final = "SELECT type, name, tbl_name, sql FROM main.sqlite_schema ORDER BY rowid"


@contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """The database at `path`, a region or not yet one, as it is: nothing is written, also not what its WAL holds."""
    connection = open_region(path, readonly=True, plain=True)
    try:
        yield connection
    except apsw.Error as error:
        raise translate(error, where=str(path)) from error
    finally:
        connection.close()


def count_rows(connection: apsw.Connection) -> int:
    """The rows of all tables that an application writes: those of SQLite and ours do not count. Reads all of it."""
    tables = user_tables(connection)
    return sum(int(connection.execute(f"SELECT count(*) FROM main.{quote(name)}").get) for name in tables)


def making_of(connection: apsw.Connection, path: str) -> Making:
    """What makes the database again, a region or not yet one. `path`: its file, for the functions that it needs.

    NotSupportedError, whose `what` says why it has to be seeded.
    """
    for name, module in virtual_tables(connection).items():
        raise _seeded(f"it has the virtual table {name} ({module})")
    for name in user_tables(connection):
        if connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{quote(name)})").get:
            raise _seeded(f"its table {name} has rows")
    objects = _objects(connection)
    statements = [f"PRAGMA {name} = {connection.pragma(name)}" for name in _NUMBERS]
    if _mode_before(connection, path) == "wal":
        statements.append("PRAGMA journal_mode = wal")
    statements += [sql for _, _, _, sql in objects if sql is not None]
    counters = _counters_of(connection)
    making = Making(tuple(statements), counters or {})
    made = apsw.Connection(":memory:")
    try:
        bring(made, path)
        made.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        _make(made, making, seqno=0)
        if _objects(made) != objects or _counters_of(made) != counters:
            raise _seeded("its schema, made again of its own texts, would be another one")
        if [made.pragma(name) for name in _NUMBERS] != [connection.pragma(name) for name in _NUMBERS]:
            raise _seeded("its header cannot be made again")
    except (apsw.Error, ConflictError, JournalDamagedError) as error:
        text = str(error.__cause__ or error)
        raise _seeded(f"its schema cannot be made again of its own texts: {text}") from error
    finally:
        made.close(True)
    return making


def _seeded(why: str) -> NotSupportedError:
    return NotSupportedError(why, do="Seed the secondaries")


def _objects(connection: apsw.Connection) -> list[tuple[str, str, str, str | None]]:
    """All that is in the schema but our own tables and guards."""
    rows: list[Any] = connection.execute(_OBJECTS).fetchall()
    return [row for row in rows if not is_own(row[1]) and not is_own(row[2]) and row[1] != _SEQUENCES]


def _counters_of(connection: apsw.Connection) -> dict[str, int] | None:
    """None without sqlite_sequence, which comes with the first table that counts."""
    if not connection.table_exists("main", _SEQUENCES):
        return None
    rows: list[Any] = connection.execute(COUNTERS).fetchall()
    tables = user_tables(connection)
    if len(dict(rows)) < len(rows) or not all(name in tables and type(seq) is int for name, seq in rows):
        raise _seeded("a counter in sqlite_sequence is no table's, or no number")
    return dict(rows)


def _mode_before(connection: apsw.Connection, path: str) -> str:
    """The journal mode that the database has when it is no region."""
    if is_region(connection):
        return read_identity(connection, where=path).journal_mode
    return str(connection.pragma("journal_mode"))


def _make(connection: apsw.Connection, making: Making, *, seqno: int) -> None:
    """Make the schema in an empty database. JournalDamagedError, NotSupportedError, ConflictError, apsw.Error."""
    for statement in making.statements:
        if statement[:7] != "PRAGMA ":
            continue
        if not _HEADER.fullmatch(statement):
            raise JournalDamagedError(f"{statement!r} is nothing that a new region begins with")
        connection.execute(statement)
    connection.execute("BEGIN IMMEDIATE")
    make_schema(connection, (one for one in making.statements if one[:7] != "PRAGMA "), seqno=seqno)
    for table, value in making.counters.items():
        set_sequence(connection, table, value)
    connection.execute("COMMIT")


def make_at(
    path: Path,
    making: Making,
    *,
    network: bytes,
    instance: bytes,
    region: bytes,
    name: str,
    added_as: bytes,
    position: Iterable[ScrRow],
    seqno: int,
) -> None:
    """Make the new file `path` the region `name` of the instance, with what `position` says as its checkpoint records.
    `seqno`: the transaction that makes it, for what an error says.

    Raises ConflictError and NotSupportedError (what the statements do here), JournalDamagedError, DiskFullError and
    what SQLite says; the file must be thrown away then.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with becoming_whole(path, plain=True) as connection:
        _make(connection, making, seqno=seqno)
        install(connection, network=network, instance=instance, region=region, name=name, check=False)
        with write_transaction(connection, str(path)):
            replace_scr(connection, position)
            write_state(connection, ADDED_AS, added_as)
