"""A row that several suppliers write: what it comes to, whatever order their changes arrive in.

A row is a register for each group of its columns, and one that says whether it is there. A change stamps those that it
writes with its transaction's (csn, origin); a later stamp wins. An insert writes every group, an update those of its
columns; both say that the row is there, a delete that it is not. A row that is gone keeps its values: a later update by
somebody who had not seen the delete brings it back.

A column may be a sum (`_summed`).

Guarantees: `merged` is commutative and associative over transactions of different stamps, and idempotent but for sums;
of changes with one stamp the one that comes last counts (a transaction's own order).
Leaves to others: where stamps are kept, when they are forgotten (seen.py), unique values. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgpack
from msgspec import Struct, field

from replicate.errors import RegionDamagedError
from replicate.model.transaction import Op

Image = tuple[Any, ...]
Groups = tuple[int, ...]
"""Of each ordinal of an image, the number of its group; below 0: it is a sum, and that group has no other."""


class Stamp(NamedTuple):
    """Of a transaction: its time, who wrote it, and which one of its origin it is. Later ones are greater."""

    csn: int
    origin: int
    origin_seqno: int


NEVER: Final = Stamp(0, 0, 0)
"""Before every transaction; that of a register which only transactions have written that everybody has."""


class Added(NamedTuple):
    """What one transaction has added to a sum; of whose origin, the place says where it is kept."""

    csn: int
    origin_seqno: int
    value: int


Sums = Mapping[int, Mapping[int, tuple[Added, ...]]]
"""Group -> origin -> what its transactions have added since the last reset, in their order, as long as it is kept."""


class Row(Struct, frozen=True):
    """A row with its stamps. `values`: its image, also while it is gone; None where nobody has ever written it, or all
    have forgotten it. `life`: the stamp of `is_there`. `stamps`: group -> stamp, where it is not NEVER; of a sum that
    of its last reset. `sums`: what was added to each. `waits`: it is there, and not in its table, where another row has
    a unique value of it."""

    values: Image | None = None
    is_there: bool = False
    life: Stamp = NEVER
    stamps: Mapping[int, Stamp] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    waits: bool = False

    @property
    def newest(self) -> Stamp:
        """The latest of all its stamps."""
        return max(*self.all_stamps(), NEVER)

    @property
    def writer(self) -> Stamp | None:
        """The one transaction that has stamped all of it that is stamped; None: there are several."""
        found = set(self.all_stamps())
        return self.life if len(found) == 1 else None

    def all_stamps(self, *, with_all_added: bool = False) -> Iterable[Stamp]:
        """Each of them, some perhaps more than once; of what an origin has added to a sum the last one, or all."""
        if not self.sums:
            return (self.life, *self.stamps.values())
        kept = (one for by_origin in self.sums.values() for one in by_origin.items())
        added = (
            Stamp(one.csn, origin, one.origin_seqno)
            for origin, some in kept
            for one in (some if with_all_added else some[-1:])
        )
        return (self.life, *self.stamps.values(), *added)

    def showing(self, values: Image | None) -> Row:
        """The same with those values."""
        return Row(values, self.is_there, self.life, self.stamps, self.sums)

    def without(self, stable: Mapping[int, int]) -> Row:
        """The same without what was added by transactions that everybody has (origin -> the last one): all that anybody
        will ever write is later, so it has no part in what that comes to."""
        sums: dict[int, dict[int, tuple[Added, ...]]] = {}
        for group, by_origin in self.sums.items():
            for origin, added in by_origin.items():
                if kept := tuple(one for one in added if one.origin_seqno > stable.get(origin, 0)):
                    sums.setdefault(group, {})[origin] = kept
        return Row(self.values, self.is_there, self.life, self.stamps, sums)


class RowChanged(NamedTuple):
    """One change of one row whose key it leaves alone. `groups`: those that it writes, of a delete all sums; `values`:
    its image after it, of a delete the one before it; `before`: of an update the one before it, where it has sums."""

    op: int
    values: Image
    groups: frozenset[int]
    before: Image | None = None


def merged(row: Row, change: RowChanged, stamp: Stamp, groups: Groups) -> Row:
    """The row with that change, too. An update of a row that nobody has ever written gives it the values of the
    change's image."""
    if change.groups and min(change.groups) < 0:
        return _summed(row, change, stamp, groups)
    values, stamps = row.values, row.stamps
    if values is None and not stamps and change.op == Op.INSERT and row.life == NEVER:
        return Row(change.values, True, stamp, dict.fromkeys(change.groups, stamp), row.sums)
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
        return Row(values, change.op != Op.DELETE, stamp, stamps, row.sums)
    return Row(values, row.is_there, row.life, stamps, row.sums)


def _summed(row: Row, change: RowChanged, stamp: Stamp, groups: Groups) -> Row:
    """As `merged`, where the change writes sums. What an insert or an update adds is kept with its stamp, and all is
    added up that is later than the last delete, which resets it to nothing, or than the last value that is no integer.
    So any order of arrival gives one sum. It has 64 bits, as SQLite's integers have, and goes round beyond them."""
    ordinary = change._replace(groups=frozenset(group for group in change.groups if group >= 0))
    after = merged(row, ordinary, stamp, groups)
    assert after.values is not None
    values, stamps, sums = list(after.values), dict(after.stamps), dict(row.sums)
    for group in change.groups - ordinary.groups:
        at = groups.index(group)
        value, is_reset = _brought(change, at)
        if stamp < stamps.get(group, NEVER):
            continue
        if is_reset:
            stamps[group] = stamp
            sums[group] = _later(sums.get(group, {}), stamp)
            values[at] = _plus(value, *(one.value for added in sums[group].values() for one in added))
        else:
            sums[group] = _with(sums.get(group, {}), stamp, value)
            if row.values is not None:
                values[at] = _plus(values[at], value)
    return Row(tuple(values), after.is_there, after.life, stamps, {group: some for group, some in sums.items() if some})


def _brought(change: RowChanged, at: int) -> tuple[Any, bool]:
    """What a change adds to the sum there, or resets it to; whether that is a reset."""
    if change.op == Op.DELETE:
        return 0, True
    value = change.values[at]
    if change.op == Op.INSERT:
        return value, type(value) is not int
    assert change.before is not None
    old = change.before[at]
    return (_plus(value, -old), False) if type(value) is type(old) is int else (value, True)


def _plus(value: Any, *added: int) -> Any:
    """Their sum, of 64 bits; what is no integer stays."""
    return (sum(added, value) + 2**63) % 2**64 - 2**63 if type(value) is int else value


def _later(by_origin: Mapping[int, tuple[Added, ...]], stamp: Stamp) -> dict[int, tuple[Added, ...]]:
    """What was added later than that."""
    found = {
        origin: tuple(one for one in added if (one.csn, origin) > (stamp.csn, stamp.origin))
        for origin, added in by_origin.items()
    }
    return {origin: added for origin, added in found.items() if added}


def _with(by_origin: Mapping[int, tuple[Added, ...]], stamp: Stamp, value: int) -> dict[int, tuple[Added, ...]]:
    """And what was added with that stamp, too; what one transaction adds is one."""
    csn, origin, origin_seqno = stamp
    added = by_origin.get(origin, ())
    at = after = bisect_left(added, origin_seqno, key=_number_of)
    if at < len(added) and added[at].origin_seqno == origin_seqno:
        after, value = at + 1, _plus(added[at].value, value)
    return {**by_origin, origin: (*added[:at], Added(csn, origin_seqno, value), *added[after:])}


def _number_of(one: Added) -> int:
    return one.origin_seqno


def groups_of(
    columns: int, together: Iterable[Sequence[int]], *, whole: bool = False, summed: Sequence[int] = ()
) -> Groups:
    """Each ordinal's group: columns that one constraint names stand `together`, so that every group's values were
    valid where they were written. `whole`: all are one group, but for those that are `summed`."""
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
    sums = {at: -number for number, at in enumerate(summed, 1)}
    return tuple(sums.get(at, numbers[root]) for at, root in enumerate(roots))


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
        is_written = group >= 0 and group in change.groups and change.op != Op.DELETE
        if rival in unseen and is_written and not same_value(here[ordinal], change.values[ordinal]):
            rivals.setdefault(rival, []).append(ordinal)
    for rival, ordinal in _lost_sums(before, change, stamp, groups, unseen):
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
            ordinals = [at for at, group in enumerate(groups) if not unseen.isdisjoint(_stamps_of(before, group))]
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


def _stamps_of(row: Row, group: int) -> Iterable[Stamp]:
    yield row.stamps.get(group, NEVER)
    for origin, added in row.sums.get(group, {}).items():
        for one in added:
            yield Stamp(one.csn, origin, one.origin_seqno)


def _lost_sums(
    before: Row, change: RowChanged, stamp: Stamp, groups: Groups, unseen: frozenset[Stamp]
) -> Iterable[tuple[Stamp, int]]:
    """Of each sum that a change writes, what it comes too late for, or takes away; not what a delete takes with the
    whole row."""
    if change.op == Op.DELETE and stamp >= before.life:
        return
    for group in sorted(group for group in change.groups if group < 0):
        at = groups.index(group)
        value, is_reset = _brought(change, at)
        reset = before.stamps.get(group, NEVER)
        if stamp < reset:
            if reset in unseen and change.op != Op.DELETE and (is_reset or value != 0):
                yield reset, at
        elif is_reset:
            taken = [one for one in _stamps_of(before, group) if one in unseen and one <= stamp]
            yield from ((one, at) for one in sorted(taken)[-1:])


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of a database are the same, type and all."""
    return type(one) is type(other) and bool(one == other)


# How a row's stamps are kept.


def pack_row(row: Row, writer: Stamp | None) -> bytes:
    """Its stamps; of a row that is gone, or waits, its values, too. Those of any other are in the table. Where one
    transaction has stamped all of it, the groups stand as bytes. After them what was added to sums, where anything
    was. `writer`: as `Row.writer` says."""
    groups: bytes | list[int]
    if writer is not None and not row.sums and 0 <= min(row.stamps, default=0) <= max(row.stamps, default=0) < 256:
        groups = bytes(row.stamps)
    else:
        groups = [number for group, stamp in row.stamps.items() for number in (group, *stamp)]
    fields: list[Any] = [row.is_there, *row.life, groups, None if row.is_there and not row.waits else row.values]
    if row.sums:
        kept = ((group, origin, one) for group, some in row.sums.items() for origin, one in some.items())
        fields.append([(group, origin, list(chain.from_iterable(added))) for group, origin, added in kept])
    packed: bytes = _pack(fields)
    return packed


_pack: Final = msgpack.Packer().pack


def pack_single(stamp: Stamp, groups: bytes, gone: Sequence[Any] | None = None) -> bytes:
    """What `pack_row` gives of a row that only one transaction has stamped, in those groups. `gone`: its values, where
    that has deleted it."""
    packed: bytes = _pack((gone is None, *stamp, groups, gone))
    return packed


def unpack_row(packed: bytes) -> Row:
    """What `pack_row` gave; the values of a row that is in its table are left to be read. RegionDamagedError."""
    try:
        is_there, csn, origin, origin_seqno, flat, values, *rest = msgpack.unpackb(packed, use_list=False)
        life = Stamp(csn, origin, origin_seqno)
        if type(flat) is bytes:
            return Row(values, is_there, life, dict.fromkeys(flat, life), {}, is_there and values is not None)
        stamps = {flat[at]: Stamp(*flat[at + 1 : at + 4]) for at in range(0, len(flat), 4)}
        sums: dict[int, dict[int, tuple[Added, ...]]] = {}
        for group, of, numbers in rest[0] if rest else ():
            added = tuple(Added(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))
            sums.setdefault(group, {})[of] = added
        return Row(values, is_there, life, stamps, sums, is_there and values is not None)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RegionDamagedError(f"the stamps of a row cannot be read: {error}") from error
