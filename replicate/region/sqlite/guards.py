"""Guard triggers: they keep every client but ours from writing rows of a replicated table.

Guarantees: a guarded table refuses INSERT, UPDATE and DELETE of any connection that has not called `register_guard`,
at once and by a text that explains itself (*no such function: replicate_connect_is_required*), whatever SQLite
release that client uses: the guard is plain SQL that all of them parse. A connection with triggers switched off
(our applier) does not even compile them.
`refuse_own` keeps an application from changing our bookkeeping; SQLite asks it when a statement is prepared.
Leaves to others: who may write, and the schema changes, VACUUM, incremental blob writes and writes to sqlite_sequence
that no trigger can stop. The schema version kept with each commit catches the first two (bookkeeping.py).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import apsw

from replicate.errors import NotSupportedError
from replicate.region.sqlite.sql.names import is_own, quote, quote_text

OURS: Final = frozenset(("main", "temp"))
"""Where names of ours are refused, but for attached regions."""
GUARD_FUNCTION: Final = "replicate_connect_is_required"
GUARD_PREFIX: Final = "_replicate_guard_"
_OPERATIONS: Final = ("insert", "update", "delete")

# Which of an authorizer's two names is the object that changes. A guard goes with its table: so not a trigger's name.
_FIRST: Final = frozenset(
    {
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_CREATE_TEMP_VIEW,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_TABLE,
    }
)
_SECOND: Final = frozenset(
    {
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_ALTER_TABLE,
    }
)


def register_guard(connection: apsw.Connection) -> None:
    """Make `connection` one that the guards let through.

    The function is innocuous, so that it works under `PRAGMA trusted_schema=0` too.
    """
    connection.create_scalar_function(
        GUARD_FUNCTION,
        bool,  # type: ignore[arg-type]  # called without any it gives False, and no Python runs: it is asked of each row
        0,
        deterministic=True,
        flags=apsw.SQLITE_INNOCUOUS,
    )


def refuse_own(
    action: int,
    first: str | None,
    second: str | None,
    database: str | None,
    trigger: str | None,
    databases: Container[str | None] = OURS,
) -> None:
    """For an authorizer, with its arguments: NotSupportedError for a statement of an application, or a trigger that it
    fires, which would change our bookkeeping in one of `databases`, or make something of such a name there."""
    name = first if action in _FIRST else second if action in _SECOND else None
    if action == apsw.SQLITE_ALTER_TABLE:
        database = first  # SQLite tells it there, and nothing in its place
    if name is None or not is_own(name) or database not in databases:
        return
    by = f" (trigger {trigger} would change it)" if trigger else ""
    raise NotSupportedError(
        f"{name} belongs to replication's bookkeeping, or bears a name that is kept for it{by}",
        do="Use another name; to take the bookkeeping out run: replicate -i INSTANCE region release NAME",
        table=name,
    )


def guard_name(operation: str, table: str) -> str:
    """The trigger's name for one of `insert`, `update`, `delete`."""
    return f"{GUARD_PREFIX}{operation}_{table}"


def guard_statements(table: str) -> tuple[str, ...]:
    """The three CREATE TRIGGER statements of a table.

    The function is called for each row (measured: 0.2 µs of the guard's 0.6 µs). `WHEN NULL AND f()` would spare the
    call, but only as long as no release of SQLite folds it away before it looks up the name; then the guard were
    silently gone.
    """
    message = quote_text(f"table {table} is replicated: write through replicate.connect()")
    return tuple(
        f"CREATE TRIGGER {quote(guard_name(operation, table))} AFTER {operation.upper()} ON {quote(table)} "
        f"WHEN {GUARD_FUNCTION}() BEGIN SELECT RAISE(ABORT, {message}); END"
        for operation in _OPERATIONS
    )


def _guards_found(connection: apsw.Connection, schema: str = "main") -> dict[str, tuple[str, str]]:
    """name -> (table, sql) of every guard trigger in the file."""
    return {
        name: (table, sql)
        for name, table, sql in connection.execute(
            f"SELECT name, tbl_name, sql FROM {quote(schema)}.sqlite_schema WHERE type = 'trigger' AND name GLOB ?",
            (GUARD_PREFIX + "*",),
        )
    }


def guards_of(connection: apsw.Connection, table: str) -> bool:
    """Whether the table has exactly its guards."""
    found = {name: was for name, was in _guards_found(connection).items() if was[0] == table}
    statements = zip(_OPERATIONS, guard_statements(table), strict=True)
    return found == {guard_name(operation, table): (table, sql) for operation, sql in statements}


def install_guards(connection: apsw.Connection, tables: list[str], schema: str = "main") -> list[str]:
    """Give each of `tables` exactly its three guards; what a RENAME or a copied table left behind is replaced.

    Runs inside the caller's transaction. Tables that have them already are not touched (no schema change then).
    Returns the tables that were changed.
    """
    found = _guards_found(connection, schema)
    wanted: dict[str, tuple[str, str]] = {}
    for table in tables:
        for operation, sql in zip(_OPERATIONS, guard_statements(table), strict=True):
            wanted[guard_name(operation, table)] = (table, sql)
    for name, was in found.items():
        if wanted.get(name) != was:
            connection.execute(f"DROP TRIGGER {quote(schema)}.{quote(name)}")
    changed: dict[str, None] = {}
    for name, (table, sql) in wanted.items():
        if found.get(name) != (table, sql):
            # SQLite keeps the text without the schema's name.
            connection.execute(sql.replace("CREATE TRIGGER ", f"CREATE TRIGGER {quote(schema)}.", 1))
            changed[table] = None
    return list(changed)


def remove_guards(connection: apsw.Connection) -> None:
    """Drop every guard of the file, inside the caller's transaction."""
    for name in _guards_found(connection):
        connection.execute(f"DROP TRIGGER main.{quote(name)}")
