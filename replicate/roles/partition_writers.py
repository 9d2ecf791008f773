"""Giving partitions to other suppliers, and writing them together: each by a transaction, so all learn it in its place.

Guarantees: a partition is somebody's at each place of each journal (model/writers.py), since the transaction that gives
it, or has another one share it, is that one's own, after all that it wrote there; who leaves a partition has written
all of its own before it says so.
Leaves to others: who may be a supplier (supplier.py), the merge of what several write (update_process/merging.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.snapshot import door_of
from replicate.errors import (
    BusyError,
    ConfigurationError,
    NotFoundError,
    NotPrimaryError,
    NotSupportedError,
    NotWriterError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.journal.record import pack_elements
from replicate.limits import PARTITION_NONE
from replicate.model.transaction import LEFT, SHARED, WRITTEN, Op, TableDefinition
from replicate.model.writers import REST, Writers, dotted
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import CapturedChanges, ReadRegion, Unmergeable
from replicate.region.sqlite.own_counters import PLACES


class Written(Struct, frozen=True):
    """`number`: of the partition, REST for all that were never given by name. `by`: the instance's name; `others`:
    those that write it, too; `sums`: its columns that are sums, as TABLE.COLUMN; `is_by_row`: its rows are merged
    whole; `whole`: the tables of it whose rows are, where not all are."""

    number: int
    name: str
    by: str
    is_own: bool
    others: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    is_by_row: bool = False
    whole: tuple[str, ...] = ()


def written(instance: Instance) -> list[Written]:
    """Who writes what; none where there are no suppliers. Raises what opening the door and the region raises."""
    entry = instance.regions[0] if instance.regions else None
    if entry is None:
        return []
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        writers = opened.writers()
    if not writers.by:
        return []
    known = instance.partitions_now()
    with door_of(instance) as door:
        names = names_of(door)
    return [
        Written(
            number,
            "all others" if number == REST else known.name(number),
            names.get(uuid, uuid.hex()),
            uuid == instance.content.uuid,
            tuple(sorted(names.get(one, one.hex()) for one in writers.others(number))),
            writers.all_sums(number),
            writers.is_by_row(number),
            writers.all_whole(number),
        )
        for number, uuid in sorted(writers.by.items())
    ]


def give(instance: Instance, partition: str, to: str, *, timeout_s: float) -> int:
    """Have another supplier write a partition (`ALL`: what was never given by name) from now on; the number of the
    transaction that says so. Applications here are refused there from then on; on the other site they are taken once
    the transaction is applied there. Nothing happens where that one writes it already.

    NotPrimaryError (no supplier), NotFoundError (no such partition, no such supplier), NotWriterError (another one
    writes it), BusyError, and what a commit raises."""
    with supplier_door(instance) as door:
        return give_number(door, _number(door, partition), supplier_named(door, to), timeout_s=timeout_s)


def share(
    instance: Instance,
    partition: str,
    with_: str,
    *,
    keys_chosen: bool,
    timeout_s: float,
    by_row: bool = False,
    whole: Sequence[str] = (),
    sums: Sequence[str] = (),
) -> int:
    """Have another supplier write a partition beside this one, whose it is; the number of the transaction that says so.
    That one writes it once the transaction is applied there. Nothing happens where it does already. `by_row`: rows are
    merged whole, not column by column; `whole`: those of these tables are. `sums`: columns ("table.column") to which
    what each site adds is added up. All as others have it who share it already (else UsageError).

    Raises as `give`; NotSupportedError naming every table that cannot be merged, and why, or every such column;
    NotFoundError where the partition has no such table."""
    with supplier_door(instance) as door:
        number, to = _number(door, partition), supplier_named(door, with_)
        _refuse_unmergeable(door, number, keys_chosen)
        summed = _merged_otherwise(door, number, sums, whole)
        with held_session(door, timeout_s) as session:
            writers = session.parts[0].region.writers()
            if writers.place(number, to) >= 0:
                return int(door.words[word.LAST_SEQNO])
            _refuse_not_own(door, writers, number, session.where)
            if writers.others(number) and writers.is_by_row(number) != by_row:
                how = "row by row" if writers.is_by_row(number) else "column by column"
                raise UsageError(f"partition {partition} is merged {how} already", where=str(instance.path))
            known = writers.summed.get(number, ())
            if writers.others(number) and known != summed:
                told = [f"--sum {name}" for name in dotted(known)]
                told += [f"--by-row-of {name}" for name in writers.all_whole(number)]
                raise UsageError(
                    f"others share partition {partition} already, with {'other' if known else 'no'} sums, or tables "
                    "by row",
                    where=str(instance.path),
                    do=f"Say the same: {' '.join(told)}"
                    if known
                    else "Leave --sum and --by-row-of out; or have the others leave it first",
                )
            if writers.free_place(number, to) >= PLACES:
                raise ConfigurationError(
                    f"{PLACES} suppliers have shared partition {partition}, and no more can", where=str(instance.path)
                )
        if number not in writers.by:  # it was among all others until now
            give_number(door, number, door.instance.content.uuid, timeout_s=timeout_s)
        with held_session(door, timeout_s) as session:
            _refuse_unmergeable(door, number, keys_chosen)  # nobody writes now
            summed = _merged_otherwise(door, number, sums, whole)
            writers = session.parts[0].region.writers()
            values: list[object] = [SHARED, to, writers.free_place(number, to)]
            values += [by_row, summed] if summed else [True] * by_row
            return say(door, session, number, values)


def leave(instance: Instance, partition: str, *, timeout_s: float) -> int:
    """Write a partition no longer that another supplier lets this one write; the number of the transaction that says
    so. Nothing happens where it does not. Raises as `give`; ConfigurationError for whose it is."""
    with supplier_door(instance) as door:
        number, own = _number(door, partition), door.instance.content.uuid
        with held_session(door, timeout_s) as session:
            place = session.parts[0].region.writers().place(number, own)
            if not place:
                raise ConfigurationError(
                    f"partition {partition} is that of {instance.name} itself",
                    where=str(instance.path),
                    do="Have the others leave it; or give it to one of them, once they have",
                )
            return int(door.words[word.LAST_SEQNO]) if place < 0 else say(door, session, number, [LEFT, own])


def tables_that_bar(instance: Instance, partition: str, *, keys_chosen: bool) -> list[Unmergeable]:
    """Of a partition's tables (ALL: what was never given by name) those that several suppliers cannot write. Raises
    what opening the door raises."""
    with door_of(instance) as door:
        return unmergeable_tables(door, _number(door, partition), keys_chosen=keys_chosen)


def unmergeable_tables(door: Door, number: int, *, keys_chosen: bool) -> list[Unmergeable]:
    """Of a partition's tables (REST: of all) those that several suppliers cannot write, by name."""
    with _tables_of(door, number) as tables:
        found = [opened.unmergeable(one, keys_chosen=keys_chosen) for opened, one in tables]
    return [one for one in found if one is not None]


@contextmanager
def _tables_of(door: Door, number: int) -> Iterator[list[tuple[ReadRegion, TableDefinition]]]:
    """A partition's tables (REST: all) that there are, by name, each with its region, which is open in the block: the
    catalogue knows those, too, that there were."""
    with ExitStack() as stack:
        found = list[tuple[ReadRegion, TableDefinition]]()
        for entry in door.instance.regions:
            opened = stack.enter_context(closing(KIND.reader(entry.path, region=entry.uuid)))
            found += [(opened, one) for one in opened.tables() if number in (REST, one.partition)]
        yield sorted(found, key=lambda one: (one[1].table, one[1].region))


def _merged_otherwise(door: Door, number: int, sums: Sequence[str], whole: Sequence[str]) -> tuple[str | None, ...]:
    """As a record says it (model/writers.py). NotFoundError, NotSupportedError."""
    with _tables_of(door, number) as found:
        summed = _summed(door, found, sums)
        tables = {one.table for _, one in found}
    for table in whole:
        if table not in tables:
            raise NotFoundError(
                f"--by-row-of {table}: the partition has no table {table}",
                where=str(door.instance.path),
                do=f"It has {', '.join(sorted(tables))}",
            )
    return (*summed, *(one for table in sorted(set(whole)) for one in (table, None)))


def _summed(door: Door, tables: Sequence[tuple[ReadRegion, TableDefinition]], sums: Sequence[str]) -> tuple[str, ...]:
    """Table and column of each, by turns; of tables of one name in several regions, each. NotFoundError,
    NotSupportedError."""
    found: list[tuple[str, str]] = []
    faults: list[str] = []
    for name in sorted(set(sums)):
        table, _, column = name.partition(".")
        named = [one for one in tables if one[1].table == table]
        if not named:
            raise NotFoundError(
                f"--sum {name}: the partition has no table {table}",
                where=str(door.instance.path),
                do=f"Name table and column (orders.count) of: {', '.join(sorted({one.table for _, one in tables}))}",
            )
        found.append((table, column))
        told = (opened.unsummable(one, column) for opened, one in named)
        faults += [f"{table}.{column}: {why}" for why in told if why]
    if faults:
        raise NotSupportedError(
            f"not every one of these columns can be a sum: {'; '.join(faults)}",
            where=str(door.instance.path),
            do="Leave that --sum out, or have what is added be rows",
        )
    return tuple(name for one in found for name in one)


@contextmanager
def supplier_door(instance: Instance) -> Iterator[Door]:
    instance.reload()
    if not instance.is_supplier:
        raise NotPrimaryError(
            f"{instance.name} is {instance.told_role}: partitions are given from supplier to supplier",
            where=str(instance.path),
            do=f"Make it one: replicate -i {instance.named} instance convert --role supplier",
        )
    with door_of(instance) as door:
        yield door


def supplier_named(door: Door, name: str) -> bytes:
    """The UUID of a supplier. NotFoundError."""
    uuids = {known: uuid for uuid, known in names_of(door).items()}
    if name not in uuids:
        raise NotFoundError(
            f"no supplier {name} has written here yet; there are {', '.join(sorted(uuids))}",
            where=str(door.instance.path),
            do="A supplier is known once its stream, or a packet of it, has come here: start the Source Server there, "
            f"or import here what replicate -i {name} packet export --to {door.instance.name} has written",
        )
    return uuids[name]


def _refuse_unmergeable(door: Door, number: int, keys_chosen: bool) -> None:
    faults = unmergeable_tables(door, number, keys_chosen=keys_chosen)
    if faults:
        told = "; ".join(f"{one.table}: {one.why}" for one in faults)
        raise NotSupportedError(
            f"not every table can be written by several suppliers: {told}",
            where=str(door.instance.path),
            do="; ".join(dict.fromkeys(one.do for one in faults)),
        )


def _refuse_not_own(door: Door, writers: Writers, number: int, where: str) -> None:
    writer, names = writers.of(number), names_of(door)
    if writers.by and writer != door.instance.content.uuid:
        raise NotWriterError(
            f"{names.get(writer, writer.hex())} writes that, not {door.instance.name}",
            where=where,
            do="Have it given there",
        )


def _refuse_fenced(door: Door, writers: Writers, where: str) -> None:
    """BusyError while a supplier changes the schema: who writes what stays as it is."""
    if fencing := writers.fences.open(writers.retired):
        who = names_of(door).get(fencing[0], fencing[0].hex())
        raise BusyError(
            f"{who} changes the schema, and who writes what stays as it is meanwhile",
            where=where,
            do=f"Try again later; or end that there: replicate -i {who} schema unfence",
        )


def _number(door: Door, partition: str) -> int:
    """Also by its number, where the one that made it has named it, and nobody here."""
    if partition.upper() == "ALL":
        return REST
    used = {one.partition for one in door.catalogue_now().in_force().values()}
    if partition.isdigit() and int(partition) in used:
        return int(partition)
    number = door.instance.partitions_now().number(partition)
    if number == PARTITION_NONE:
        raise NotFoundError("what is in NONE never leaves its instance: each supplier writes its own")
    return number


def names_of(door: Door) -> dict[bytes, str]:
    """Every instance that has begun an incarnation in this journal."""
    return {one.instance: one.name for one in door.catalogue_now().histories}


def give_number(door: Door, number: int, to: bytes, *, timeout_s: float) -> int:
    """`give` of a partition by its number, to a supplier by its UUID."""
    with held_session(door, timeout_s) as session:
        writers = session.parts[0].region.writers()
        if writers.by.get(number) == to:
            return int(door.words[word.LAST_SEQNO])
        _refuse_not_own(door, writers, number, session.where)
        if others := sorted(names_of(door).get(one, one.hex()) for one in writers.others(number)):
            raise ConfigurationError(
                f"{others[0]} writes that, too",
                where=session.where,
                do=f"Have it leave first: replicate -i {others[0]} partition leave NAME",
            )
        return say(door, session, number, [WRITTEN, to])


def say(door: Door, session: RegionSession, number: int, values: list[object]) -> int:
    """Commit what a REGION change (OF_WRITERS) says of a partition, in each region; its number. Rows of one that is
    shared by it are told by key from then on, not by what each site numbers for itself."""
    if values[0] in (WRITTEN, SHARED, LEFT):
        _refuse_fenced(door, session.parts[0].region.writers(), session.where)
    changed = list[TableDefinition]()
    for part in session.parts:
        part.region.name_writer(number, values, int(door.words[word.LAST_SEQNO]) + 1)
        if values[0] == SHARED:
            writers, known = part.region.writers(), door.catalogue_now().in_force().values()
            its_own = (one for one in known if one.region == part.entry.name)
            changed += part.region.tell_by_key({one.table for one in its_own if writers.named(one.partition) == number})
    elements: list[object] = []
    for definition in changed:
        elements += [int(Op.DEFINE), definition.table_id, definition.version, definition.pack()]
    for part in session.parts:
        elements += [int(Op.REGION), number, part.entry.name, values]
    if len(session.parts) > 1:
        door.sync_to_end()  # after a power loss it must not lie beyond a hole: no before-image takes it back
    # Under the regions' locks, and before their new content can be seen: sessions look again.
    door.words[word.WRITERS_GENERATION] += 1
    payload, count = pack_elements(*elements)
    return session.commit(CapturedChanges(payload, count, (), bool(changed), None, bool(changed)))


def tell_added_regions(door: Door, *, timeout_s: float) -> None:
    """Have regions that were added while nobody was a supplier say who writes what, as the first one does: a number in
    a transaction, so that the same call goes on after a kill. What is shared, or gone, roles/supplier.py refuses."""
    while True:
        with held_session(door, timeout_s) as session:
            first, *others = (part.region.writers().by for part in session.parts)
            lacking = sorted(number for number in first if any(number not in one for one in others))
            if not lacking:
                return
            say(door, session, lacking[0], [WRITTEN, first[lacking[0]]])


@contextmanager
def held_session(door: Door, timeout_s: float) -> Iterator[RegionSession]:
    """A transaction over all regions: each says who writes what, so that a commit there need ask no other."""
    first, *others = door.instance.regions
    session = RegionSession(door, first.name)
    try:
        for entry in others:
            with closing(RegionSession(door, entry.name)) as probe:
                session.attach(entry, f"region_{entry.region_id}", probe.file, session.connection.execute)
        session.begin(timeout_s=timeout_s)
        yield session
        if session.holds_region:
            session.rollback()
    finally:
        session.close()
