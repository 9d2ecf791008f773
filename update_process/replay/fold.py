"""Changes of one table's rows, taken by columns: what each change is, and what a row has become. Pure.

A change is, whatever its kind, (key, image before, image after), with GONE for a row that is not there. It follows from
the changes before it if its image before is what they left of the row; nothing is known of a row before its first.

Guarantees: what is done for each change is done in C, in whole columns, and comes to the same as change by change, in
their order; a change that does not follow is found. Images are tuples.
Leaves to others: several tables, transactions, what the images are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, repeat
from operator import is_, itemgetter, not_
from typing import Any, Final, NamedTuple

from replicate.errors import JournalDamagedError
from replicate.model.transaction import Op, TableDefinition, changed_of
from update_process.window.columns import Changes

_INSERT: Final = int(Op.INSERT)
_UPDATE: Final = int(Op.UPDATE)
_TUPLES: Final = {tuple}
_ROWS: Final = frozenset((list, tuple))
_FIRST: Final = itemgetter(0)


class _Gone:
    """The image of a row that is not there."""


GONE: Final[Any] = _Gone()


class Way(NamedTuple):
    """How a change of one kind (op, table id, argument) is taken apart: how many values it has, and what gives key and
    images of these. `key_after`: for an UPDATE that sets columns of the key, else None."""

    width: int
    key: Callable[[Any], Any]
    before: Callable[[Any], Any]
    after: Callable[[Any], Any]
    key_after: Callable[[Any], Any] | None = None


class Events(NamedTuple):
    """Changes of rows of one table, by columns."""

    keys: list[Any]
    befores: list[Any]
    afters: list[Any]
    seqnos: Sequence[int]


class Table:
    """What is known of one table's rows, in the order in which they were first touched; `settle` sorts it."""

    __slots__ = ("afters", "befores", "definition", "keys", "last", "seqnos")

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.last: dict[Any, Any] = {}
        """Key -> the row's last image. The other columns have its order."""
        self.befores: list[Any] = []
        self.seqnos: list[int] = []
        self.keys: list[Any] | None = None
        self.afters: list[Any] = []

    def take(self, events: Events) -> int | None:
        """Take changes in their order; the place of the first that does not follow from those before it."""
        keys, befores, afters, seqnos = events
        known = len(self.last)
        # zip asks its two iterators in turn: the row's image as it was, then the new one for it, change by change.
        turns = zip(map(self.last.get, keys), map(self.last.__setitem__, keys, afters))  # noqa: B905 (same keys)
        olds = list(map(_FIRST, turns))
        came = len(self.last) - known
        if came == 0:
            return None if olds == befores else _first_other(olds, befores)
        if came < len(keys):
            new = list(map(is_, olds, repeat(None)))
            if list(compress(olds, map(not_, new))) != list(compress(befores, map(not_, new))):
                return _first_other(olds, befores)
            befores, seqnos = list(compress(befores, new)), list(compress(seqnos, new))
        self.befores += befores
        self.seqnos += seqnos
        return None

    def settle(self) -> list[Any]:
        """The keys; they and the other columns stand in order now where keys have one: where neighbours lie in the
        database, too, so that each of its pages is come to once. Nothing is taken any more."""
        if self.keys is None:
            keys, self.afters = list(self.last), list(self.last.values())
            self.last = {}
            try:
                order = sorted(range(len(keys)), key=keys.__getitem__)
            except TypeError:  # keys of several storage classes
                self.keys = keys
            else:
                self.befores, self.afters, self.seqnos, self.keys = (
                    list(map(column.__getitem__, order)) for column in (self.befores, self.afters, self.seqnos, keys)
                )
        return self.keys


def _first_other(olds: list[Any], befores: Sequence[Any]) -> int:
    fits = (old is None or old == before for old, before in zip(olds, befores, strict=True))
    return next(place for place, does in enumerate(fits) if not does)


def way_of(op: int, argument: Any, definition: TableDefinition) -> Way:
    """The way of changes of one kind. JournalDamagedError for an argument that is no mask of the table's columns."""
    length, key = definition.image_length, definition.key
    if op == _UPDATE:
        return _update_way(changed_of(argument, length), length, key)
    if op == _INSERT:
        return Way(length, itemgetter(*key), lambda _: GONE, tuple)
    return Way(length, itemgetter(*key), tuple, lambda _: GONE)


def _update_way(ordinals: tuple[int, ...], length: int, key: tuple[int, ...]) -> Way:
    """An UPDATE carries the new values of `ordinals`, then the whole image before."""
    count = len(ordinals)
    places = [*range(count, count + length)]
    for place, ordinal in enumerate(ordinals):
        places[ordinal] = place
    # Of one item an itemgetter makes no tuple.
    after = itemgetter(*places) if length > 1 else itemgetter(slice(places[0], places[0] + 1))
    moves = not set(ordinals).isdisjoint(key)
    return Way(
        count + length,
        itemgetter(*(count + ordinal for ordinal in key)),
        itemgetter(slice(count, None)),
        after,
        itemgetter(*(places[ordinal] for ordinal in key)) if moves else None,
    )


def images(values: Sequence[Any], widths: list[int], seqnos: Sequence[int]) -> Sequence[Any]:
    """Values as tuples, as long as they should be. JournalDamagedError."""
    types = set(map(type, values))
    if types <= _ROWS and list(map(len, values)) == widths:
        return values if types == _TUPLES else list(map(tuple, values))
    pairs = zip(values, widths, strict=True)
    place = next(at for at, (value, width) in enumerate(pairs) if type(value) not in _ROWS or len(value) != width)
    raise JournalDamagedError("an image does not fit the table's definition", seqno=seqnos[place])


def moved(events: Events, keys_after: list[Any]) -> Events:
    """The same changes, one that moves a row to another key as the end of one row and the beginning of another."""
    made: list[tuple[Any, Any, Any, int]] = []
    for key, key_after, before, after, seqno in zip(
        events.keys, keys_after, events.befores, events.afters, events.seqnos, strict=True
    ):
        if key == key_after:
            made.append((key, before, after, seqno))
        else:
            made += ((key, before, GONE, seqno), (key_after, GONE, after, seqno))
    return Events(*map(list, zip(*made, strict=True)))


def senseless(changes: Changes, seqnos: Sequence[int], error: TypeError) -> JournalDamagedError:
    """What cannot be hashed stands in a change: which one it is."""
    for seqno, (op, table_id, argument, values) in zip(seqnos, zip(*changes, strict=True), strict=True):
        try:
            hash((op, table_id, argument, tuple(values)))
        except TypeError as found:
            return JournalDamagedError(f"a change of transaction {seqno} makes no sense: {found}", seqno=seqno)
    return JournalDamagedError(
        f"a change of the transactions {seqnos[0]} to {seqnos[-1]} makes no sense: {error}", seqno=seqnos[0]
    )
