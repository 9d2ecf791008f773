"""Transactions in other words while they are made: nothing left, a frame, or more than one holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.journal.record import changes_of, decode, decode_batch, read_head, read_part, unpacker
from replicate.journal.retelling import REASON_BYTES_MAX, Retelling
from replicate.journal.spool_format import read_part_frame, slice_bytes
from replicate.limits import FRAME_CHANGES_MAX, MIB
from replicate.model.transaction import Kind, LargeCommit, LogComment, NullRecord, Op
from tests.harness.journals import FrameMaker

HEAD = read_head(FrameMaker(next_seqno=7, origin_seqno=3).transaction("a"))


def changes(count: int, size: int) -> list[object]:
    return [element for number in range(count) for element in (int(Op.INSERT), 0x8000_0001, 0, [number, bytes(size)])]


def test_nothing_left(tmp_path: Path) -> None:
    retelling = Retelling(tmp_path, HEAD.origin)
    told = decode(retelling.frame(HEAD, "a filter", (1, 2)))
    assert (told.kind, told.chain, told.content) == (Kind.NULL, HEAD.chain, (NullRecord("a filter", (1, 2)),))
    assert not list(tmp_path.iterdir())


def test_what_fits_a_frame(tmp_path: Path) -> None:
    retelling = Retelling(tmp_path, HEAD.origin)
    for piece in (changes(2, 3), [], changes(3, 100_000)):
        retelling.add(piece)
    frame = retelling.frame(HEAD, "é" * REASON_BYTES_MAX, (1,))
    told = decode(frame)
    assert told.kind is Kind.RESTATED
    assert isinstance(told.content[0], LogComment)
    assert told.content[0].text == "é" * (REASON_BYTES_MAX // 2)
    assert changes_of(decode_batch(frame)[2]) == changes(2, 3) + changes(3, 100_000)
    retelling.abort()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("count", "size"), [(40, 50_000), (FRAME_CHANGES_MAX + 1, 1)])
def test_what_does_not_is_spooled(tmp_path: Path, count: int, size: int) -> None:
    retelling = Retelling(tmp_path, HEAD.origin)
    wanted = changes(count, size)
    for place in range(0, len(wanted), 4 * 100):
        retelling.add(wanted[place : place + 400])
    frame = retelling.frame(HEAD, "a filter", (1,))
    told = decode(frame)
    commit = told.content[0]
    assert told.kind is Kind.RESTATED_LARGE
    assert isinstance(commit, LargeCommit)
    assert told.chain == HEAD.chain
    assert commit.partitions == (1,)
    assert retelling.spool is not None
    assert commit.token == retelling.spool.token != HEAD.csn
    stream, found = unpacker(), []
    with Path(retelling.spool.path).open("rb") as file:
        for number in range(commit.part_count):
            part = read_part_frame(file.fileno(), "", number, slice_bytes(commit.payload_bytes, number))
            stream.feed(read_part(part)[2])
            found += list(stream)
    assert found == wanted
    retelling.abort()
    assert not list(tmp_path.iterdir())


def test_memory_holds_one_frame(tmp_path: Path) -> None:
    retelling = Retelling(tmp_path, HEAD.origin)
    for _ in range(64):
        retelling.add(changes(1, MIB // 8))
        assert len(retelling._data) <= MIB // 2
    retelling.abort()
