"""Row changes put into the order of their table's pages: what a batch that changes rows here and there costs least in.

Guarantees: changes of one row keep their order; what may not be moved (`place_of` says None) keeps its place among the
changes of its table, what is no change of a row its place among all. Nothing is left out or doubled, but for steps of
counters, of which each begins where the last one ended.
Leaves to others: what may be moved, how a change is made. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from operator import eq, getitem, itemgetter
from typing import Any, Final, NamedTuple

from replicate.model.transaction import Op

TURNS_MAX: Final = 8
"""The first changes of all rows are made together, then the second ones, and so on. Where a row is changed more often
than this, each further turn would be a run of hardly any row: what is left of its changes is made together then."""
KINDS_MAX: Final = 1024
"""Of more kinds of changes (sets of changed columns) the runs would be as short. A run prepares its statement, which a
run of mixed kinds does for most rows, once there are more kinds than the binding keeps statements: with 100, 200 and
500 kinds in a batch of 30,000 an update took 4.5, 4.9 and 6.9 µs by runs of a kind, 5.7, 7.1 and 11.1 without
(measured)."""
KINDS_FEW: Final = 64
"""Of so many nobody asks which of them a part has."""
ENDS_MAX: Final = 8
"""A table where what may not be moved comes up more often than this among what may stays as it came from there on: the
runs between would be as short."""
PART_CHANGES: Final = 16_384
"""Sorted at a time: their numbers, rows and order take about a megabyte."""
SAMPLED: Final = 64
"""Of so many changes one says where parts begin."""

_INSERT: Final = int(Op.INSERT)
_SEQUENCE: Final = int(Op.SEQUENCE)
_ROW_OPS: Final = frozenset((int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)))
_ROWS: Final = frozenset((list, tuple))
_INTEGERS: Final = {int}

PlaceOf = Callable[[Any, Any, Any], int | None]
"""(op, table id, argument) -> where in its values the rowid stands, if changes of this kind may be moved; else None."""


class RowRun(NamedTuple):
    """Changes to be made next, by columns. `is_uniform`: all are of one kind, sorted by rowid."""

    ops: Sequence[Any]
    table_ids: Sequence[Any]
    arguments: Sequence[Any]
    values: Sequence[Any]
    is_uniform: bool


def arranged(
    ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any], place_of: PlaceOf
) -> Iterator[RowRun]:
    """The same changes, arranged. What makes no sense stays where it is, for the process that makes it to say so.

    A change of one row does not depend on changes of others, as long as neither can take a unique value from the other.
    So the changes of a stretch may change places as long as those of one row keep theirs: the stretch succeeds as a
    whole, or fails as a whole, in either order, and leaves the same rows. (Each single exchange of two neighbours that
    are of different rows shows it: triggers and foreign keys are off, every statement meets the one row that its rowid
    names, and looks at nothing but that row.) SQLite then comes to every page once, from the first to the last, instead
    of once a row.

    CPU of an Update Process a row, transactions of ten rows, 200,000 rows, 3 rounds in turns at 8c22656, load 8:
    updates here and there 3.8 µs (as they came 7.7); inserts, updates and deletes mixed 2.8 µs (3.2).

    The steps of a table's AUTOINCREMENT counter are one step, made last: inserts only ever raise it, no other change of
    a row looks at it, and where the primary has left it is said by the last step, whatever inserts have made of it
    here.
    """
    try:
        kinds = dict.fromkeys(zip(ops, table_ids, arguments, strict=True))
    except TypeError:  # something that cannot be hashed
        yield RowRun(ops, table_ids, arguments, values, False)
        return
    if any(op == _SEQUENCE for op, _, _ in kinds):
        counted = _counted(ops, table_ids, arguments, values)
        if counted is not None:
            changes, steps = counted
            if changes:
                ops, table_ids, arguments, values = map(list, zip(*changes, strict=True))
                yield from arranged(ops, table_ids, arguments, values, place_of)
            yield steps
            return
    places = {kind: place_of(*kind) if kind[0] in _ROW_OPS else None for kind in kinds}
    if len(kinds) == 1:
        place = places[ops[0], table_ids[0], arguments[0]]
        if place is not None and _have_rowids(values, place):
            values = sorted(values, key=itemgetter(place))
        else:
            place = None
        yield RowRun(ops, table_ids, arguments, values, place is not None)
        return
    numbers = {kind: number for number, kind in enumerate(kinds)}
    numbered = list(map(numbers.__getitem__, zip(ops, table_ids, arguments, strict=True)))
    rowids = _rowids(values, list(places.values()), numbered)
    for at, may_move in _stretches(ops, table_ids, rowids):
        runs: Iterable[tuple[Sequence[int], bool]] = ((at, False),)
        if may_move:
            runs = _turns(sorted(at, key=rowids.__getitem__), numbered, rowids, len(kinds))
        for run, is_uniform in runs:
            made = [values[place] for place in run]
            if is_uniform:
                first, count = run[0], len(run)
                yield RowRun(
                    (ops[first],) * count, (table_ids[first],) * count, (arguments[first],) * count, made, True
                )
            else:
                of_each = [[column[place] for place in run] for column in (ops, table_ids, arguments)]
                yield RowRun(of_each[0], of_each[1], of_each[2], made, False)


def _counted(
    ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]
) -> tuple[list[tuple[Any, Any, Any, Any]], RowRun] | None:
    """The changes of rows alone, and the one step of each counter; None where there is anything else, or steps of a
    counter do not follow each other, or its table's last insert follows the last one."""
    steps: dict[Any, list[Any]] = {}
    inserted = set()
    changes: list[tuple[Any, Any, Any, Any]] = []
    for change in zip(ops, table_ids, arguments, values, strict=True):
        op, table_id, argument, value = change
        if op in _ROW_OPS:
            changes.append(change)
            if op == _INSERT:
                inserted.add(table_id)
            continue
        inserted.discard(table_id)
        if op != _SEQUENCE or argument != 0 or type(value) not in _ROWS or len(value) != 2:
            return None
        step = steps.get(table_id)
        if step is None:
            steps[table_id] = [*value]
        elif type(step[1]) is type(value[0]) and step[1] == value[0]:
            step[1] = value[1]
        else:
            return None
    if not inserted.isdisjoint(steps):
        return None
    count = len(steps)
    made = RowRun((_SEQUENCE,) * count, tuple(steps), (0,) * count, tuple(steps.values()), False)
    return changes, made


def _have_rowids(values: Sequence[Any], place: int) -> bool:
    if not _ROWS.issuperset(map(type, values)) or min(map(len, values)) <= place:
        return False
    return set(map(type, map(itemgetter(place), values))) == _INTEGERS


def _rowids(values: Sequence[Any], places: Sequence[int | None], kinds: Sequence[int]) -> Sequence[Any]:
    """The row of each change; None for one that stays where it is. `places`: of each kind, where its rowid stands."""
    if None not in places and _ROWS.issuperset(map(type, values)):
        try:
            found = list(map(getitem, values, map(places.__getitem__, kinds)))
        except IndexError:
            found = []
        if set(map(type, found)) == _INTEGERS:
            return found
    return [_rowid(value, places[kind]) for value, kind in zip(values, kinds, strict=True)]


def _rowid(value: Any, place: int | None) -> int | None:
    if place is None or type(value) not in _ROWS or len(value) <= place or type(value[place]) is not int:
        return None
    return int(value[place])


def _stretches(
    ops: Sequence[Any], table_ids: Sequence[Any], rowids: Sequence[Any]
) -> Iterator[tuple[Sequence[int], bool]]:
    """The changes of each table, cut where one stays where it is, and whether those of a stretch may change places.

    What is no change of a row ends the stretches of all tables.
    """
    if None not in rowids and table_ids.count(table_ids[0]) == len(table_ids):
        yield range(len(rowids)), True
        return
    waiting: dict[Any, tuple[list[int], bool]] = {}
    ends: dict[Any, int] = {}
    for at, (op, table_id, rowid) in enumerate(zip(ops, table_ids, rowids, strict=True)):
        if op not in _ROW_OPS:
            yield from waiting.values()
            waiting.clear()
            yield (at,), False
            continue
        may_move = rowid is not None and ends.get(table_id, 0) <= ENDS_MAX
        found = waiting.get(table_id)
        if found is not None and found[1] == may_move:
            found[0].append(at)
            continue
        if found is not None:
            yield found
            ends[table_id] = ends.get(table_id, 0) + found[1]
        waiting[table_id] = ([at], may_move)
    yield from waiting.values()


def places_arranged(
    kinds: Sequence[int], rowids: Sequence[int], tables: Sequence[Any], ends: Sequence[int]
) -> Iterator[tuple[Sequence[int], bool]]:
    """The same for changes of which nothing is at hand but their kind and their row, and which may all be moved.

    They are ten times as many, and sorted part by part; the runs are made as those of `arranged` are.

    `rowids`: of 64 bits. `tables`: of each kind, whose rows it changes. `ends`: after which change each stretch ends
    that is sorted by rowid already. Gives runs of places, 0 for the first change, and whether the changes there are of
    one kind, sorted by rowid; if not, all of a row stand together as they came. Runs of a table come part by part, the
    lower rows' first.
    """
    for places, after in _places_of(kinds, tables, ends):
        for order in _in_parts(places, after, rowids):
            if len(tables) == 1:
                # Neighbours are compared: a set of all rows took as much memory as all else that is kept of them.
                in_order = itemgetter(*order)(rowids) if len(order) > 1 else ()
                if not any(map(eq, in_order, islice(in_order, 1, None))):
                    yield order, True
                    continue
            yield from _turns(order, kinds, rowids, len(tables))


def _places_of(
    kinds: Sequence[int], tables: Sequence[Any], ends: Sequence[int]
) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    """The changes of each table, and after which of them a stretch ends."""
    if len(set(tables)) == 1:
        return [(range(ends[-1] if ends else 0), ends)]
    found = {table: (array("I"), array("I")) for table in tables}
    adds = [found[table][0].append for table in tables]
    begin = 0
    for end in ends:
        for place in range(begin, end):
            adds[kinds[place]](place)
        for places, after in found.values():
            after.append(len(places))
        begin = end
    return found.values()


def _in_parts(places: Sequence[int], ends: Sequence[int], rowids: Sequence[int]) -> Iterator[Sequence[int]]:
    """These places by rowid, those of one row as they were: some PART_CHANGES at a time, of every row all at once.

    A part takes from each stretch what lies between two rowids of a sample, and is sorted by itself: while the numbers
    of a part are at hand they stay in the processor's cache, and those of all would take several times what is kept.
    """
    rowid_of = rowids.__getitem__
    if len(places) <= PART_CHANGES:
        if places:
            yield sorted(places, key=rowid_of)
        return
    sample = sorted(map(rowid_of, places[::SAMPLED]))
    cuts = sample[PART_CHANGES // SAMPLED :: PART_CHANGES // SAMPLED]
    # What is met twice is a row that fills a part by itself, and in its order already, however often it is changed.
    often = set(compress(cuts, map(eq, cuts, islice(cuts, 1, None))))
    is_all = len(places) == len(rowids)
    begins = [0, *ends[:-1]]
    for cut in [*sorted({*cuts, *(rowid + 1 for rowid in often)}), None]:
        if cut is None:
            after = list(ends)
        elif is_all:
            after = [bisect_left(rowids, cut, begin, end) for begin, end in zip(begins, ends, strict=True)]
        else:
            after = [
                bisect_left(places, cut, begin, end, key=rowid_of) for begin, end in zip(begins, ends, strict=True)
            ]
        part = array("I", chain.from_iterable(map(places.__getitem__, map(slice, begins, after))))
        begins = after
        if part:
            yield part if cut is not None and cut - 1 in often else sorted(part, key=rowid_of)


def _turns(
    order: Sequence[int], kinds: Sequence[int], rowids: Sequence[int], count: int
) -> Iterator[tuple[Sequence[int], bool]]:
    """Changes of one table, sorted by rowid, by turn and kind, each run in the same order; `count` kinds there are in
    all. What a row has beyond TURNS_MAX changes comes last: a row that changes all the time holds nobody up."""
    these = range(count) if count <= KINDS_FEW else set(map(kinds.__getitem__, order))
    if len(these) > KINDS_MAX:
        yield order, False
        return
    lists: list[dict[int, list[int]]] = [{kind: [] for kind in these} for _ in range(TURNS_MAX)]
    adds = [{kind: run.append for kind, run in turn.items()} for turn in lists]
    rest = array("I")
    last, turn = None, 0
    for place in order:
        rowid = rowids[place]
        if rowid == last:
            turn += 1
            if turn >= TURNS_MAX:
                rest.append(place)
                continue
        else:
            last, turn = rowid, 0
        adds[turn][kinds[place]](place)
    for made in lists:
        for run in made.values():
            if run:
                yield run, True
    if rest:
        yield rest, False
