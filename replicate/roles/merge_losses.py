"""What was lost on a supplier as rows were merged that others had changed at once: looked at, taken back, settled.

Guarantees: nothing is changed by looking; what is taken back is an ordinary commit, which all suppliers get, and is
settled with it in mind: killed between the two it stands there as open still. What is settled is kept until it is
purged.
Leaves to others: the merge (update_process/merging.py), and where it is kept (region/sqlite/row_stamps.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from msgspec import Struct

from replicate.door.snapshot import door_of
from replicate.errors import ConflictError, NotFoundError, NotPrimaryError, UsageError
from replicate.instance.file import RegionEntry
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked
from replicate.model.moment import readable
from replicate.region.kind import KIND
from replicate.region.protocol import MergedRow
from replicate.region.sqlite.row_stamps import forget_merged, orphans_of, settle_merged
from replicate.region.sqlite.sql.names import quote
from replicate.region.sqlite.turn_role import synced_transaction

OPEN: Final = "open"
REASONS: Final = {
    "update": "a value was written over",
    "insert": "two rows of one key became one",
    "delete": "a delete came to nothing",
    "unique": "the row gave way to another one, which has its unique value",
}


class ShownMerge(Struct, frozen=True):
    """What was lost in one merge. `id`: m1, m2, …, as commands name it; m1@REGION where there are several regions.
    `lost`: the values, by column; of a row that gave way, and of a delete, the whole row. `left`: the row that is there
    instead, None where it is gone; of one that gave way, the key of the other one. `loser`, `winner`: who wrote them;
    `loser_time`, `winner_time`: when. `region`: where there are several."""

    id: str
    state: str
    seqno: int
    table: str
    key: dict[str, Any]
    what: str
    reason: str
    lost: dict[str, Any]
    left: dict[str, Any] | None
    loser: str
    winner: str
    loser_time: str
    winner_time: str
    region: str = ""


class Orphan(Struct, frozen=True):
    """A row whose foreign key names a row that is not there. `parent`: its table. `region`: where there are
    several."""

    table: str
    key: object
    parent: str
    region: str = ""


def merges(instance: Instance, *, all_of_them: bool = False, table: str = "") -> list[ShownMerge]:
    """What was lost, oldest first; without `all_of_them` what is open. Nothing on what is no supplier."""
    if not instance.is_supplier:
        return []
    with door_of(instance) as door:
        catalogue = door.catalogue_now()
    names = {one.origin.key: one.name for one in catalogue.histories}
    found = []
    for region, entry in _regions(instance):
        keys = {one.table: one.key for one in catalogue.in_force().values() if one.region == entry.name}
        found += [
            _shown(one, names, keys.get(one.merged.table, ()), region)
            for one in _merges_in(entry)
            if (all_of_them or one.state == OPEN) and table in ("", one.merged.table)
        ]
    return found


def _regions(instance: Instance) -> list[tuple[str, RegionEntry]]:
    """Each with the name that is told of it: "" of one alone."""
    is_one = len(instance.regions) == 1
    return [("" if is_one else entry.name, entry) for entry in instance.regions]


def _merges_in(entry: RegionEntry) -> list[MergedRow]:
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        return list(opened.merges())


def _shown(one: MergedRow, names: Mapping[int, str], key_at: Sequence[int], region: str) -> ShownMerge:
    merged, lost = one.merged, one.merged.lost
    columns = merged.columns
    key_columns = [columns[at] for at in key_at if at < len(columns)]
    is_whole = lost.what in ("unique", "delete")
    values = {
        name: value
        for at, (name, value) in enumerate(zip(columns, lost.values, strict=True))
        if is_whole or at in lost.ordinals
    }
    named = columns if lost.what != "unique" else key_columns
    return ShownMerge(
        f"m{one.number}@{region}" if region else f"m{one.number}",
        one.state,
        merged.seqno,
        merged.table,
        dict(zip(key_columns, merged.key, strict=False)),
        lost.what,
        REASONS[lost.what],
        values,
        None if merged.left is None else dict(zip(named, merged.left, strict=False)),
        names.get(lost.loser.origin, "-"),
        names.get(lost.winner.origin, "-"),
        readable(lost.loser.csn),
        readable(lost.winner.csn),
        region,
    )


def number_and_region(merge_id: str) -> tuple[int, str]:
    """As the region numbers it, and the region's name where there are several. ValueError."""
    if not merge_id.startswith("m"):
        raise ValueError(merge_id)
    number, _, region = merge_id[1:].partition("@")
    return int(number), region


def merge_of(instance: Instance, merge_id: str) -> ShownMerge:
    """One of them. NotFoundError."""
    for one in merges(instance, all_of_them=True):
        if one.id == merge_id:
            return one
    raise _unknown(instance, merge_id)


def _unknown(instance: Instance, merge_id: str) -> NotFoundError:
    return NotFoundError(
        f"nothing was lost under the number {merge_id}",
        where=str(instance.path),
        do=f"See what was: replicate -i {instance.named} conflict list --all",
    )


def orphans(instance: Instance) -> list[Orphan]:
    """Rows whose foreign key names a row that is not there, on a supplier."""
    if not instance.is_supplier:
        return []
    return [
        Orphan(*found, region) for region, entry in _regions(instance) for found in orphans_of(entry.path, entry.uuid)
    ]


def settle(instance: Instance, merge_ids: Sequence[str]) -> int:
    """They are looked at; how many were open. NotFoundError where one of them is not there: nothing is settled then."""
    _require_supplier(instance)
    known = {one.id for one in merges(instance, all_of_them=True)}
    for one in merge_ids:
        if one not in known:
            raise _unknown(instance, one)
    count = 0
    for region, entry in _regions(instance):
        if numbers := [number for number, its_region in map(number_and_region, merge_ids) if its_region == region]:
            with _written(instance, entry) as connection:
                count += settle_merged(connection, numbers)
    return count


def purge(instance: Instance) -> int:
    """Forget what is settled; how many."""
    _require_supplier(instance)
    count = 0
    for entry in instance.regions:
        with _written(instance, entry) as connection:
            count += forget_merged(connection)
    return count


def region_of(instance: Instance, merge_id: str) -> str:
    """The region in which it was lost. NotFoundError where there is none of that name."""
    _, named = number_and_region(merge_id)
    found = next((entry.name for region, entry in _regions(instance) if region == named), None)
    if found is None:
        raise _unknown(instance, merge_id)
    return found


def take(instance: Instance, connection: Any, merge_id: str, values: Mapping[str, Any]) -> ShownMerge:
    """Write what was lost once more, by a commit of its own: a value into the row that is there, a whole row where it
    is gone, a delete. `connection`: an application's, to its region. `values`: columns that are to be other
    ones, as where a unique value is taken. It is settled then. NotFoundError, UsageError (settled already, an unknown
    column), ConflictError (the row cannot be written so, or the schema has changed), and what a commit raises."""
    one = merge_of(instance, merge_id)
    if one.state != OPEN:
        raise UsageError(f"{merge_id} is settled already", where=str(instance.path))
    if not instance.is_supplier or not instance.takes_writes:
        raise NotPrimaryError(f"{instance.name} takes no writes", where=str(instance.path))
    entry, (number, _) = instance.region(region_of(instance, merge_id)), number_and_region(merge_id)
    merged = next(found.merged for found in _merges_in(entry) if found.number == number)
    columns = _columns_now(connection, one)
    for column in values:
        if column not in columns:
            raise UsageError(f"table {one.table} has no column {column}", do=f"It has {', '.join(columns)}")
    whole = dict(zip(merged.columns, merged.lost.values, strict=True))
    kept = {column: value for column, value in whole.items() if column in columns}
    try:
        _write(connection, one, {**kept, **values}, values)
        connection.commit()
    except connection.IntegrityError as error:
        raise ConflictError(
            f"the row cannot be put back as it was: {error}",
            do="Give the column another value: --value COLUMN=VALUE",
            table=one.table,
        ) from error
    settle(instance, [merge_id])
    return one


def _columns_now(connection: Any, one: ShownMerge) -> list[str]:
    """Those of its table, which the schema may have changed since. ConflictError where what was lost has no place."""
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (one.table,))]
    lost = one.lost if one.what in ("update", "insert") else {}
    gone = [name for name in (*one.key, *lost) if name not in columns]
    if columns and not gone:
        return columns
    what = f"column {gone[0]} of table {one.table}" if columns else f"table {one.table}"
    raise ConflictError(
        f"{what} is not there any more: the schema has changed since",
        do=f"Write what is to be kept of it yourself (replicate -i INSTANCE conflict show {one.id}); then: replicate "
        f"-i INSTANCE conflict settle {one.id}",
        table=one.table,
    )


def _write(connection: Any, one: ShownMerge, whole: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    table = quote(one.table)
    where = " AND ".join(f"{quote(name)} IS ?" for name in one.key)
    key = tuple(one.key.values())
    if one.what == "delete" and not values:
        if connection.execute(f"DELETE FROM {table} WHERE {where}", key).rowcount != 1:
            raise ConflictError("the row that was to be deleted is not there", table=one.table)
        return
    changed = {**one.lost, **values} if one.what in ("update", "insert") else {}
    changed = {name: value for name, value in changed.items() if name not in one.key}
    if changed:
        assigned = ", ".join(f"{quote(name)} = ?" for name in changed)
        done = connection.execute(f"UPDATE {table} SET {assigned} WHERE {where}", (*changed.values(), *key))
        if done.rowcount == 1:
            return
    names = ", ".join(map(quote, whole))
    marks = ", ".join("?" * len(whole))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(whole.values()))


def _require_supplier(instance: Instance) -> None:
    if not instance.is_supplier:
        raise NotPrimaryError(
            f"{instance.name} is {instance.told_role}: nothing is merged there", where=str(instance.path)
        )


@contextmanager
def _written(instance: Instance, entry: RegionEntry) -> Iterator[Any]:
    """A transaction in a region that is in no journal, with its lock held."""
    with region_locked(instance, entry, 30.0), synced_transaction(entry.path, entry.uuid) as connection:
        yield connection
