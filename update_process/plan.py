"""What the Update Process does next, and how much of it: the pure decisions, without a pool, a clock or a database.

Guarantees: `plan` looks only at what has arrived (it never waits to fill a batch) and answers with one step; a hole in
the numbers is a GapError naming both numbers; what was applied before is skipped. A `Window` has verified
every frame before it is offered for application: number after number, origin_seqno after origin_seqno, and the origin's
chain hash, so that nothing is applied that does not continue exactly what was applied before. `Window.cut` never passes
a barrier, and lets what changes the schema come alone.
Leaves to others: where frames come from, how a row is applied, what is committed how.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from replicate.errors import DivergedError, GapError, JournalDamagedError
from replicate.journal.frame import FRAME_PREFIX_BYTES, ORIGIN_OFFSET
from replicate.journal.record import CHANGES_BEGIN, proven_after
from replicate.limits import PARTITION_STREAM
from replicate.model.transaction import Kind, unpack_partitions
from replicate.model.vector import Position, SynchronizationVector
from update_process.window.columns import (
    BOUND,
    ONE_CHANGE,
    PAYLOAD,
    START,
    Plain,
    Points,
    raise_partitions,
    verify_plain,
)


class PieceKind(IntEnum):
    """What a record of the receive pool holds."""

    FRAMES = 1
    PARTS = 2
    LARGE = 3
    CATALOGUE = 4


class Piece(Struct, frozen=True):
    """The outside of one received record. `first_part` (PARTS) counts from 0 within the transaction."""

    kind: PieceKind
    first_seqno: int
    last_seqno: int
    count: int
    size_bytes: int
    first_part: int = 0


class Idle(Struct, frozen=True):
    """Nothing has arrived."""


class Skip(Struct, frozen=True):
    """Free the first `pieces` records: what is in them was applied before."""

    pieces: int


class Fill(Struct, frozen=True):
    """Decode the first `pieces` records together; drop their first `skip` frames, which were applied before."""

    pieces: int
    skip: int


class TakeParts(Struct, frozen=True):
    """Apply the parts of the first record, dropping its first `skip` parts, which were applied before."""

    seqno: int
    skip: int


class CommitLarge(Struct, frozen=True):
    """The first record is the commit frame of the large transaction whose parts have all been applied."""

    seqno: int


class TakeCatalogue(Struct, frozen=True):
    """The first record is a catalogue."""


class Abandon(Struct, frozen=True):
    """The open large transaction does not go on: roll it back, then plan again."""

    why: str


class StartAgain(Struct, frozen=True):
    """What was received cannot be used as it stands: ask the Receiver Server to begin again at our position."""

    why: str


Step = Idle | Skip | Fill | TakeParts | CommitLarge | TakeCatalogue | Abandon | StartAgain


class OpenLarge(Struct, frozen=True):
    """A large transaction that is being applied: its number, and the first part not yet applied."""

    seqno: int
    next_part: int


def _gap(wanted: int, got: int) -> GapError:
    return GapError(
        f"transaction {wanted} should come next, but {got} came",
        do="Nothing was applied; the connection begins again at the first missing one",
        expected=wanted,
        got=got,
    )


def plan(pieces: Sequence[Piece], *, next_seqno: int, large: OpenLarge | None, room_bytes: int) -> Step:
    """The next step for the received records `pieces` (oldest first), when `next_seqno` is the first not yet applied.

    `room_bytes` bounds how much is decoded together; the first record is always taken whole. Raises GapError when the
    first usable record begins above `next_seqno`, JournalDamagedError when a record's own numbers contradict.
    """
    if not pieces:
        return Idle()
    head = pieces[0]
    if head.kind is PieceKind.CATALOGUE:
        return TakeCatalogue()
    skipped = _applied_before(pieces, next_seqno)
    if skipped is not None:
        return skipped
    if head.first_seqno > next_seqno:
        raise _gap(next_seqno, head.first_seqno)
    if head.kind is PieceKind.FRAMES:
        if large is not None:
            return Abandon("whole transactions came where a further part was expected")
        return _fill(pieces, next_seqno, room_bytes)
    if head.kind is PieceKind.LARGE:
        if large is None:
            return StartAgain(f"transaction {head.first_seqno} ended, but its parts are not here")
        return CommitLarge(head.first_seqno)
    wanted = 0 if large is None else large.next_part
    if head.first_part > wanted:
        return StartAgain(
            f"part {wanted} of transaction {next_seqno} should come next, but part {head.first_part} came"
        )
    if large is not None and head.first_part == 0:
        return Abandon(f"transaction {next_seqno} begins again with its first part")
    return TakeParts(next_seqno, min(wanted - head.first_part, head.count))


def _applied_before(pieces: Sequence[Piece], next_seqno: int) -> Skip | None:
    count = 0
    for piece in pieces:
        if piece.kind is PieceKind.CATALOGUE or piece.last_seqno >= next_seqno:
            break
        count += 1
    return Skip(count) if count else None


def _fill(pieces: Sequence[Piece], next_seqno: int, room_bytes: int) -> Fill:
    taken = size_bytes = 0
    wanted = pieces[0].first_seqno
    for piece in pieces:
        if piece.kind is not PieceKind.FRAMES or piece.first_seqno != wanted:
            break  # whatever it is, it is looked at when it stands first
        if piece.count != piece.last_seqno - piece.first_seqno + 1 or piece.count < 1:
            raise JournalDamagedError(
                f"a received record claims {piece.count} transactions from {piece.first_seqno} to {piece.last_seqno}"
            )
        if taken and size_bytes + piece.size_bytes > room_bytes:
            break
        taken += 1
        size_bytes += piece.size_bytes
        wanted = piece.last_seqno + 1
    return Fill(taken, next_seqno - pieces[0].first_seqno)


_NULL: Final = int(Kind.NULL)
_HISTORY: Final = int(Kind.HISTORY)


class Cut(Struct, frozen=True):
    """Frames `start` to `stop` (indices of the window, exclusive)."""

    start: int
    stop: int


class Window(Struct):
    """Verified frames, numbered `first_seqno` onwards, the first `done` of them applied. Made by `open_window` only.

    `alone` are the indices of frames that make a batch of their own, ascending. `plain`: the same by columns, if it is.
    `lies`: of each record that the frames came in, the index after its last one, and how much further than in `data`
    its frames stand in the receive pool.
    """

    first_seqno: int
    data: bytes | bytearray
    bodies: Sequence[Any]
    ends: list[int]
    alone: list[int]
    plain: Plain | None = None
    lies: Sequence[tuple[int, int]] = ()
    done: int = 0

    @property
    def last_seqno(self) -> int:
        """The last number in the window."""
        return self.first_seqno + len(self.bodies) - 1

    @property
    def exhausted(self) -> bool:
        """True when every frame has been applied."""
        return self.done >= len(self.bodies)

    def offset(self, index: int) -> int:
        """Where the frame `index` begins in `data`; the end of the last one for one beyond."""
        return self.ends[index - 1] if index else 0

    def frames(self, start: int, stop: int) -> bytes:
        """The untouched bytes of the frames `start` to `stop` (exclusive)."""
        if start == 0 and stop == len(self.bodies):
            return bytes(self.data)
        return bytes(self.data[self.offset(start) : self.offset(stop)])

    def lying(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Of the frames `start` to `stop` (exclusive) those of each record: first, after the last, how much further
        than in `data` they stand in the receive pool."""
        for after, shift in self.lies:
            if after > start:
                yield start, min(after, stop), shift
                start = after
                if start >= stop:
                    return

    def position_at(
        self, before: Position, start: int, stop: int, partition_of: Callable[[int], int | None]
    ) -> Position:
        """The position after the frames `start` to `stop` (exclusive), when `before` is in front. Raises as
        `advance`."""
        if self.plain is None:
            return advance(before, self.bodies[start:stop], partition_of)
        try:
            return self.plain.position_at(before, start, stop, partition_of)
        except TypeError as error:
            raise _senseless(error, before) from error

    def cut(self, *, transactions_max: int, bytes_max: int, barrier_seqno: int = 0) -> Cut:
        """The next batch: at least one frame unless the barrier (0 = none) forbids, none beyond `barrier_seqno`.

        A frame that changes the schema comes alone: it ends the batch before it and is followed by a new one.
        """
        start = self.done
        stop = min(len(self.bodies), start + transactions_max)
        place = bisect_left(self.alone, start)
        if place < len(self.alone):
            stop = min(stop, max(self.alone[place], start + 1))
        if barrier_seqno and self.first_seqno + stop - 1 > barrier_seqno:
            stop = max(start, barrier_seqno - self.first_seqno + 1)
        base = self.offset(start)
        if stop > start + 1 and self.ends[stop - 1] - base > bytes_max:
            stop = max(start + 1, bisect_right(self.ends, base + bytes_max, start, stop))
        return Cut(start, stop)


def open_window(
    data: bytes, decoded: Sequence[Any], next_seqno: int, points: Points, records: Sequence[tuple[int, int]] = ()
) -> Window:
    """Verify whole frames (`decoded` = record.decode_batch(data): length, check, body, …) against what came before.

    `records`: of those that they came in, how many bytes are of each, and where in the receive pool these begin.
    `points` says where each origin stands; it is moved to the end of the window, and is unchanged when this raises.
    Raises GapError (a number is missing or repeated), DivergedError (a chain hash does not follow from the one before),
    JournalDamagedError (a frame that cannot stand here). Nothing may be applied of what was refused.
    """
    try:
        bodies = decoded[2::3]
        end = 0
        ends = [end := end + length + FRAME_PREFIX_BYTES for length in decoded[0::3]]
        if not ends or ends[-1] != len(data) or len(decoded) != 3 * len(ends):
            raise JournalDamagedError("received frames do not fill their record", bytes=len(data))
        lies = _lies(ends, records)
        plain = verify_plain(data, bodies, ends, next_seqno, points)
        if plain is not None:
            points[plain.origin] = (plain.origin_seqnos[-1], plain.chains[-1])
            return Window(next_seqno, data, bodies, ends, [], plain, lies)
        moved, alone = _verify(memoryview(data), bodies, ends, next_seqno, points)
    except (TypeError, IndexError) as error:
        raise JournalDamagedError(f"a received frame makes no sense: {error}", first_seqno=next_seqno) from error
    points.update(moved)
    return Window(next_seqno, data, bodies, ends, alone, None, lies)


def _lies(ends: list[int], records: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """See Window.lies. JournalDamagedError where a frame is in two records."""
    lies: list[tuple[int, int]] = []
    begin = after = 0
    for size_bytes, place in records:
        after = bisect_left(ends, begin + size_bytes, after)
        if after == len(ends) or ends[after] != begin + size_bytes:
            raise JournalDamagedError("received frames do not fill their record", bytes=size_bytes)
        after += 1
        lies.append((after, place - begin))
        begin += size_bytes
    return lies


def _verify(
    view: memoryview, bodies: Sequence[Any], ends: list[int], next_seqno: int, points: Points
) -> tuple[Points, list[int]]:
    """Where the origins stand after the frames, and which frames come alone. The verdict on what is not plain."""
    moved: Points = {}
    alone: list[int] = []
    wanted = next_seqno
    begin = ORIGIN_OFFSET
    origin = last_origin_seqno = last_chain = -1
    for body, end in zip(bodies, ends, strict=True):
        if body[1] != wanted:
            raise _gap(wanted, body[1])
        if body[4] != origin:
            if origin >= 0:
                moved[origin] = (last_origin_seqno, last_chain)
            origin = body[4]
            last_origin_seqno, last_chain = moved.get(origin) or points.get(origin, START)
        kind = body[0]
        if kind in CHANGES_BEGIN:
            if body[PAYLOAD] in BOUND if len(body) == ONE_CHANGE else not BOUND.isdisjoint(body[PAYLOAD::4]):
                alone.append(wanted - next_seqno)
        elif kind == _HISTORY:
            alone.append(wanted - next_seqno)
        elif kind != _NULL:
            raise JournalDamagedError(f"a frame of kind {kind} stands among whole transactions", seqno=wanted)
        if kind == _HISTORY:
            if body[5] != 0 or last_origin_seqno or last_chain:
                raise _opened_twice(body, last_origin_seqno)
        elif body[5] != last_origin_seqno + 1:
            raise GapError(
                f"transaction {wanted} is number {body[5]} of its origin, but {last_origin_seqno + 1} should come next",
                do="The two sites do not share one history; compare them, then seed the secondary again",
                seqno=wanted,
                origin=origin,
                expected=last_origin_seqno + 1,
                got=body[5],
            )
        if not proven_after(view[begin - ORIGIN_OFFSET : end], kind, body[3], last_chain):
            raise diverged(wanted, origin, body[5])
        last_origin_seqno = body[5]
        last_chain = body[3]
        wanted += 1
        begin = end + ORIGIN_OFFSET
    moved[origin] = (last_origin_seqno, last_chain)
    return moved, alone


def advance(before: Position, bodies: Sequence[Any], partition_of: Callable[[int], int | None]) -> Position:
    """The position after verified frames: each origin's last number, its hash, and the partitions that were carried.

    `partition_of` tells the partition of a table id. A NULL record raises only the partitions that it names.
    JournalDamagedError for content that verifies and cannot stand in a frame.
    """
    try:
        return _advance(before, bodies, partition_of)
    except (TypeError, IndexError) as error:
        raise _senseless(error, before) from error


def _senseless(error: Exception, before: Position) -> JournalDamagedError:
    return JournalDamagedError(f"a received frame makes no sense: {error}", last_seqno=before.last_seqno)


def _advance(before: Position, bodies: Sequence[Any], partition_of: Callable[[int], int | None]) -> Position:
    points: Points = {}
    raised: dict[tuple[int, int], int] = {}
    carried: dict[int, int] = {}
    origin = -1
    body: Sequence[Any] = ()
    for body in bodies:
        if body[4] != origin:
            raise_partitions(raised, origin, carried, partition_of)
            carried = {}
            origin = body[4]
        if len(body) == ONE_CHANGE:
            carried[body[PAYLOAD + 1]] = body[5]
        elif body[0] in CHANGES_BEGIN:
            carried.update(dict.fromkeys(body[PAYLOAD + 1 :: 4], body[5]))
        elif body[0] == _NULL:
            raised.update({(origin, partition): body[5] for partition in unpack_partitions(body[PAYLOAD + 1])})
        points[origin] = (body[5], body[3])
    raise_partitions(raised, origin, carried, partition_of)
    if 0 in points:
        raise JournalDamagedError(f"a frame before transaction {body[1] + 1} is of no origin")
    raised.update({(key, PARTITION_STREAM): point[0] for key, point in points.items()})
    return Position(
        body[1] if body else before.last_seqno,
        before.vector.merged(SynchronizationVector(raised)),
        {**before.chains, **points},
    )


def _opened_twice(body: Sequence[Any], last_origin_seqno: int) -> DivergedError:
    return DivergedError(
        f"transaction {body[1]} opens an origin that has been open already",
        do="The two sites do not share one history; seed the secondary again",
        seqno=body[1],
        origin=body[4],
        last_origin_seqno=last_origin_seqno,
    )


def diverged(seqno: int, origin: int, origin_seqno: int) -> DivergedError:
    """The chain hash of a transaction does not follow from the one before it."""
    return DivergedError(
        f"transaction {seqno} does not continue what was applied before it: its chain hash does not follow",
        do="The two sites do not share one history; compare them, then seed the secondary again",
        seqno=seqno,
        origin=origin,
        origin_seqno=origin_seqno,
    )
