"""What a site has found of its own indexes, and a supplier of its foreign keys: the round that is under way, the last
whole one, and what is wrong.

    consumers/_indexes.json    format 1

Guarantees: a round counts as whole when it has come to its end; what it could not look at is named, never called right.
What is wrong stays until a round that began later has looked and found nothing, or the region is filled or reindexed.
A round goes on where it was when the daemon has ended. The file is replaced whole; what cannot be read counts as
nothing found.
Leaves to others: looking (index_check.py), what is told of it (status/indexes.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from replicate.compare.patrol_rounds import Place
from replicate.errors import ReplicateError
from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
NAME: Final = "_indexes.json"
"""No peer can bear such a name."""
DAMAGED_MAX: Final = 20
"""So many that are wrong are kept."""
FOREIGN_KEYS: Final = "foreign keys"
"""In the place of an index's name, in what is left out."""
LEFT_OUT_MAX: Final = 20
"""So many that are left out are kept by name."""


class IndexDamage(Struct, frozen=True):
    """What is wrong with an index of a table (`index` is "": with the table), at the row or entry `key` ("": all of
    it). It was found at `wall_ns`."""

    region: str
    table: str
    index: str
    what: str
    key: str
    wall_ns: int

    @property
    def name(self) -> str:
        """Of the index, with its table."""
        table = f"{self.region}.{self.table}"
        return f"index {self.index} of {table}" if self.index else table

    def __str__(self) -> str:
        return f"{self.brief}{' ' * bool(self.key)}{self.key}"

    @property
    def brief(self) -> str:
        """Without the key, which is of a row's values."""
        return f"{self.name} {self.what}"


class OrphanRows(Struct, frozen=True):
    """At least `count` rows of a table name a row of `parent` that is not there, the one of `key` among them. They were
    counted from `wall_ns` on, or the first of them was found then."""

    region: str
    table: str
    parent: str
    key: str
    count: int
    wall_ns: int

    @property
    def name(self) -> tuple[str, str, str]:
        """What they are kept by."""
        return self.region, self.table, self.parent


class IndexRound(Struct, frozen=True):
    """`began_wall_ns` names it. `entries` of indexes were looked at; `left_out`: "region.table.index: reason" of what
    could not be. `ended_wall_ns`: 0 while it is under way."""

    began_wall_ns: int = 0
    entries: int = 0
    left_out: tuple[str, ...] = ()
    at: str = ""
    """Where it stands: "region.table"."""
    ended_wall_ns: int = 0


class Looked(Struct, frozen=True):
    """One part of a round: `entries` of an index, what was wrong, and what was left out, by "region.table.index" (of
    foreign keys, FOREIGN_KEYS stands for the index)."""

    at: str = ""
    entries: int = 0
    damaged: tuple[IndexDamage, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    orphans: tuple[OrphanRows, ...] = ()


class IndexesFound(Struct, frozen=True):
    """What is noted. `here`: the round under way; `whole`: the last one that has come to its end. `place`: where the
    next part begins, as it is kept; () between two rounds. `orphans`: of a supplier."""

    here: IndexRound = field(default_factory=IndexRound)
    whole: IndexRound = field(default_factory=IndexRound)
    damaged: tuple[IndexDamage, ...] = ()
    place: tuple[str, str, str] = ("", "", "")
    orphans: tuple[OrphanRows, ...] = ()


def with_part(known: IndexesFound, round_wall_ns: int, part: Looked, *, is_last: bool, wall_ns: int) -> IndexesFound:
    """What is known after one more part of the round that began at `round_wall_ns`."""
    here = known.here if known.here.began_wall_ns == round_wall_ns else IndexRound(round_wall_ns)
    told = {one.partition(": ")[0] for one in here.left_out}
    new = tuple(f"{name}: {why}" for name, why in part.left_out.items() if name not in told)
    here = replace(
        here, entries=here.entries + part.entries, left_out=(*here.left_out, *new)[:LEFT_OUT_MAX], at=part.at
    )
    damaged = known.damaged
    for one in part.damaged:
        before = [other for other in damaged if (other.name, other.what) == (one.name, one.what)]
        if before and before[0].wall_ns >= round_wall_ns:
            continue  # the first one of a round is shown
        damaged = (*(other for other in damaged if other not in before), one)[-DAMAGED_MAX:]
    orphans = _counted(known.orphans, part.orphans, round_wall_ns)
    if not is_last:
        return IndexesFound(here, known.whole, damaged, known.place, orphans)
    unseen = {one.partition(": ")[0] for one in here.left_out}
    still = tuple(one for one in damaged if one.wall_ns >= round_wall_ns or unseen & _ways_to(one, one.index))
    lonely = tuple(one for one in orphans if one.wall_ns >= round_wall_ns or unseen & _ways_to(one, FOREIGN_KEYS))
    return IndexesFound(IndexRound(), replace(here, ended_wall_ns=wall_ns, at=""), still, known.place, lonely)


def _counted(
    known: tuple[OrphanRows, ...], found: tuple[OrphanRows, ...], round_wall_ns: int
) -> tuple[OrphanRows, ...]:
    """With those of one more part: a round counts from its beginning."""
    rows = {one.name: one for one in known}
    for one in found:
        before = rows.pop(one.name, None)
        if before is not None and before.wall_ns >= round_wall_ns:
            one = replace(before, count=before.count + one.count)
        rows[one.name] = one
    return tuple(rows.values())[-DAMAGED_MAX:]


def _ways_to(one: IndexDamage | OrphanRows, index: str) -> set[str]:
    """The names under which it may have been left out."""
    return {one.region, f"{one.region}.{one.table}", f"{one.region}.{one.table}.{index}"}


def standing_at(known: IndexesFound) -> Place | None:
    """Where the round under way goes on; None between two rounds. What makes no sense is the region's beginning."""
    if not known.here.began_wall_ns:
        return None
    region, table, after = known.place
    try:
        return Place(known.here.began_wall_ns, 0, region, table, (bytes.fromhex(after),) if after else None)
    except ValueError:
        return Place(known.here.began_wall_ns, 0, region)


def now_at(known: IndexesFound, place: Place | None) -> IndexesFound:
    """With the place where the next part begins. Its key is packed: (bytes,)."""
    if place is None:
        return replace(known, place=("", "", ""))
    after = place.after[0].hex() if place.after is not None else ""
    return replace(known, place=(place.region, place.table, after))


def indexes_path(instance_path: Path) -> Path:
    """Where it stands."""
    return instance_path / "consumers" / NAME


def look_at_indexes(instance_path: Path) -> IndexesFound:
    """What is noted; nothing where there is no file, or none that makes sense."""
    try:
        made = json.loads(read_private(indexes_path(instance_path)))
        if made["format"] != FORMAT:
            return IndexesFound()
        region, table, after = map(_text, made["place"])
        return IndexesFound(
            _round(made["here"]),
            _round(made["whole"]),
            tuple(IndexDamage(**_checked(_NONE, one)) for one in made["damaged"]),
            (region, table, after),
            tuple(OrphanRows(**_checked(_NO_ORPHANS, one)) for one in made.get("orphans", ())),
        )
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return IndexesFound()


def note_indexes(instance_path: Path, found: IndexesFound) -> None:
    """Keep it. JournalIOError, DiskFullError, PermissionRefusedError: what was noted stands then."""
    facts = {"format": FORMAT, **to_builtins(found)}
    if not found.orphans:
        del facts["orphans"]
    replace_file(indexes_path(instance_path), (json.dumps(facts) + "\n").encode())


def forget_indexes(instance_path: Path) -> None:
    """The regions are others now, or their indexes were made again: what was found does not hold any more."""
    indexes_path(instance_path).unlink(missing_ok=True)


_NONE: Final = IndexDamage("", "", "", "", "", 0)
_NO_ORPHANS: Final = OrphanRows("", "", "", "", 0, 0)


def _round(made: Any) -> IndexRound:
    values = dict(_checked(replace(IndexRound(), left_out=[]), made))
    return IndexRound(**{**values, "left_out": tuple(map(_text, values["left_out"]))})


def _checked(model: IndexRound | IndexDamage | OrphanRows, made: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of one such. ValueError for another type, or a number below 0."""
    for name, value in to_builtins(model).items():
        if type(made[name]) is not type(value) or (type(value) is int and made[name] < 0):
            raise ValueError(name)
    return made


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("a text")
    return value
