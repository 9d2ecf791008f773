"""Windows as nearly all of them are: transactions of one origin that only change rows, and numbers that hold nothing,
as of partitions that are not here. Verified and kept by columns.

Guarantees: what `verify_plain` gives has passed every check that `batch._verify` makes; for whatever is not plain or
does not verify it gives None, and `_verify` has the verdict. What is done for each frame is done in C, in whole
columns: a third of the time of a loop. Only the chain hashes are made in a loop: it holds the bytes of one frame at a
time, and is faster than columns of slices (measured).
Leaves to others: what is wrong with frames that do not verify; how a change is applied.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import itemgetter, sub
from typing import Any, Final, NamedTuple

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from replicate.journal.frame import FIXED_ELEMENTS, ORIGIN_OFFSET
from replicate.journal.record import changes_of
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import Kind, Op
from replicate.model.vector import Position, SynchronizationVector

PAYLOAD: Final = FIXED_ELEMENTS
"""Index of the first payload element of a decoded body."""
ONE_CHANGE: Final = PAYLOAD + 4
"""Elements of a decoded transaction with a single change."""
BOUND: Final = frozenset((int(Op.DEFINE), int(Op.SCHEMA), int(Op.REGION)))
"""Statements are prepared again after a transaction with one of these."""

TABLES_AT_ONCE: Final = 100
"""The binding keeps 128 prepared statements: with a thousand tables in turns, one was prepared for each row."""

Points = dict[int, tuple[int, int]]
"""origin key -> (last origin_seqno seen, chain hash there)."""
START: Final = (0, 0)
"""Where an origin stands before its first frame."""

_INSERT: Final = int(Op.INSERT)
_TRANSACTIONS: Final = {int(Kind.TRANSACTION)}
_NULL: Final = int(Kind.NULL)
_WITH_NULLS: Final = {int(Kind.TRANSACTION), _NULL}
_NULL_ELEMENTS: Final = PAYLOAD + 2
_KIND: Final = itemgetter(0)
_HEAD: Final = itemgetter(*range(PAYLOAD))
_CHECKED: Final = (0, 1, 3, 4, 5)
"""Of a body's head: kind, seqno, chain, origin, origin_seqno."""
_COPIED_BYTES: Final = 1024
"""Of frames up to this size on average, to hash a copy takes less time than to make a view (measured)."""


class Changes(NamedTuple):
    """Row changes in their order, by columns: what `RowApplier.apply_columns` takes."""

    ops: Sequence[Any]
    table_ids: Sequence[Any]
    arguments: Sequence[Any]
    values: Sequence[Any]


def changes_by_columns(bodies: Sequence[Any]) -> Changes:
    """All changes of decoded transactions, which are known to make sense."""
    if set(map(len, bodies)) == {ONE_CHANGE} and set(map(_KIND, bodies)) == _TRANSACTIONS:
        flat = _flat(bodies)
        return Changes(*(flat[place::ONE_CHANGE] for place in range(PAYLOAD, ONE_CHANGE)))
    flat = _flat(map(changes_of, bodies))
    return Changes(*(flat[place::4] for place in range(4)))


def joined(pieces: Sequence[Changes]) -> Changes:
    """All of them, one after the other."""
    return Changes(*(list(chain.from_iterable(columns)) for columns in zip(*pieces, strict=True)))


class Plain(Struct, frozen=True):
    """A plain window by columns. `ends[n]`: changes up to and with the n-th transaction; None: each has exactly one."""

    first_seqno: int
    origin: int
    origin_seqnos: list[int]
    chains: list[int]
    columns: Changes
    ends: list[int] | None

    @property
    def is_scattered(self) -> bool:
        """The changes cost less together with those of other windows. Inserts alone are in the order of their rows
        nearly always, and best made while the processor's cache has them, unless there are very many tables."""
        if self.columns.ops.count(_INSERT) < len(self.columns.ops):
            return True
        try:
            return len(set(self.columns.table_ids)) > TABLES_AT_ONCE
        except TypeError:
            return False  # what cannot be hashed is no table, and said so where it is applied

    def changes(self, start: int, stop: int) -> Changes:
        """The changes of the transactions `start` to `stop` (exclusive)."""
        span = self._span(start, stop)
        return Changes(*(column[span] for column in self.columns))

    def seqnos(self, start: int, stop: int) -> Sequence[int]:
        """Of each of these changes, the number of its transaction."""
        numbers = range(self.first_seqno + start, self.first_seqno + stop)
        if self.ends is None:
            return numbers
        ends = [self.ends[start - 1] if start else 0, *self.ends[start:stop]]
        return list(chain.from_iterable(map(repeat, numbers, map(sub, ends[1:], ends))))

    def _span(self, start: int, stop: int) -> slice:
        if self.ends is None:
            return slice(start, stop)
        return slice(self.ends[start - 1] if start else 0, self.ends[stop - 1])

    def position_at(
        self, before: Position, start: int, stop: int, partition_of: Callable[[int], int | None]
    ) -> Position:
        """The position after the transactions `start` to `stop` (exclusive), when `before` is in front of them."""
        table_ids = self.columns.table_ids[self._span(start, stop)]
        numbers: Sequence[int] = self.origin_seqnos[start:stop]
        if table_ids and table_ids.count(table_ids[0]) == len(table_ids):
            # One table: what its last change says is all that there is to say.
            changed = stop - 1 if self.ends is None else bisect_left(self.ends, self.ends[stop - 1])
            table_ids, numbers = table_ids[:1], [self.origin_seqnos[changed]]
        elif self.ends is not None:
            ends = [self.ends[start - 1] if start else 0, *self.ends[start:stop]]
            counts = [end - begin for begin, end in pairwise(ends)]
            numbers = list(chain.from_iterable(map(repeat, numbers, counts)))
        raised: dict[tuple[int, int], int] = {}
        raise_partitions(raised, self.origin, dict(zip(table_ids, numbers, strict=True)), partition_of)
        point = (self.origin_seqnos[stop - 1], self.chains[stop - 1])
        raised[self.origin, PARTITION_STREAM] = point[0]
        return Position(
            self.first_seqno + stop - 1,
            before.vector.merged(SynchronizationVector(raised)),
            {**before.chains, self.origin: point},
        )


def verify_plain(data: bytes, bodies: Sequence[Any], ends: list[int], next_seqno: int, points: Points) -> Plain | None:
    """Frames by columns, if they are plain and continue exactly what came before; None otherwise, which says nothing.

    `bodies`: decoded, at least one; `ends`: where in `data` each frame ends; `points`: where each origin stands, left
    as it is. TypeError for content that verifies and cannot stand in a frame.
    """
    is_single = len(bodies[0]) == ONE_CHANGE and set(map(len, bodies)) == {ONE_CHANGE}
    flat, width = (_flat(bodies), ONE_CHANGE) if is_single else (_flat(map(_HEAD, bodies)), PAYLOAD)
    kinds, seqnos, chains, origins, origin_seqnos = [flat[place::width] for place in _CHECKED]
    origin, count = origins[0], len(bodies)
    last_origin_seqno, last_chain = points.get(origin, START)
    found = set(kinds)
    with_nulls = _NULL in found and found <= _WITH_NULLS
    if (
        not origin
        or (found != _TRANSACTIONS and not (with_nulls and _say_nothing(bodies)))
        or origins.count(origin) != count
        or seqnos != list(range(next_seqno, next_seqno + count))
        or origin_seqnos != list(range(last_origin_seqno + 1, last_origin_seqno + 1 + count))
    ):
        return None
    source = data if len(data) <= count * _COPIED_BYTES else memoryview(data)
    begin, wrong = 0, list[int]()
    for end, hashed in zip(ends, chains, strict=True):
        if xxh3_64_intdigest(source[begin + ORIGIN_OFFSET : end], last_chain) != hashed:
            wrong.append(end)  # go on all the same: a hash that is no number is a TypeError, wherever it stands
        begin, last_chain = end, hashed
    # A NULL record bears the hash of what it stands for.
    if wrong and not {end for end, kind in zip(ends, kinds, strict=True) if kind == _NULL}.issuperset(wrong):
        return None
    if is_single:
        changes, change_ends = Changes(*(flat[place::width] for place in range(PAYLOAD, ONE_CHANGE))), None
    else:
        if with_nulls:
            bodies = [body if body[0] != _NULL else body[:PAYLOAD] for body in bodies]
        lengths = [len(body) - PAYLOAD for body in bodies]
        if {length & 3 for length in lengths} != {0}:
            return None
        flat = _flat([body[PAYLOAD:] for body in bodies])
        changes = Changes(flat[0::4], flat[1::4], flat[2::4], flat[3::4])
        change_ends = list(accumulate([length >> 2 for length in lengths]))
    if not BOUND.isdisjoint(changes.ops):
        return None
    return Plain(next_seqno, origin, origin_seqnos, chains, changes, change_ends)


def _say_nothing(bodies: Sequence[Any]) -> bool:
    """Whether the NULL records among them name no partition, as those of transactions that are not wanted do."""
    return all(len(body) == _NULL_ELEMENTS and body[PAYLOAD + 1] in ([], ()) for body in bodies if body[0] == _NULL)


def _flat(pieces: Iterable[Sequence[Any]]) -> list[Any]:
    """What is in them, one after the other. `chain` asks for each element on its own: three times as long."""
    flat: list[Any] = []
    deque(map(flat.extend, pieces), maxlen=0)
    return flat


def raise_partitions(
    raised: dict[tuple[int, int], int], origin: int, carried: dict[int, int], partition_of: Callable[[int], int | None]
) -> None:
    """Note in `raised`, (origin, partition) -> origin_seqno, what `carried`, table id -> origin_seqno, says."""
    for table_id, origin_seqno in carried.items():
        partition = partition_of(table_id)
        if partition is not None:
            key = (origin, partition)
            raised[key] = max(raised.get(key, 0), origin_seqno)
