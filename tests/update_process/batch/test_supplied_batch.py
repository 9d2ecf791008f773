"""What a supplier takes of others for one commit: what goes together, and what the journal is given."""

from __future__ import annotations

import itertools

import pytest

from replicate.journal.walk import walk
from replicate.model.vector import Origin, Position
from tests.harness.frames import Writer
from update_process.batch.supplied_batch import FrameRoom, SuppliedBatch

OWN, OTHER, THIRD = (Origin(name * 16, 1).key for name in (b"a", b"b", b"c"))
BEFORE = Position(7, {}, {OWN: (5, 50), OTHER: (2, 20)})


def batch() -> SuppliedBatch:
    return SuppliedBatch(BEFORE, is_alone=False)


@pytest.mark.parametrize("told", [*itertools.product((None, False, True), repeat=3)])
def test_windows_go_together_where_all_are_merged_or_none_is(told: tuple[bool | None, ...]) -> None:
    """And one that is merged comes first: what was taken before it would have to be in our journal."""
    made, taken = batch(), list[bool | None]()
    for number, merges in enumerate(told):
        if not made.admits(merges):
            break
        taken.append(merges)
        made.took([(0, 0, 0, 0, OTHER, 3 + number, 9)], BEFORE)
    else:
        number = len(told)
    kinds = {one for one in taken if one is not None}
    assert len(kinds) <= 1
    assert made.merges is (kinds.pop() if kinds else None)
    if made.merges:
        assert taken[0]
    if number < len(told):
        refused = told[number]
        assert refused is not None
        assert refused is not made.merges
        assert refused or made.merges


def test_it_knows_which_origins_were_moved_and_the_highest_csn() -> None:
    made = batch()
    assert made.next_seqno == 8
    after = Position(9, {}, {OWN: (5, 50), OTHER: (3, 30), THIRD: (1, 10)})
    made.took([(0, 8, 0, 0, OTHER, 3, 700), (0, 9, 0, 0, THIRD, 1, 600)], after)
    assert made.places == {OTHER: (3, 30), THIRD: (1, 10)}
    assert (made.csn, made.count, made.next_seqno, made.position) == (700, 2, 10, after)
    assert made.points == BEFORE.chains, "who opens windows moves that"


@pytest.mark.parametrize("lies", ["in a window", "each by itself", "with our own after them"])
def test_the_journal_is_given_all_frames_and_the_head_of_the_last(lies: str) -> None:
    frames = Writer(origin=OTHER, seqno=7, chains={OTHER: (2, 20)}).many(4)
    ends = list(itertools.accumulate(map(len, frames[:3])))
    made = batch()
    made.add_frames([b"".join(frames[:3])] if lies != "each by itself" else frames[:3], ends)
    made.took([(0, 8 + number, 0, 0, OTHER, 3 + number, 1) for number in range(3)], Position(10, {}, BEFORE.chains))
    if lies == "with our own after them":
        made.took_own(frames[3], Position(11, {}, {**BEFORE.chains, OWN: (6, 60)}))
        assert made.places == {OWN: (6, 60)}
    given, last = made.for_journal()
    joined = b"".join(bytes(piece) for piece in given.data)
    count = 4 if lies == "with our own after them" else 3
    assert joined == b"".join(frames[:count])
    assert made.size_bytes == len(joined)
    assert (given.first_seqno, given.last_seqno, given.count) == (8, 7 + count, count)
    assert last == [head for _, head in walk(joined)][-1]
    assert made.csn == (last.csn if count == 4 else 1)


def test_a_batch_lies_where_the_one_before_it_lay() -> None:
    frames, room, memory = Writer(origin=OTHER, seqno=7, chains={OTHER: (2, 20)}).many(6), FrameRoom(), set[int]()
    for count in (6, 2, 6, 1):
        made = SuppliedBatch(BEFORE, is_alone=False, room=room)
        made.add_frames(frames[:count], ())
        made.took([(0, 8, 0, 0, OTHER, 3, 1)], Position(7 + count, {}, BEFORE.chains))
        given, last = made.for_journal()
        assert b"".join(map(bytes, given.data)) == b"".join(frames[:count]), "nothing of a longer one before it"
        assert last.seqno == 7 + count
        memory.add(id(room.data))
    assert len(memory) == 1
    held = memoryview(room.data)
    room.put(0, bytes(1000 + len(held)))
    assert held[: len(frames[0])] == frames[0], "somebody looks at it still"
