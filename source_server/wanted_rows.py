"""What goes to a peer that has said in its hello that it wants some rows or columns of a table: may it, and from us?

Guarantees: a secondary with some rows of a table sends to peers only that ask for the same ones; what cannot be told is
refused by name before anything is sent.
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
    if lacks := {key: condition for key, condition in here.items() if rows.get(key) != condition}:
        wanted = told_rows({key: rows[key] for key in lacks if key in rows}) or "all rows of it"
        raise refusal(
            RefuseCode.ROWS_REFUSED, f"{instance.name} has {told_rows(lacks)}, and {peer.name} asks for {wanted}"
        )
    if not rows:
        return partitions
    if is_filtered:
        raise refusal(
            RefuseCode.ROWS_REFUSED,
            f"{peer.name} asks for {told_rows(rows)}, and {instance.name} has a source.filter, which tells rows in "
            "other words",
        )
    if instance.is_supplier:
        raise refusal(
            RefuseCode.ROWS_REFUSED,
            f"{peer.name} asks for {told_rows(rows)}, and {instance.name} is a supplier, which sends all rows",
        )
    from replicate.filters.rows import RowSelection  # here: no start waits for it where all rows are wanted

    return RowSelection(rows, definitions, partitions)
