"""How a region that was added on the primary comes to the secondaries: by the transaction that adds it.

It begins with a REGION change. For a database without rows, what makes it follows: SCHEMA changes (its header, then
each object), DEFINEs and SEQUENCE changes. A site that lacks the region makes its file of these before it applies the
transaction (update_process/region_arrival.py); so of this transaction only DEFINEs are ever applied or redone
(`without_making`). A database with rows has DEFINEs alone: a secondary that lacks it first enters the name among the
*waiting* regions of its instance file. From then on it journals every transaction whole, so that numbers, chains and
third sites stay in step, and leaves out what is of that region, until a seed brings it.

Guarantees: what `pack` gives, `read_added` gives back; nonsense is JournalDamagedError. Pure.
Leaves to others: files, SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from replicate.errors import JournalDamagedError
from replicate.limits import NAME_PATTERN
from replicate.model.transaction import (
    Change,
    DefinitionChange,
    Op,
    RegionChange,
    SchemaChange,
    SequenceChange,
    TableDefinition,
    decode_change,
)

_NAME: Final = re.compile(NAME_PATTERN)
_MAKING: Final = frozenset((int(Op.SCHEMA), int(Op.SEQUENCE)))


class Making(Struct, frozen=True):
    """What makes an empty database: statements in their order (never none), and counters of AUTOINCREMENT by table."""

    statements: tuple[str, ...]
    counters: Mapping[str, int] = field(default_factory=dict)


class RegionAdded(Struct, frozen=True):
    """`uuid`: of the region on the primary, another one each time it is added. `making`: None where it has rows."""

    name: str
    uuid: bytes
    making: Making | None


def pack(added: RegionAdded, definitions: Sequence[TableDefinition]) -> list[object]:
    """The flat changes of the transaction that adds the region."""
    elements: list[object] = [int(Op.REGION), 0, added.name, ["added", added.uuid]]
    for statement in added.making.statements if added.making else ():
        elements += [int(Op.SCHEMA), 0, added.name, [statement]]
    for definition in definitions:
        elements += [int(Op.DEFINE), definition.table_id, definition.version, definition.pack()]
    counters = added.making.counters if added.making else {}
    for definition in definitions:
        if definition.table in counters:
            elements += [int(Op.SEQUENCE), definition.table_id, 0, [None, counters[definition.table]]]
    return elements


def _adds(changes: Sequence[Any]) -> bool:
    return bool(changes) and changes[0] == Op.REGION


def _change_at(changes: Sequence[Any], at: int) -> Change:
    op, ident, argument, values = changes[at : at + 4]
    return decode_change(op, ident, argument, list(values) if isinstance(values, tuple) else values)


def read_added(changes: Sequence[Any]) -> RegionAdded | None:
    """What a transaction's flat changes add; None when they do not begin with that. JournalDamagedError."""
    if not _adds(changes):
        return None
    if len(changes) % 4:
        raise JournalDamagedError("changes should come in fours")
    first = _change_at(changes, 0)
    if not isinstance(first, RegionChange) or first.what != "added":
        return None
    if not _NAME.match(first.region):
        raise JournalDamagedError(f"{first.region!r} is no name of a region")
    statements: list[str] = []
    tables: dict[int, str] = {}
    counters: dict[str, int] = {}
    for at in range(4, len(changes), 4):
        change = _change_at(changes, at)
        if isinstance(change, SchemaChange) and change.region == first.region:
            statements.append(change.sql)
        elif isinstance(change, DefinitionChange) and change.definition.region == first.region:
            tables[change.definition.table_id] = change.definition.table
        elif isinstance(change, SequenceChange) and change.table_id in tables and change.new is not None:
            counters[tables[change.table_id]] = change.new
        else:
            raise JournalDamagedError(f"the transaction that adds region {first.region} changes something else, too")
    return RegionAdded(first.region, first.uuid, Making(tuple(statements), counters) if statements else None)


def without_making(changes: Sequence[Any]) -> Sequence[Any]:
    """The flat changes of any transaction, without those that have made a region's file."""
    if not _adds(changes):
        return changes
    return [
        element for at in range(0, len(changes), 4) if changes[at] not in _MAKING for element in changes[at : at + 4]
    ]
