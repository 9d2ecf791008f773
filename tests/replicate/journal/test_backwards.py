"""A stretch of the journal from its end: the same as forwards, turned round, whatever it is cut into."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest

from replicate.errors import DamagedError, FrameDamaged
from replicate.journal.backwards import changes_backwards, offset_after, pieces_backwards
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import pack_elements
from replicate.journal.walk import walk
from replicate.limits import MIB, PART_BYTES
from tests.harness.journals import ToyJournal, flip


def stream_of(sizes: list[int]) -> bytes:
    return b"".join(pack_elements(1, 0x8000_0001, 0, [place, "x" * size])[0] for place, size in enumerate(sizes))


def journal_of(path: Path) -> ToyJournal:
    """Three segments, a large transaction between them."""
    journal = ToyJournal(path / "journal")
    journal.write(40, "a" * 1000)
    journal.switch()
    journal.write(40, "b" * 1000)
    journal.adopt(stream_of([10] * 50))
    journal.switch()
    journal.write(40, "c" * 1000)
    return journal


def large_of(path: Path, stream: bytes) -> LargeTransaction:
    """A large transaction of that stream."""
    journal = ToyJournal(path / "journal")
    journal.write(1)
    journal.adopt(stream)
    journal.close()
    large = ChainReader(journal.chain, 2).read(MIB, 2)
    assert isinstance(large, LargeTransaction)
    return large


def seqnos(piece: Any) -> list[int]:
    return [piece.seqno] if isinstance(piece, LargeTransaction) else [head.seqno for _, head in walk(piece.data)]


@pytest.mark.parametrize("piece_bytes", [1, 2500, MIB])
@pytest.mark.parametrize(("first", "last"), [(1, 121), (40, 41), (41, 80), (81, 81), (30, 100), (121, 121)])
def test_all_of_a_stretch_the_newest_piece_first(tmp_path: Path, piece_bytes: int, first: int, last: int) -> None:
    journal = journal_of(tmp_path)
    found = [seqnos(piece) for piece in pieces_backwards(journal.chain, first, last, piece_bytes=piece_bytes)]
    assert [seqno for piece in reversed(found) for seqno in piece] == list(range(first, last + 1))
    if piece_bytes == 1:
        assert len(found) == last + 1 - first
    journal.close()


def test_damage_is_known_before_the_newest_piece_is_out(tmp_path: Path) -> None:
    journal = ToyJournal(tmp_path / "journal")
    journal.write(3, "a" * 1000)
    offset = offset_after(journal.chain, 1)[1]
    journal.write(3, "a" * 1000)
    flip(Path(journal.segment.path), offset + 100)
    with pytest.raises(FrameDamaged):
        next(pieces_backwards(journal.chain, 1, 6, piece_bytes=1))
    journal.close()


@pytest.mark.parametrize(
    "sizes",
    [[1], [10] * 9001, [PART_BYTES - 40, 10, 10], [PART_BYTES * 3 + 17, 1, PART_BYTES, 1], [200_000] * 12],
    ids=["one", "small", "border", "larger than a part", "bytes"],
)
@pytest.mark.parametrize("piece_changes", [1, 4000])
def test_the_changes_of_a_large_transaction(tmp_path: Path, sizes: list[int], piece_changes: int) -> None:
    if len(sizes) > 100 and piece_changes == 1:
        sizes = sizes[:100]
    stream = stream_of(sizes)
    large = large_of(tmp_path, stream)
    pieces = list(changes_backwards(large, piece_changes=piece_changes))
    assert all(len(piece) % 4 == 0 and piece for piece in pieces)
    flat = [element for piece in reversed(pieces) for element in piece]
    forwards = msgpack.Unpacker(max_buffer_size=0)
    forwards.feed(stream)
    assert flat == list(forwards)
    assert len(pieces) >= (len(sizes) if piece_changes == 1 else len(stream) // (2 * MIB))


def test_a_large_transaction_needs_little_memory(tmp_path: Path) -> None:
    large = large_of(tmp_path, stream_of([5000] * 8000))  # 40 MB
    tracemalloc.start()
    try:
        assert sum(len(piece) for piece in changes_backwards(large)) == 4 * 8000
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()


def test_a_large_transaction_that_ends_inside_a_change(tmp_path: Path) -> None:
    large = large_of(tmp_path, stream_of([10, 10])[:-3])
    with pytest.raises(DamagedError):
        next(changes_backwards(large))


def test_where_a_transaction_ends(tmp_path: Path) -> None:
    journal = journal_of(tmp_path)
    chain = journal.chain
    first, offset = offset_after(chain, 30)
    assert first == 1
    with chain.open(1) as segment:
        assert segment.read_frame(offset)[:1]
    assert offset_after(chain, 40)[0] == 1
    assert offset_after(chain, 81) == (81, 0)
    assert offset_after(chain, 121)[0] == 82
    with chain.open(1, writable=True) as segment:
        segment.cut(offset)
    assert offset_after(chain, 30) == (1, offset), "once more, when nothing stands there any more"
    with pytest.raises(DamagedError):
        offset_after(chain, 31)
    begin = offset_after(chain, 0)
    assert begin[0] == 1, "the beginning of the oldest segment"
    assert 0 < begin[1] < offset
    journal.close()
