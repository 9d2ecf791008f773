"""Frames that are made of what a filter says: small, in parts, or none."""

from __future__ import annotations

from replicate.filters.restating import SMALL_BYTES_MAX, SMALL_CHANGES_MAX, Restating
from replicate.journal.record import Head, decode, pack_changes, read_head, read_part
from replicate.limits import FRAME_BYTES_MAX, PART_BYTES
from replicate.model.transaction import Kind, LargeCommit
from tests.harness.talking import INSERT, PERSON

HEAD = Head(0, 0, 7, int(Kind.TRANSACTION), 9, 3, 12345, 7, 8, 99)


def change(number: int, size: int) -> bytes:
    return pack_changes([INSERT, PERSON.table_id, 0, [number, "x" * size, None]])


def test_what_fits_a_frame_is_one_whatever_the_reason_beside_it() -> None:
    made = Restating(9, 7, 1)
    while len(made.changes) + 1100 < SMALL_BYTES_MAX:
        made.add(change(1, 1000))
    made.close()
    assert made.parts() is None
    frame = made.finish(HEAD, "r" * 2000, (1,))
    assert FRAME_BYTES_MAX - 8192 < len(frame) <= FRAME_BYTES_MAX
    assert read_head(frame)[3:] == (int(Kind.RESTATED), *HEAD[4:])
    assert len(decode(frame).content) == 1 + made.count


def test_one_change_more_becomes_parts_of_which_one_is_in_memory() -> None:
    made = Restating(9, 7, 4)
    taken = []
    for number in range(3000):
        made.add(change(number, 1000))
        assert len(made.changes) <= SMALL_BYTES_MAX + 2000
        if made.is_large:
            assert len(made.changes) < PART_BYTES
        if (parts := made.parts()) is not None:
            taken.append(parts)
    made.close()
    if (parts := made.parts()) is not None:
        taken.append(parts)
    commit = decode(made.finish(HEAD, "why", (1, 2))).content[0]
    assert isinstance(commit, LargeCommit)
    assert commit.part_count == sum(one.count for one in taken)
    assert (commit.token, commit.partitions) == (4, (1, 2))
    assert [one.first_part for one in taken] == [sum(b.count for b in taken[:at]) for at in range(len(taken))]
    head, number, piece = read_part(taken[0].frames)
    assert (head.csn, head.origin, number, len(piece)) == (4, 7, 0, PART_BYTES)


def test_too_many_changes_for_a_frame_become_parts() -> None:
    made = Restating(9, 7, 4)
    for number in range(SMALL_CHANGES_MAX):
        made.add(change(number, 0))
    assert not made.is_large
    made.add(change(1, 0))
    assert made.is_large


def test_nothing_is_a_null_that_carries_the_hash() -> None:
    frame = Restating(9, 7, 4).finish(HEAD, "why", (1,))
    assert read_head(frame)[3:] == (int(Kind.NULL), *HEAD[4:])
