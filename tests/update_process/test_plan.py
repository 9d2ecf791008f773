"""What the Update Process does next: every decision, without a pool or a database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DivergedError, GapError, JournalDamagedError, ReplicateError
from replicate.model.vector import Position, SynchronizationVector
from tests.harness import frames
from tests.harness.frames import Writer
from update_process.plan import (
    Abandon,
    CommitLarge,
    Cut,
    Fill,
    Idle,
    OpenLarge,
    Piece,
    PieceKind,
    Skip,
    StartAgain,
    TakeCatalogue,
    TakeParts,
    Window,
    advance,
    open_window,
    plan,
)
from update_process.window.columns import Points

ROOM = 1000


def whole(first: int, last: int, size_bytes: int = 100) -> Piece:
    return Piece(PieceKind.FRAMES, first, last, last - first + 1, size_bytes)


def parts(seqno: int, first_part: int, count: int = 1) -> Piece:
    return Piece(PieceKind.PARTS, seqno, seqno, count, 100, first_part)


def large(seqno: int) -> Piece:
    return Piece(PieceKind.LARGE, seqno, seqno, 1, 100)


CATALOGUE = Piece(PieceKind.CATALOGUE, 0, 0, 0, 100)


@pytest.mark.parametrize(
    ("pieces", "next_seqno", "open_large", "step"),
    [
        ([], 1, None, Idle()),
        ([CATALOGUE, whole(1, 2)], 1, None, TakeCatalogue()),
        ([whole(1, 2)], 1, None, Fill(1, 0)),
        ([whole(1, 2), whole(3, 9), CATALOGUE, whole(10, 10)], 1, None, Fill(2, 0)),
        ([whole(1, 4), parts(5, 0)], 3, None, Fill(1, 2)),
        ([whole(1, 2), whole(3, 4)], 5, None, Skip(2)),
        ([whole(1, 2), whole(3, 6)], 5, None, Skip(1)),
        ([parts(4, 0, 3), large(4), whole(5, 5)], 5, None, Skip(2)),
        ([parts(5, 0)], 5, None, TakeParts(5, 0)),
        ([parts(5, 2)], 5, OpenLarge(5, 2), TakeParts(5, 0)),
        ([parts(5, 1, 3)], 5, OpenLarge(5, 2), TakeParts(5, 1)),
        ([parts(5, 1, 1)], 5, OpenLarge(5, 3), TakeParts(5, 1)),
        ([large(5)], 5, OpenLarge(5, 2), CommitLarge(5)),
    ],
)
def test_the_next_step(pieces: list[Piece], next_seqno: int, open_large: OpenLarge | None, step: object) -> None:
    assert plan(pieces, next_seqno=next_seqno, large=open_large, room_bytes=ROOM) == step


@pytest.mark.parametrize(
    ("pieces", "open_large", "kind"),
    [
        ([parts(5, 0)], OpenLarge(5, 2), Abandon),
        ([whole(5, 6)], OpenLarge(5, 2), Abandon),
        ([parts(5, 3)], OpenLarge(5, 2), StartAgain),
        ([parts(5, 1)], None, StartAgain),
        ([large(5)], None, StartAgain),
    ],
)
def test_a_large_transaction_that_does_not_go_on(
    pieces: list[Piece], open_large: OpenLarge | None, kind: type[Abandon] | type[StartAgain]
) -> None:
    assert isinstance(plan(pieces, next_seqno=5, large=open_large, room_bytes=ROOM), kind)


@pytest.mark.parametrize("piece", [whole(7, 9), parts(7, 0), large(7)])
def test_a_gap_names_both_numbers(piece: Piece) -> None:
    with pytest.raises(GapError) as caught:
        plan([piece], next_seqno=5, large=None, room_bytes=ROOM)
    assert caught.value.facts == {"expected": 5, "got": 7}
    assert "5" in str(caught.value)
    assert "7" in str(caught.value)


def test_a_hole_between_two_records_is_met_when_it_stands_first() -> None:
    assert plan([whole(1, 2), whole(4, 5)], next_seqno=1, large=None, room_bytes=ROOM) == Fill(1, 0)


def test_a_record_whose_numbers_contradict_its_count() -> None:
    with pytest.raises(JournalDamagedError):
        plan([Piece(PieceKind.FRAMES, 1, 3, 2, 100)], next_seqno=1, large=None, room_bytes=ROOM)


def test_room_bounds_all_but_the_first() -> None:
    pieces = [whole(1, 1, 5000), whole(2, 2, 10)]
    assert plan(pieces, next_seqno=1, large=None, room_bytes=ROOM) == Fill(1, 0)
    pieces = [whole(1, 1, 400), whole(2, 2, 600), whole(3, 3, 1)]
    assert plan(pieces, next_seqno=1, large=None, room_bytes=ROOM) == Fill(2, 0)


def window(made: list[bytes], next_seqno: int = 1, points: Points | None = None) -> Window:
    data = b"".join(made)
    return open_window(data, frames.decode(data), next_seqno, {} if points is None else points)


def test_a_window_verifies_and_moves_the_points() -> None:
    writer = Writer(origin=7)
    points: Points = {}
    found = window(writer.many(5), 1, points)
    assert (found.first_seqno, found.last_seqno, found.alone) == (1, 5, [])
    assert points[7] == (5, writer.chains[7][1])
    more = window(writer.many(3), 6, points)
    assert more.last_seqno == 8
    assert points[7][0] == 8


def test_two_origins_and_two_incarnations_interleave() -> None:
    writer = Writer(origin=7)
    made = [writer.frame([b"i" * 16, "one", 1, 0, [], "created"], frames.HISTORY), *writer.many(2)]
    writer.origin = 8
    made += [writer.frame([b"j" * 16, "two", 1, 7, [7, 0, 2], "promoted"], frames.HISTORY), *writer.many(2)]
    writer.origin = 7
    made += writer.many(1)
    writer.origin = 8
    made += [writer.frame(["void", []], frames.NULL)]
    points: Points = {}
    found = window(made, 1, points)
    assert found.alone == [0, 3]
    assert points[7][0] == 3
    assert points[8][0] == 3
    assert points[8][1] == writer.chains[8][1]


def test_each_deleted_frame_is_a_gap() -> None:
    made = Writer().many(4)
    for missing in range(3):
        with pytest.raises(GapError) as caught:
            window(made[:missing] + made[missing + 1 :])
        assert caught.value.facts["expected"] == missing + 1
        assert caught.value.facts["got"] == missing + 2


def test_an_origin_that_skips_a_number_is_a_gap_of_that_origin() -> None:
    writer = Writer(origin=7)
    made = writer.many(1)
    last, chain = writer.chains[7]
    writer.chains[7] = (last + 1, chain)
    made += writer.many(1)
    points: Points = {}
    with pytest.raises(GapError) as caught:
        window(made, 1, points)
    assert (caught.value.facts["expected"], caught.value.facts["got"]) == (2, 3)
    assert points == {}  # unchanged after a refusal


def test_other_content_at_the_same_number_has_diverged() -> None:
    ours, theirs = Writer(), Writer()
    points: Points = {}
    window([ours.insert(9, 1, "ours")], 1, points)
    theirs.insert(9, 1, "theirs")
    with pytest.raises(DivergedError):
        window([theirs.insert(9, 2, "same")], 2, points)


def test_every_flipped_byte_of_the_origin_part_is_noticed() -> None:
    made = Writer().insert(9, 1, "text")
    for place in range(41, len(made)):
        changed = bytearray(made)
        changed[place] ^= 1
        with pytest.raises((ReplicateError, ValueError)):  # ours, or msgpack's own
            window([bytes(changed)])


def test_an_origin_opened_twice_is_refused() -> None:
    writer = Writer()
    made = writer.many(1)
    chain = writer.chains[7][1]
    made.append(frames.pack_frame(frames.HISTORY, 2, 0, chain, 7, 0, 1, [b"i" * 16, "x", 1, 0, [], ""])[0])
    with pytest.raises(DivergedError):
        window(made)


def test_a_filtered_transaction_is_proved_by_the_one_after_it() -> None:
    writer = Writer()
    wanted = writer.many(3)
    null, _ = frames.pack_frame(frames.NULL, 2, 0, 0, 7, 2, 5, ["filtered", []])
    chain = wanted[1][33:41]
    null = null[:33] + chain + null[41:]
    assert window([wanted[0], null, wanted[2]]).last_seqno == 3
    with pytest.raises(DivergedError):
        window([wanted[0], null[:33] + bytes(8) + null[41:], wanted[2]])


@pytest.mark.parametrize("kind", [frames.PART, frames.LARGE, 6])
def test_a_kind_that_cannot_stand_among_whole_transactions(kind: int) -> None:
    with pytest.raises(JournalDamagedError):
        window([Writer().frame([1, 2], kind)])


def test_bytes_left_over_are_refused() -> None:
    made = Writer().many(1)
    with pytest.raises(JournalDamagedError):
        open_window(made[0] + b"\x00", frames.decode(made[0]), 1, {})
    with pytest.raises(JournalDamagedError):
        open_window(b"", [], 1, {})


def test_what_changes_the_schema_comes_alone() -> None:
    writer = Writer()
    made = writer.many(2)
    made.append(writer.frame([frames.SCHEMA, 0, "main", ["CREATE TABLE t (a)"]]))
    made.append(writer.frame([frames.INSERT, 9, 0, [1], frames.DEFINE, 10, 1, []]))
    made += [writer.frame([frames.COMMENT, 0, 0, ["hello"]]), writer.frame([frames.SEQUENCE, 9, 0, [1, 2]])]
    made.append(writer.frame([frames.REGION, 0, "main", ["added", b"u" * 16]]))
    found = window(made)
    assert found.alone == [2, 3, 6]
    cuts = []
    while not found.exhausted:
        cut = found.cut(transactions_max=100, bytes_max=10**6)
        cuts.append((cut.start, cut.stop))
        found.done = cut.stop
    assert cuts == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]


def test_the_barrier_holds() -> None:
    found = window(Writer().many(10))
    assert found.cut(transactions_max=100, bytes_max=10**6, barrier_seqno=4) == Cut(0, 4)
    found.done = 4
    assert found.cut(transactions_max=100, bytes_max=10**6, barrier_seqno=4) == Cut(4, 4)
    assert found.cut(transactions_max=100, bytes_max=10**6, barrier_seqno=2) == Cut(4, 4)
    assert found.cut(transactions_max=100, bytes_max=10**6, barrier_seqno=10) == Cut(4, 10)
    assert found.cut(transactions_max=100, bytes_max=10**6) == Cut(4, 10)


def test_a_transaction_larger_than_the_batch_goes_alone() -> None:
    found = window(Writer().many(3))
    assert found.cut(transactions_max=100, bytes_max=1) == Cut(0, 1)


@given(
    count=st.integers(1, 30),
    transactions_max=st.integers(1, 12),
    bytes_max=st.integers(1, 2000),
    barrier=st.integers(0, 35),
    first=st.integers(1, 2**63),
    alone=st.sets(st.integers(0, 29)),
)
def test_cuts_cover_everything_once_and_keep_the_limits(
    count: int, transactions_max: int, bytes_max: int, barrier: int, first: int, alone: set[int]
) -> None:
    writer = Writer(seqno=first - 1)
    made = writer.many(count)
    found = window(made, first)
    found.alone = sorted(i for i in alone if i < count)
    barrier_seqno = first + barrier - 1 if barrier else 0
    collected: list[bytes] = []
    while not found.exhausted:
        cut = found.cut(transactions_max=transactions_max, bytes_max=bytes_max, barrier_seqno=barrier_seqno)
        if cut.start == cut.stop:
            assert found.first_seqno + cut.stop > barrier_seqno > 0
            break
        assert cut.start == found.done
        assert cut.stop - cut.start <= transactions_max
        assert cut.stop - cut.start == 1 or not any(i in found.alone for i in range(cut.start, cut.stop))
        data = found.frames(cut.start, cut.stop)
        assert len(data) <= bytes_max or cut.stop - cut.start == 1
        assert data == b"".join(made[cut.start : cut.stop])
        collected += made[cut.start : cut.stop]
        found.done = cut.stop
    reach = min(count, barrier) if barrier else count
    assert collected == made[:reach]


def test_the_position_moves_per_origin_and_partition() -> None:
    partitions = {9: 1, 10: 2, 11: 3}
    writer = Writer(origin=7)
    made = [writer.insert(9, 1), writer.insert(10, 1)]
    made.append(writer.frame([frames.INSERT, 9, 0, [1], frames.COMMENT, 0, 0, ["x"], frames.DELETE, 9, 0, [1]]))
    made.append(writer.frame(["filtered", [3]], frames.NULL))
    writer.origin = 8
    made += [writer.frame([b"j" * 16, "two", 1, 7, [7, 0, 4], "promoted"], frames.HISTORY), writer.insert(10, 2)]
    writer.origin = 7
    made.append(writer.frame(["void", []], frames.NULL))
    before = Position(0, SynchronizationVector({(6, 0): 5}), {6: (5, 55)})
    after = advance(before, window(made).bodies, partitions.get)
    assert after.last_seqno == 7
    assert dict(after.vector) == {
        (6, 0): 5,
        (7, 0): 5,
        (7, 1): 3,
        (7, 2): 2,
        (7, 3): 4,
        (8, 0): 1,
        (8, 2): 1,
    }
    assert after.chains == {6: (5, 55), **writer.chains}
    assert advance(after, [], partitions.get) == after


def test_where_frames_stand_in_the_receive_pool_is_told_record_by_record() -> None:
    writer = Writer()
    made = [writer.frame([frames.INSERT, 0x80000009, 0, [number, "x" * number]]) for number in range(6)]
    sizes = [len(frame) for frame in made]
    data = b"".join(made)
    records = [(sum(sizes[:1]), 1000), (sum(sizes[1:4]), 64), (sum(sizes[4:]), 5000)]
    window = open_window(data, frames.decode(data), 1, {}, records)
    assert list(window.lying(0, 6)) == [(0, 1, 1000), (1, 4, 64 - sizes[0]), (4, 6, 5000 - sum(sizes[:4]))]
    assert list(window.lying(2, 5)) == [(2, 4, 64 - sizes[0]), (4, 5, 5000 - sum(sizes[:4]))]
    assert list(window.lying(1, 2)) == [(1, 2, 64 - sizes[0])]


@pytest.mark.parametrize("sizes", [[-1, 1], [1, -1], [0, 1000], [5000, 0]])
def test_a_frame_in_two_records_is_refused_and_nothing_has_moved(sizes: list[int]) -> None:
    writer = Writer()
    data = b"".join(writer.frame([frames.INSERT, 0x80000009, 0, [number, "x" * 500]]) for number in range(4))
    half = len(data) // 2
    points: dict[int, tuple[int, int]] = {}
    records = [(half + sizes[0], 0), (half + sizes[1], 9000)] if sizes[0] in (-1, 1) else [(sizes[0], 0), (sizes[1], 0)]
    with pytest.raises(JournalDamagedError, match="do not fill their record"):
        open_window(data, frames.decode(data), 1, points, records)
    assert points == {}
