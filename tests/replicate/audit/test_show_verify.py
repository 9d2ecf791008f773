"""What show tells and what verify finds, over small journals whose damage we made ourselves."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from replicate.audit.query import Query
from replicate.audit.verify import Verification, verify_chain
from replicate.errors import FrameDamaged, JournalDamagedError, JournalMissingError, UsageError
from replicate.journal.record import pack_elements
from replicate.journal.segment import SegmentFile
from replicate.journal.spool_format import part_offset
from replicate.journal.walk import walk
from replicate.limits import PART_BYTES
from replicate.model.transaction import mask_of
from tests.harness.journals import (
    ToyJournal,
    define_payload,
    flip,
    insert_payload,
    make_definition,
    mounted_read_only,
    show_chain,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ToyJournal]:
    toy = ToyJournal(tmp_path / "journal")
    yield toy
    toy.close()


@pytest.fixture
def full(journal: ToyJournal) -> ToyJournal:
    """One of each: 1 definition, 2-4 rows, 5 void, 6 large, 7 history, 8-9 rows; segments 1, 6, 7."""
    definition = make_definition()
    journal.append(journal.maker.transaction(payload=define_payload(definition)))
    journal.append(journal.maker.transaction(payload=insert_payload([1, "a", None], definition.table_id)))
    update = (2, definition.table_id, mask_of((1,), 3), ["b", 1, "a", None])
    journal.append(journal.maker.transaction(payload=(b"".join(map(msgpack.packb, update)), 4)))
    others = pack_elements(5, 0, "main", ["CREATE TABLE x (y)"], 6, 0, 0, ["hello"], 7, 9, 0, [None, 4])
    journal.append(journal.maker.transaction(payload=others))
    journal.append(journal.maker.null("void: COMMIT failed"))
    journal.adopt(bytes(PART_BYTES + 10))
    journal.switch()
    journal.append(journal.maker.history(2))
    journal.write(2, "x" * 200)
    journal.sidecar.write(9)
    return journal


def _whats(found: Verification) -> str:
    return "\n".join(found.lines())


def test_show(full: ToyJournal) -> None:
    shown = list(show_chain(full.chain))
    assert [one.seqno for one in shown] == list(range(1, 10))
    lines = [line for one in shown for line in one.lines()]
    text = "\n".join(lines)
    for expected in (
        "DEFINE    main.main.customer  version 1 (c0 TEXT, c1 TEXT, c2 TEXT)",
        "INSERT    main.main.customer  (c0=1, c1='a', c2=NULL)",
        "UPDATE    main.main.customer  (c0=1, *c1='a' -> 'b', c2=NULL)",
        "SCHEMA    in main: CREATE TABLE x (y)",
        "COMMENT   hello",
        "SEQUENCE  table 00000009  None -> 4",
        "NULL      void: COMMIT failed",
        f"LARGE     2 parts, {PART_BYTES + 10} bytes of changes",
        "HISTORY   alpha incarnation 2 begins after origin",
    ):
        assert expected in text
    assert "…" in lines[-1]
    assert [one.seqno for one in show_chain(full.chain, Query(4, 6))] == [4, 5, 6]


def test_the_fields_have_every_value_whole(journal: ToyJournal) -> None:
    """Anybody who enters by a program what a lost primary has more needs more than the first 60 characters."""
    definition = make_definition()
    journal.append(journal.maker.transaction(payload=define_payload(definition)))
    values = ["x" * 500, b"\x00\xff", float("-inf")]
    journal.append(journal.maker.transaction(payload=insert_payload(values, definition.table_id)))
    update = pack_elements(2, definition.table_id, mask_of((1,), 3), ["b", 1, "a", None])
    journal.append(journal.maker.transaction(payload=update))
    inserted, updated = (one.changes[0] for one in show_chain(journal.chain, Query(2)))
    assert inserted.columns == ("c0", "c1", "c2")
    assert (inserted.before, inserted.after) == (None, ("x" * 500, {"blob": "00ff"}, {"real": "-inf"}))
    assert (updated.before, updated.after) == ((1, "a", None), (1, "b", None))


def test_the_rows_of_a_large_transaction_are_told_part_by_part(journal: ToyJournal) -> None:
    first, later = make_definition(), make_definition("made")
    journal.append(journal.maker.transaction(payload=define_payload(first)))
    inserts = [insert_payload([row, "x" * 1000, None], first.table_id)[0] for row in range(PART_BYTES // 900)]
    made = define_payload(later)[0] + insert_payload([1, "made in it", None], later.table_id)[0]
    journal.adopt(b"".join([*inserts, made]))
    journal.switch()
    assert [one.kind for one in show_chain(journal.chain, Query(2))] == ["LARGE"]
    _, commit, *parts = show_chain(journal.chain, Query(1), parts=True)
    assert [(one.seqno, one.kind, one.csn) for one in parts] == [(2, "PART", commit.csn)] * 2
    changes = [change for part in parts for change in part.changes]
    assert [one.after for one in changes[:-2]] == [(row, "x" * 1000, None) for row in range(len(inserts))]
    assert {one.table for one in changes[:-2]} == {"main.main.customer"}
    assert (changes[-1].table, changes[-1].after) == ("main.main.made", (1, "made in it", None))


def test_a_range_that_is_not_there_is_refused(full: ToyJournal) -> None:
    for first, last in ((10, None), (10, 12), (8, 10), (None, 10)):
        with pytest.raises(UsageError, match="the journal holds transactions 1 to 9"):
            list(show_chain(full.chain, Query(first, last)))
    with pytest.raises(UsageError, match="--from 2 comes after --to 1"):
        list(show_chain(full.chain, Query(2, 1)))
    full.chain.prune(6)
    with pytest.raises(UsageError, match="the journal holds transactions 6 to 9"):
        list(show_chain(full.chain, Query(None, 5)))


def test_an_empty_journal_shows_nothing(journal: ToyJournal) -> None:
    assert list(show_chain(journal.chain)) == []
    with pytest.raises(UsageError, match="the journal holds no transaction yet"):
        list(show_chain(journal.chain, Query(1)))


def test_show_stops_at_the_last_whole_frame(full: ToyJournal) -> None:
    full.append(full.maker.transaction()[:50])
    assert [one.seqno for one in show_chain(full.chain, Query(8))] == [8, 9]


def test_an_end_before_what_is_durable_is_damage(full: ToyJournal) -> None:
    full.sidecar.write(11)
    for query in (Query(), Query(8), Query(9, 11)):
        shown = show_chain(full.chain, query)
        with pytest.raises(JournalDamagedError, match=r"up to transaction 9: .* ends too early; but seqno 11 is "):
            deque(shown, maxlen=0)
    assert [one.seqno for one in show_chain(full.chain, Query(8, 9))] == [8, 9]


def test_the_marks_of_a_primary_prove_nothing_of_a_secondary(full: ToyJournal) -> None:
    full.maker.mark = 20
    full.write(1)
    full.append(full.maker.transaction()[:50])
    assert [one.seqno for one in show_chain(full.chain, Query(9), marks_are_ours=False)] == [9, 10]
    with pytest.raises(JournalDamagedError, match="durable by the mark of another frame"):
        list(show_chain(full.chain, Query(9)))


def test_beside_a_writer_a_bad_end_is_looked_at_again(full: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of frames of which the second has come to the file and the first has not yet."""
    half, whole = full.maker.transaction(), full.maker.transaction()
    begin = full.append(half[:30] + bytes(len(half) - 30) + whole)
    scans = iter((full.chain.scan_last(),))
    scan_last = full.chain.scan_last

    def after_the_first() -> object:
        found = next(scans, None) or scan_last()
        os.pwrite(full.segment.fd, half, begin)
        return found

    monkeypatch.setattr(full.chain, "scan_last", after_the_first)
    assert [one.seqno for one in show_chain(full.chain, Query(9))] == [9, 10, 11]


def test_show_stops_at_damage(full: ToyJournal) -> None:
    with full.chain.open(1) as segment:
        flip(Path(segment.path), segment.scan().end_offset - 3)
    shown = show_chain(full.chain)
    assert [next(shown).seqno for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(FrameDamaged):
        next(shown)
    full.chain.prune(6)
    with pytest.raises(JournalMissingError):
        list(show_chain(full.chain, Query(2)))


def test_a_sound_journal_has_no_findings(full: ToyJournal) -> None:
    found = verify_chain(full.chain)
    assert found.findings == ()
    assert (found.first_seqno, found.last_seqno, found.segment_count, found.transaction_count) == (1, 9, 3, 9)
    assert next(found.lines()) == "3 segments, 9 transactions, 1 to 9: no findings"
    assert verify_chain(full.chain, 7, 8).segment_count == 1
    assert verify_chain(full.chain, 2, 6).segment_count == 2


def test_every_damaged_segment_is_reported(full: ToyJournal) -> None:
    begin = full.append(full.maker.transaction("bad"))
    full.append(full.maker.transaction("good"))
    for first, offset in ((1, 5000), (6, 4096 + 100), (7, begin + 70)):
        flip(Path(full.chain.path_of(first)), offset)
    found = verify_chain(full.chain)
    assert {finding.segment[:20].lstrip("0").removesuffix(".journal") for finding in found.findings} >= {"1", "6", "7"}
    assert "verifies after it" in _whats(found)


def frame_offsets(journal: ToyJournal, first_seqno: int) -> list[int]:
    """Where each frame of a segment begins, and where the last one ends."""
    with journal.chain.open(first_seqno) as segment:
        _, begin = segment.read_catalogue()
        end = segment.scan().end_offset
        return [begin + offset for offset, _ in walk(os.pread(segment.fd, end - begin, begin))] + [end]


def test_every_bad_place_of_a_segment_is_named_and_nothing_else(journal: ToyJournal) -> None:
    """A disk that has lost some sectors has lost more than the first."""
    journal.write(20)
    journal.switch()
    journal.write(5)
    journal.sidecar.write(25)
    offsets = frame_offsets(journal, 1)
    path = Path(journal.chain.path_of(1))
    for seqno in (4, 5, 9, 15):
        flip(path, offsets[seqno - 1] + 70)
    journal.segment.close()
    late = frame_offsets(journal, 21)
    flip(Path(journal.chain.path_of(21)), late[1] + 70)
    found = verify_chain(journal.chain)
    assert [(one.segment, one.offset, one.seqno) for one in found.findings] == [
        (path.name, offsets[3], 4),
        (path.name, offsets[8], 9),
        (path.name, offsets[14], 15),
        (Path(journal.chain.path_of(21)).name, late[1], 22),
    ]
    assert f"transactions 4 to 5 cannot be read, 6 stands at offset {offsets[5]}" in found.findings[0].what
    assert f"transaction 9 cannot be read, 10 stands at offset {offsets[9]}" in found.findings[1].what
    assert (found.transaction_count, found.last_seqno) == (20, 25)


def test_the_last_frame_of_a_segment_breaks_no_chain(journal: ToyJournal) -> None:
    """It is one bad place, not two."""
    journal.write(3)
    journal.switch()
    journal.write(3)
    journal.sidecar.write(6)
    flip(Path(journal.chain.path_of(1)), frame_offsets(journal, 1)[2] + 70)
    found = verify_chain(journal.chain)
    assert [one.seqno for one in found.findings] == [3]
    assert found.transaction_count == 5


def test_what_was_written_again_in_a_frames_place(journal: ToyJournal) -> None:
    """Frames that verify and have no place there are as bad as others; after them it goes on, too."""
    journal.write(6)
    journal.sidecar.write(6)
    offsets = frame_offsets(journal, 1)
    frame = os.pread(journal.segment.fd, offsets[2] - offsets[1], offsets[1])
    assert len(frame) == offsets[4] - offsets[3]
    os.pwrite(journal.segment.fd, frame, offsets[3])
    found = verify_chain(journal.chain)
    assert [(one.offset, one.seqno) for one in found.findings] == [(offsets[3], 4)]
    assert "a frame has seqno 2, 4 should stand here" in found.findings[0].what
    assert found.transaction_count == 5


def test_after_a_bad_catalogue_and_bad_parts_it_goes_on(full: ToyJournal) -> None:
    """full: 6 is large, of two parts; 7 to 9 stand in the last segment."""
    flip(Path(full.chain.path_of(1)), 4096 + 60)
    begin = frame_offsets(full, 7)
    flip(Path(full.chain.path_of(7)), begin[1] + 70)
    for number in (0, 1):
        flip(Path(full.chain.path_of(6)), part_offset(number) + 80)
    found = verify_chain(full.chain)
    text = _whats(found)
    assert [one.segment.lstrip("0").removesuffix(".journal") for one in found.findings] == ["1", "6", "6", "7"]
    assert "the segment's catalogue: a frame's check does not match its content" in text
    assert "part 0 of 2: " in text
    assert "part 1 of 2: " in text
    assert found.findings[3].seqno == 8
    assert (found.last_seqno, found.transaction_count) == (9, 8)


def test_a_large_transaction_whose_commit_is_bad_is_one_bad_place(full: ToyJournal) -> None:
    with full.chain.open(6) as segment:
        flip(Path(segment.path), segment.header.commit_offset + 70)
        offset = segment.header.commit_offset
    found = verify_chain(full.chain)
    assert [(one.offset, one.seqno) for one in found.findings] == [(offset, 6)]


def test_each_fault_has_its_finding(full: ToyJournal, tmp_path: Path) -> None:
    full.sidecar.write(12)
    assert "ends too early; but seqno 12 is durable" in _whats(verify_chain(full.chain))
    full.sidecar.reset(9)
    frame = full.maker.transaction()
    os.pwrite(full.segment.fd, frame[:40], full.end_offset)
    assert "a torn tail" in _whats(verify_chain(full.chain))
    full.segment.cut(full.end_offset)
    assert verify_chain(full.chain).findings == ()
    os.rename(full.chain.path_of(6), tmp_path / "aside")
    assert "the chain is broken: it follows segment 6, not 1" in _whats(verify_chain(full.chain))
    os.rename(tmp_path / "aside", full.chain.path_of(6))
    full.chain._headers.clear()
    os.unlink(full.sidecar.path)
    assert "durable mark is not there" in _whats(verify_chain(full.chain))
    flip(Path(full.chain.path_of(7)), 100)
    assert "header does not verify" in _whats(verify_chain(full.chain))


def test_an_early_end_in_the_middle_of_the_chain(full: ToyJournal) -> None:
    with full.chain.open(1, writable=True) as segment:
        _, begin = segment.read_catalogue()
        end = segment.scan().end_offset
        offsets = [offset for offset, _ in walk(os.pread(segment.fd, end - begin, begin))]
        os.pwrite(segment.fd, bytes(end - begin - offsets[-1]), begin + offsets[-1])
    assert "it follows seqno 5, the segment before ends with 4" in _whats(verify_chain(full.chain))


def test_content_that_makes_no_sense_is_found(journal: ToyJournal) -> None:
    journal.append(journal.maker.transaction(payload=pack_elements(1, 2, 3)))
    journal.maker.origin_seqno += 1
    journal.write(1)
    text = _whats(verify_chain(journal.chain))
    assert "fours" in text
    assert "has number 3, 2 should stand here" in text


def test_what_is_pruned_while_it_is_verified_is_not_missing(full: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, real = full.chain, full.chain.open

    def pruning(first_seqno: int) -> SegmentFile:
        if first_seqno == 1:
            os.unlink(chain.path_of(first_seqno))
        return real(first_seqno)

    whole = verify_chain(chain)
    monkeypatch.setattr(chain, "open", pruning)
    found = verify_chain(chain)
    assert found.findings == ()
    assert found.segment_count == whole.segment_count - 1


def test_an_empty_directory_is_a_finding(tmp_path: Path) -> None:
    from replicate.journal.chain import Chain

    assert "there is no segment" in _whats(verify_chain(Chain(tmp_path)))


def test_a_journal_mounted_read_only_is_not_damaged(full: ToyJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of the disk is where one verifies before one trusts it."""
    mounted_read_only(monkeypatch, Path(full.chain.directory))
    assert verify_chain(full.chain).findings == ()
