"""One part of a site's own indexes looked at: which is next, and what was found there.

Guarantees: a round visits each table of each region, its rows and then each of its indexes, by name; on a supplier its
rows once more, for those that their foreign keys name, which another one may have deleted. What is added or dropped
meanwhile neither ends a round early nor makes one endless. A part is of one moment, and a small one: it keeps no WAL
from being checkpointed for long. What cannot be looked at is named, and gone past, whatever the reason is.
Leaves to others: how an index is looked at (region/sqlite/indexes.py), when (daemon/index_patrol.py), what is kept
(index_found.py). Blocks.
"""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.compare.index_found import FOREIGN_KEYS, IndexDamage, Looked, OrphanRows
from replicate.compare.patrol_rounds import Place
from replicate.instance.instance import Instance
from replicate.region.sqlite.digest import SEQUENCES
from replicate.region.sqlite.indexes import (
    PARENTS,
    ROWS,
    Key,
    Walked,
    checked_in,
    has_parents,
    packed_entry,
    unpacked_entry,
    walk,
)
from replicate.region.sqlite.range_digest import SCHEMA, names_patrolled
from replicate.region.sqlite.snapshot import reading

ROWS_MAX: Final = 1000
"""A part has as many rows, or entries."""
_BESIDE: Final = "\0"
"""Between the names of a table and an index, which stand in a place as one."""
_KEY_CHARACTERS_MAX: Final = 60


class Slice(Struct, frozen=True):
    """What was looked at. `place`: what is next, with its key packed; None when the round is over. `busy_s`: seconds of
    a core; `size`: bytes that were read."""

    looked: Looked
    place: Place | None
    busy_s: float
    size: int


def take_slice(instance: Instance, place: Place) -> Slice:
    """Look at the part that begins at `place`, as it is now."""
    began_s = time.thread_time()
    regions = [entry.name for entry in instance.regions]
    at = place.among(regions, are_regions=True)
    while at is not None:
        region = at.region
        try:
            with reading(instance.region(region).path) as connection:
                names = _names(connection, with_parents=instance.is_supplier)
                found = at.among(names, are_regions=False)
                if found is None:
                    at = at.past_region(regions)
                    continue
                table, _, index = found.table.partition(_BESIDE)
                walked = walk(connection, table, index, _key(found), limit=ROWS_MAX)
        except Exception as error:
            # Whatever it is, the daemon has other work.
            looked = Looked(region, left_out={region: str(error) or repr(error)})
            return Slice(looked, replace(place, region=region).past_region(regions), time.thread_time() - began_s, 0)
        upto = None if walked.upto is None else (packed_entry(walked.upto),)
        then = replace(found, told=0).ended_at(upto, names, regions)
        return Slice(_looked(found.region, table, index, walked), then, time.thread_time() - began_s, walked.size)
    return Slice(Looked(), None, time.thread_time() - began_s, 0)


def _names(connection: Any, *, with_parents: bool) -> list[str]:
    """What there is to look at in a region: tables, each before its indexes."""
    tables = [one for one in names_patrolled(connection) if one not in (SCHEMA, SEQUENCES)]
    found = [(table, index) for table in tables for index in checked_in(connection, table)]
    if with_parents:
        found += [(table, PARENTS) for table in tables if has_parents(connection, table)]
    return sorted(f"{table}{_BESIDE}{index}" for table, index in found)


def _key(place: Place) -> Key | None:
    """Where the part begins; its own beginning, where what was kept is no key."""
    try:
        return None if place.after is None else unpacked_entry(place.after[0])
    except (ValueError, TypeError):
        return None


def _looked(region: str, table: str, index: str, walked: Walked) -> Looked:
    now_ns = time.time_ns()
    damaged = tuple(
        IndexDamage(region, table, one.index, one.what, "" if one.key is None else _text(one.key), now_ns)
        for one in walked.wrong
        if one.index != PARENTS  # damage of the table, which its rows tell of
    )
    orphans = tuple(
        OrphanRows(region, table, one.parent, _text(one.key), one.count, now_ns) for one in walked.without_parent
    )
    shown = {name: FOREIGN_KEYS if name == PARENTS else name for name in walked.left_out}
    left_out = {f"{region}.{table}{'.' * bool(name)}{shown[name]}": why for name, why in walked.left_out.items()}
    entries = walked.count if index not in (ROWS, PARENTS) else 0
    return Looked(f"{region}.{table}", entries, damaged, left_out, orphans)


def _text(key: Key) -> str:
    """For people: `7`, `'a', x'00ff', NULL`; short."""
    text = ", ".join(
        "NULL" if one is None else f"x'{one.hex()}'" if isinstance(one, bytes) else repr(one) for one in key
    )
    return text if len(text) <= _KEY_CHARACTERS_MAX else f"{text[:_KEY_CHARACTERS_MAX]}..."
