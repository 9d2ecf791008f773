"""Changes that wait for the end of their batch as bytes: of each its row, its kind, and where it stands in the pool.

The receive pool keeps the frames until the batch is committed (pool_frames.py). Decoded, a change takes half as much
again as its frame does; some twenty bytes are enough to put it into its place and to decode it there, a few hundred
together, when it is made. So a batch may be ten times as long in the same memory, and the longer it is, the more of its
changes share a page.

Guarantees: changes come out in an order that `order.places_arranged` allows, no more than about CHUNK_BYTES of them
decoded at a time, or a single one; what may not be moved is not taken.
Leaves to others: how a change is made, which region it belongs to.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import add, getitem, itemgetter
from typing import Any, Final, NamedTuple

import msgpack

from replicate.errors import JournalDamagedError
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import UNPACK_ERRORS
from replicate.model.transaction import Op
from replicate.region.sqlite.apply.order import PlaceOf, RowRun, places_arranged
from update_process.window.columns import Changes

CHUNK_CHANGES: Final = 512
"""Decoded together. More do not stay in the processor's cache, fewer cost a call of the binding too often."""
CHUNK_BYTES: Final = 256 * 1024
"""Of frames, likewise; for rows that are large."""
WAYS_MAX: Final = 65_536

_ARRAY: Final = struct.Struct(">BH").pack
_ROWS: Final = frozenset((list, tuple))
_ROW_OPS: Final = frozenset((int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)))


class _Way(NamedTuple):
    """A kind of change. `place`: of the rowid in its values; `values_at`: bytes of a frame before them."""

    op: Any
    table_id: Any
    argument: Any
    place: int
    values_at: int


class _Chunk(NamedTuple):
    """Changes that are decoded together: where their values lie, and of which rows they should be."""

    places: Sequence[int]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    rowids: tuple[int, ...]


def _each(words: Sequence[int], numbers: Sequence[int]) -> Iterable[int]:
    """The word of each number; of bytes, if the words are bytes too, in a tenth of the time."""
    if isinstance(numbers, bytes) and max(words) < 256:
        return numbers.translate(bytes(words).ljust(256, b"\0"))
    return map(words.__getitem__, numbers)


class DeferredChanges:
    """The changes of some of a batch's frames.

    Only what `Plain` verified is taken, of transactions with a single change, whose values end where their frame ends.
    Where they begin follows from what stands before them, as it is packed everywhere: the shortest way. Were it longer
    once, what is decoded is not one row, or not the row that was asked for: JournalDamagedError, and the process that
    takes the frames again finds the values where they are.

    CPU of an Update Process a row, 300,000 updates in random order, 2 rounds in turns at 8c22656, load 8:
    5.2 µs and 47 MiB; 6.6 µs and 56 MiB where the changes wait as they were decoded.
    """

    __slots__ = ("_after", "_begins", "_ends", "_kinds", "_numbers", "_place_of", "_rowids", "_ways")

    def __init__(self, place_of: PlaceOf, memory_bytes: int) -> None:
        """`memory_bytes`: of that where the frames lie."""
        self._place_of = place_of
        self._ways: list[_Way] = []
        self._numbers: dict[tuple[Any, Any, Any], int] = {}
        self._kinds = array("H")
        self._rowids = array("q")
        code = "I" if memory_bytes < 2**32 else "Q"
        self._begins = array(code)
        self._ends = array(code)
        self._after = array("I")

    def take(self, changes: Changes, begins: Sequence[int], ends: Sequence[int]) -> bool:
        """Keep the changes of further frames, one each. `begins`, `ends`: where these lie in memory. False: some have
        no place, and none is kept."""
        ops, table_ids, arguments, values = changes
        count = len(values)
        try:
            if not _ROWS.issuperset(map(type, values)):
                return False
            numbers = self._numbers_of(ops, table_ids, arguments)
            if numbers is None:
                return False
            rowids: Sequence[Any] = list(map(getitem, values, _each([way.place for way in self._ways], numbers)))
            if list(map(type, rowids)).count(int) != count:
                return False
            values_at: Sequence[int] = list(map(add, begins, _each([way.values_at for way in self._ways], numbers)))
            is_uniform = numbers.count(numbers[0]) == count
            if count > 1:
                # Sorted here, while others wait for the disk: what is sorted piece by piece takes half the time.
                in_order = itemgetter(*sorted(range(count), key=rowids.__getitem__))
                values_at, ends, rowids = in_order(values_at), in_order(ends), in_order(rowids)
                numbers = numbers if is_uniform else in_order(numbers)
            kept = array("q", rowids)
        except (TypeError, ValueError, IndexError, OverflowError):  # it makes no sense, which is said where it is made
            return False
        # Arrays that are joined: `extend` takes twice the time.
        self._kinds += array("H", (numbers[0],)) * count if is_uniform else array("H", tuple(numbers))
        self._rowids += kept
        self._begins += array(self._begins.typecode, values_at)
        self._ends += array(self._ends.typecode, ends)
        self._after.append(len(self._kinds))
        return True

    def runs(self, frames: memoryview) -> Iterator[RowRun]:
        """All changes, decoded, a chunk of a run after the other. `frames`: the memory where they lie.

        Raises JournalDamagedError where the values are not where they should be.
        """
        ways, kinds = self._ways, self._kinds
        tables = [way.table_id for way in ways]
        for places, is_uniform in places_arranged(kinds, self._rowids, tables, self._after):
            for at in range(0, len(places), CHUNK_CHANGES):
                for chunk in self._cut(places[at : at + CHUNK_CHANGES]):
                    count = len(chunk.places)
                    if is_uniform:
                        op, table_id, argument, place, _ = ways[kinds[chunk.places[0]]]
                        values = self._decode(frames, chunk, repeat(place))
                        yield RowRun((op,) * count, (table_id,) * count, (argument,) * count, values, True)
                    else:
                        each = [ways[kinds[at]] for at in chunk.places]
                        values = self._decode(frames, chunk, [way.place for way in each])
                        ops, table_ids, arguments = zip(*[way[:3] for way in each], strict=True)
                        yield RowRun(ops, table_ids, arguments, values, False)

    def _numbers_of(
        self, ops: Sequence[Any], table_ids: Sequence[Any], arguments: Sequence[Any]
    ) -> Sequence[int] | None:
        """The number of each change's kind; None when one may not be moved. TypeError or ValueError for what cannot be
        a kind."""
        if table_ids.count(table_ids[0]) == len(table_ids):
            # Mostly an operation has one argument, and is numbered once then, and not for each change.
            each, table = bytes(ops), bytearray(256)
            for op in set(each):
                of_op = list(compress(arguments, each.translate(bytes(op) + b"\1" + bytes(255 - op))))
                if of_op.count(of_op[0]) != len(of_op):
                    break
                number = self._number((op, table_ids[0], of_op[0]))
                if number is None:
                    return None
                if number > 255:
                    break
                table[op] = number
            else:
                return each.translate(table)
        kinds = list(zip(ops, table_ids, arguments, strict=True))
        try:
            return list(map(self._numbers.__getitem__, kinds))
        except KeyError:
            if None in map(self._number, dict.fromkeys(kinds)):
                return None
            return list(map(self._numbers.__getitem__, kinds))

    def _number(self, kind: tuple[Any, Any, Any]) -> int | None:
        """The number of a kind; None for what may not be moved."""
        if kind not in self._numbers:
            op, table_id, argument = kind
            place = self._place_of(op, table_id, argument) if op in _ROW_OPS else None
            if place is None or len(self._ways) == WAYS_MAX:
                return None
            values_at = FRAME_HEAD_BYTES + sum(len(msgpack.packb(one)) for one in kind)
            self._numbers[kind] = len(self._ways)
            self._ways.append(_Way(op, table_id, argument, place, values_at))
        return self._numbers[kind]

    def _cut(self, places: Sequence[int]) -> Iterator[_Chunk]:
        """The same, in pieces that are not too large."""
        at = itemgetter(*places, places[0])  # two at least: of one alone it would give no tuple
        begins, ends = at(self._begins)[:-1], at(self._ends)[:-1]
        if sum(ends) - sum(begins) <= CHUNK_BYTES or len(places) == 1:
            yield _Chunk(places, begins, ends, at(self._rowids)[:-1])
            return
        middle = len(places) // 2
        yield from self._cut(places[:middle])
        yield from self._cut(places[middle:])

    @staticmethod
    def _decode(frames: memoryview, chunk: _Chunk, of_rowids: Iterable[int]) -> Sequence[Any]:
        """The values of these changes; `of_rowids`: where in each the rowid stands."""
        try:
            # As one array of them: a quarter quicker than one after the other.
            spans = [frames[begin:end] for begin, end in zip(chunk.begins, chunk.ends, strict=True)]
            data = b"".join((_ARRAY(0xDC, len(spans)), *spans))
            values: tuple[Any, ...] = msgpack.unpackb(data, use_list=False, max_array_len=65_535, max_map_len=0)
            rowids = tuple(map(getitem, values, of_rowids))
        except (*UNPACK_ERRORS, IndexError) as error:
            raise JournalDamagedError(f"values are not packed the shortest way: {error}") from error
        if rowids != chunk.rowids:
            raise JournalDamagedError("values are not packed the shortest way: another row")
        return values
