"""`replicate region reindex`: indexes are made again from their rows, on a primary or a secondary, while both go on.

Guarantees: each index is one transaction, under the region's lock; no row changes, and nothing goes into a journal.
After it the patrol of the indexes begins a round again.
Leaves to others: what is damaged (compare/index_found.py), and rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicate.compare.index_found import forget_indexes, look_at_indexes
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked
from replicate.region.sqlite.indexes import index_names, make_again
from replicate.region.sqlite.snapshot import reading


def reindex_region(
    instance: Instance, region: str, indexes: Sequence[str], *, every: bool = False, timeout_s: float
) -> list[str]:
    """Make these indexes of the region again, all of them (`every`), or those that were found damaged; their names.

    UsageError where none is known to be damaged, NotFoundError for one that is not there, ConflictError for one that is
    UNIQUE while its rows are not, BusyError, and what opening a region raises. Those before it are made then."""
    entry = instance.region(region)
    wanted = list(dict.fromkeys(indexes))
    if every:
        with reading(entry.path) as connection:
            wanted = index_names(connection)
    elif not wanted:
        found = look_at_indexes(instance.path).damaged
        wanted = list(dict.fromkeys(one.index for one in found if one.region == region and one.index))
    if not wanted:
        raise UsageError(
            f"no index of region {region} is known to be damaged",
            where=str(instance.path),
            do=f"Name one: replicate -i {instance.named} region reindex {region} INDEX; or all of them: --all",
        )
    for name in wanted:
        with region_locked(instance, entry, timeout_s):
            make_again(entry.path, entry.uuid, name)
    forget_indexes(instance.path)
    return wanted
