"""A row that several suppliers write: what it comes to, whatever order their changes arrive in.

A row is a register for each group of its columns, and one that says whether it is there. A change stamps those that it
writes with its transaction's (csn, origin); a later stamp wins. An insert writes every group, an update those of its
columns; both say that the row is there, a delete that it is not. The values of a row that is gone are kept: a later
update by somebody who had not seen the delete brings it back.

Guarantees: `merged` is commutative, associative and idempotent over changes of different stamps; of changes with one
stamp the one that comes last counts (a transaction's own order).
Leaves to others: where stamps are kept, when they may be forgotten (seen.py), values that are unique. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from replicate.errors import RegionDamagedError
from replicate.model.transaction import Op

Image = tuple[Any, ...]
Groups = tuple[int, ...]
"""Of each ordinal of an image, the number of its group."""


class Stamp(NamedTuple):
    """Of a transaction: its time, who wrote it, and which one of its origin it is. Later ones are greater."""

    csn: int
    origin: int
    origin_seqno: int


NEVER: Final = Stamp(0, 0, 0)
"""Before every transaction; that of a register which only transactions have written that everybody has."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its stamps. `values`: its image, also while it is gone; None where nobody has ever written it, or all
    have forgotten it. `life`: the stamp of `is_there`. `stamps`: group -> stamp, where it is not NEVER."""

    values: Image | None = None
    is_there: bool = False
    life: Stamp = NEVER
    stamps: Mapping[int, Stamp] = field(default_factory=dict)

    @property
    def newest(self) -> Stamp:
        """The latest of all its stamps."""
        return max(self.life, *self.stamps.values(), NEVER)

    @property
    def writer(self) -> Stamp | None:
        """The one transaction that has stamped all of it that is stamped; None: there are several."""
        found = {self.life, *self.stamps.values()}
        return self.life if len(found) == 1 else None

    def all_stamps(self) -> Iterable[Stamp]:
        """Each of them, some perhaps more than once."""
        yield self.life
        yield from self.stamps.values()


class RowChanged(NamedTuple):
    """One change of one row whose key it leaves alone. `groups`: those that it writes; `values`: its image behind it,
    of a delete the one before it."""

    op: int
    values: Image
    groups: frozenset[int]


def merged(row: Row, change: RowChanged, stamp: Stamp, groups: Groups) -> Row:
    """The row with that change, too. An update of a row that nobody has ever written gives it the values of the
    change's image."""
    values, stamps = row.values, row.stamps
    if values is None and not stamps and change.op == Op.INSERT and row.life == NEVER:
        return Row(change.values, True, stamp, dict.fromkeys(change.groups, stamp))
    written = [group for group in change.groups if stamp >= stamps.get(group, NEVER)]
    if change.op != Op.DELETE and written:
        if values is None or len(written) == len(frozenset(groups)):
            values = change.values
        else:
            pairs = zip(values, change.values, groups, strict=True)
            values = tuple(new if group in written else old for old, new, group in pairs)
        stamps = {**stamps, **dict.fromkeys(written, stamp)}
    if values is None:
        values = change.values
    if stamp >= row.life:
        return Row(values, change.op != Op.DELETE, stamp, stamps)
    return Row(values, row.is_there, row.life, stamps)


def rejoined(change: RowChanged, all_groups: frozenset[int]) -> RowChanged:
    """The same change as it writes: an insert every group, a delete none."""
    if change.op == Op.INSERT:
        return change._replace(groups=all_groups)
    return change._replace(groups=frozenset()) if change.op == Op.DELETE else change


def groups_of(columns: int, together: Iterable[Sequence[int]], *, whole: bool = False) -> Groups:
    """Each ordinal's group: columns that one constraint names stand `together`, so that every group's values were
    valid where they were written. `whole`: all are one group."""
    parents = list(range(columns))

    def root(of: int) -> int:
        while parents[of] != of:
            of = parents[of]
        return of

    for ordinals in [range(columns)] if whole else together:
        for ordinal in ordinals:
            parents[root(ordinal)] = root(ordinals[0])
    roots = [root(of) for of in range(columns)]
    numbers = {at: number for number, at in enumerate(dict.fromkeys(roots))}
    return tuple(numbers[at] for at in roots)


# What was lost.


class Lost(NamedTuple):
    """Values that one of two transactions wrote, neither of which had seen the other, and that are not in the row.
    `what`: "update", "delete" or "insert", of the change that lost. `winner`, `loser`: their stamps. `values`: the
    image that the change which lost would have had; `ordinals`: those of its values that are lost."""

    what: str
    winner: Stamp
    loser: Stamp
    values: Image
    ordinals: tuple[int, ...]


def lost(before: Row, change: RowChanged, stamp: Stamp, groups: Groups, unseen: frozenset[Stamp]) -> list[Lost]:
    """What is lost as `change` meets the row `before`, of whose stamps those in `unseen` had not been seen where it was
    made. Equal values are not lost."""
    found: list[Lost] = []
    here = before.values
    if here is None:
        return found
    rivals: dict[Stamp, list[int]] = {}
    for ordinal, group in enumerate(groups):
        rival = before.stamps.get(group, NEVER)
        is_written = group in change.groups and change.op != Op.DELETE
        if rival in unseen and is_written and not same_value(here[ordinal], change.values[ordinal]):
            rivals.setdefault(rival, []).append(ordinal)
    name = {int(Op.INSERT): "insert", int(Op.UPDATE): "update", int(Op.DELETE): "delete"}[int(change.op)]
    for rival, ordinals in rivals.items():
        if stamp >= rival:
            found.append(Lost("update", stamp, rival, here, tuple(ordinals)))
        else:
            found.append(Lost(name, rival, stamp, change.values, tuple(ordinals)))
    if change.op == Op.DELETE:
        theirs = [one for one in before.all_stamps() if one in unseen and before.is_there]
        if theirs and stamp >= before.life:
            ordinals = [at for at, group in enumerate(groups) if before.stamps.get(group, NEVER) in unseen]
            found.append(Lost("update", stamp, max(theirs), here, tuple(ordinals)))
        elif theirs and before.life in unseen:
            found.append(Lost("delete", before.life, stamp, change.values, ()))
    elif not before.is_there and before.life in unseen:
        if stamp >= before.life:
            found.append(Lost("delete", stamp, before.life, here, ()))
        else:
            ordinals = [at for at, group in enumerate(groups) if group in change.groups]
            found.append(Lost(name, before.life, stamp, change.values, tuple(ordinals)))
    return found


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of a database are the same, type and all."""
    return type(one) is type(other) and bool(one == other)


# How a row's stamps are kept.


def pack_row(row: Row, writer: Stamp | None) -> bytes:
    """Its stamps; of a row that is gone its values, too. Those of one that is there are in the table. Where one
    transaction has stamped all of it, the groups stand as bytes. `writer`: as `Row.writer` says."""
    groups: bytes | list[int]
    if writer is not None and max(row.stamps, default=0) < 256:
        groups = bytes(row.stamps)
    else:
        groups = [number for group, stamp in row.stamps.items() for number in (group, *stamp)]
    packed: bytes = _pack((row.is_there, *row.life, groups, None if row.is_there else row.values))
    return packed


_pack: Final = msgpack.Packer().pack


def unpack_row(packed: bytes) -> Row:
    """What `pack_row` gave; the values of a row that is there are left to be read. RegionDamagedError."""
    try:
        is_there, csn, origin, origin_seqno, flat, values = msgpack.unpackb(packed, use_list=False)
        life = Stamp(csn, origin, origin_seqno)
        if type(flat) is bytes:
            return Row(values, is_there, life, dict.fromkeys(flat, life))
        stamps = {flat[at]: Stamp(*flat[at + 1 : at + 4]) for at in range(0, len(flat), 4)}
        return Row(values, is_there, life, stamps)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RegionDamagedError(f"the stamps of a row cannot be read: {error}") from error
