"""What stands in the journal of a large transaction that was merged: what it came to, and what its writer wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from replicate.errors import JournalDamagedError
from replicate.journal.merged_large import (
    PiecesTaken,
    WrittenLarge,
    as_its_writer_wrote,
    piece_told,
    told_and_written,
)
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import (
    FrameBatch,
    large_payload,
    pack_changes,
    pack_frame,
    pack_part,
    pack_resolved,
    pack_restated_large,
    read_head,
    resolved_change,
)
from replicate.limits import PART_BYTES
from replicate.model.transaction import Kind, Op
from tests.harness.journals import FrameMaker

ORIGIN, TOKEN = 7, 99


class InMemory(LargeTransaction, frozen=True):
    frames: tuple[bytes, ...] = ()

    def parts(self, from_part: int = 0) -> Iterator[bytes]:
        yield from self.frames[from_part:]


def parts_of(stream: bytes, token: int) -> tuple[tuple[bytes, ...], tuple[bytes, int]]:
    """The PART frames, and what their commit says."""
    frames, chain = list[bytes](), 0
    for at in range(0, len(stream), PART_BYTES):
        frame, chain = pack_part(ORIGIN, token, len(frames), stream[at : at + PART_BYTES], chain)
        frames.append(frame)
    return tuple(frames), large_payload(token, len(frames), len(stream), chain, (1,))


def in_memory(frames: tuple[bytes, ...], commit: bytes) -> InMemory:
    return InMemory(5, "in memory", TOKEN, len(frames), 0, 0, (1,), commit, frames)


def changes(count: int, text: str) -> list[object]:
    return [one for at in range(count) for one in (int(Op.INSERT), 2**31, 0, [at, text])]


def merged(frames: tuple[bytes, ...], commit: bytes, *, leaves_out: int = -1) -> InMemory:
    """As it stands where each of its parts came to one insert; without the part of some number."""
    stream = bytearray()
    for number, data in enumerate(piece for piece in map(_data_of, frames)):
        stream += pack_changes(changes(1, f"part {number}"))
        if number != leaves_out:
            stream += pack_changes(piece_told(number, data, [b"lost"]))
    stream += pack_changes(resolved_change(commit))
    here, payload = parts_of(bytes(stream), 1234)
    return in_memory(here, pack_restated_large(read_head(commit), "merged here", *payload))


def _data_of(frame: bytes) -> bytes:
    return frame[-(len(frame) - len(pack_part(ORIGIN, TOKEN, 0, b"", 0)[0])) :]


def written(count: int = 60) -> tuple[tuple[bytes, ...], bytes, list[object]]:
    """Parts, the commit and the changes of a large transaction."""
    flat = changes(count, "x" * 15_000)
    frames, payload = parts_of(pack_changes(flat), TOKEN)
    return frames, pack_frame(Kind.LARGE, 5, 0, 3, ORIGIN, 8, 9 << 12, *payload)[0], flat


def test_what_its_writer_wrote_comes_out_byte_for_byte() -> None:
    frames, commit, _ = written()
    assert len(frames) > 2
    found = as_its_writer_wrote(merged(frames, commit))
    assert isinstance(found, WrittenLarge)
    assert (found.commit_frame, found.token, found.part_count) == (commit, TOKEN, len(frames))
    assert tuple(found.parts()) == frames
    assert tuple(found.parts(2)) == frames[2:]


def test_one_that_was_not_merged_is_no_other_one() -> None:
    frames, commit, _ = written()
    assert as_its_writer_wrote(in_memory(frames, commit)) is None


def test_one_that_is_large_by_what_it_came_to_is_its_frame() -> None:
    frame = FrameMaker().transaction()
    here, payload = parts_of(pack_changes([*changes(60, "x" * 15_000), *resolved_change(frame)]), 1234)
    found = as_its_writer_wrote(in_memory(here, pack_restated_large(read_head(frame), "merged here", *payload)))
    assert isinstance(found, FrameBatch)
    assert found.data == frame
    assert read_head(pack_resolved(frame, "merged here", [])).chain == read_head(frame).chain


def test_parts_that_are_not_those_that_were_committed_are_found() -> None:
    frames, commit, _ = written()
    found = as_its_writer_wrote(merged(frames, commit, leaves_out=1))
    assert isinstance(found, WrittenLarge)
    with pytest.raises(JournalDamagedError, match="is not what was committed"):
        list(found.parts())


def test_piece_by_piece_what_was_written_and_what_it_came_to() -> None:
    frames, commit, flat = written()
    pieces = list(told_and_written(merged(frames, commit)))
    assert len(pieces) == len(frames)
    assert [one for changed, _ in pieces for one in changed[0::4]] == flat[0::4]
    assert [done[3] for _, done in pieces] == [(0, f"part {number}") for number in range(len(frames))]


def test_of_one_that_was_not_merged_both_are_the_same() -> None:
    frames, commit, flat = written()
    pieces = list(told_and_written(in_memory(frames, commit)))
    assert all(changed is done for changed, done in pieces)
    assert [one for changed, _ in pieces for one in changed[0::4]] == flat[0::4]


def test_changes_come_whole_wherever_the_stream_is_cut() -> None:
    flat = changes(50, "some text")
    stream, rng = pack_changes(flat), random.Random(5)
    for _ in range(20):
        taken, found, at = PiecesTaken(), list[object](), 0
        while at < len(stream):
            size = rng.randint(1, 200)
            some = taken.take(stream[at : at + size])
            assert len(some) % 4 == 0
            found += some
            at += size
        assert found == flat


def test_what_does_not_decode_is_damage() -> None:
    with pytest.raises(JournalDamagedError, match="does not decode"):
        PiecesTaken().take(b"\xc1")
