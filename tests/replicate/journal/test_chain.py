"""The chain: switches, links, reading across segments beside a writer, catalogues, pruning (faults 36, 41, 42)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import (
    AlreadyExistsError,
    FormatUnknownError,
    FrameDamaged,
    GapError,
    InternalError,
    JournalDamagedError,
    JournalIOError,
    JournalMissingError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch
from replicate.journal.segment import catalogue_frame, segment_name
from replicate.journal.tail import Clean, classify_tail
from replicate.journal.walk import measure
from tests.harness.changed_frames import batch_of
from tests.harness.journals import (
    INSTANCE,
    NETWORK,
    FrameMaker,
    ToyJournal,
    define_payload,
    flip,
    header_after,
    insert_payload,
    make_definition,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    yield toy
    toy.close()


@pytest.fixture
def three(journal: ToyJournal) -> ToyJournal:
    """Segments 1-10, 11-20, 21-30."""
    for _ in range(2):
        journal.write(10)
        journal.switch()
    journal.write(10)
    return journal


def _read_all(reader: ChainReader, max_bytes: int, last_seqno: int) -> list[FrameBatch]:
    batches = []
    while (found := reader.read(max_bytes, last_seqno)) is not None:
        assert isinstance(found, FrameBatch)
        assert found == batch_of(found.data, verify=True)
        batches.append(found)
    return batches


# The chain.


def test_segments_are_listed_and_found(three: ToyJournal) -> None:
    chain = three.chain
    (three.directory / "00000000000000000099.journal.tmp").touch()
    (three.directory / "README").touch()
    assert chain.first_seqnos() == [1, 11, 21]
    assert [segment.first_seqno for segment in chain.segments()] == [1, 11, 21]
    assert [chain.find(seqno).first_seqno for seqno in (1, 10, 11, 20, 21, 30, 99)] == [1, 1, 11, 11, 21, 21, 21]
    assert chain.last_segment().header.previous_last_seqno == 20
    assert chain.oldest_seqno() == 1
    with pytest.raises(JournalMissingError):
        chain.find(0)
    segment, found = chain.scan_last()
    assert segment.first_seqno == 21
    assert classify_tail(found, last_durable_seqno=30) == Clean(three.end_offset, 31)


def test_an_empty_directory_has_no_journal(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    for call in (chain.last_segment, chain.oldest_seqno, lambda: chain.find(1)):
        with pytest.raises(JournalMissingError):
            call()
    assert chain.segments() == ()
    with pytest.raises(JournalMissingError):
        Chain(tmp_path / "nowhere").first_seqnos()


def test_a_switch_records_where_the_segment_ended(journal: ToyJournal) -> None:
    journal.write(4)
    before, end = journal.segment.header, journal.end_offset
    journal.switch()
    header = journal.segment.header
    assert (header.previous_first_seqno, header.previous_last_seqno, header.previous_end_offset) == (1, 4, end)
    assert (header.previous_check, header.chain, header.origin_seqno) == (before.check, journal.maker.chain, 4)
    catalogue, _ = journal.segment.read_catalogue()
    assert catalogue.chains == {journal.maker.origin: (4, journal.maker.chain)}


def test_an_empty_segment_may_be_replaced_under_our_eyes(three: ToyJournal) -> None:
    three.switch()
    watching = Chain(three.directory)
    old = watching.segments()[-1].header
    os.unlink(watching.path_of(31))
    three.segment.close()
    new = replace(old, created_wall_ns=old.created_wall_ns + 1)
    three.segment = three.chain.create_first(new, three.catalogue)
    assert watching.last_segment().header == new
    os.unlink(watching.path_of(31))
    with pytest.raises(JournalMissingError):
        watching.segment(31)


def test_a_switch_syncs_the_old_segment_first(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.write(1)

    def fail(_: int) -> None:
        raise OSError(5, "lost")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(JournalIOError):
        journal.switch()
    assert journal.chain.first_seqnos() == [1]
    assert journal.segment.poisoned


def test_a_lost_segment_is_named(three: ToyJournal) -> None:
    os.unlink(three.chain.path_of(11))
    fresh = Chain(three.directory)
    for call in (fresh.segments, fresh.last_segment, lambda: fresh.find(5)):
        with pytest.raises(JournalMissingError, match="segment 11 is not there"):
            call()


def test_a_segment_of_another_generation_is_named(three: ToyJournal, tmp_path: Path) -> None:
    other = ToyJournal(tmp_path / "other")
    other.write(10, "other")
    other.switch()
    other.write(10)
    os.replace(other.chain.path_of(11), three.chain.path_of(11))
    other.close()
    with pytest.raises(JournalDamagedError, match="not the one that it was written after"):
        Chain(three.directory).segments()


def test_another_networks_journal_is_refused(three: ToyJournal) -> None:
    with pytest.raises(WrongNetworkError):
        Chain(three.directory, network=INSTANCE).last_segment()
    assert Chain(three.directory, network=NETWORK, instance=INSTANCE).last_segment().first_seqno == 21


# Reading.


@pytest.mark.parametrize("max_bytes", [1, 200, 700, 100_000])
def test_everything_is_read_in_order(three: ToyJournal, max_bytes: int) -> None:
    reader = ChainReader(three.chain)
    batches = _read_all(reader, max_bytes, 30)
    assert [batch.first_seqno for batch in batches] == [1, *(batch.last_seqno + 1 for batch in batches[:-1])]
    assert batches[-1].last_seqno == 30
    assert all(len(batch.data) <= max_bytes or batch.count == 1 for batch in batches)
    assert reader.next_seqno == 31
    three.write(3)
    assert [batch.last_seqno for batch in _read_all(reader, 100_000, 33)] == [33]
    reader.close()


def test_the_bound_is_kept(three: ToyJournal) -> None:
    reader = ChainReader(three.chain)
    assert reader.read(10**6, 0) is None
    assert [batch.last_seqno for batch in _read_all(reader, 10**6, 7)] == [7]
    assert reader.read(10**6, 7) is None
    assert [batch.last_seqno for batch in _read_all(reader, 10**6, 20)] == [10, 20]
    three.append(b"\xce half a frame that is being written")
    assert [batch.last_seqno for batch in _read_all(reader, 10**6, 30)] == [30]
    reader.close()


def test_seeking_anywhere(three: ToyJournal) -> None:
    reader = ChainReader(three.chain)
    for seqno in (30, 1, 15, 10, 11, 20, 21, 5):
        reader.seek(seqno)
        found = reader.read(1, 30)
        assert isinstance(found, FrameBatch)
        assert (found.first_seqno, found.count) == (seqno, 1)
    reader.seek(31)
    assert reader.read(1, 30) is None
    with pytest.raises(InternalError):
        reader.seek(0)
    reader.close()


def test_seeking_far_uses_what_was_walked(journal: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(12):
        journal.write(1, "x" * 250_000)
    reader = ChainReader(journal.chain)
    _read_all(reader, 10**6, 12)
    walked: list[int] = []

    def counted(*args: object, **options: object) -> object:
        found = measure(*args, **options)  # type: ignore[arg-type]
        walked.append(found.frames)
        return found

    monkeypatch.setattr("replicate.journal.reader.measure", counted)
    reader.seek(11)
    assert reader.read(10**6, 12) is not None
    assert sum(walked) <= 4
    reader.close()


def test_a_frame_larger_than_asked_for_comes_alone(journal: ToyJournal) -> None:
    journal.append(journal.maker.transaction("x" * 400_000))
    journal.write(1)
    reader = ChainReader(journal.chain)
    found = reader.read(1000, 2)
    assert isinstance(found, FrameBatch)
    assert (found.count, found.last_seqno) == (1, 1)
    reader.close()


def test_a_catalogue_in_a_transactions_place_is_refused_by_name(journal: ToyJournal) -> None:
    journal.write(3)
    header = replace(journal.segment.header, first_seqno=4)
    at = journal.append(catalogue_frame(journal.catalogue, header))  # its check and its number are right
    journal.maker.transactions(1)
    journal.write(2)
    reader = ChainReader(journal.chain)
    found = reader.read(10**6, 6)
    assert isinstance(found, FrameBatch)
    assert found.last_seqno == 3
    for at_reader in (reader, ChainReader(journal.chain, 5)):
        with pytest.raises(FrameDamaged, match="of kind CATALOGUE stands in a transaction's place") as caught:
            at_reader.read(10**6, 6)
        assert f"offset {at}" in str(caught.value)
        at_reader.close()


def test_what_was_pruned_is_missing(three: ToyJournal) -> None:
    three.chain.prune(21)
    reader = ChainReader(three.chain, 5)
    with pytest.raises(JournalMissingError, match="the oldest is 21") as caught:
        reader.read(1000, 30)
    assert caught.value.facts["seqno"] == 5


def test_a_segment_pruned_under_a_reader_is_read_to_its_end(three: ToyJournal) -> None:
    reader = ChainReader(three.chain)
    reader.read(1, 30)
    three.chain.prune(11)
    assert _read_all(reader, 10**6, 10)[-1].last_seqno == 10
    assert _read_all(reader, 10**6, 30)[-1].last_seqno == 30
    reader.close()


def test_a_lost_segment_ahead_of_a_reader(three: ToyJournal) -> None:
    os.unlink(three.chain.path_of(11))
    reader = ChainReader(three.chain, 9)
    reader._chain = Chain(three.directory)
    with pytest.raises(JournalMissingError):
        _read_all(reader, 10**6, 30)
    reader.close()
    third = ChainReader(Chain(three.directory), 25)
    assert third.read(10**6, 30) is not None
    third.close()


def test_a_number_that_should_be_there_and_is_not(journal: ToyJournal) -> None:
    journal.write(2)
    reader = ChainReader(journal.chain)
    reader.read(10**6, 2)
    for _ in range(2):
        with pytest.raises(GapError, match="seqno 3 should be in the journal") as caught:
            reader.read(10**6, 5)
        assert caught.value.facts["expected"] == 3
    reader.seek(9)
    with pytest.raises(GapError, match="ends with seqno 2"):
        reader.read(10**6, 9)
    reader.close()


def test_good_frames_come_before_a_bad_one_again_and_again(three: ToyJournal) -> None:
    begin = three.append(three.maker.transaction("bad"))
    flip(Path(three.segment.path), begin + 70)
    reader = ChainReader(three.chain, 25)
    assert _read_all(reader, 10**6, 30)[-1].last_seqno == 30
    for _ in range(2):
        with pytest.raises(FrameDamaged) as caught:
            reader.read(10**6, 31)
        assert caught.value.facts["offset"] == begin
        assert caught.value.facts["seqno"] == 31
        assert segment_name(21) in str(caught.value)
    reader.close()


def test_a_segment_continued_elsewhere_than_it_ended(three: ToyJournal) -> None:
    """Fault 40: frames beyond the place that the next header names are not read past."""
    with three.chain.open(11, writable=True) as old:
        stray = FrameMaker(next_seqno=21, origin_seqno=20, chain=three.segment.header.chain).transactions(2, "stray")
        old.append(old.scan().end_offset, stray)
    reader = ChainReader(Chain(three.directory), 11)
    batches = _read_all(reader, 10**6, 30)
    assert [(batch.first_seqno, batch.last_seqno) for batch in batches] == [(11, 20), (21, 30)]
    assert b"stray" not in batches[1].data
    reader.close()


def test_a_segment_that_ends_elsewhere_than_the_next_one_says(three: ToyJournal) -> None:
    three.segment.close()
    os.unlink(three.chain.path_of(21))
    with three.chain.open(11) as old:
        wrong = old.scan().end_offset + 64
        header = header_after(old.header, end_offset=wrong, last_seqno=20, origin_seqno=20, chain=0)
    three.segment = three.chain.create_first(header, three.catalogue)
    reader = ChainReader(Chain(three.directory), 11)
    assert _read_all(reader, 10**6, 20)[-1].last_seqno == 20
    with pytest.raises(JournalDamagedError, match="ended at"):
        reader.read(10**6, 21)
    reader.close()


def test_a_kind_of_a_later_release_stops_the_reader(journal: ToyJournal) -> None:
    journal.append(journal.maker._make(77, insert_payload([1]), 1))  # type: ignore[arg-type]
    reader = ChainReader(journal.chain)
    with pytest.raises(FormatUnknownError, match="kind 77"):
        reader.read(10**6, 1)
    reader.close()


_WRITER = """
import sys
from pathlib import Path
from tests.harness.journals import ToyJournal
journal = ToyJournal(Path(sys.argv[1]))
for number in range(1, 2001):
    journal.write(1, "x" * (number * 37 % 900))
    if number % 300 == 0:
        journal.switch()
    print(number, flush=True)
journal.close()
"""


def test_reading_beside_a_writer_in_another_process(tmp_path: Path) -> None:
    """No lock: the reader is bounded by the last number that the writer has announced."""
    directory = tmp_path / "journal"
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(directory)], stdout=subprocess.PIPE, cwd=root) as writer:
        assert writer.stdout is not None
        reader: ChainReader | None = None
        read: list[int] = []
        for line in writer.stdout:
            reader = reader or ChainReader(Chain(directory))
            for batch in _read_all(reader, 50_000, int(line)):
                read += range(batch.first_seqno, batch.last_seqno + 1)
    assert writer.returncode == 0
    assert read == list(range(1, 2001))
    assert reader is not None
    reader.close()


# Large transactions.


def test_large_transactions_stand_in_the_stream(journal: ToyJournal) -> None:
    journal.write(3)
    definition = make_definition()
    stream = define_payload(definition)[0] + b"".join(
        insert_payload([number, "x" * 1000], definition.table_id)[0] for number in range(1000)
    )
    frame = journal.adopt(stream)
    reader = ChainReader(journal.chain, 2)
    first = reader.read(10**6, 4)
    assert isinstance(first, FrameBatch)
    assert first.last_seqno == 3
    large = reader.read(10**6, 4)
    assert isinstance(large, LargeTransaction)
    assert (large.seqno, large.commit_frame, large.payload_bytes) == (4, frame, len(stream))
    assert large.part_count == len(list(large.parts())) == 4
    assert reader.read(10**6, 4) is None
    with pytest.raises(GapError):
        reader.read(10**6, 5)
    # What it defined is in force after it, also while no other segment follows.
    assert list(reader.catalogue_at(5).definitions.values()) == [definition]
    assert dict(reader.catalogue_at(4).definitions) == {}
    assert reader.catalogue_at(5).chains[journal.maker.origin] == (4, journal.maker.chain)
    segment, found = journal.chain.scan_last()
    assert (segment.header.adopted, found.last_seqno, found.chains[journal.maker.origin][0]) == (True, 4, 4)
    with pytest.raises(InternalError, match="never appended"):
        journal.segment.append(journal.end_offset, b"x")
    journal.switch()
    journal.write(2)
    assert [batch.last_seqno for batch in _read_all(reader, 10**6, 6)] == [6]
    reader.seek(4)
    assert isinstance(reader.read(1, 6), LargeTransaction)
    assert [one.first_seqno for one in journal.chain.segments()] == [1, 4, 5]
    reader.close()


# Pruning.


def test_pruning_keeps_what_is_needed(three: ToyJournal) -> None:
    chain = three.chain
    assert chain.prune(10) == []
    assert chain.prune(0) == []
    assert chain.prune(20) == [segment_name(1)]
    assert chain.prune(10**9) == [segment_name(11)]  # never the newest
    assert chain.first_seqnos() == [21]
    assert chain.segments()[0].first_seqno == 21


def test_the_cap(three: ToyJournal) -> None:
    chain = three.chain
    one = chain.size_bytes() // 3
    assert chain.seqno_within_cap(10**12) == 1
    assert chain.seqno_within_cap(2 * one + 4096) == 11
    assert chain.seqno_within_cap(0) == 21


def test_pruning_stops_at_the_first_failure(three: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink

    def unlink(path: str) -> None:
        if path.endswith(segment_name(11)):
            raise OSError(30, "read only")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(JournalIOError):
        three.chain.prune(21)
    assert three.chain.first_seqnos() == [11, 21]
    assert len(three.chain.segments()) == 2


def test_a_name_that_is_taken_is_refused(three: ToyJournal) -> None:
    with pytest.raises(AlreadyExistsError):
        three.chain.create_first(three.segment.header, three.catalogue)
