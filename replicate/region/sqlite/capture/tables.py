"""How rows of each table are captured: which values of the hook's row make an image, and the packed beginnings of
changes.

Guarantees: an image made here has exactly the values and the order that the table's definition says.
Leaves to others: transactions, and where definitions are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw
import msgpack
from msgspec import Struct

from replicate.errors import NotSupportedError
from replicate.limits import PARTITION_DEFAULT
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.guards import GUARD_PREFIX
from replicate.region.sqlite.schema import is_autoincrement
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.virtual_tables import virtual_tables

_VIRTUAL: Final = 2


@dataclass(slots=True)
class CapturedTable:
    """One table in the hook's words. `plain`: the hook's row is the image. `kept`: else the ordinals in the hook's row.

    `counts`: its rowids are counted in sqlite_sequence. `refusal`: why a change of it cannot be captured at all.
    `net`: only the net change of its rows can be told. `nullable`: of a table that is by key, where in an image its
    key may be NULL, by which no row is told. The prefixes are packed `op, id` (and `arg`) elements.
    """

    definition: TableDefinition
    kept: tuple[int, ...] | None
    refusal: NotSupportedError | None
    counts: bool
    net: bool = False
    nullable: tuple[int, ...] = field(init=False)
    plain: bool = field(init=False)
    insert_prefix: bytes = field(init=False)
    delete_prefix: bytes = field(init=False)
    update_head: bytes = field(init=False)
    update_prefixes: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        definition = self.definition
        keyed = definition.key if definition.is_by_key else ()
        self.nullable = tuple(at for at in keyed if not definition.columns[at].not_null)
        self.plain = self.kept is None and not definition.rowid and not self.nullable
        table_id = msgpack.packb(definition.table_id)
        self.insert_prefix = bytes((Op.INSERT,)) + table_id + b"\x00"
        self.delete_prefix = bytes((Op.DELETE,)) + table_id + b"\x00"
        self.update_head = bytes((Op.UPDATE,)) + table_id

    @property
    def way(self) -> tuple[Any, ...]:
        """What decides how its rows are captured. Two tables of one name and one way are captured alike."""
        return self.definition, self.kept, self.net, self.refusal is None

    def image(self, rowid: int, row: Sequence[Any] | None) -> list[Any]:
        """The image of a row as the hook gives it."""
        assert row is not None
        image = [row[ordinal] for ordinal in self.kept] if self.kept is not None else [*row]
        if self.definition.rowid:
            image.insert(0, rowid)
        elif self.nullable:
            self._check_key(image)
        return image

    def _check_key(self, image: Sequence[Any]) -> None:
        for at in self.nullable:
            if image[at] is None:
                column = self.definition.columns[at].name
                raise NotSupportedError(
                    f"a row of table {self.definition.table}, which several suppliers write, has no key: {column} is "
                    "NULL",
                    do="Roll back; give it one that no other site gives, such as a UUID",
                    table=self.definition.table,
                )

    def images(self, update: apsw.PreUpdate, old: Any, new: Any) -> tuple[Any, Any]:
        """The images of an UPDATE: the whole one before, and after it with `apsw.no_change` where nothing changed."""
        if self.kept is not None:
            old = [old[ordinal] for ordinal in self.kept]
            new = [new[ordinal] for ordinal in self.kept]
        if self.definition.rowid:
            before, after = update.rowid, update.rowid_new
            return [before, *old], [apsw.no_change if before == after else after, *new]
        if self.nullable:
            self._check_key(new)
        return old, new


def with_zeros(update: apsw.PreUpdate, old: Sequence[Any], new: Sequence[Any]) -> tuple[Any, ...]:
    """An UPDATE's new values where APSW takes 0.0 and -0.0 for the same: they are two."""
    values = update.new
    assert values is not None
    return tuple(
        values[at]
        if value is apsw.no_change and type(old[at]) is float and old[at] == 0.0 and str(old[at]) != str(values[at])
        else value
        for at, value in enumerate(new)
    )


class TableMap(Struct, frozen=True):
    """All replicated tables of a region at one schema version; `autoincrement`: some of them count in
    sqlite_sequence. `triggers_count`: a trigger of the application may make them do so. `virtual`: it has virtual
    tables. `partitioned`: some table is in another partition than DEFAULT."""

    tables: Mapping[str, CapturedTable]
    autoincrement: bool
    triggers_count: bool = False
    virtual: bool = False
    partitioned: bool = False

    def partitions(self) -> dict[int, int]:
        """Table id -> partition."""
        return {one.definition.table_id: one.definition.partition for one in self.tables.values()}


def recaptured(before: TableMap, after: TableMap) -> list[str]:
    """The tables whose rows are captured in another way now; those that are new, and those that are gone, are such."""

    def way(tables: TableMap, name: str) -> tuple[Any, ...] | None:
        table = tables.tables.get(name)
        return None if table is None else table.way

    return [name for name in {**before.tables, **after.tables} if way(before, name) != way(after, name)]


def read_table_map(
    connection: apsw.Connection, definitions: Sequence[TableDefinition], schema: str = "main"
) -> TableMap:
    """The map for tables that are now as `definitions` say. `schema`: the name under which their region is attached."""
    generated: dict[str, dict[int, int]] = {}
    for name, ordinal, hidden in connection.execute(
        "SELECT t.name, x.cid, x.hidden FROM pragma_table_list AS t, pragma_table_xinfo(t.name, ?1) AS x "
        "WHERE t.schema = ?1 AND t.type = 'table' AND x.hidden IN (2, 3)",
        (schema,),
    ):
        generated.setdefault(name, {})[ordinal] = hidden
    possible = connection.table_exists(schema, "sqlite_sequence")
    tables = {
        definition.table: _captured(
            definition,
            generated.get(definition.table, {}),
            possible and is_autoincrement(connection, definition.table, schema),
        )
        for definition in definitions
    }
    counting = connection.execute(
        f"SELECT count(*) FROM {quote(schema)}.sqlite_schema WHERE type = 'trigger' AND name NOT GLOB ? AND "
        "(sql LIKE '%insert%' OR sql LIKE '%replace%' OR sql LIKE '%sqlite_sequence%')",
        (GUARD_PREFIX + "*",),
    ).get
    virtual = bool(virtual_tables(connection, schema))
    partitioned = any(one.partition != PARTITION_DEFAULT for one in definitions)
    return TableMap(tables, any(table.counts for table in tables.values()), bool(counting), virtual, partitioned)


def _captured(definition: TableDefinition, generated: Mapping[int, int], counts: bool) -> CapturedTable:
    if not generated:
        return CapturedTable(definition, None, None, counts)
    total = len(definition.columns) + len(generated)
    kept = tuple(ordinal for ordinal in range(total) if ordinal not in generated)
    refusal = None
    # The hook can give no row of a table with such a column at all: RangeError for every column (measured).
    net = _VIRTUAL in generated.values()
    if net and (definition.without_rowid or definition.is_by_key):
        lacks = "is written by several suppliers" if definition.is_by_key else "no rowid"
        refusal = NotSupportedError(
            f"rows of table {definition.table} cannot be captured: it has a VIRTUAL generated column and {lacks}",
            do="Roll back; make the generated column STORED",
            table=definition.table,
        )
    return CapturedTable(definition, kept, refusal, counts, net)


def not_utf8(table: str) -> NotSupportedError:
    """Rows of a table hold TEXT that is not UTF-8, which the hook cannot give."""
    return NotSupportedError(
        f"table {table} holds TEXT that is not UTF-8; it cannot be replicated",
        do="Roll back; store such bytes as a BLOB. Rows that hold it from before can be mended while the region is "
        "released: UPDATE … SET column = CAST(column AS BLOB)",
        table=table,
    )
