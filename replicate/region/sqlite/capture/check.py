"""A check for tests, and for a hunt in the field: a commit's captured changes lead from the region's state before the
transaction exactly to the state that is about to be committed.

Guarantees: the changes are applied, by the code that a secondary applies them with, to a copy of the region as it was;
the result is compared with the region as it is: rows, hidden rowids, counters, schema. InternalError names the first
difference, and nothing is committed. Regions above CHECKED_BYTES_MAX are passed over, and transactions by `is_due`.
Leaves to others: when to check (door/primary.py). It is off unless the environment variable REPLICATE_CHECK_CAPTURE
is 1 when the package is imported: it copies the whole region.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any, Final

import apsw

from replicate.errors import InternalError, ReplicateError
from replicate.limits import MIB
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.capture.stream import changes_in
from replicate.region.sqlite.digest import Comparison, compare
from replicate.region.sqlite.functions import bring
from replicate.region.sqlite.guards import register_guard
from replicate.region.sqlite.open import make_applier, open_region
from replicate.region.sqlite.schema import recorded_definitions

CHECKED_BYTES_MAX: Final = MIB // 4
CHECKED_CHANGES_MAX: Final = 5_000

PLAIN_FIRST: Final = 200
PLAIN_EVERY: Final = 100
"""Of transactions that only change rows the first so many of a process are checked, then each so-many-th: a test that
commits thousands of one kind would take minutes."""

_plain = 0
_WAL_MARKS: Final = slice(18, 20)
"""The bytes of a database's header that say WAL, which a database in memory cannot have."""


def is_due(count: int, *, plain: bool) -> bool:
    """Whether a transaction of so many changes is to be checked. `plain`: it changes rows alone."""
    global _plain
    _plain += plain
    return count <= CHECKED_CHANGES_MAX and (not plain or _plain <= PLAIN_FIRST or _plain % PLAIN_EVERY == 0)


def check_captured(connection: apsw.Connection, schema: str, region: str, stream: Iterable[bytes]) -> None:
    """The region attached to `connection` as `schema`, inside its open transaction, whose changes are `stream`.

    Raises InternalError where `stream` does not lead from the state before to the present one.
    """
    where = connection.db_filename(schema)
    if (
        connection.pragma("page_count", schema=schema) * connection.pragma("page_size", schema=schema)
        > CHECKED_BYTES_MAX
    ):
        return
    with closing(open_region(where, readonly=True)) as reader:  # sees the state before, since we hold the write lock
        before = reader.serialize("main")
    with closing(_copy(before, where)) as applied, closing(_copy(connection.serialize(schema), where)) as wanted:
        definitions = {one.table_id: one for one in recorded_definitions(applied)}
        make_applier(applied)
        applier = RowApplier(applied, definitions, region=region)
        applier.begin()
        applied.execute("BEGIN")
        try:
            is_adding = False  # then what makes the region comes too, which is here (region_record.py)
            for change in changes_in(stream):
                is_adding |= change[0] == Op.REGION
                if is_adding and change[0] != Op.DEFINE:
                    continue
                if _region_of(change, applier.definitions) == region:
                    applier.apply(*change)
        except ReplicateError as error:
            raise _wrong(f"cannot be applied to the state before: {error}", where) from error
        found = compare(applied, wanted)
        if not found.equal:
            raise _wrong(f"do not lead to the present state: {_first(found)}", where)


def _copy(content: bytes, where: str) -> apsw.Connection:
    made = apsw.Connection(":memory:")
    image = bytearray(content)
    image[_WAL_MARKS] = b"\x01\x01"
    made.deserialize("main", bytes(image))
    register_guard(made)
    bring(made, where)
    return made


def _region_of(change: tuple[int, int, Any, Any], definitions: Any) -> str | None:
    op, number, argument, values = change
    if op == Op.SCHEMA:
        return str(argument)
    if op == Op.DEFINE:
        return TableDefinition.unpack(values).region
    definition = definitions.get(number)
    return None if definition is None else definition.region


def _first(found: Comparison) -> str:
    for one in found.schema:
        return f"{one.kind} {one.name} is {one.first!r} by the changes and {one.second!r} in fact"
    table = next(one for one in found.tables if one.differs)
    rows = "".join(f"; row {row.key} is {row.status.value}" for row in table.differences[:3])
    return f"table {table.table} is {table.status.value} ({table.reason}{rows}): first by the changes, second in fact"


def _wrong(what: str, where: str) -> InternalError:
    return InternalError(
        f"the captured changes {what}", where=where, do="The transaction is rolled back. Tell us, with its statements"
    )
