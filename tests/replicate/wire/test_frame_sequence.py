"""Runs of journal frames: gap-free or refused naming both numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import GapError, ProtocolViolationError, ReplicateError
from replicate.journal.record import large_payload, pack_restated_large, read_head
from replicate.model.transaction import Op
from replicate.wire.frame_sequence import check_large, check_parts, check_sequence
from tests.harness.link_pair import Journal
from tests.harness.restating import restate

JOURNAL = Journal(large=(6,))
JOURNAL.write(10)
FIVE = b"".join(JOURNAL.frames[:5])
PARTS = b"".join(JOURNAL.parts[6])
TOKEN = JOURNAL.token(6)


def test_where_the_wanted_frame_begins() -> None:
    assert check_sequence(FIVE, 1, 5, 1) == 0
    assert check_sequence(FIVE, 1, 5, 3) == len(FIVE) - len(b"".join(JOURNAL.frames[2:5]))
    assert check_sequence(FIVE, 1, 5, 6) == len(FIVE)
    assert check_sequence(b"".join(JOURNAL.frames[2:5]), 3, 3, 1) == 0


@pytest.mark.parametrize("missing", range(1, 4))
def test_a_deleted_frame_names_both_numbers(missing: int) -> None:
    frames = [frame for index, frame in enumerate(JOURNAL.frames[:5]) if index != missing]
    with pytest.raises(GapError, match=f"transaction {missing + 2} came .* next should be transaction {missing + 1}"):
        check_sequence(b"".join(frames), 1, 4, 1)


def test_repeated_swapped_short_long() -> None:
    one, two, three = JOURNAL.frames[:3]
    with pytest.raises(GapError):
        check_sequence(one + one, 1, 2, 1)
    with pytest.raises(GapError):
        check_sequence(one + three + two, 1, 3, 1)
    with pytest.raises(GapError):
        check_sequence(two, 1, 1, 1)
    for count in (4, 6):
        with pytest.raises(ProtocolViolationError, match="holds 5"):
            check_sequence(FIVE, 1, count, 1)


def test_kinds_that_do_not_belong_into_a_run() -> None:
    with pytest.raises(ProtocolViolationError, match="kind 5"):
        check_sequence(JOURNAL.frames[5], 6, 1, 6)
    with pytest.raises(GapError):
        check_sequence(JOURNAL.parts[6][0], 6, 1, 6)


def test_every_cut_is_refused() -> None:
    for cut in range(1, len(FIVE)):
        with pytest.raises(ReplicateError):
            check_sequence(FIVE[:cut], 1, 5, 1)
    with pytest.raises(ProtocolViolationError):
        check_sequence(b"", 1, 1, 1)


@given(st.binary(max_size=300), st.integers(1, 5), st.integers(1, 5))
def test_random_bytes(data: bytes, first: int, count: int) -> None:
    for check in (
        lambda: check_sequence(data, first, count, first),
        lambda: check_parts(data, first, 0, count, 0),
        lambda: check_large(data, first, first, count),
    ):
        with pytest.raises(ReplicateError):
            check()


@given(st.integers(0, len(PARTS) - 1), st.integers(0, 255))
def test_mutated_parts(index: int, value: int) -> None:
    bad = PARTS[:index] + bytes([value]) + PARTS[index + 1 :]
    if bad != PARTS:
        with pytest.raises(ReplicateError):
            check_parts(bad, TOKEN, 0, 5, 0)


def test_parts() -> None:
    length = len(JOURNAL.parts[6][0])
    assert check_parts(PARTS, TOKEN, 0, 5, 0) == 0
    assert check_parts(PARTS, TOKEN, 0, 5, 2) == 2 * length
    assert check_parts(PARTS, TOKEN, 0, 5, 5) == len(PARTS)
    assert check_parts(PARTS[2 * length :], TOKEN, 2, 3, 0) == 0
    with pytest.raises(GapError, match=r"part 2 .* next should be part 1"):
        check_parts(PARTS[:length] + PARTS[2 * length :], TOKEN, 0, 4, 0)
    with pytest.raises(GapError):
        check_parts(PARTS, TOKEN + 1, 0, 5, 0)
    with pytest.raises(ProtocolViolationError, match="4 parts"):
        check_parts(PARTS, TOKEN, 0, 4, 0)
    with pytest.raises(ReplicateError):
        check_parts(FIVE, TOKEN, 0, 5, 0)


def test_large() -> None:
    frame = JOURNAL.frames[5]
    check_large(frame, 6, TOKEN, 5)
    for seqno, token, parts, kind in (
        (7, TOKEN, 5, GapError),
        (6, TOKEN + 1, 5, ProtocolViolationError),
        (6, TOKEN, 4, ProtocolViolationError),
    ):
        with pytest.raises(kind):
            check_large(frame, seqno, token, parts)
    with pytest.raises(ProtocolViolationError):
        check_large(JOURNAL.frames[0], 1, TOKEN, 5)


def test_what_was_told_in_other_words_is_in_a_run_and_commits_parts() -> None:
    head = read_head(JOURNAL.frames[2])
    restated = restate(head, "a filter", [int(Op.COMMENT), 0, 0, ["other words"]], (1,))
    run = b"".join((*JOURNAL.frames[:2], restated, *JOURNAL.frames[3:5]))
    assert check_sequence(run, 1, 5, 6) == len(run)
    payload, count = large_payload(TOKEN, 5, 1, 1, (1,))
    frame = pack_restated_large(read_head(JOURNAL.frames[5]), "a filter", payload, count)
    check_large(frame, 6, TOKEN, 5)
    with pytest.raises(ProtocolViolationError):
        check_large(frame, 6, TOKEN + 1, 5)
    with pytest.raises(ProtocolViolationError, match="kind 8"):
        check_sequence(frame, 6, 1, 6)
    with pytest.raises(ProtocolViolationError):
        check_large(restated, 3, TOKEN, 5)
