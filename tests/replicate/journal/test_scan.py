"""Scanning: the fast way through plain frames finds what looking at each frame alone does, whatever the bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from replicate.errors import FrameDamaged, ReplicateError
from replicate.journal import catalogue
from replicate.journal import scan as module
from replicate.journal.catalogue import catalogue_before
from replicate.journal.record import pack_elements
from replicate.journal.segment import scan
from replicate.journal.tail import ScanResult
from replicate.journal.walk import LOOK_BYTES, FrameRun, Skimmed, plain_run, skim_run, walk
from replicate.model.transaction import Catalogue, Op
from replicate.model.vector import U64_MAX
from tests.harness.journals import FrameMaker, ToyJournal, define_payload, make_definition


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    for number in range(30):
        if number % 7 == 3:
            toy.append(toy.maker.transaction(payload=define_payload(make_definition(f"t{number}"))))
        elif number % 11 == 5:
            toy.append(toy.maker.null())
        else:
            toy.append(toy.maker.transaction("x" * (number * 3)))
    yield toy
    toy.close()


def _found(
    frames: bytes | bytearray, file: BinaryIO, monkeypatch: pytest.MonkeyPatch, *, fast: bool
) -> ScanResult | str:
    file.seek(0)
    file.write(frames)
    file.flush()
    with monkeypatch.context() as patch:
        if not fast:
            nothing = FrameRun(0, 0, -1, (0, 0), 0, 0, [])
            patch.setattr(module, "plain_run", lambda *_: nothing)
        try:
            return scan(file.fileno(), 0, 1, chains={}, path="p")
        except ReplicateError as error:
            return str(error)


def test_both_ways_agree_on_flipped_bits(journal: ToyJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file of its own, and a short one: after damage the whole rest of a file is looked through.
    begin = journal.segment.read_catalogue()[1]
    frames = bytearray(os.pread(journal.segment.fd, journal.end_offset - begin, begin)) + bytes(100)
    with (tmp_path / "frames").open("w+b") as file:
        whole = _found(frames, file, monkeypatch, fast=True)
        assert isinstance(whole, ScanResult)
        assert whole.damaged is None
        assert whole.last_seqno == 30
        assert whole == _found(frames, file, monkeypatch, fast=False)
        dice = random.Random(4)
        for _ in range(150):
            at, mask = dice.randrange(len(frames)), 1 << dice.randrange(8)
            frames[at] ^= mask
            found = _found(frames, file, monkeypatch, fast=True)
            assert found == _found(frames, file, monkeypatch, fast=False)
            assert not isinstance(found, ScanResult) or found.damaged is not None
            frames[at] ^= mask


def test_both_ways_give_the_same_catalogue_at_any_place(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append(journal.maker.history(2))  # another origin, which the fast way does not know at first
    journal.write(3)
    places = range(1, journal.last_seqno + 2)
    fast = [catalogue_before(journal.chain, seqno) for seqno in places]
    nothing = Skimmed(0, 0, -1, (0, 0), [])
    monkeypatch.setattr(catalogue, "skim_run", lambda *_: nothing)
    assert fast == [catalogue_before(journal.chain, seqno) for seqno in places]
    assert len(fast[-1].definitions) == 4
    assert len(fast[-1].chains) == 2


@pytest.mark.parametrize("fast", [True, False])
def test_values_that_look_like_a_definition_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """A 4 before a large number, in every row; every definition is found all the same."""
    toy = ToyJournal(tmp_path / "journal")
    for number in range(20):
        values = [int(Op.INSERT), 1 << 31, 0, [number, 4, 70_000, 4, 1 << 31]]
        toy.append(toy.maker.transaction(payload=pack_elements(*values)))
        toy.append(
            toy.maker.transaction(payload=define_payload(make_definition(f"t{number}")))
            if not number % 5
            else toy.maker.null()
        )
    looked: list[bytes] = []
    really = catalogue.with_frame

    def with_frame(known: Catalogue, frame: bytes) -> Catalogue:
        looked.append(bytes(frame))
        return really(known, frame)

    monkeypatch.setattr(catalogue, "with_frame", with_frame)
    if not fast:
        nothing = Skimmed(0, 0, -1, (0, 0), [])
        monkeypatch.setattr(catalogue, "skim_run", lambda *_: nothing)
    assert len(catalogue_before(toy.chain, toy.last_seqno + 1).definitions) == len(looked) == 4
    toy.close()


def test_the_fast_way_ends_where_it_is_told(journal: ToyJournal) -> None:
    """What is damaged after the place that is asked about is nobody's business yet."""
    begin = journal.segment.read_catalogue()[1]
    data = bytearray(os.pread(journal.segment.fd, journal.end_offset - begin, begin))
    offsets = [offset for offset, _ in walk(data)]
    at = catalogue_before(journal.chain, 10)
    os.pwrite(journal.segment.fd, bytes([data[offsets[9] + 100] ^ 1]), begin + offsets[9] + 100)  # in transaction 10
    assert catalogue_before(journal.chain, 10) == at
    with pytest.raises(FrameDamaged):
        catalogue_before(journal.chain, 11)


def test_what_is_skimmed_is_what_is_there(journal: ToyJournal) -> None:
    """Whatever bit is flipped: a skim tells what the whole bytes say, or nothing; or it ends before."""
    begin = journal.segment.read_catalogue()[1]
    whole = os.pread(journal.segment.fd, journal.end_offset - begin, begin)
    last = journal.last_seqno
    run = plain_run(whole, 0, 1, {journal.maker.origin: (0, 0)})
    assert 3 <= run.count < last  # up to the first NULL record
    known = {journal.maker.origin: (0, 0)}
    places = {}
    for seqno in range(1, run.count + 1):
        plain = plain_run(whole, 0, 1, known, last_seqno=seqno)
        skimmed = skim_run(whole, 0, 1, known, seqno)
        assert skimmed[:4] == plain[:4]
        assert [at for at, _ in skimmed.definitions] == plain.definitions
        places[seqno] = skimmed
    assert places[run.count].definitions
    assert skim_run(whole, 0, 1, known, last) == places[run.count]
    for size in range(run.end):  # cut short: what is whole of it
        cut = skim_run(whole[:size], 0, 1, known, last)
        assert cut.end <= size
        assert not cut.count or cut == places[cut.count]
    assert skim_run(whole, 0, 1, {7: (0, 0)}, last).count == 0  # an origin that nobody knows
    assert skim_run(whole, 0, 1, {journal.maker.origin: (1, 5)}, last).count == 0  # another number
    dice = random.Random(5)
    for _ in range(500):
        flipped = bytearray(whole)
        at = dice.randrange(run.end)
        flipped[at] ^= 1 << dice.randrange(8)
        found = skim_run(bytes(flipped), 0, 1, known, run.count)
        assert not found.count or found[:4] == places[found.count][:4]
        assert all(flipped[start:end] == whole[start:end] for start, end in found.definitions)


class Counted(bytes):
    """Counts how many bytes it is searched through."""

    searched = 0

    def find(self, what: Any, begin: Any = 0, end: Any = None, /) -> int:
        found = super().find(what, begin, end)
        upto = len(self) if end is None else min(end, len(self))
        self.searched += (found if found >= 0 else upto) - begin
        return found


def test_where_origins_take_turns_each_byte_is_looked_at_a_few_times_only() -> None:
    """Not all that follows once more for each run: a journal of suppliers would never be read to its end."""
    makers = [FrameMaker(origin=origin) for origin in (1, 2)]
    frames = []
    for seqno in range(1, 2001):
        maker = makers[seqno % 2]
        maker.next_seqno = seqno
        frames.append(maker.transaction("x" * 100))
    data, known = Counted(b"".join(frames)), {1: (0, 0), 2: (0, 0)}
    runs = index = 0
    while index < len(data):
        run = plain_run(data, index, runs + 1, known)
        assert run.count == 1
        assert skim_run(data, index, runs + 1, known, U64_MAX)[:4] == run[:4]
        known[run.origin], index, runs = run.point, run.end, runs + 1
    assert runs == len(frames)
    assert data.searched < 2 * runs * 3 * LOOK_BYTES


def test_a_flip_in_what_a_skim_tells_is_found(journal: ToyJournal) -> None:
    begin = journal.segment.read_catalogue()[1]
    data = bytearray(os.pread(journal.segment.fd, journal.end_offset - begin, begin))
    offsets = [offset for offset, _ in walk(data)]
    assert skim_run(bytes(data), 0, 1, {journal.maker.origin: (0, 0)}, 5).definitions[0][0] == offsets[3]
    for number in (3, 4):  # transaction 4 defines a table; 5 is the last one that is asked about
        os.pwrite(journal.segment.fd, bytes([data[offsets[number] + 70] ^ 1]), begin + offsets[number] + 70)
        with pytest.raises(FrameDamaged):
            catalogue_before(journal.chain, 6)
        os.pwrite(journal.segment.fd, bytes([data[offsets[number] + 70]]), begin + offsets[number] + 70)
    assert len(catalogue_before(journal.chain, 6).definitions) == 1


@pytest.mark.parametrize("first_sees", ["an end that is none any more", "a hole", "half a frame"])
def test_a_scan_beside_a_writer_finds_no_damage(
    journal: ToyJournal, monkeypatch: pytest.MonkeyPatch, first_sees: str
) -> None:
    """A read of a file that is being appended to shows each page as it was at another moment."""
    real, reads = os.pread, 0
    begin = journal.segment.read_catalogue()[1]
    frames = [offset for offset, _ in walk(real(journal.segment.fd, journal.end_offset - begin, begin))]
    from_, to = begin + frames[20], begin + frames[21]
    lacking = {
        "an end that is none any more": (from_, journal.end_offset),
        "a hole": (from_, to),
        "half a frame": (to - 7, journal.end_offset),
    }[first_sees]

    def read(fd: int, count: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        data = bytearray(real(fd, count, offset))
        if reads == 1:
            zeros = slice(lacking[0] - offset, min(lacking[1] - offset, len(data)))
            data[zeros] = bytes(zeros.stop - zeros.start)
        return bytes(data)

    monkeypatch.setattr(module.os, "pread", read)
    found = scan(journal.segment.fd, begin, 1, chains={}, path="p")
    assert (found.damaged, found.after) == (None, None)
    assert found.last_seqno == (20 if "end" in first_sees else 30)
    assert reads > 1


def test_what_stays_bad_is_damage(journal: ToyJournal) -> None:
    begin = journal.segment.read_catalogue()[1]
    frames = [offset for offset, _ in walk(os.pread(journal.segment.fd, journal.end_offset - begin, begin))]
    os.pwrite(journal.segment.fd, bytes(frames[21] - frames[20]), begin + frames[20])
    found = scan(journal.segment.fd, begin, 1, chains={}, path="p")
    assert found.damaged is not None
    assert found.after is not None
    assert (found.last_seqno, found.after.seqno) == (20, 22)
