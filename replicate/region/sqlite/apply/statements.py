"""SQL texts for row changes, and the slow statements around them: reading a row, sequences, schema changes.

Guarantees: every WHERE finds its row by the key's index and then compares every column exactly: no affinity, no
collation but BINARY, and the storage class too where a column could hold 1 and 1.0 as different values. A row in the
way is an error, whatever the table's own ON CONFLICT clause says: what that has made of it on the primary is in the
stream, and here REPLACE would remove a row that nobody has compared with anything. Values are always parameters.
Leaves to others: when a statement runs, and what a conflict means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import apsw

from replicate.errors import ConflictError, NotSupportedError
from replicate.model.rowid import rowid_name
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.allowed_definitions import check_travelling
from replicate.region.sqlite.sql.names import is_internal, quote
from replicate.region.sqlite.virtual_tables import (
    MODULES,
    VIEWS,
    allow_shadow_rows,
    forget_first_rows,
    shadow_tables,
    virtual_tables,
)
from replicate.region.sqlite.wide_rows import read_row

_FORBIDDEN: Final = {
    apsw.SQLITE_ATTACH: "ATTACH",
    apsw.SQLITE_DETACH: "DETACH",
    apsw.SQLITE_TRANSACTION: "BEGIN, COMMIT or ROLLBACK",
    apsw.SQLITE_SAVEPOINT: "SAVEPOINT",
}
_PRAGMAS: Final = ("quick_check", "page_size", "user_version", "application_id")
"""The first is what ALTER TABLE runs itself, the second what virtual tables ask; the others are an application's, and
travel."""
_HARMLESS: Final = (apsw.SQLITE_READ, apsw.SQLITE_ANALYZE, apsw.SQLITE_REINDEX)
_WRITES: Final = (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE)
_DROPS: Final = (apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_VIEW, apsw.SQLITE_DROP_VTABLE)

LEGACY_ALTER: Final = {"PRAGMA legacy_alter_table = ON": 1, "PRAGMA legacy_alter_table = OFF": 0}
"""How an ALTER under the old rules travels: between these two texts, in one transaction (ORMs' migrations do that)."""


def local_rowid_name(connection: apsw.Connection, definition: TableDefinition, schema: str = "main") -> str:
    """The name under which the hidden rowid can be reached (generated columns count too), also one that no image holds;
    "" if the table has none."""
    if not definition.rowid and not definition.is_by_key:
        return ""
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM pragma_table_xinfo(?1, ?2)", (definition.table, schema))
    ]
    return rowid_name(names) or ""


def _names(definition: TableDefinition, rowid: str) -> list[str]:
    """The image's columns as SQL."""
    names = [quote(column.name) for column in definition.columns]
    return [rowid, *names] if definition.rowid else names


def _is_untyped(definition: TableDefinition, ordinal: int) -> bool:
    """Whether the column keeps 1 and 1.0 apart: no affinity (BLOB or none), or ANY in a STRICT table."""
    ordinal -= definition.rowid
    if ordinal < 0:
        return False
    declared = definition.columns[ordinal].type.upper()
    if definition.strict:
        return declared == "ANY"
    if any(word in declared for word in ("INT", "CHAR", "CLOB", "TEXT")):
        return False
    return "BLOB" in declared or not declared


def _collation(definition: TableDefinition, ordinal: int) -> str:
    ordinal -= definition.rowid
    return "BINARY" if ordinal < 0 else definition.columns[ordinal].collation


def _where(definition: TableDefinition, rowid: str, first: int) -> str:
    """The whole before-image, bound from parameter number `first` on."""
    terms = []
    for ordinal, name in enumerate(_names(definition, rowid)):
        parameter = f"?{first + ordinal}"
        other = _collation(definition, ordinal) != "BINARY"
        in_key = ordinal in definition.key
        if in_key:
            terms.append(f"{name} = {parameter}")
        if not in_key or other:
            terms.append(f"+{name}{' COLLATE BINARY' if other else ''} IS {parameter}")
        if _is_untyped(definition, ordinal):
            terms.append(f"typeof({name}) = typeof({parameter})")
    return conjunction(terms)


def conjunction(terms: list[str]) -> str:
    """Terms joined by AND; a wide table's as a balanced tree, since SQLite bounds the depth of expressions (1000)."""
    if len(terms) <= 100:
        return " AND ".join(terms)
    middle = len(terms) // 2
    return f"({conjunction(terms[:middle])}) AND ({conjunction(terms[middle:])})"


def insert(definition: TableDefinition, rowid: str) -> str:
    """INSERT of an after-image."""
    names = _names(definition, rowid)
    return (
        f"INSERT OR ABORT INTO main.{quote(definition.table)} ({', '.join(names)}) "
        f"VALUES ({', '.join(f'?{n}' for n in range(1, len(names) + 1))})"
    )


def delete(definition: TableDefinition, rowid: str) -> str:
    """DELETE of a before-image."""
    return f"DELETE FROM main.{quote(definition.table)} WHERE {_where(definition, rowid, 1)}"


def update(definition: TableDefinition, rowid: str, mask: int) -> str:
    """UPDATE that binds the changed after values (bit i of `mask` = i-th image value), then the whole before-image.

    With an empty mask the row is written as it is: still a check of the before-image.
    """
    names = _names(definition, rowid)
    changed = [name for ordinal, name in enumerate(names) if mask >> ordinal & 1]
    assignments = [f"{name} = ?{number}" for number, name in enumerate(changed, 1)]
    if not assignments:
        assignments = [f"{names[-1]} = {names[-1]}"]
    where = _where(definition, rowid, len(changed) + 1)
    return f"UPDATE OR ABORT main.{quote(definition.table)} SET {', '.join(assignments)} WHERE {where}"


# Slow statements.


def read_image(
    connection: apsw.Connection,
    definition: TableDefinition,
    rowid: str,
    ordinals: tuple[int, ...],
    values: tuple[Any, ...],
) -> tuple[Any, ...] | None:
    """The first row whose image has `values` at `ordinals`; None if there is none.

    Text that is not UTF-8 makes all texts of that row appear as bytes.
    """
    names = _names(definition, rowid)
    where = conjunction([f"{names[ordinal]} = ?{n}" for n, ordinal in enumerate(ordinals, 1)])
    source = f"FROM main.{quote(definition.table)} WHERE {where}"
    try:
        return read_row(connection, names, source, values)
    except UnicodeDecodeError:
        raw = [f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in names]
        return read_row(connection, raw, source, values)


def read_rival(
    connection: apsw.Connection, definition: TableDefinition, rowid: str, message: str, after: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """The row that holds the unique value wanted by `after`, as far as SQLite's message names its columns."""
    start = "UNIQUE constraint failed: "
    if start not in message:
        return None
    prefix = definition.table + "."
    wanted = {part.removeprefix(prefix) for part in message[message.index(start) + len(start) :].split(", ")}
    ordinals = tuple(
        ordinal for ordinal, column in enumerate(definition.columns, int(definition.rowid)) if column.name in wanted
    )
    if len(ordinals) != len(wanted):
        return None
    return read_image(connection, definition, rowid, ordinals, tuple(after[ordinal] for ordinal in ordinals))


def unique_ordinals(connection: apsw.Connection, definition: TableDefinition) -> frozenset[int] | None:
    """Ordinals in the image of all columns that stand in a unique index of the table here.

    None: one of them is partial, or over an expression or a generated column, and so may depend on any column.
    """
    places = {column.name: at for at, column in enumerate(definition.columns, int(definition.rowid))}
    found: set[int] = set()
    indexes = connection.execute(
        "SELECT name, partial FROM pragma_index_list(?1, 'main') WHERE \"unique\"", (definition.table,)
    ).fetchall()
    for index, partial in indexes:
        if partial:
            return None
        columns = "SELECT cid, name FROM pragma_index_xinfo(?1, 'main') WHERE key"
        for number, name in connection.execute(columns, (index,)).fetchall():
            if number == -1:
                continue  # the rowid
            if name is None or name not in places:
                return None
            found.add(places[name])
    return frozenset(found)


def place_of_rowid(connection: apsw.Connection, definition: TableDefinition, mask: int | None) -> int | None:
    """Where the rowid stands among the values of an UPDATE with this mask (None: of an INSERT or DELETE); None when
    such changes of different rows of the table here must keep their order: they may take unique values from each other;
    or it has no rowid.
    """
    unique = unique_ordinals(connection, definition)
    if definition.without_rowid or len(definition.key) != 1 or unique is None:
        return None
    (key,) = definition.key
    if mask is None:
        return None if unique else key
    if any(mask >> ordinal & 1 for ordinal in (key, *unique)):
        return None
    return mask.bit_count() + key


def set_sequence(connection: apsw.Connection, table: str, value: int | None, schema: str = "main") -> None:
    """Set the table's value in sqlite_sequence; None removes it."""
    counters = f"{quote(schema)}.sqlite_sequence"
    if value is None:
        connection.execute(f"DELETE FROM {counters} WHERE name = ?", (table,))
        return
    connection.execute(f"UPDATE {counters} SET seq = ?2 WHERE name = ?1", (table, value))
    if connection.changes() == 0:
        connection.execute(f"INSERT INTO {counters} (name, seq) VALUES (?, ?)", (table, value))


class _Judge:
    """An authorizer for a schema change from the stream; `refused` says what it did not let through.

    `virtual`: what the shadow tables' names of virtual tables begin with, whose modules write rows by themselves.
    """

    def __init__(self, virtual: Iterable[str]) -> None:
        self.refused: list[str] = []
        self._dropped: set[str] = set()
        self._virtual = {*virtual}

    def __call__(
        self, action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None
    ) -> int:
        if action in _DROPS and first is not None:
            self._dropped.add(first)
        elif action == apsw.SQLITE_CREATE_VTABLE:
            self._virtual.add(f"{first}_")
        what = self._objection(action, first, second)
        if schema == "temp" and action not in (*_HARMLESS, *_WRITES):
            what = "a temporary object"
        if what is None:
            return apsw.SQLITE_OK
        self.refused.append(what)
        return apsw.SQLITE_DENY

    def _objection(self, action: int, first: str | None, second: str | None) -> str | None:
        if action in _FORBIDDEN:
            return _FORBIDDEN[action]
        if action == apsw.SQLITE_CREATE_VTABLE and str(second).lower() not in MODULES | VIEWS:
            return f"a virtual table of module {second}"
        if action == apsw.SQLITE_PRAGMA and first not in _PRAGMAS:
            return f"PRAGMA {first}"
        if action in _WRITES:
            own = ("sqlite_", *self._virtual)
            return None if first in self._dropped or str(first).startswith(own) else f"a write to rows of {first}"
        if action == apsw.SQLITE_FUNCTION and second == "load_extension":
            return "load_extension"
        if action in _HARMLESS:
            return None
        return next((f"our own {name}" for name in (first, second) if name is not None and is_own_object(name)), None)


MISSING_FUNCTION: Final = (
    "The schema uses a function or collation of the application: set region.init here as on the primary, and start "
    "again"
)


IN_THE_WAY: Final = (
    "Where indexes or triggers are not subscribed to, drop the one that is in the way: replicate -i INSTANCE schema "
    "run FILE; else another client changed the schema here: seed this region again"
)


_NO_DOOR: Final = (
    "No release of ours writes that: look at what has written the primary's journal (replicate -i PRIMARY journal show "
    "--from N), and at the releases of both sides"
)


def run_schema_change(connection: apsw.Connection, statement: str, *, seqno: int) -> None:
    """Run the text of a schema change from the stream; nothing but a schema change of the main schema gets through.

    What the commit door refuses is refused here, by the same function, before it is run. The texts of LEGACY_ALTER set
    the rules of the following ALTER. The caller puts the new rules back after a rollback.
    Raises NotSupportedError naming what the text tried beyond that, ConflictError if SQLite refuses the change here
    although it passed where it came from. Our own bookkeeping cannot be named by it.
    """
    legacy = LEGACY_ALTER.get(statement)
    if legacy is not None:
        connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, legacy)
        return
    try:
        check_travelling(statement, where=connection.filename)
    except NotSupportedError as error:
        raise NotSupportedError(
            f"a schema change from the stream (seqno {seqno}) is one that no commit door lets through: {error.what}",
            where=connection.filename,
            do=_NO_DOOR,
            seqno=seqno,
        ) from error
    shadows = shadow_tables(connection)
    _run_judged(connection, statement, _Judge(f"{name}_" for name in virtual_tables(connection)), seqno)
    made = shadow_tables(connection) - shadows
    if made and statement.lstrip()[:6].upper() == "CREATE":
        allow_shadow_rows(connection)
        forget_first_rows(connection, made)


def make_schema(connection: apsw.Connection, statements: Iterable[str], *, seqno: int) -> None:
    """Run the schema changes that fill an empty database, a thousand as quickly as one. Raises as `run_schema_change`,
    and NotSupportedError for virtual tables."""
    for statement in statements:
        _run_judged(connection, statement, _Judge(()), seqno)
    for name, module in virtual_tables(connection).items():
        raise NotSupportedError(
            f"a new region (seqno {seqno}) comes with the virtual table {name} of module {module}",
            where=connection.filename,
            seqno=seqno,
        )


def _run_judged(connection: apsw.Connection, statement: str, judge: _Judge, seqno: int) -> None:
    """Run it if the judge lets it pass. Raises as `run_schema_change`."""
    previous = connection.authorizer
    connection.authorizer = judge
    try:
        for _ in connection.execute(statement, can_cache=False):
            pass
    except apsw.Error as error:
        if judge.refused:
            raise NotSupportedError(
                f"a schema change from the stream (seqno {seqno}) holds {judge.refused[0]}; only changes of tables, "
                "indexes, views and triggers are applied",
                where=connection.filename,
                do=_NO_DOOR,
                seqno=seqno,
            ) from error
        raise ConflictError(
            f"the schema change of seqno {seqno} fails here: {error}",
            where=connection.filename,
            do=MISSING_FUNCTION
            if "no such function" in str(error) or "no such collation" in str(error)
            else IN_THE_WAY,
            seqno=seqno,
            statement=statement,
        ) from error
    finally:
        connection.authorizer = previous


def is_own_object(name: str) -> bool:
    """Whether the name is one of our bookkeeping tables (guard triggers go and come with their table)."""
    return is_internal(name) and not name.lower().startswith(("sqlite_", "_replicate_guard_"))
