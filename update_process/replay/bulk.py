"""Net rows, by columns, as runs of changes of one kind: what a phase of a replay writes of them. Pure.

Guarantees: the same changes as net.py's `as_delete`, `as_update` and `as_insert` make of the same rows one by one, and
in that order within a run. Values keep their storage class: where a float is near, equal values may be different ones.
Leaves to others: databases, phases, which row does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

from replicate.model.transaction import Op, mask_of
from update_process.replay.net import Image, NetColumns, Part, Unique, same_value

Differs = Sequence[bool] | None
"""Of each row, whether a column differs before and after; None: of no row."""


class BulkRun(NamedTuple):
    """Changes of one kind, of different rows. `argument`: of an UPDATE, its mask."""

    argument: Any
    values: Sequence[Image]


def runs(op: int, found: NetColumns, unique: Unique, *, verify: bool = False) -> Iterable[BulkRun]:
    """The deletes, updates or inserts of some rows. `verify`: rows without a net change are written as they are, which
    checks them."""
    if op == Op.UPDATE:
        return _updates(found, unique, verify)
    part, images = (Part.GONE, found.befores) if op == Op.DELETE else (Part.CAME, found.afters)
    values = images if found.part is part else _movers(found, unique, images)
    return (BulkRun(0, values),) if values else ()


def _updates(found: NetColumns, unique: Unique, verify: bool) -> Iterator[BulkRun]:
    if found.part is not Part.STAYED:
        return
    befores, afters = list(zip(*found.befores, strict=True)), list(zip(*found.afters, strict=True))
    length = len(befores)
    differs = list(map(_differs, befores, afters))
    touched = [ordinal for ordinal, differ in enumerate(differs) if differ is not None]
    kinds = list(zip(*(differs[ordinal] or () for ordinal in touched), strict=True)) or [()] * found.rows
    for kind, places in _by_kind(kinds).items():
        changed = tuple(compress(touched, kind))
        if (not changed and not verify) or _is_mover(changed, unique):
            continue
        columns: list[Any] = [*(afters[ordinal] for ordinal in changed), *befores]
        if places is not None:
            columns = [map(column.__getitem__, places) for column in columns]
        yield BulkRun(mask_of(changed, length), list(zip(*columns, strict=True)))


def _by_kind(kinds: list[tuple[bool, ...]]) -> dict[tuple[bool, ...], list[int] | None]:
    """Which rows are of each kind, in their order; None: all of them."""
    if kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: None}
    found: dict[tuple[bool, ...], list[int]] = {}
    for place, kind in enumerate(kinds):
        found.setdefault(kind, []).append(place)
    return dict(found)


def _is_mover(changed: tuple[int, ...], unique: Unique) -> bool:
    """Whether an update of these columns may change a unique value."""
    return bool(changed) and (unique is None or not unique.isdisjoint(changed))


def _movers(found: NetColumns, unique: Unique, images: Sequence[Image]) -> Sequence[Image]:
    """Of rows that stay, those in which a unique value may change."""
    if found.part is not Part.STAYED or (unique is not None and not unique):
        return ()
    befores, afters = list(zip(*found.befores, strict=True)), list(zip(*found.afters, strict=True))
    ordinals = range(len(befores)) if unique is None else sorted(unique)
    differs = [differ for at in ordinals if (differ := _differs(befores[at], afters[at])) is not None]
    return list(compress(images, map(any, zip(*differs, strict=True)))) if differs else ()


def _differs(befores: tuple[Any, ...], afters: tuple[Any, ...]) -> Differs:
    """Where two columns differ."""
    if float in set(map(type, befores)) or float in set(map(type, afters)):
        return [not same_value(old, new) for old, new in zip(befores, afters, strict=True)]
    return None if befores == afters else list(map(ne, befores, afters))
