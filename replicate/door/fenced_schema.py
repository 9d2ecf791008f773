"""A change of the schema on a supplier, as it is committed: nobody else writes, and all that anybody wrote is here.

So each site has the same rows at this place of its journal, and whatever comes after it was written by one that knew
all of them: the stamps of rows that several write are needed no more, and would be of rows as they were.

Guarantees: what several write is still such that it can be merged, else the commit is refused by name; tables that are
new there are told by key from here on; a fence that ends with the change ends in its transaction.
Leaves to others: who may change the schema (writer_check.py), stamps (region/).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from replicate.door.door import Door
from replicate.door.region_part import RegionPart
from replicate.errors import NotSupportedError
from replicate.journal.record import pack_elements
from replicate.model.transaction import UNFENCED, Op, TableDefinition
from replicate.model.writers import REST, Otherwise, Writers
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges


def with_fence(
    captured: CapturedChanges, known: Sequence[tuple[RegionPart, Writers]], parts: Sequence[RegionPart], door: Door
) -> CapturedChanges:
    """The changes, with what is told after them. `known`: the regions that are changed; `parts`: all that the session
    has. Where a fence ends by it, that is told in each region: the session has to have all, else it goes on. Raises
    NotSupportedError, and what spooling raises."""
    elements, seqno, touched = list[object](), int(door.words[word.LAST_SEQNO]) + 1, captured.touched
    for part, writers in known:
        if touched is None or touched.get(part.schema):
            elements += _changed(part, writers, door, seqno)
    own, writers = door.instance.content.uuid, known[0][1]
    is_ended = writers.fences.is_fencing(own) and writers.fences.by[own].is_once
    if is_ended and len(parts) == len(door.instance.regions):
        values: list[object] = [UNFENCED, own, writers.fences.by[own].number]
        for part in parts:
            part.region.name_writer(REST, values, seqno)
            elements += [int(Op.REGION), REST, part.entry.name, values]
        door.words[word.WRITERS_GENERATION] += 1
        touched = None
    if not elements:
        return captured
    payload, count = pack_elements(*elements)
    captured = captured._replace(count=captured.count + count, defines=True, touched=touched)
    if captured.spool is None:
        return captured._replace(payload=captured.payload + payload)
    captured.spool.write(payload)
    return captured


def _changed(part: RegionPart, writers: Writers, door: Door, seqno: int) -> list[object]:
    """Of a region whose schema has changed."""
    region, elements = part.region, list[object]()
    if writers.was_shared:
        region.forget_stamps(seqno)
    if writers.sharing:
        before = {one.table for one in door.catalogue_now().in_force().values() if one.region == part.entry.name}
        _refuse_unmergeable(part, writers, before)
        shared = {one.table for one in region.tables() if writers.others(one.partition)}
        for definition in region.tell_by_key(shared):
            elements += [int(Op.DEFINE), definition.table_id, definition.version, definition.pack()]
        region.take_places()
        if elements:
            region.store_version()
    return elements


def _refuse_unmergeable(part: RegionPart, writers: Writers, before: Collection[str]) -> None:
    """NotSupportedError where what several write could not be merged any more. `before`: the tables that there were:
    what was said of their keys counts still."""
    tables = [one for one in part.region.tables() if writers.others(one.partition)]
    is_renamed = not set(before) <= {one.table for one in part.region.tables()}
    for one in tables:
        fault = part.region.unmergeable(one, keys_chosen=one.table in before or is_renamed)
        if fault is not None:
            raise NotSupportedError(
                f"table {one.table} could not be written by several suppliers: {fault.why}",
                where=part.where,
                do=f"Nothing was changed. {fault.do}",
                table=one.table,
            )
    for number in writers.sharing:
        _refuse_otherwise(part, writers.summed.get(number, ()), tables, before)


def _refuse_otherwise(
    part: RegionPart, names: Otherwise, tables: Sequence[TableDefinition], before: Collection[str]
) -> None:
    """The same of columns that are sums, and of tables whose rows are merged whole."""
    by_name = {one.table: one for one in tables}
    has_new = not by_name.keys() <= set(before)
    for table, column in zip(names[0::2], names[1::2], strict=True):
        why = "its table has another name, or is gone" if has_new and table not in by_name else ""
        if column is not None and table in by_name:
            why = part.region.unsummable(by_name[table], column)
        if why:
            told = f"rows of {table} are merged whole" if column is None else f"{table}.{column} is a sum"
            raise NotSupportedError(
                f"{told}: {why}",
                where=part.where,
                do="Nothing was changed. Have the others leave that partition first, and share it again, without that, "
                "after the change",
                table=table,
            )
