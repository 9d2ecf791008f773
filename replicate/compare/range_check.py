"""One range of the patrol: digested on the source, and verified where the stream has come to.

Guarantees: nobody stands still for it, on neither side. A range that was changed after the source's transaction is
verified all the same: the changes since then stand in this journal, whole, and are taken out of the digest. What is
called different is different at that one transaction; what cannot be told is called passed over, never equal.
Leaves to others: what comes next and when (patrol_rounds.py), what follows from it (patrol_found.py), the wire. Blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.read import Match, StretchReader, chosen_changes
from replicate.audit.selection import Selection
from replicate.compare.patrol_found import Outcome, RangeVerdict
from replicate.compare.patrol_rounds import Place
from replicate.door.recovery.opening import make_chain
from replicate.errors import JournalMissingError, NotFoundError, NotSupportedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.model.elements import left_out
from replicate.model.table_wish import has_list
from replicate.model.transaction import Op, TableDefinition
from replicate.region.sqlite.bookkeeping import region_seqno
from replicate.region.sqlite.digest import SEQUENCES, tables_without_rows
from replicate.region.sqlite.range_digest import (
    SCHEMA,
    Later,
    RangeDigest,
    cut_range,
    digest_range,
    names_patrolled,
    packed_key,
    unpacked_key,
)
from replicate.region.sqlite.schema import OWNER, recorded_definitions
from replicate.region.sqlite.snapshot import reading
from replicate.wire.message import KEYS_BYTES_MAX, Check

ROWS_MAX: Final = 2000
BYTES_MAX: Final = MIB
"""A range is as large: a read transaction over it keeps no WAL from being checkpointed for long."""


NOTHING_READ: Final = RangeDigest(0, bytes(16), None, 0)


class Taken(Struct, frozen=True):
    """A range that was digested. `check`: what to tell of it; None where there was nothing to digest. `place`: what is
    next, None when the round is over. `busy_s`: seconds of a core; `size`: bytes read."""

    check: Check | None
    place: Place | None
    busy_s: float
    size: int


def take_range(instance: Instance, place: Place, goes: Callable[[TableDefinition], bool] | None = None) -> Taken:
    """Digest the range at `place`, as it is now. `goes`: whether all of a table goes to the peer, None: of each. Of one
    that does not nothing is read, and the check says nothing: keys and digests tell of rows.

    RegionDamagedError and what else opening and reading a region raises: `skip_table` goes past it."""
    began_s = time.thread_time()
    regions = [entry.name for entry in instance.regions]
    at = place.among(regions, are_regions=True)
    while at is not None:
        with reading(instance.region(at.region).path) as connection:
            tables = names_patrolled(connection)
            here = at.among(tables, are_regions=False)
            if here is None:
                at = at.past_region(regions)
                continue
            seqno = region_seqno(connection)
            if goes is not None and any(
                one.table == here.table and not goes(one) for one in recorded_definitions(connection)
            ):
                here = replace(here, after=None)
                found = NOTHING_READ
            else:
                found = cut_range(
                    connection,
                    here.table,
                    here.after,
                    rows_max=ROWS_MAX,
                    bytes_max=BYTES_MAX,
                    key_bytes_max=KEYS_BYTES_MAX,
                )
        then = here.ended_at(found.upto, tables, regions)
        check = Check(
            here.round_wall_ns,
            here.told + 1,
            then is None,
            seqno,
            here.region,
            here.table,
            packed_key(here.after),
            packed_key(found.upto),
            found.rows,
            found.digest,
        )
        return Taken(check if seqno else None, then, time.thread_time() - began_s, found.size)
    return Taken(None, None, time.thread_time() - began_s, 0)


def as_of(check: Check, last_seqno: int, appended_seqno: int) -> Check:
    """The check at the newest number at which its range is the same. `last_seqno`: that of the journal, and
    `appended_seqno`: the last one that touches the region, in this order, both as they were before the range was taken.

    A region bears the number of its own last transaction. Of one that was not written for long the peer's journal has
    what came since no more, and it could not tell a difference from a later change.
    """
    return replace(check, seqno=max(check.seqno, last_seqno)) if appended_seqno <= check.seqno else check


def skip_table(instance: Instance, place: Place) -> Place | None:
    """Past a table that cannot be read; past its region where that cannot be read at all."""
    regions = [entry.name for entry in instance.regions]
    at = place.among(regions, are_regions=True)
    if at is None:
        return None
    told = Place(at.round_wall_ns, at.told + 1, at.region, at.table, at.after)
    try:
        with reading(instance.region(at.region).path) as connection:
            return told.past_table(names_patrolled(connection), regions)
    except ReplicateError:  # it was said when the range was to be read
        return told.past_region(regions)


def verify(instance: Instance, check: Check, applied_seqno: int) -> RangeVerdict:
    """Compare a range with the one here. `applied_seqno`: the regions hold every transaction up to it for certain.

    NOT_YET where they do not hold the one at which the source has digested. Raises what opening and reading a region
    and the journal raises."""
    try:
        after, upto = unpacked_key(check.after), unpacked_key(check.upto)
    except (ValueError, TypeError):
        return RangeVerdict(Outcome.PASSED, "its keys make no sense")
    try:
        entry = instance.region(check.region)
    except NotFoundError:
        return RangeVerdict(Outcome.PASSED, f"region {check.region} is not here")
    elements = left_out(instance.content.partitions.elements, instance.content.holds)
    with reading(entry.path) as connection:
        here = max(region_seqno(connection), applied_seqno)
        if here < check.seqno:
            return RangeVerdict(Outcome.NOT_YET)
        try:
            found = digest_range(connection, check.table, after, upto)
            later = Later(connection, check.table, after, upto)
        except NotSupportedError:
            return _without_table(instance, check, here)
        if _agree(found, check):
            return RangeVerdict(Outcome.EQUAL)
        if check.table == SCHEMA and elements:
            return RangeVerdict(Outcome.PASSED, f"this secondary does not get {', '.join(elements)}")
        absent = tables_without_rows(connection, lambda one: instance.content.holds(one.partition))
        if check.table in absent or (check.table == SEQUENCES and absent):
            return RangeVerdict(Outcome.PASSED, "its partition is not here")
        if (check.region, check.table) in instance.content.held_rows:
            some = instance.content.held_rows[check.region, check.table]
            return RangeVerdict(Outcome.PASSED, f"some of its {'columns' if has_list(some) else 'rows'} are here")
        if here > check.seqno:
            try:
                for match in _matches(instance, check, here):
                    for op, ident, argument, values in chosen_changes(match):
                        if op == Op.SCHEMA and argument != check.region:
                            continue
                        if op in (Op.SCHEMA, Op.DEFINE):
                            return RangeVerdict(Outcome.PASSED, "the schema was changed meanwhile")
                        definition = match.chooser.definitions[ident]
                        if definition.region == check.region:
                            later.take(op, ident, argument, values, definition.table)
            except JournalMissingError:
                return RangeVerdict(Outcome.PASSED, f"transaction {check.seqno + 1} is not in the journal any more")
            found = later.taken_out(found)
    outcome = Outcome.EQUAL if _agree(found, check) else Outcome.DIFFERENT
    return RangeVerdict(outcome, "", found.rows, found.digest)


def _agree(found: RangeDigest, check: Check) -> bool:
    return (found.rows, found.digest) == (check.rows, check.digest)


def _without_table(instance: Instance, check: Check, here: int) -> RangeVerdict:
    if here > check.seqno:
        with closing(_stretch(instance, check, Selection(ops=frozenset({Op.SCHEMA})))) as stretch:
            if next(stretch.matches(here), None) is not None:
                return RangeVerdict(Outcome.PASSED, "the schema was changed meanwhile")
    return RangeVerdict(Outcome.DIFFERENT)


def _matches(instance: Instance, check: Check, here: int) -> Iterator[Match]:
    if check.table == SCHEMA:
        selection = Selection(ops=frozenset({Op.SCHEMA}))
    elif check.table == SEQUENCES:
        selection = Selection(ops=frozenset({Op.SCHEMA, Op.SEQUENCE}))
    else:
        selection = Selection(tables=frozenset({(check.region, OWNER, check.table)}))
    with closing(_stretch(instance, check, selection)) as stretch:
        yield from stretch.matches(here)


def _stretch(instance: Instance, check: Check, selection: Selection) -> StretchReader:
    return StretchReader(make_chain(instance), check.seqno + 1, selection)
