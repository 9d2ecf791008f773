"""What goes to a peer that has said in its hello that it wants some rows or columns of a table: may it, and from us?

Guarantees: a secondary with some rows of a table sends its changes to peers only that ask for the same ones; who wants
no partition that the table is in gets the rest. What cannot be told is refused by name before anything is sent.
Leaves to others: telling them (replicate/filters/rows.py), and how the wish travels (wire/message.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replicate.daemon.own_introduction import rows_told
from replicate.filters.selection import PartitionSelection
from replicate.instance.file import told_rows
from replicate.instance.instance import Instance
from replicate.model.transaction import TableDefinition
from replicate.wire.introduction import refusal
from replicate.wire.message import Introduction, RefuseCode

if TYPE_CHECKING:
    from replicate.filters.rows import RowSelection

    Selection = PartitionSelection | RowSelection


def with_rows(
    instance: Instance,
    peer: Introduction,
    definitions: Mapping[int, TableDefinition],
    partitions: PartitionSelection | None,
    *,
    is_filtered: bool,
) -> Selection | None:
    """What goes to that peer of what `partitions` lets go; that itself where all rows do. `definitions`: at the
    stream's beginning. `is_filtered`: a source.filter is on. Raises the refusal."""
    rows, here = rows_told(peer.rows), instance.content.held_rows
    others = {key: condition for key, condition in here.items() if rows.get(key) != condition}
    lacks = others
    if others and partitions is not None:
        goes = {(one.region, one.table) for one in definitions.values() if partitions.goes_whole(one)}
        lacks = {key: condition for key, condition in others.items() if key in goes}
    if lacks:
        wanted = told_rows({key: rows[key] for key in lacks if key in rows}) or "all rows of it"
        raise refusal(
            RefuseCode.ROWS_REFUSED, f"{instance.name} has {told_rows(lacks)}, and {peer.name} asks for {wanted}"
        )
    if not rows and not others:
        return partitions
    if is_filtered:
        whose = f"{peer.name} asks for {told_rows(rows)}" if rows else f"{instance.name} has {told_rows(others)}"
        raise refusal(
            RefuseCode.ROWS_REFUSED,
            f"{whose}, and {instance.name} has a source.filter, which tells rows in other words",
        )
    if rows and instance.is_supplier:
        raise refusal(
            RefuseCode.ROWS_REFUSED,
            f"{peer.name} asks for {told_rows(rows)}, and {instance.name} is a supplier, which sends all rows",
        )
    from replicate.filters.rows import RowSelection  # here: no start waits for it where all rows are wanted

    return RowSelection(rows, definitions, partitions, others)
