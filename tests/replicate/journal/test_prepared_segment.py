"""A segment that is written aside: byte for byte what a writer would have made, and in the chain at once or never."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import GapError, InternalError, JournalIOError
from replicate.journal import prepared_segment
from replicate.journal.chain import Chain
from replicate.journal.prepared_segment import AsideSegment
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, Head
from replicate.journal.spool import remove_orphans
from replicate.journal.walk import walk
from replicate.model.transaction import Catalogue
from replicate.system import failpoint
from tests.harness.journals import INSTANCE, NETWORK, ToyJournal, header_after


class Aside:
    """Ten transactions of `source`, the first three of which `journal` has."""

    def __init__(self, directory: Path) -> None:
        self.source, self.journal = ToyJournal(directory / "source"), ToyJournal(directory / "journal")
        self.journal.write(3, "x")
        self.source.write(10, "x")
        reader = ChainReader(self.source.chain, 4)
        batch = reader.read(1 << 20, 10)
        reader.close()
        assert isinstance(batch, FrameBatch)
        self.batch = batch
        self.heads = {head.seqno: (at, head) for at, head in walk(memoryview(batch.data))}

    def frames(self, first: int, last: int) -> tuple[FrameBatch, Head]:
        begin, (end, head) = self.heads[first][0], self.heads[last]
        return FrameBatch(first, last, last - first + 1, self.batch.data[begin : end + head.frame_bytes]), head

    def begin(self) -> AsideSegment:
        journal, maker = self.journal, self.journal.maker
        header = header_after(
            journal.segment.header,
            end_offset=journal.end_offset,
            last_seqno=3,
            origin_seqno=maker.origin_seqno,
            chain=maker.chain,
        )
        chains = {maker.origin: (maker.origin_seqno, maker.chain)}
        return AsideSegment(
            journal.directory, header, Catalogue().at(Catalogue().vector.raised(maker.origin, 0, 3), chains)
        )

    def numbers(self) -> list[int]:
        return Chain(self.journal.directory, network=NETWORK, instance=INSTANCE).first_seqnos()

    def close(self) -> None:
        self.source.close()
        self.journal.close()


@pytest.fixture
def aside(tmp_path: Path) -> Iterator[Aside]:
    made = Aside(tmp_path)
    yield made
    made.close()
    failpoint.disarm()


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 22])
@pytest.mark.parametrize("cuts", [(10,), (4, 10), (5, 6, 9, 10)])
def test_what_enters_is_what_a_writer_would_have_made(
    aside: Aside, monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...], buffer_bytes: int
) -> None:
    monkeypatch.setattr(prepared_segment, "BUFFER_BYTES", buffer_bytes)
    made, first = aside.begin(), 4
    for last in cuts:
        made.write(*aside.frames(first, last))
        assert (made.last_seqno, made.last_head) == (last, aside.heads[last][1])
        first = last + 1
    assert aside.numbers() == [1], "until it enters the chain knows nothing of it"
    last_offset, end = made.last_offset, made.end_offset
    path = made.enter()
    assert aside.numbers() == [1, 4]
    content = Path(path).read_bytes()
    assert len(content) == end
    begin = end - len(aside.batch.data)
    assert content[begin:] == aside.batch.data
    assert last_offset == begin + aside.heads[10][0]
    twin = ToyJournal(aside.journal.directory.parent / "twin")
    twin.write(3, "x")
    twin.switch()
    twin.write(7, "x")
    twin.close()
    assert Path(twin.chain.path_of(4)).read_bytes()[:end] == content
    made.abort()
    assert Path(path).exists(), "after it has entered there is nothing to take back"


def test_frames_that_do_not_follow_are_refused_and_what_was_written_stays(aside: Aside) -> None:
    made = aside.begin()
    made.write(*aside.frames(4, 5))
    for first, last in ((4, 5), (5, 6), (7, 8)):
        with pytest.raises(GapError, match="transaction 6 should come next"):
            made.write(*aside.frames(first, last))
    batch, _ = aside.frames(6, 7)
    with pytest.raises(GapError):
        made.write(batch, aside.heads[6][1])  # not the head of its last one
    made.write(*aside.frames(6, 10))
    assert made.last_seqno == 10
    made.abort()
    made.abort()
    assert aside.numbers() == [1]
    assert not list(aside.journal.directory.glob("take-*"))


def test_one_without_a_frame_does_not_enter(aside: Aside) -> None:
    made = aside.begin()
    with pytest.raises(InternalError, match="without a frame"):
        made.enter()
    made.abort()


@pytest.mark.parametrize(("place", "numbers"), [("take.before_rename", [1]), ("take.renamed", [1, 4])])
def test_killed_as_it_enters_it_is_there_whole_or_an_orphan(aside: Aside, place: str, numbers: list[int]) -> None:
    child = os.fork()
    if child == 0:
        failpoint.arm(f"{place}:1:kill")
        made = aside.begin()
        made.write(*aside.frames(4, 10))
        made.enter()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9
    assert aside.numbers() == numbers
    remove_orphans(aside.journal.directory)
    assert not list(aside.journal.directory.glob("take-*"))
    if numbers == [1, 4]:
        reader = ChainReader(aside.journal.chain, 4)
        batch = reader.read(1 << 20, 10)
        reader.close()
        assert isinstance(batch, FrameBatch)
        assert batch.data == aside.batch.data


def test_a_failed_write_is_named_and_only_abort_is_left(aside: Aside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_segment, "BUFFER_BYTES", 1)
    made = aside.begin()

    def fail(*_: object) -> None:
        raise OSError(5, "lost")

    monkeypatch.setattr(prepared_segment, "write_all", fail)
    with pytest.raises(JournalIOError, match="writing a journal segment aside failed"):
        made.write(*aside.frames(4, 10))
    made.abort()
    assert not list(aside.journal.directory.glob("take-*"))
    assert aside.numbers() == [1]
