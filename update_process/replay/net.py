"""The net change of a run of transactions: for each row its first before-image and its last after-image. Pure.

Guarantees: applying the net change to the state before the run gives exactly the state after it, whatever the order
within each of its three phases: all deletes, then updates that touch no unique column, then inserts (an update that
touches one is a delete and an insert). So unique values may have been swapped, and foreign order does not matter: rows
are applied with triggers and foreign keys off. A history that contradicts itself is refused by name. Values keep their
storage class: 1 and 1.0 are different values, though the same key.
Leaves to others: schema changes (they are barriers: a run never holds one), databases, where changes come from.

Changes are folded a window at a time, by columns, table after table (fold.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Flag, auto
from functools import lru_cache
from itertools import chain, compress, repeat
from operator import eq, is_, ne, not_
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from replicate.errors import ConflictError, FormatUnknownError, JournalDamagedError
from replicate.journal.record import changes_of
from replicate.model.transaction import TELLS_ONLY, Op, TableDefinition, mask_of
from update_process.plan import Window
from update_process.replay.fold import GONE, Events, Table, Way, images, moved, senseless, way_of
from update_process.window.columns import Changes

Image = Sequence[Any]
Unique = frozenset[int] | None
"""Ordinals of the columns in unique indexes; None: any column may count."""

COLUMNS_ROWS: Final = 4096
"""Rows of one NetColumns at most."""

_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)
_SEQUENCE: Final = int(Op.SEQUENCE)
_ROW_OPS: Final = frozenset((_INSERT, _UPDATE, _DELETE))


class Part(Flag):
    """Net rows by what becomes of them: GONE (there is none after), STAYED (there is one before and after), CAME (there
    was none before), PASSED (came and went within the run)."""

    GONE = auto()
    STAYED = auto()
    CAME = auto()
    PASSED = auto()


EVERY_PART: Final = Part.GONE | Part.STAYED | Part.CAME | Part.PASSED


class NetRow(NamedTuple):
    """One row's net change. None: there was no row before, or is none after. `seqno`: of its first change.

    `passed`: the key of a row that came and went within the run, so that both images are None; else None.
    """

    table_id: int
    before: Image | None
    after: Image | None
    seqno: int
    passed: Image | None = None


class NetColumns(NamedTuple):
    """Net rows of one table and one part, by columns: as many images before and after as rows, or none where the part
    has none."""

    table_id: int
    part: Part
    rows: int
    befores: Sequence[Image]
    afters: Sequence[Image]


class NetSequence(NamedTuple):
    """The AUTOINCREMENT counter of a table before the run and after it; None: there is no counter."""

    table_id: int
    old: int | None
    new: int | None


class NetChange(Struct):
    """Folds transactions one after another. `definition_of` raises for a table id that is not known.

    A row is what one table id and one key name (the hidden rowid where there is one, else the primary key of a WITHOUT
    ROWID table, else the INTEGER PRIMARY KEY). A change of the key is the end of one row and the beginning of another.
    """

    definition_of: Callable[[int], TableDefinition]
    change_count: int = 0
    """Changes of rows that were folded."""
    key_count: int = 0
    """Rows that were touched."""
    _tables: dict[int, Table] = field(default_factory=dict)
    _sequences: dict[int, list[Any]] = field(default_factory=dict)
    _ways: dict[tuple[Any, Any, Any], Way] = field(default_factory=dict)

    def take(self, window: Window, start: int, stop: int) -> None:
        """Take frames `start` to `stop` (exclusive) of a verified window. Raises as `fold`."""
        if window.plain is None:
            self.fold(window.bodies[start:stop])
        else:
            self.fold_changes(window.plain.changes(start, stop), window.plain.seqnos(start, stop))

    def fold(self, bodies: Iterable[Sequence[Any]]) -> None:
        """Take decoded frames (kind, seqno, …, then flat changes) in their order. NULL records hold nothing.

        Raises ConflictError for a change that does not follow from the changes before it, JournalDamagedError for
        images that do not fit their definition, what `definition_of` raises; the object is of no use then.
        """
        held = list(bodies)
        taken = [changes_of(body) for body in held]
        seqnos, lengths = [body[1] for body in held], list(map(len, taken))
        for seqno, length in zip(seqnos, lengths, strict=True):
            if length % 4:
                raise JournalDamagedError("a change stream ends inside a change", seqno=seqno)
        flat = list(chain.from_iterable(taken))
        counts = [length // 4 for length in lengths]
        each = list(chain.from_iterable(map(repeat, seqnos, counts)))
        self.fold_changes(Changes(flat[0::4], flat[1::4], flat[2::4], flat[3::4]), each)

    def fold_changes(self, changes: Changes, seqnos: Sequence[int]) -> None:
        """Take changes by columns, `seqnos` the number of each one's transaction. Raises as `fold`; where changes of
        several tables do not fit, it names one of them."""
        try:
            self._fold(changes, seqnos)
        except TypeError as error:
            raise senseless(changes, seqnos, error) from error

    def table_ids(self) -> Iterable[int]:
        """Every table of which rows were touched."""
        return self._tables.keys()

    def rows(self, parts: Part = EVERY_PART) -> Iterator[NetRow]:
        """Rows that were touched, table after table, by their keys where keys have an order. Rows without effect too.
        Nothing may be folded any more."""
        for table_id, table in self._tables.items():
            single = len(table.definition.key) == 1
            keys = table.settle()
            for key, before, after, seqno in zip(keys, table.befores, table.afters, table.seqnos, strict=True):
                if _part_of(before, after) in parts:
                    is_nowhere = before is GONE and after is GONE
                    yield NetRow(
                        table_id,
                        None if before is GONE else list(before),
                        None if after is GONE else list(after),
                        seqno,
                        ((key,) if single else key) if is_nowhere else None,
                    )

    def columns(self, parts: Part = EVERY_PART) -> Iterator[NetColumns]:
        """The same rows in the same order by columns, those of some COLUMNS_ROWS rows together. Images are tuples."""
        for table_id, table in self._tables.items():
            for start in range(0, len(table.settle()), COLUMNS_ROWS):
                befores = table.befores[start : start + COLUMNS_ROWS]
                afters = table.afters[start : start + COLUMNS_ROWS]
                yield from _by_parts(table_id, befores, afters, parts)

    def sequences(self) -> Iterator[NetSequence]:
        """Every counter that moved."""
        for table_id, (old, new) in self._sequences.items():
            yield NetSequence(table_id, old, new)

    # Folding.

    def _fold(self, changes: Changes, seqnos: Sequence[int]) -> None:
        count = len(changes.ops)
        if not count:
            return
        ops, table_ids, arguments, _ = changes
        op, table_id, argument = ops[0], table_ids[0], arguments[0]
        if op in _ROW_OPS and ops.count(op) == table_ids.count(table_id) == arguments.count(argument) == count:
            self._take_alike(op, argument, table_id, changes.values, seqnos)
            return
        kinds = set(zip(ops, table_ids, arguments, strict=True))
        if not {op for op, _, _ in kinds} <= _ROW_OPS:
            changes, seqnos = self._without_others(changes, seqnos)
        places: dict[Any, list[int]] = {}
        for place, table_id in enumerate(changes.table_ids):
            places.setdefault(table_id, []).append(place)
        for table_id, chosen in places.items():
            if len(places) == 1:
                self._take_mixed(table_id, changes, seqnos)
            else:
                of_table = Changes(*(list(map(column.__getitem__, chosen)) for column in changes))
                self._take_mixed(table_id, of_table, list(map(seqnos.__getitem__, chosen)))

    def _without_others(self, changes: Changes, seqnos: Sequence[int]) -> tuple[Changes, Sequence[int]]:
        """The changes of rows; what else there is has been taken."""
        of_rows = list(map(_ROW_OPS.__contains__, changes.ops))
        for place in compress(range(len(of_rows)), map(not_, of_rows)):
            op = changes.ops[place]
            if op == _SEQUENCE:
                self._sequence(changes.table_ids[place], changes.values[place], seqnos[place])
            elif op not in TELLS_ONLY:
                raise FormatUnknownError(f"a change of kind {op} cannot stand within a run", seqno=seqnos[place])
        return Changes(*(list(compress(column, of_rows)) for column in changes)), list(compress(seqnos, of_rows))

    def _take_alike(self, op: int, argument: Any, table_id: Any, values: Sequence[Any], seqnos: Sequence[int]) -> None:
        """Changes of one kind."""
        way = self._way(op, table_id, argument)
        values = images(values, [way.width] * len(values), seqnos)
        keys = list(map(way.key, values))
        befores = [GONE] * len(values) if op == _INSERT else list(map(way.before, values))
        afters = [GONE] * len(values) if op == _DELETE else list(map(way.after, values))
        keys_after = keys if way.key_after is None else list(map(way.key_after, values))
        self._take(table_id, Events(keys, befores, afters, seqnos), keys_after)

    def _take_mixed(self, table_id: Any, changes: Changes, seqnos: Sequence[int]) -> None:
        """Changes of several kinds, all of one table."""
        kinds = list(zip(changes.ops, changes.arguments, strict=True))
        known = {(op, argument): self._way(op, table_id, argument) for op, argument in dict.fromkeys(kinds)}
        if len(known) == 1:
            self._take_alike(*kinds[0], table_id, changes.values, seqnos)
            return
        ways = list(map(known.__getitem__, kinds))
        values = images(changes.values, [way.width for way in ways], seqnos)
        both = list(zip(ways, values, strict=True))
        keys = keys_after = [way.key(image) for way, image in both]
        befores, afters = [way.before(image) for way, image in both], [way.after(image) for way, image in both]
        if any(way.key_after for way in known.values()):
            keys_after = [(way.key_after or way.key)(image) for way, image in both]
        self._take(table_id, Events(keys, befores, afters, seqnos), keys_after)

    def _take(self, table_id: Any, events: Events, keys_after: list[Any]) -> None:
        table = self._tables[table_id]
        self.change_count += len(events.keys)
        if keys_after is not events.keys and keys_after != events.keys:
            events = moved(events, keys_after)
        known = len(table.last)
        place = table.take(events)
        self.key_count += len(table.last) - known
        if place is not None:
            raise self._contradiction(table_id, events.keys[place], events.seqnos[place])

    def _way(self, op: Any, table_id: Any, argument: Any) -> Way:
        way = self._ways.get((op, table_id, argument))
        if way is not None:
            return way
        table = self._tables.get(table_id) or Table(self.definition_of(table_id))
        way = self._ways[op, table_id, argument] = way_of(op, argument, table.definition)
        self._tables[table_id] = table
        return way

    def _sequence(self, table_id: int, values: Any, seqno: int) -> None:
        if not isinstance(values, list | tuple) or len(values) != 2:
            raise JournalDamagedError("a sequence change carries no two values", seqno=seqno)
        old, new = values
        known = self._sequences.get(table_id)
        if known is None:
            self._sequences[table_id] = [old, new]
        elif known[1] != old:
            raise self._contradiction(table_id, "sequence", seqno)
        else:
            known[1] = new

    def _contradiction(self, table_id: int, key: Any, seqno: int) -> ConflictError:
        table = self.definition_of(table_id).table
        return ConflictError(
            f"transaction {seqno} does not fit what the transactions before it left in table {table}",
            do="The journal contradicts itself: replicate -i NAME journal verify where it was written, then seed again",
            table=table,
            seqno=seqno,
            key=repr(key)[:200],
        )


def _part_of(before: Any, after: Any) -> Part:
    if before is GONE:
        return Part.PASSED if after is GONE else Part.CAME
    return Part.GONE if after is GONE else Part.STAYED


def _by_parts(table_id: int, befores: list[Any], afters: list[Any], parts: Part) -> Iterator[NetColumns]:
    """Rows of one table, those of each part together."""
    absent = list(map(is_, befores, repeat(GONE)))
    left = list(map(is_, afters, repeat(GONE)))
    if True not in absent and True not in left:
        if Part.STAYED in parts:
            yield NetColumns(table_id, Part.STAYED, len(befores), befores, afters)
        return
    kinds = list(zip(absent, left, strict=True))
    for part, kind in _PARTS.items():
        if part not in parts:
            continue
        chosen = list(map(eq, kinds, repeat(kind)))
        rows = chosen.count(True)
        if rows:
            yield NetColumns(
                table_id,
                part,
                rows,
                () if kind[0] else list(compress(befores, chosen)),
                () if kind[1] else list(compress(afters, chosen)),
            )


_PARTS: Final = {
    Part.GONE: (False, True),
    Part.STAYED: (False, False),
    Part.CAME: (True, False),
    Part.PASSED: (True, True),
}
"""Of each part: whether there is no row before, and none after."""


def same_value(one: Any, other: Any) -> bool:
    """Whether two database values are the same, storage class and sign of zero included."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return type(one) is not float or one != 0.0 or math.copysign(1.0, one) == math.copysign(1.0, other)


def changed_ordinals(before: Image, after: Image) -> tuple[int, ...]:
    """Where two images of a row differ."""
    return _difference(before, after)[0]


def _difference(before: Image, after: Image) -> tuple[tuple[int, ...], Any]:
    """Where two images of a row differ, and their mask."""
    # 0.0 equals -0.0, and 1 equals 1.0: only where a float is near, equal values may be different ones.
    if len(before) != len(after):
        raise JournalDamagedError("two images of a row are not of one length")
    if float in set(map(type, (*before, *after))):
        pairs = zip(before, after, strict=True)
        return _marked(tuple([not same_value(old, new) for old, new in pairs]))
    return _marked(tuple(map(ne, before, after)))


@lru_cache(1024)
def _marked(differs: tuple[bool, ...]) -> tuple[tuple[int, ...], Any]:
    changed = tuple([at for at, is_other in enumerate(differs) if is_other])
    return changed, mask_of(changed, len(differs))


def change_of(op: int, row: NetRow, unique: Unique, *, verify: bool = False) -> list[Any] | None:
    """The change that a row's net change makes in the phase of deletes, updates or inserts."""
    if op == _UPDATE:
        return as_update(row, unique, verify=verify)
    return as_delete(row, unique) if op == _DELETE else as_insert(row, unique)


def as_delete(row: NetRow, unique: Unique) -> list[Any] | None:
    """The change of the first phase: the row goes, or is moved out of the way of a unique value. None: nothing."""
    if row.before is None:
        return None
    if row.after is not None and not _moves(row.before, row.after, unique):
        return None
    return [_DELETE, row.table_id, 0, row.before]


def as_update(row: NetRow, unique: Unique, *, verify: bool = False) -> list[Any] | None:
    """The change of the second phase. `verify`: a row without a net change is written as it is, which checks it."""
    _, before, after, _, _ = row
    if before is None or after is None:
        return None
    changed, mask = _difference(before, after)
    if not changed:
        return [_UPDATE, row.table_id, mask, before] if verify else None
    if unique is None or (unique and not unique.isdisjoint(changed)):
        return None
    return [_UPDATE, row.table_id, mask, [*[after[at] for at in changed], *before]]


def as_insert(row: NetRow, unique: Unique) -> list[Any] | None:
    """The change of the third phase: the row comes, or comes back with its unique value."""
    if row.after is None:
        return None
    if row.before is not None and not _moves(row.before, row.after, unique):
        return None
    return [_INSERT, row.table_id, 0, row.after]


def _moves(before: Image, after: Image, unique: Unique) -> bool:
    """Whether an update changes a column of a unique index."""
    if unique is None:
        return bool(changed_ordinals(before, after))
    return any(not same_value(before[at], after[at]) for at in unique) if unique else False
