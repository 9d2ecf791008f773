"""Partitions: making and dropping them; on a primary, putting tables into them while writers run.

An assignment is one transaction in each region, in sequence with all others: a comment that tells what moved, and the
definition of each table with its new partition. A transaction before it has the table's rows in the old partition, one
after it in the new one.

Guarantees: when `assign` returns, every later commit of every process knows; whatever is killed, a table is in one
partition or the other, and the same call finishes. Tables that only make sense together move together: a virtual
table, those that keep its content, and the one that its text is in.
Leaves to others: who subscribes to what, and what a secondary makes of a table that moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.snapshot import door_of
from replicate.errors import NotFoundError, NotPrimaryError, UsageError
from replicate.instance.instance import Instance
from replicate.journal.record import pack_elements
from replicate.limits import PARTITION_DEFAULT, PARTITION_NONE
from replicate.model.partitions import MOVED_EMPTY, Partitions
from replicate.model.transaction import Op, TableDefinition
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.schema import assign_partition, recorded_definitions, sequence_value
from replicate.region.sqlite.sql.names import fold, quote
from replicate.region.sqlite.virtual_tables import tables_together
from replicate.transfer.seed.rows import tables_by_partition

LOCK_TIMEOUT_S = 30.0


class Move(NamedTuple):
    """A table that was put into another partition. `has_rows`: some were there before."""

    region: str
    table: str
    before: str
    after: str
    has_rows: bool
    seqno: int


def create(instance: Instance, name: str, number: int | None = None) -> int:
    """Make a partition; its number. On a secondary, of which it says what a number is called. Raises what
    `Partitions.created` raises."""
    made = instance.change_partitions(lambda known: known.created(name, number))
    return made.number(name)


def drop(instance: Instance, name: str) -> int:
    """Remove a partition that has no tables; the number that it had. Raises what `Partitions.dropped` raises;
    UsageError when it has some, and where a peer may have it: what gets its number next would go there."""
    number = instance.partitions_now().number(name)
    _require_unused(instance, number)
    before = instance.partitions_now()
    instance.change_partitions(lambda known: known.dropped(name))
    try:
        _require_unused(instance, number)  # a table may have been put there meanwhile
    except UsageError:
        instance.change_partitions(lambda known: known.created(before.name(number), number))
        raise
    return number


def assign(instance: Instance, name: str, tables: Sequence[str]) -> list[Move]:
    """Put tables (TABLE, or REGION.TABLE) into a partition, or into NONE; those that were moved, which are none when
    all were there. NotFoundError for a table or partition that is not there, NotPrimaryError, BusyError, and what a
    commit raises. Of tables in several regions, one region is done after the other."""
    _require_primary(instance)
    number = instance.partitions_now().number(name)
    asked: dict[str, list[str]] = {}
    for text in tables:
        region, table = _named(instance, text)
        asked.setdefault(region, []).append(table)
    moved: list[Move] = []
    if number == PARTITION_NONE:
        instance.change_partitions(Partitions.keeping_back)  # Source Servers know before the first row comes
    with door_of(instance) as door:
        for region, wanted in asked.items():
            moved += _assign(door, region, wanted, number)
    instance.partitions_now().number(name)  # NotFoundError: it was dropped meanwhile
    return moved


def _assign(door: Door, region: str, wanted: Sequence[str], number: int) -> list[Move]:
    session = RegionSession(door, region)
    connection = session.connection
    try:
        session.begin(timeout_s=LOCK_TIMEOUT_S)
        before = {one.table: one for one in recorded_definitions(connection)}
        names = _with_companions(before, tables_together(connection), wanted, region)
        changed = assign_partition(
            connection, [one for one in names if before[one].partition != number], number, region=region
        )
        if not changed:
            session.rollback()
            return []
        known = door.instance.partitions_now()
        rows = {one.table: _has_rows(connection, one.table) for one in changed}
        moves = [(before[one.table], one, rows[one.table]) for one in changed]
        payload, count = pack_elements(*_flat(moves, known))
        touched = tuple(sorted({number, *(one.partition for one, _, _ in moves)}))
        seqno = session.commit(CapturedChanges(payload, count, touched, True, None, True))
        return [
            Move(region, after.table, known.name(was.partition), known.name(number), has_rows, seqno)
            for was, after, has_rows in moves
        ]
    finally:
        session.close()


def _has_rows(connection: Any, table: str) -> bool:
    """Or had: its counter goes on from there, and a site without it would count otherwise."""
    if connection.execute(f"SELECT EXISTS (SELECT 1 FROM main.{quote(table)})").get:
        return True
    return sequence_value(connection, table) is not None


def _flat(moves: Iterable[tuple[TableDefinition, TableDefinition, bool]], known: Partitions) -> Iterator[object]:
    """The transaction's changes. The comment's argument is the former partition, with MOVED_EMPTY if so."""
    for was, after, has_rows in moves:
        text = f"table {after.table}: partition {known.name(was.partition)} to {known.name(after.partition)}"
        yield from (int(Op.COMMENT), after.table_id, was.partition | (0 if has_rows else MOVED_EMPTY), [text])
        yield from (int(Op.DEFINE), after.table_id, after.version, after.pack())


def _with_companions(
    there: dict[str, TableDefinition], groups: Sequence[frozenset[str]], wanted: Sequence[str], region: str
) -> list[str]:
    """The tables that are meant, in order, with those that must be where they are. NotFoundError."""
    spelled = {fold(name): name for name in [*there, *(name for group in groups for name in group)]}
    names: dict[str, None] = {}
    for table in wanted:
        name = spelled.get(fold(table))
        if name is None:
            raise NotFoundError(
                f"region {region} has no table {table}", do="replicate -i INSTANCE partition list --tables names them"
            )
        for group in (*(group for group in groups if name in group), (name,)):
            names.update(dict.fromkeys(one for one in sorted(group) if one in there))
    return list(names)


def _named(instance: Instance, text: str) -> tuple[str, str]:
    regions = [entry.name for entry in instance.regions]
    region, dot, table = text.partition(".")
    if dot and region in regions and table:
        return region, table
    if len(regions) == 1 or "main" in regions:
        return (regions[0] if len(regions) == 1 else "main"), text
    raise UsageError(f"{text} names no region", do=f"Say REGION.TABLE; there are {', '.join(regions) or 'no regions'}")


def _require_unused(instance: Instance, number: int) -> None:
    left = tables_by_partition(instance).get(number, [])
    if left and number != PARTITION_DEFAULT:
        region, table = left[0]
        raise UsageError(
            f"partition {instance.content.partitions.name(number)} has {len(left)} tables, among them {region}.{table}",
            do="Put them into another one first: replicate -i INSTANCE partition assign NAME TABLE…",
        )
    for peer in instance.content.peers:
        if number in (peer.partitions or ()):
            others = ",".join(instance.content.partitions.name(one) for one in peer.partitions or () if one != number)
            raise UsageError(
                f"peer {peer.name} may have partition {instance.content.partitions.name(number)}, and would have what "
                f"gets the number {number} next",
                do=f"Say without it what it may have: replicate -i INSTANCE peer add {peer.name} "
                f"{'--packets' if peer.by_packets else peer.address} --partitions {others or 'NAME,…'} --replace",
            )


def place_element(instance: Instance, element: str, name: str) -> Partitions:
    """Have an audit element belong to a partition; ALL: everybody gets it. What `Partitions.with_element` raises;
    ConfigurationError for a supplier."""
    instance.refuse_supplier("every supplier has all definitions")
    return change(instance, lambda known: known.with_element(element, name))


def change(instance: Instance, how: Callable[[Partitions], Partitions]) -> Partitions:
    """Have `how` change what the instance says of its partitions. What it raises, and what opening the door does."""
    made = instance.change_partitions(how)
    if instance.role == "primary":
        with door_of(instance):
            pass  # commits move checkpoint records from now on
    return made


def _require_primary(instance: Instance) -> None:
    if instance.role != "primary":
        raise NotPrimaryError(
            f"instance {instance.name} is secondary: a table is where its source has put it",
            where=str(instance.path),
            do="Do it on the primary; here, say what is wanted: replicate -i INSTANCE subscription set NAME…",
        )
