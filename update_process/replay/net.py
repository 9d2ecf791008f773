"""The net change of a run of transactions: for each row its first before-image and its last after-image. Pure.

A row is what one table id and one key name (the hidden rowid where there is one, else the primary key of a WITHOUT
ROWID table, else the INTEGER PRIMARY KEY). A change of the key is the end of one row and the beginning of another.

Guarantees: applying the net change to the state before the run gives exactly the state after it, whatever the order
within each of its three phases: all deletes, then updates that touch no unique column, then inserts (an update that
touches one is a delete and an insert). So unique values may have been swapped, and foreign order does not matter: rows
are applied with triggers and foreign keys off. A history that contradicts itself is refused by name. Values keep their
storage class: 1 and 1.0 are different values, though the same key.
Refuses to know: schema changes (they are barriers: a run never holds one), databases, where changes come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import lru_cache
from operator import ne
from typing import Any, Final, NamedTuple

from replicate.errors import ConflictError, FormatUnknownError, JournalDamagedError
from replicate.journal.record import FIXED_ELEMENTS
from replicate.transaction import Kind, Op, TableDefinition, changed_of, mask_of

Image = Sequence[Any]
Unique = frozenset[int] | None
"""Ordinals of the columns in unique indexes; None: any column may count."""

_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_DELETE: Final = int(Op.DELETE)
_SEQUENCE: Final = int(Op.SEQUENCE)
_COMMENT: Final = int(Op.COMMENT)
_TRANSACTION: Final = int(Kind.TRANSACTION)


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


_row: Final[Any] = tuple.__new__
"""A NetRow in a third of the time of its own way."""


class NetSequence(NamedTuple):
    """The AUTOINCREMENT counter of a table before the run and after it; None: there is no counter."""

    table_id: int
    old: int | None
    new: int | None


class _Mask(NamedTuple):
    """What an UPDATE of a table sets. `moves`: the key is among it. `key`: the ordinal of a one-column key that stays,
    else -1. `length`: of the table's images."""

    ordinals: tuple[int, ...]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a mask
    moves: bool
    key: int
    length: int


@dataclass(slots=True)
class NetChange:
    """Folds transactions one after another. `definition_of` raises for a table id that is not known."""

    definition_of: Callable[[int], TableDefinition]
    change_count: int = 0
    """Changes of rows that were folded."""
    key_count: int = 0
    """Rows that were touched."""
    _tables: dict[int, dict[Any, list[Any]]] = field(default_factory=dict)
    _keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)
    _sequences: dict[int, list[Any]] = field(default_factory=dict)
    _masks: dict[Any, _Mask] = field(default_factory=dict)
    _sorted: set[int] = field(default_factory=set)
    """Tables whose rows stand in order; nothing is folded once there is one."""

    def fold(self, bodies: Iterable[Sequence[Any]]) -> None:
        """Take decoded frames (kind, seqno, …, then flat changes) in their order. NULL records hold nothing.

        Raises ConflictError for a change that does not follow from the changes before it, JournalDamagedError for
        images that do not fit their definition, what `definition_of` raises; the object is of no use then.
        """
        seqno = 0
        try:
            for body in bodies:
                seqno = body[1]
                if body[0] == _TRANSACTION:
                    self.fold_changes(body, seqno, FIXED_ELEMENTS)
        except (TypeError, IndexError) as error:
            raise JournalDamagedError(
                f"a change of transaction {seqno} makes no sense: {error}", seqno=seqno
            ) from error

    def fold_changes(self, flat: Sequence[Any], seqno: int, start: int = 0) -> None:
        """Take flat changes (op, id, argument, values, …) of transaction `seqno`. Raises as `fold`."""
        if (len(flat) - start) % 4:
            raise JournalDamagedError("a change stream ends inside a change", seqno=seqno)
        masks, tables = self._masks, self._tables
        for at in range(start, len(flat), 4):
            op, table_id, argument, values = flat[at : at + 4]
            if op == _UPDATE:
                # The most frequent case, unrolled: the row is known, its key stays. Calls would cost half of the time.
                mask = masks.get((table_id, argument))
                if mask is not None and mask.key >= 0:
                    before = values[mask.count :]
                    if len(before) == mask.length:
                        row = tables[table_id].get(before[mask.key])
                        if row is not None and row[1] == before:
                            for place, ordinal in enumerate(mask.ordinals):
                                before[ordinal] = values[place]
                            row[1] = before
                            self.change_count += 1
                            continue
                self._update(table_id, argument, values, seqno)
            elif op == _INSERT:
                self._check(table_id, values, seqno)
                self._add(table_id, values, seqno)
            elif op == _DELETE:
                self._check(table_id, values, seqno)
                self._remove(table_id, values, seqno)
            elif op == _SEQUENCE:
                self._sequence(table_id, values, seqno)
            elif op != _COMMENT:
                raise FormatUnknownError(f"a change of kind {op} can not stand within a run", seqno=seqno)

    def table_ids(self) -> Iterable[int]:
        """Every table of which rows were touched."""
        return self._tables.keys()

    def rows(self, parts: Part = EVERY_PART) -> Iterator[NetRow]:
        """Rows that were touched, table after table, by their keys where keys have an order: where neighbours lie in
        the database, too, so that each of its pages is come to once. Rows without effect too."""
        gone, stayed, came, passed = (part in parts for part in Part)  # asked once: an enum answers slowly
        for table_id in self._tables:
            single = len(self._keys[table_id]) == 1
            for key, (before, after, seqno) in self._in_order(table_id).items():
                if before is None:
                    if after is not None:
                        if came:
                            yield _row(NetRow, (table_id, None, after, seqno, None))
                    elif passed:
                        yield _row(NetRow, (table_id, None, None, seqno, (key,) if single else key))
                elif stayed if after is not None else gone:
                    yield _row(NetRow, (table_id, before, after, seqno, None))

    def _in_order(self, table_id: int) -> dict[Any, list[Any]]:
        rows = self._tables[table_id]
        if table_id not in self._sorted:
            self._sorted.add(table_id)
            with suppress(TypeError):  # keys of several storage classes
                rows = self._tables[table_id] = {key: rows[key] for key in sorted(rows)}
        return rows

    def sequences(self) -> Iterator[NetSequence]:
        """Every counter that moved."""
        for table_id, (old, new) in self._sequences.items():
            yield NetSequence(table_id, old, new)

    # Folding.

    def _check(self, table_id: int, image: Any, seqno: int) -> None:
        length = self._lengths.get(table_id)
        if length is None:
            definition = self.definition_of(table_id)
            self._keys[table_id] = definition.key
            self._tables[table_id] = {}
            length = self._lengths[table_id] = definition.image_length
        if len(image) != length or not isinstance(image, list):
            raise JournalDamagedError("an image does not fit the table's definition", seqno=seqno)

    def _key(self, table_id: int, image: Image) -> Any:
        ordinals = self._keys[table_id]
        return image[ordinals[0]] if len(ordinals) == 1 else tuple([image[ordinal] for ordinal in ordinals])

    def _update(self, table_id: int, argument: Any, values: Any, seqno: int) -> None:
        known = self._masks.get((table_id, argument))
        if known is None:
            known = self._mask(table_id, argument)
        ordinals, moves = known.ordinals, known.moves
        before = values[len(ordinals) :]
        self._check(table_id, before, seqno)
        after = before.copy()
        for place, ordinal in enumerate(ordinals):
            after[ordinal] = values[place]
        key = self._key(table_id, before)
        if moves and self._key(table_id, after) != key:
            self._remove(table_id, before, seqno)
            self._add(table_id, after, seqno)
            self.change_count -= 1
            return
        rows = self._tables[table_id]
        row = rows.get(key)
        if row is None:
            rows[key] = [before, after, seqno]
            self.key_count += 1
        elif row[1] != before:
            raise self._contradiction(table_id, key, seqno)
        else:
            row[1] = after
        self.change_count += 1

    def _mask(self, table_id: int, argument: Any) -> _Mask:
        definition = self.definition_of(table_id)
        ordinals = changed_of(argument, definition.image_length)
        moves = not set(ordinals).isdisjoint(definition.key)
        key = definition.key[0] if len(definition.key) == 1 and not moves else -1
        known = self._masks[table_id, argument] = _Mask(ordinals, len(ordinals), moves, key, definition.image_length)
        return known

    def _add(self, table_id: int, image: Image, seqno: int) -> None:
        rows, key = self._tables[table_id], self._key(table_id, image)
        row = rows.get(key)
        if row is None:
            rows[key] = [None, image, seqno]
            self.key_count += 1
        elif row[1] is not None:
            raise self._contradiction(table_id, key, seqno)
        else:
            row[1] = image
        self.change_count += 1

    def _remove(self, table_id: int, image: Image, seqno: int) -> None:
        rows, key = self._tables[table_id], self._key(table_id, image)
        row = rows.get(key)
        if row is None:
            rows[key] = [image, None, seqno]
            self.key_count += 1
        elif row[1] is None or row[1] != image:
            raise self._contradiction(table_id, key, seqno)
        else:
            row[1] = None
        self.change_count += 1

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
            do="The journal contradicts itself: run `replicate journal verify` where it was written, then seed anew",
            table=table,
            seqno=seqno,
            key=repr(key)[:200],
        )


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
    if float in set(map(type, (*before, *after))) or len(before) != len(after):
        pairs = zip(before, after, strict=True)
        return _marked(tuple([not same_value(old, new) for old, new in pairs]))
    return _marked(tuple(map(ne, before, after)))


@lru_cache(1024)
def _marked(differs: tuple[bool, ...]) -> tuple[tuple[int, ...], Any]:
    changed = tuple([at for at, is_other in enumerate(differs) if is_other])
    return changed, mask_of(changed, len(differs))


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
