"""The model's `RowsOfRegion`: changes as they come to be applied, made in a connection's open transaction.

What a change does is one of two functions: `change_listed` where a region is a list of identities (regions.py),
`change_content` where its rows have values (whose_words.py).

Guarantees: a change that does not fit is a ConflictError that names the transaction.
Leaves to others: transactions (regions.py), what is right (the oracles).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicate.errors import ConflictError, InternalError
from replicate.model.transaction import OF_WRITERS, Op, TableDefinition, told_of
from tests.simulation.content import Content, unpack_merge
from tests.simulation.frames import ROW_OPS


class ModelRows:
    """Of the region `name`. `change(rows, op, table_id, argument, values)` makes one."""

    def __init__(
        self,
        connection: Any,
        definitions: Mapping[int, TableDefinition],
        name: str,
        change: Callable[[ModelRows, int, int, Any, Any], None],
    ) -> None:
        self.connection = connection
        self.name = name
        self.definitions = dict(definitions)
        self.known_places: dict[tuple[Any, Any, Any], int | None] = {}
        self.seqno = 0
        self.passes_over: Callable[[int], bool] = lambda _partition: False
        self._change = change

    def begin(self) -> None:
        """The model's rows need nothing."""

    def forget_plans(self) -> None:
        """It has none."""

    def look_at_own_counters(self) -> None:
        """The model's tables count no keys."""

    def check_awaited(self) -> None:
        """No definition comes without its statement."""

    def finish(self) -> None:
        """It counts no keys, either."""

    def settle_sequences(self) -> None:
        """The model's tables count no AUTOINCREMENT."""

    def has_rows(self, table: str) -> bool:
        """Whether a table has any. It is asked only where rows have values."""
        assert self.connection.region.content is not None
        return bool(self.connection.content().rows.get(table))

    def place_of(self, op: Any, table_id: Any, arg: Any) -> int | None:
        """No change may be moved."""

    def define(self, table_id: int, definition: TableDefinition) -> None:
        self.definitions[table_id] = definition

    def apply_columns(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
    ) -> None:
        for op, table_id, argument, value in zip(ops, table_ids, arguments, values, strict=True):
            self._change(self, op, table_id, argument, value)

    apply_sorted = apply_columns

    def apply_run(self, op: int, table_id: int, arg: Any, values: Sequence[Any]) -> None:
        for one in values:
            self._change(self, op, table_id, arg, one)

    def apply_all(self, changes: Sequence[Any], start: int = 0) -> int:
        flat = changes[start:]
        self.apply_columns(flat[0::4], flat[1::4], flat[2::4], flat[3::4])
        return len(flat) // 4


def change_listed(made: ModelRows, op: int, table_id: int, _argument: Any, values: Any) -> None:
    """Of a region that is a list of its rows' identities, and of the newest form of each table."""
    pending = made.connection.open()
    if op == Op.INSERT:
        assert table_id in made.definitions
        if values[0] in made.connection.region.present or values[0] in pending.rows:
            raise ConflictError(f"row {values[0]} is there already", seqno=made.seqno)
        pending.rows.append(values[0])
    elif op == Op.DELETE:
        pending.deleted.append(values[0])
    elif op == Op.DEFINE:
        made.definitions[table_id] = definition = TableDefinition.unpack(values)
        pending.state |= {"version": definition.version, definition.table: definition}
    elif op == Op.SCHEMA:
        pending.schema += 1
        pending.stores_schema = True


def change_content(made: ModelRows, op: int, table_id: int, argument: Any, values: Any) -> None:
    """Of a region whose rows have values."""
    content: Content = made.connection.working()
    if op in ROW_OPS:
        try:
            content.change(made.definitions[table_id], op, argument, values)
        except ConflictError as error:
            error.facts.setdefault("seqno", made.seqno)
            raise
    elif op == Op.DEFINE:
        made.definitions[table_id] = TableDefinition.unpack(values)
    elif op == Op.REGION and values[0] in OF_WRITERS:
        content.told_of_writers(table_id, values, made.seqno)
    elif op == Op.SEEN:
        content.told_of_seen(*told_of(values))
    elif op == Op.SCHEMA:
        content.schema_changed(made.seqno)
    elif op == Op.RESOLVED:
        losses = values[2] if values else ()
        told = (unpack_merge(packed, made.seqno) for packed in losses)
        content.note_merges(one for one in told if one.region in ("", made.name))
    else:
        raise InternalError(f"a change of kind {op} comes to no region of these worlds")
