"""Changes of verified frames by columns, with keys and images as the packed bytes that the frames hold: nothing of them
is unpacked. What is done for each change is done in C, by numpy and Arrow: a fifth of the time.

Where changes begin is guessed by the ids of known tables, and proven: each has to end exactly where the next one
begins, from the first, whose place is known, to the frame's end.

Guarantees: what `packed_changes` gives is what blocks.BlockReader makes of the same bytes. The answer is None for a
value that msgpack would write otherwise (a longer number, a 32-bit float, a text that is not UTF-8), for one that no
row holds, and for a change of another kind. Then BlockReader decides: it packs values again, so that equal bytes are
equal values either way.
Leaves to others: frames' checks and numbers, files, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from replicate.model.transaction import Op, TableDefinition, changed_of

Numbers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

_PADDING: Final = bytes(16)
"""After the data, so that what stands after its last byte can be looked at."""
_ID_MARK: Final = 0xCE
_ARGUMENT_AT: Final = 6
"""After the op (one byte) and the id (a mark and four)."""
_ROW_OPS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEQUENCE)
_MASK_BITS: Final = 28
"""A longer mask does not fit beside id and op into one number; BlockReader knows all."""
_EMPTY: Final = pa.scalar(b"", pa.binary())


class PackedChanges(NamedTuple):
    """Changes in their order. `frame_at`: of which frame each is. Columns are Arrow's, of binary values."""

    frame_at: Numbers
    ops: Octets
    table_ids: npt.NDArray[np.uint32]
    keys: Any
    befores: Any
    afters: Any


class _Marks:
    """By a value's first byte: how long its head is; how far the four bytes after that byte are to be shifted to give
    the number that decides, between which bounds msgpack writes that number so, and whether it is a length."""

    def __init__(self) -> None:
        self.size = np.ones(256, np.int64)
        self.shift = np.full(256, 32, np.uint64)
        self.low = np.ones(256, np.uint64)  # by default nothing lies between the bounds
        self.high = np.zeros(256, np.uint64)
        self.counts = np.zeros(256, np.uint64)
        self.text = np.zeros(256, bool)
        self._allow((*range(0x80), *range(0xE0, 0x100), 0xC0))
        for number, mark in enumerate(range(0xA0, 0xC0)):  # short texts
            self._allow([mark], size=1 + number)
        self._allow([0xCB], size=9)
        for width, bits, low, high in ((1, 24, 0x80, 2**8), (2, 16, 2**8, 2**16), (4, 0, 2**16, 2**32)):
            step = (1, 2, 4).index(width)
            self._allow([0xCC + step], size=1 + width, shift=bits, low=low, high=high - 1)
            # Negative ones: what a narrower width cannot hold. The lowest 31 bits are for BlockReader.
            below = {1: 2**8 - 2**5, 2: 2**16 - 2**7, 4: 2**32 - 2**15}[width]
            self._allow([0xD0 + step], size=1 + width, shift=bits, low=high // 2, high=below - 1)
            self._allow([0xD9 + step], size=1 + width, shift=bits, low=(2**5, 2**8, 2**16)[step], high=high - 1, text=1)
            self._allow([0xC4 + step], size=1 + width, shift=bits, low=(0, 2**8, 2**16)[step], high=high - 1, data=1)
        self._allow([0xCF], size=9, shift=0, low=1, high=2**32 - 1)  # the upper half
        self._allow([0xD3], size=9, shift=0, low=2**31, high=2**32 - 2)
        self.text[0xA0:0xC0] = True
        self.head = np.where(self.text & (np.arange(256) < 0xC0), 1, self.size)

    def _allow(
        self, marks: Sequence[int], *, size: int = 1, shift: int = 32, low: int = 0, high: int = 0, text: int = 0,
        data: int = 0,
    ) -> None:  # fmt: skip
        at = list(marks)
        self.size[at], self.shift[at], self.low[at], self.high[at] = size, shift, low, high
        self.counts[at], self.text[at] = text or data, bool(text)


_MARKS: Final = _Marks()


class _Source(Struct):
    """The data, as numpy and as Arrow see it. A position may be the one right after its end."""

    size: int
    octets: Octets
    fours: npt.NDArray[np.uint32]
    buffer: Any

    @classmethod
    def of(cls, data: bytes) -> _Source:
        padded = data + _PADDING
        fours: Any = np.ndarray((len(data) + 12,), "<u4", padded, strides=(1,))
        return cls(len(data), np.frombuffer(padded, np.uint8), fours, pa.py_buffer(padded))

    def four(self, at: Numbers) -> npt.NDArray[np.uint32]:
        """The number in the four bytes at each position."""
        found: npt.NDArray[np.uint32] = self.fours[at].byteswap()
        return found

    def pieces(self, begins: Numbers, ends: Numbers, kind: Any = None) -> Any:
        """The bytes between each pair of positions, which rise."""
        bounds = np.empty(2 * len(begins), np.int32)
        bounds[0::2], bounds[1::2] = begins, ends
        # Each piece and each gap is a value; of these every other one is taken.
        buffers = [None, pa.py_buffer(bounds), self.buffer]
        every = pa.Array.from_buffers(kind or pa.binary(), len(bounds) - 1, buffers)
        return every.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


class _Shape(NamedTuple):
    """What changes of one (table, op, mask) look like: how many values there are, and of which runs of them, as (first,
    after the last), the key and both images consist. `stays`: pairs of values that have to be equal, since a key that
    an UPDATE sets again would be two rows."""

    values: int
    before: list[tuple[int, int]] | None
    after: list[tuple[int, int]] | None
    key: list[tuple[int, int]]
    image: bytes
    key_head: bytes
    stays: list[tuple[int, int]]


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for place in places:
        if found and found[-1][1] == place:
            found[-1] = found[-1][0], place + 1
        else:
            found.append((place, place + 1))
    return found


@lru_cache(4096)
def _head(count: int) -> bytes:
    return bytes(msgpack.Packer().pack_array_header(count))


@lru_cache(1024)
def _shape(definition: TableDefinition, op: int, mask: int) -> _Shape | None:
    length = definition.image_length
    image, key_head = _head(length), _head(len(definition.key))
    if op == Op.SEQUENCE:
        return _Shape(2, [(0, 1)], [(1, 2)], [], b"", b"", [])
    if op != Op.UPDATE:
        whole = [(0, length)]
        before, after = (None, whole) if op == Op.INSERT else (whole, None)
        return _Shape(length, before, after, _runs(definition.key), image, key_head, [])
    if mask >> length:
        return None
    changed = changed_of(mask)
    count = len(changed)
    places = [changed.index(at) if at in changed else count + at for at in range(length)]
    stays = [(changed.index(at), count + at) for at in definition.key if at in changed]
    key = _runs([count + at for at in definition.key])
    return _Shape(count + length, [(count, count + length)], _runs(places), key, image, key_head, stays)


def packed_changes(
    data: bytes, begins: Numbers, ends: Numbers, counts: Numbers, tables: Mapping[int, TableDefinition]
) -> PackedChanges | None:
    """The changes in `data`: `counts` of them (one at least) between each of `begins` and `ends`, which rise. None:
    somebody else has to look at them, for whatever reason."""
    source = _Source.of(data)
    starts = _guessed(source, tables)
    first = np.cumsum(counts) - counts
    if not len(starts) or len(starts) != int(counts.sum()) or not np.array_equal(starts[first], begins):
        return None
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[first + counts - 1] = ends
    return _columns(source, starts, stops, np.repeat(np.arange(len(counts)), counts), tables)


def packed_stream(
    data: bytes, tables: Mapping[int, TableDefinition], *, whole: bool
) -> tuple[PackedChanges, int] | None:
    """The changes that a stream begins with, and where they end in it: before the last one unless it is `whole`."""
    source = _Source.of(data)
    starts = _guessed(source, tables)
    stops = np.append(starts, len(data))[1:]
    if not whole:
        starts, stops = starts[:-1], stops[:-1]
    if not len(starts) or starts[0]:
        return None
    found = _columns(source, starts, stops, np.zeros(len(starts), np.int64), tables)
    return None if found is None else (found, int(stops[-1]))


def _guessed(source: _Source, tables: Mapping[int, TableDefinition]) -> Numbers:
    """Where a change of a row of a known table may begin."""
    marks = np.flatnonzero(source.octets[: source.size] == _ID_MARK)
    marks = marks[marks > 0]
    ids = source.four(marks + 1)
    known = np.isin(source.octets[marks - 1], _ROW_OPS)
    known &= np.isin(ids, np.fromiter(tables, np.uint32, len(tables)))
    return marks[known] - 1


def _columns(
    source: _Source, starts: Numbers, stops: Numbers, frame_at: Numbers, tables: Mapping[int, TableDefinition]
) -> PackedChanges | None:
    ops, ids = source.octets[starts], source.four(starts + 2)
    arguments = _arguments(source, starts + _ARGUMENT_AT)
    if arguments is None:
        return None
    masks, values = arguments
    if int(np.max(values)) >= source.size:
        return None
    codes = ids.astype(np.uint64) << np.uint64(32) | ops.astype(np.uint64) << np.uint64(_MASK_BITS) | masks
    groups: list[Numbers] = [np.arange(len(starts))]
    if np.any(codes != codes[0]):
        order = np.argsort(codes, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    made = []
    for places in groups:
        at = int(places[0])
        shape = _shape(tables[int(ids[at])], int(ops[at]), int(masks[at]))
        columns = shape and _group(source, values[places], stops[places], shape)
        if not columns:
            return None
        made.append(columns)
    if len(made) == 1:
        return PackedChanges(frame_at, ops, ids, *made[0])
    back = np.empty(len(starts), np.int64)
    back[np.concatenate(groups)] = np.arange(len(starts))
    joined = (pa.concat_arrays(one).take(pa.array(back)) for one in zip(*made, strict=True))
    return PackedChanges(frame_at, ops, ids, *joined)


def _arguments(source: _Source, at: Numbers) -> tuple[npt.NDArray[np.uint64], Numbers] | None:
    """The number at each position, if it is one of 28 bits without a sign, and where it ends."""
    found = source.octets[at]
    masks = found.astype(np.uint64)
    ends = at + 1
    if int(np.max(found)) < 0x80:
        return masks, ends
    for mark, width in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        here = found == mark
        if here.any():
            masks[here] = source.four(at[here] + 1) >> np.uint32(32 - 8 * width)
            ends[here] += width
    if np.any((found >= 0x80) & ~np.isin(found, (0xCC, 0xCD, 0xCE))) or int(np.max(masks)) >> _MASK_BITS:
        return None
    return masks, ends


def _group(source: _Source, at: Numbers, stops: Numbers, shape: _Shape) -> tuple[Any, Any, Any] | None:
    """Keys, befores and afters of changes of one shape, whose values begin `at`; None when they are not that."""
    for byte in _head(shape.values):
        if np.any(source.octets[at] != byte):
            return None
        at = at + 1
    bounds = _bounds(source, at, stops, shape.values)
    if bounds is None or not np.array_equal(bounds[-1], stops):
        return None
    for new, old in shape.stays:
        if not _piece(source, bounds, (new, new + 1)).equals(_piece(source, bounds, (old, old + 1))):
            return None
    nothing = pa.nulls(len(at), pa.binary())
    key = _joined(source, bounds, shape.key_head, shape.key) if shape.key else pa.repeat(_EMPTY, len(at))
    before, after = (
        nothing if runs is None else _joined(source, bounds, shape.image, runs) for runs in (shape.before, shape.after)
    )
    return key, before, after


def _bounds(source: _Source, at: Numbers, stops: Numbers, count: int) -> list[Numbers] | None:
    """Where each of `count` values begins that stand after one another, and where the last one ends; None when one is
    not as msgpack would write it, or no database's value, or goes beyond its stop."""
    marks = _MARKS
    bounds = [at]
    for _ in range(count):
        found = source.octets[at]
        number = source.four(at + 1).astype(np.uint64) >> marks.shift[found]
        if np.any(number < marks.low[found]) or np.any(number > marks.high[found]):
            return None
        following = at + marks.size[found] + (number * marks.counts[found]).astype(np.int64)
        if np.any(following > stops):  # before Arrow sees it: it takes every position that it is given
            return None
        text = marks.text[found]
        if text.any() and not _is_text(source, (at + marks.head[found])[text], following[text]):
            return None
        at = following
        bounds.append(at)
    return bounds


def _is_text(source: _Source, begins: Numbers, ends: Numbers) -> bool:
    try:
        source.pieces(begins, ends, pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _piece(source: _Source, bounds: list[Numbers], run: tuple[int, int]) -> Any:
    return source.pieces(bounds[run[0]], bounds[run[1]])


def _joined(source: _Source, bounds: list[Numbers], head: bytes, runs: list[tuple[int, int]]) -> Any:
    """A head, and those runs of values, joined for each change."""
    if not head and len(runs) == 1:
        return _piece(source, bounds, runs[0])
    pieces = (_piece(source, bounds, run) for run in runs)
    return pc.binary_join_element_wise(pa.scalar(head, pa.binary()), *pieces, _EMPTY)
