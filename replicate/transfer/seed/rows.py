"""What of a table a copy keeps where this secondary wants some rows or columns only, and whether that can be told.

Guarantees: what a copy keeps is what the stream brings from there on: one wish, one reading of it. A wish for a table
that the copy has not, or has not so, or that cannot do without a column, is refused by name before anything here is
given up. A secondary with some rows is copied from for those only who want these.
Leaves to others: taking the rest out (region/sqlite/take_out_rows.py), and when a wish is in force.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from replicate.errors import CopyTooOldError, UsageError
from replicate.instance.file import told_rows
from replicate.instance.instance import Instance
from replicate.model.column_list import WHOLE, TableShare
from replicate.model.subscription import Rows, Table
from replicate.model.table_wish import told_wish
from replicate.model.transaction import TableDefinition
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.schema_copy import reading
from replicate.region.sqlite.table_facts import require_bearable
from replicate.region.sqlite.take_out_rows import Shares
from replicate.transfer.container import SeedHeader
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode

if TYPE_CHECKING:  # imported where there is a wish: no start waits for it where all rows are wanted
    from replicate.filters.wishes import BoundWish


Choice = tuple[tuple[int, ...] | None, Rows]
"""What a secondary keeps of a copy: partitions (None: all), and of their tables these rows."""


def shares_of(rows: Rows) -> Shares:
    """What is kept of each table. It raises UsageError where the table is not as the wish needs it."""
    if not rows:
        return lambda _definition: WHOLE
    from replicate.filters.wishes import parse_wish

    parsed = {key: parse_wish(text) for key, text in rows.items()}

    def share(definition: TableDefinition) -> TableShare:
        found = parsed.get((definition.region, definition.table)) or parsed.get(("", definition.table))
        return WHOLE if found is None else found.bind(definition).share

    return share


def place_rows(rows: Rows, copies: Path) -> Rows:
    """The same wishes, each with the region of its table in these copies, NAME.db each. UsageError where a table is
    not there, is there twice, or is not as the wish needs it."""
    if not rows:
        return rows
    with ExitStack() as stack:
        opened = {copy.stem: stack.enter_context(reading(copy)) for copy in sorted(copies.glob("*.db"))}
        return place_rows_in(rows, opened)


def place_rows_in(rows: Rows, connections: Mapping[str, Any]) -> Rows:
    """The same of regions that are open, by name."""
    if not rows:
        return rows
    known = [
        replace(one, region=name)
        for name, connection in connections.items()
        for one in recorded_definitions(connection)
    ]
    made = {}
    for key, text in rows.items():
        found, bound = require_table(key, text, known)
        require_bearable(connections[found.region], found, bound.columns.sql)
        made[found.region, found.table] = text
    return made


def require_table(key: Table, text: str, definitions: Iterable[TableDefinition]) -> tuple[TableDefinition, BoundWish]:
    """The one among these that the wish is for, and the wish bound to it. UsageError."""
    from replicate.filters.wishes import parse_wish

    region, table = key
    found = [one for one in definitions if one.table == table and region in ("", one.region)]
    if len(found) != 1:
        name = ".".join(filter(None, key))
        raise UsageError(
            f"there is no table {name}" if not found else f"there are {len(found)} tables named {table}",
            where=f"{name} {told_wish(text)}",
            do="Name one that is there, as REGION.TABLE; to have this wish no more: replicate -i INSTANCE "
            f"subscription filter {name} --none",
        )
    return found[0], parse_wish(text).bind(found[0])


def definitions_here(instance: Instance) -> list[TableDefinition]:
    """Of all tables in all regions that are here. Raises what opening and reading a region raises."""
    found: list[TableDefinition] = []
    for entry in instance.regions:
        with reading(entry.path) as connection:
            found += (replace(one, region=entry.name) for one in recorded_definitions(connection))
    return found


def tables_by_partition(instance: Instance) -> dict[int, list[Table]]:
    """Partition -> its tables, of all regions that are here. Raises what `definitions_here` raises."""
    found: dict[int, list[Table]] = {}
    for one in definitions_here(instance):
        found.setdefault(one.partition, []).append((one.region, one.table))
    return found


def check_rows(instance: Instance, tables: Collection[Table]) -> None:
    """UsageError where what is wanted of one of these tables says nothing of it as it is here: a stream that was begun
    by it would be refused, and all else with it."""
    for key, text in instance.content.rows.items():
        if key in tables:
            require_fit(instance, key, text, definitions_here(instance))


def require_fit(instance: Instance, key: Table, text: str, here: Iterable[TableDefinition]) -> Table:
    """Region and name of the table among those `here` that the wish is for. UsageError where it is not there, or not as
    the wish needs it."""
    found, bound = require_table(key, text, here)
    with reading(instance.region(found.region).path) as connection:
        require_bearable(connection, found, bound.columns.sql)
    return found.region, found.table


def rows_to_cut(source: Instance, rows: Rows, regions: Collection[str]) -> Rows:
    """Of the rows that a peer wants, in these regions, what `source` has more of. The refusal ROWS_REFUSED where the
    peer wants others of a table than `source` has."""
    here = source.content.held_rows
    for key, condition in rows.items():
        if key in here and here[key] != condition:
            raise refusal(
                RefuseCode.ROWS_REFUSED,
                f"{source.name} {source.told_held}, and its peer wants {told_rows({key: condition})}",
            )
    return {key: one for key, one in rows.items() if key not in here and key[0] in ("", *regions)}


def is_cut_as_wanted(header: SeedHeader, rows: Rows) -> bool:
    """Whether a copy with that header is without all that somebody does not want who wants these rows and columns: it
    may have been made before they were said."""
    regions = [one.name for one in header.regions]
    return all(
        text in [found for key, found in header.rows.items() if key[1] == table and region in ("", key[0])]
        for (region, table), text in rows.items()
        if region in ("", *regions)
    )


def require_wanted(
    secondary: Instance, rows: Rows, choice: Choice, definitions: Iterable[TableDefinition], where: str
) -> None:
    """CopyTooOldError for a copy with these rows of tables only, where others are wanted by `choice`. `definitions`: of
    the tables in the copy; of those in no partition that is wanted no row is kept, so they may have whatever rows."""
    if not rows:
        return
    numbers, wanted = choice
    partitions = {(one.region, one.table): one.partition for one in definitions}
    for key, condition in rows.items():
        found = wanted.get(key, wanted.get(("", key[1])))
        is_kept = numbers is None or key not in partitions or partitions[key] in numbers
        if is_kept and found != condition:
            told = told_rows({key: found}) if found is not None else "all of them"
            raise CopyTooOldError(
                f"the copy has {told_rows({key: condition})}, and {secondary.name} wants {told}",
                where=where,
                do="Make another one; or want these: replicate -i INSTANCE subscription filter TABLE --where …",
            )
