"""Reading a region's schema: table definitions, what has changed since they were recorded, what cannot be replicated.

Guarantees: a definition says exactly what an image of the table holds and in which order; one and the same table gives
equal definitions on both sites; what could not be replicated exactly is refused by name, never left out.
Leaves to others: statements of the application, and how rows travel.

An image is: the hidden rowid first (where the key is no INTEGER PRIMARY KEY; it is replicated, because it tells equal
rows apart), then the columns in order without generated ones. The key is what finds a row at once: the rowid where
there is one, else the primary key. A table that several suppliers write is by key (`tell_by_key`) from then on,
whatever becomes of it: no image of it holds the rowid.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Final

import apsw
import msgpack
from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import ConflictError, NotSupportedError, RegionDamagedError
from replicate.limits import PARTITION_DEFAULT
from replicate.model.column_list import STAND_INS
from replicate.model.rowid import rowid_name
from replicate.model.transaction import Column, TableDefinition
from replicate.region.sqlite.bookkeeping import OWN_STATEMENT
from replicate.region.sqlite.sql.names import is_internal, is_own, quote
from replicate.region.sqlite.virtual_tables import check_module, virtual_tables

OWNER: Final = "main"
"""SQLite has no owners; the name of the schema stands in its place."""

SET_INIT: Final = (
    "Have region.init register them for every connection, on both sites; or change the schema so that plain SQLite can "
    "evaluate it"
)
COUNTERS: Final = "SELECT name, seq FROM main.sqlite_sequence WHERE seq IS NOT 0"
"""The counters of AUTOINCREMENT that count. One that stands at 0 and none at all are the same: SQLite makes such a row
when an INSERT has found no rows to insert, and tells no hook of it (measured)."""

OTHER_SCHEMA: Final = (
    "Where definitions are not subscribed to, change it as the stream has it: replicate -i INSTANCE schema run FILE; "
    "else another client changed the schema here: seed this region again"
)

_WITH_ROWS: Final = ("table", "shadow")
_GENERATED: Final = (2, 3)
"""`hidden` of PRAGMA table_xinfo: VIRTUAL and STORED generated columns."""


class Recorded(Struct, frozen=True):
    """All tables' definitions, and the new or changed ones among them."""

    definitions: tuple[TableDefinition, ...]
    changed: tuple[TableDefinition, ...]


def user_tables(connection: apsw.Connection) -> list[str]:
    """The tables whose rows are replicated, by name: neither SQLite's nor ours, no virtual ones, but their shadows."""
    return [name for name, kind, *_ in _table_list(connection) if kind in _WITH_ROWS and not is_internal(name)]


def guarded_tables(connection: apsw.Connection, schema: str = "main") -> list[str]:
    """Those of `user_tables` that bear guards: not the shadows (see virtual_tables.py)."""
    return [name for name, kind, *_ in _table_list(connection, schema) if kind == "table" and not is_internal(name)]


def _table_list(connection: apsw.Connection, schema: str = "main") -> list[tuple[str, str, int, int]]:
    """(name, kind, without rowid, strict) of a schema's tables and views, by name."""
    rows: list[Any] = connection.execute(
        "SELECT name, type, wr, strict FROM pragma_table_list WHERE schema = ? ORDER BY name", (schema,)
    ).fetchall()
    return rows


def read_definition(
    connection: apsw.Connection,
    table: str,
    *,
    region: str,
    partition: int = PARTITION_DEFAULT,
    version: int = 1,
    by_key: bool | None = None,
    schema: str = "main",
) -> TableDefinition:
    """The definition of a table as it is now, in the region that is attached as `schema`. `by_key`: its primary key,
    where it has one, is to tell its rows, not a hidden rowid (None: as its recorded definition has it).

    Raises NotSupportedError: no such ordinary table, or all names of its hidden rowid are taken by columns.
    """
    # Asked for by name: a list of all tables for each of them would cost the square of their number.
    found = connection.execute(
        "SELECT name, wr, strict FROM pragma_table_list(?1) WHERE schema = ?2 AND type IN ('table', 'shadow')",
        (table, schema),
    ).fetchall()
    if not found or is_internal(table):
        raise NotSupportedError(f"{table} is no ordinary table", where=connection.filename, table=table)
    name, without_rowid, strict = found[0]
    if by_key is None:
        recorded = None if without_rowid else recorded_definition(connection, str(name), schema)
        by_key = recorded is not None and recorded.is_by_key
    facts = region, partition, version, by_key, schema
    return _definition(connection, str(name), bool(without_rowid), bool(strict), *facts)


def read_alike(first: apsw.Connection, second: apsw.Connection, table: str) -> tuple[TableDefinition, TableDefinition]:
    """The definitions of one table in two databases. Where one of them tells its rows by key, the other is read so,
    too: it may be a copy that nobody has recorded anything in."""
    one, other = (read_definition(connection, table, region="") for connection in (first, second))
    if one.is_by_key and other.rowid:
        other = read_definition(second, table, region="", by_key=True)
    elif other.is_by_key and one.rowid:
        one = read_definition(first, table, region="", by_key=True)
    return one, other


def _definition(
    connection: apsw.Connection,
    table: str,
    without_rowid: bool,
    strict: bool,
    region: str,
    partition: int,
    version: int,
    by_key: bool = False,
    schema: str = "main",
) -> TableDefinition:
    rows: list[Any] = connection.execute(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?1, ?2) ORDER BY cid', (table, schema)
    ).fetchall()
    columns = tuple(
        Column(name, declared, bool(not_null), connection.column_metadata(schema, table, name)[1].upper())
        for name, declared, not_null, _, hidden in rows
        if hidden not in _GENERATED
    )
    kept = [row for row in rows if row[4] not in _GENERATED]
    primary = [ordinal for _, ordinal in sorted((row[3], ordinal) for ordinal, row in enumerate(kept) if row[3])]
    if without_rowid or _has_alias(connection, table, kept, primary, schema):
        rowid, key = False, tuple(primary)
    else:
        rowid, key = True, (0,)
        if by_key and primary and not _is_one_integer(kept, primary):
            rowid, key = False, tuple(primary)
        if rowid_name([row[0] for row in rows]) is None:
            raise NotSupportedError(
                f"table {table} has columns named rowid, _rowid_ and oid, so its hidden rowid cannot be reached",
                where=connection.filename,
                do="Rename one of these columns, or give the table an INTEGER PRIMARY KEY",
                table=table,
            )
    return TableDefinition(
        region=region,
        partition=partition,
        owner=OWNER,
        table=table,
        version=version,
        columns=columns,
        key=key,
        rowid=rowid,
        strict=strict,
        without_rowid=without_rowid,
    )


def _has_alias(connection: apsw.Connection, table: str, columns: list[Any], primary: list[int], schema: str) -> bool:
    """Whether the primary key is the rowid itself: declared INTEGER, one column, and without an index of its own.

    (INTEGER PRIMARY KEY DESC looks the same in the columns, and is no alias: it has an index.)
    """
    if not _is_one_integer(columns, primary):
        return False
    indexes = connection.execute(
        "SELECT count(*) FROM pragma_index_list(?1, ?2) WHERE origin = 'pk'", (table, schema)
    ).get
    return bool(indexes == 0)


def _is_one_integer(columns: list[Any], primary: list[int]) -> bool:
    return len(primary) == 1 and str(columns[primary[0]][1]).upper() == "INTEGER"


def read_definitions(connection: apsw.Connection, *, region: str, schema: str = "main") -> tuple[TableDefinition, ...]:
    """All user tables as they are now, with the partition and version that were recorded for them (else 1 and 1), and
    by key where they were."""
    recorded = {
        name: (version, partition, bool(packed) and _unpacked(packed).is_by_key)
        for name, version, partition, packed in connection.execute(
            f"SELECT name, version, partition, definition FROM {quote(schema)}._replicate_table"
        )
    }
    result = []
    for name, kind, without_rowid, strict in _table_list(connection, schema):
        if kind in _WITH_ROWS and not is_internal(name):
            version, partition, by_key = recorded.get(name, (1, PARTITION_DEFAULT, False))
            result.append(
                _definition(
                    connection, name, bool(without_rowid), bool(strict), region, partition, version, by_key, schema
                )
            )
    return tuple(result)


def record_definitions(
    connection: apsw.Connection, *, region: str, schema: str = "main", default: int = PARTITION_DEFAULT
) -> Recorded:
    """Record the tables as they are now, inside the caller's transaction: versions rise where a definition changed.
    `schema`: the name under which the region is attached. `default`: the partition of tables that are new.

    A table keeps its partition as its name changes, and stays by key; one that an ORM makes to take another's place
    begins in that one's.

    A dropped table leaves its version behind, so that a later table of its name does not reuse a number.
    Raises NotSupportedError; nothing that was written then may be committed.
    """
    stored: dict[str, tuple[int, bytes]] = {}
    gone: dict[str, tuple[int, bytes]] = {}
    for name, version, packed, partition in connection.execute(
        f"SELECT name, version, definition, partition FROM {quote(schema)}._replicate_table"
    ):
        stored[name] = (version, packed)
        if packed:
            gone[name] = (partition, packed)
    definitions: list[TableDefinition] = []
    changed: list[TableDefinition] = []
    found = read_definitions(connection, region=region, schema=schema)
    for definition in found:
        gone.pop(definition.table, None)
    for definition in found:
        version, packed = stored.pop(definition.table, (0, b""))
        if not packed:
            partition = _born_in(definition, found, gone, default)
            if definition.rowid and any(_unpacked(packed).is_by_key for _, packed in gone.values()):
                definition = _definition(
                    connection, definition.table, False, definition.strict, region, partition, version, True, schema
                )
            definition = replace(definition, partition=partition)
        if _packed(definition) != packed:
            definition = replace(definition, version=version + 1)
            record_definition(connection, definition, schema)
            changed.append(definition)
        definitions.append(definition)
    if any(packed for _, packed in stored.values()):
        forget_dropped(connection, schema)
    return Recorded(tuple(definitions), tuple(changed))


def _born_in(
    definition: TableDefinition,
    found: Sequence[TableDefinition],
    gone: Mapping[str, tuple[int, bytes]],
    default: int,
) -> int:
    """The partition of a table that was not there before the statement. `gone`: those that it took away."""
    if gone:  # a RENAME: no other statement takes tables away and makes some
        return next(iter(gone.values()))[0]
    for prefix in STAND_INS:
        if definition.table.startswith(prefix):
            replaced = definition.table.removeprefix(prefix)
            return next((one.partition for one in found if one.table == replaced), default)
    return definition.partition if definition.partition != PARTITION_DEFAULT else default


def forget_dropped(connection: apsw.Connection, schema: str = "main") -> None:
    """Leave only the versions of tables that are no longer there."""
    name = quote(schema)
    connection.execute(
        f"UPDATE {name}._replicate_table SET definition = x'' "
        f"WHERE definition <> x'' AND name NOT IN (SELECT name FROM {name}.sqlite_schema WHERE type = 'table')",
        prepare_flags=OWN_STATEMENT,
    )


def record_definition(connection: apsw.Connection, definition: TableDefinition, schema: str = "main") -> None:
    """Record one definition as it is given (from the stream: with the version of its origin)."""
    connection.execute(
        f"INSERT OR REPLACE INTO {quote(schema)}._replicate_table (name, version, partition, definition) "
        "VALUES (?, ?, ?, ?)",
        (definition.table, definition.version, definition.partition, _packed(definition)),
        prepare_flags=OWN_STATEMENT,
    )


def assign_partition(
    connection: apsw.Connection, tables: Sequence[str], partition: int, *, region: str
) -> tuple[TableDefinition, ...]:
    """Put tables of the region into another partition, inside the caller's transaction; the definitions that changed.
    Every open connection reads its tables again. The tables must be there."""
    for table in tables:
        connection.execute(
            "UPDATE main._replicate_table SET partition = ? WHERE name = ?",
            (partition, table),
            prepare_flags=OWN_STATEMENT,
        )
    changed = record_definitions(connection, region=region).changed
    if changed:
        have_tables_read_again(connection)
    return changed


def tell_by_key(
    connection: apsw.Connection, tables: Collection[str], schema: str = "main"
) -> tuple[TableDefinition, ...]:
    """Have those of the tables that have a hidden rowid and a primary key be by key from here on, inside the caller's
    transaction; the definitions that changed. Every open connection reads its tables again."""
    changed = []
    for definition in recorded_definitions(connection, schema):
        if definition.table in tables and definition.rowid:
            found = read_definition(
                connection,
                definition.table,
                region=definition.region,
                partition=definition.partition,
                version=definition.version + 1,
                by_key=True,
                schema=schema,
            )
            if found.is_by_key:
                record_definition(connection, found, schema)
                changed.append(found)
    if changed:
        have_tables_read_again(connection, schema)
    return tuple(changed)


def have_tables_read_again(connection: apsw.Connection, schema: str = "main") -> None:
    """In the caller's transaction: the schema's version rises, so that every open connection reads its tables again,
    whose definitions have changed though no statement has changed them."""
    defensive = connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)  # else SQLite passes over the next statement (measured)
    try:
        now: Any = connection.execute(f"PRAGMA {quote(schema)}.schema_version").get
        connection.execute(f"PRAGMA {quote(schema)}.schema_version = {int(now) + 1}")
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, defensive)


def _packed(definition: TableDefinition) -> bytes:
    packed: bytes = msgpack.packb(definition.pack())
    return packed


def _unpacked(packed: bytes) -> TableDefinition:
    return TableDefinition.unpack(msgpack.unpackb(packed, use_list=True))


def recorded_definition(connection: apsw.Connection, table: str, schema: str = "main") -> TableDefinition | None:
    """The definition of one table as it was recorded last; None where there is none, or no region."""
    if not connection.table_exists(schema, "_replicate_table"):
        return None
    packed = connection.execute(
        f"SELECT definition FROM {quote(schema)}._replicate_table WHERE name = ? AND definition <> x''", (table,)
    ).get
    return _unpacked(packed) if packed else None


def recorded_definitions(connection: apsw.Connection, schema: str = "main") -> tuple[TableDefinition, ...]:
    """The definitions as they were recorded last, without looking at the tables. RegionDamagedError if unreadable."""
    result = []
    for name, packed in connection.execute(
        f"SELECT name, definition FROM {quote(schema)}._replicate_table WHERE definition <> x'' ORDER BY name"
    ):
        try:
            result.append(_unpacked(packed))
        except Exception as error:
            raise RegionDamagedError(
                f"the recorded definition of table {name} cannot be read: {error}",
                where=connection.db_filename(schema),
            ) from error
    return tuple(result)


def definition_difference(wanted: TableDefinition, found: TableDefinition) -> str | None:
    """What makes `found` another table than `wanted` for the rows of a stream; None if nothing does.

    Version, partition and region are the stream's matter and are not compared.
    """
    if len(wanted.columns) != len(found.columns):
        return f"{len(found.columns)} columns instead of {len(wanted.columns)}"
    for number, (one, other) in enumerate(zip(wanted.columns, found.columns, strict=True), 1):
        if one != other:
            return f"column {number} is {_column_text(other)} instead of {_column_text(one)}"
    for what in ("key", "rowid", "strict", "without_rowid"):
        if getattr(wanted, what) != getattr(found, what):
            return f"{what} is {getattr(found, what)} instead of {getattr(wanted, what)}"
    return None


def column_differences(wanted: TableDefinition, found: TableDefinition) -> list[str]:
    """Column by column, by their names: what `found` lacks, has besides, and has otherwise. None where only their order
    differs."""
    here, there = ({column.name: column for column in one.columns} for one in (found, wanted))
    return [
        *(f"it lacks {_column_text(one)}" for name, one in there.items() if name not in here),
        *(f"it has {_column_text(one)} besides" for name, one in here.items() if name not in there),
        *(
            f"it has {_column_text(here[name])} instead of {_column_text(one)}"
            for name, one in there.items()
            if name in here and here[name] != one
        ),
    ]


def _column_text(column: Column) -> str:
    parts = [quote(column.name), column.type or "(no type)"]
    if column.not_null:
        parts.append("NOT NULL")
    if column.collation != "BINARY":
        parts.append(f"COLLATE {column.collation}")
    return " ".join(parts)


def check_definition(connection: apsw.Connection, definition: TableDefinition, *, seqno: int = 0) -> None:
    """ConflictError naming what differs between the local table and `definition`, column by column."""
    where = connection.filename
    try:
        found = read_definition(connection, definition.table, region=definition.region, by_key=definition.is_by_key)
    except NotSupportedError:
        difference: str | None = "there is no such table"
    else:
        difference = definition_difference(definition, found)
        if difference is not None:
            difference = "; ".join([difference, *column_differences(definition, found)])
    if difference is not None:
        raise ConflictError(
            f"table {definition.table} is not as the stream defines it (version {definition.version}): {difference}"
            + (f"; transaction {seqno} needs it" if seqno else ""),
            where=where,
            do=OTHER_SCHEMA,
            table=definition.table,
            version=definition.version,
            seqno=seqno,
        )


def check_supported(connection: apsw.Connection, *, where: str) -> None:
    """NotSupportedError naming the first table that cannot be replicated exactly.

    Virtual tables of unknown modules; our names taken; a hidden rowid out of reach; indexes, generated columns or
    collations that need a function or collation which only the application has (the other site could not write the
    table).
    """
    for name, module in virtual_tables(connection).items():
        check_module(name, module, where=where)
    for name, *_ in _table_list(connection):
        if is_own(name):
            raise NotSupportedError(
                f"the table {name} bears a name of our own bookkeeping", where=where, do="Rename it", table=name
            )
    triggers = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, -1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    checks = connection.pragma("ignore_check_constraints")
    connection.pragma("ignore_check_constraints", True)
    try:
        for table in user_tables(connection):
            definition = read_definition(connection, table, region="")
            try:
                check_writable(connection, definition)
            except apsw.Error as error:
                raise NotSupportedError(
                    f"table {table} cannot be written without the application's own functions or collations: {error}",
                    where=where,
                    do=SET_INIT,
                    table=table,
                ) from error
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, triggers)
        connection.pragma("ignore_check_constraints", checks)


def check_writable(connection: apsw.Connection, definition: TableDefinition) -> None:
    """Prepare (never run) an insert, update and delete of the table; apsw.Error if SQLite cannot."""
    table = f"main.{quote(definition.table)}"
    for statement in (
        f"INSERT INTO {table} DEFAULT VALUES",
        f"UPDATE {table} SET " + ", ".join(f"{quote(column.name)} = NULL" for column in definition.columns),
        f"DELETE FROM {table} WHERE {quote(definition.columns[0].name)} IS NULL",
    ):
        for _ in connection.execute("EXPLAIN " + statement, can_cache=False):
            break


def is_autoincrement(connection: apsw.Connection, table: str, schema: str = "main") -> bool:
    """Whether the table's rowids are counted in sqlite_sequence."""
    return any(
        connection.column_metadata(schema, table, name)[4]
        for (name,) in connection.execute("SELECT name FROM pragma_table_xinfo(?1, ?2) WHERE pk = 1", (table, schema))
    )


def sequence_value(connection: apsw.Connection, table: str, schema: str = "main") -> int | None:
    """The table's counter in sqlite_sequence; None if there is none, or it stands at 0 (see COUNTERS)."""
    if not connection.table_exists(schema, "sqlite_sequence"):
        return None
    value: int | None = connection.execute(
        f"SELECT seq FROM {quote(schema)}.sqlite_sequence WHERE name = ? AND seq IS NOT 0", (table,)
    ).get
    return value


def schema_objects(connection: apsw.Connection, without: Container[str] = frozenset()) -> Mapping[tuple[str, str], str]:
    """(type, name) -> SQL of everything that the user defined: what must be equal on both sites. Not what is of the
    tables `without`. Beside that the numbers that an application gives its schema, as ("pragma", name), where they are
    not 0."""
    objects = {
        (str(kind), str(name)): str(sql)
        for kind, name, table, sql in connection.execute(
            "SELECT type, name, tbl_name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name"
        )
        if not is_internal(name) and table not in without
    }
    for name in ("user_version", "application_id"):
        value = connection.execute(f"PRAGMA main.{name}").get
        if value:
            objects["pragma", name] = f"PRAGMA {name} = {value}"
    return objects
