"""Foreign keys from one partition to another: what a subscription leaves out that its rows refer to.

Guarantees: of each region that is here, as its tables are now; nothing is changed.
Leaves to others: what is subscribed to (subscriptions.py). Applied rows are not checked: the primary has done that.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from replicate.instance.instance import Instance
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.schema_copy import reading
from replicate.region.sqlite.sql.names import quote


class ForeignReference(Struct, frozen=True):
    """Rows of `child` refer to rows of `parent`; each is in that partition."""

    region: str
    child: str
    child_partition: int
    parent: str
    parent_partition: int


def references_of(instance: Instance) -> list[ForeignReference]:
    """Those that lead from one partition to another. Raises what reading the regions raises."""
    found = []
    for entry in instance.regions:
        with reading(entry.path) as connection:
            tables = {one.table.lower(): one for one in recorded_definitions(connection)}
            for child in tables.values():
                rows = connection.execute(f"PRAGMA foreign_key_list({quote(child.table)})").fetchall()
                for name in sorted({str(row[2]).lower() for row in rows}):
                    parent = tables.get(name)
                    if parent is not None and parent.partition != child.partition:
                        found.append(
                            ForeignReference(entry.name, child.table, child.partition, parent.table, parent.partition)
                        )
    return found


def outside(references: Collection[ForeignReference], numbers: Collection[int]) -> list[ForeignReference]:
    """Those from one of the partitions to none of them. Pure."""
    return [one for one in references if one.child_partition in numbers and one.parent_partition not in numbers]


def with_parents(references: Collection[ForeignReference], numbers: Collection[int]) -> tuple[int, ...]:
    """The partitions, and those that their rows refer to, directly or not; ascending. Pure."""
    found = set(numbers)
    while missing := {one.parent_partition for one in outside(references, found)}:
        found |= missing
    return tuple(sorted(found))
