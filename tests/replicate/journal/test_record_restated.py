"""Transactions told in other words: labelled with their origin's hash, proven by a check of their own, and found
damaged by whatever walks over them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from replicate.errors import FrameDamaged, InternalError, JournalDamagedError, ReplicateError
from replicate.journal.catalogue import catalogue_before
from replicate.journal.frame import ORIGIN_OFFSET
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    Head,
    changes_of,
    check_frame,
    decode,
    decode_batch,
    large_commit_of,
    null_maker,
    pack_changes,
    pack_null,
    pack_restated,
    pack_restated_large,
    proven_after,
    read_head,
    restated_fault,
)
from replicate.journal.segment import scan
from replicate.journal.spool import Spool
from replicate.journal.tail import ScanResult
from replicate.limits import FRAME_BYTES_MAX
from replicate.model.transaction import (
    DefinitionChange,
    Kind,
    LargeCommit,
    LogComment,
    NullRecord,
    Op,
    RowChange,
)
from tests.harness.journals import FrameMaker, ToyJournal, frame_places, header_after, make_definition
from tests.harness.restating import restate

U64 = st.integers(0, 2**64 - 1)
HEADS = st.builds(
    Head, st.just(0), st.just(0), st.just(0), st.just(1), U64, U64, U64, st.integers(0, 2**32 - 1), U64, U64
)
VALUES = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(), min_size=1, max_size=5)
CHANGES = st.lists(VALUES, min_size=1, max_size=40)
INSERT = [int(Op.INSERT), 0x8000_0001, 0]
WHO = "filter names 5f3a"


def inserts(rows: list[list[object]]) -> list[object]:
    return [element for row in rows for element in (*INSERT, row)]


@given(HEADS, st.text(max_size=200), CHANGES)
def test_round_trip(head: Head, reason: str, rows: list[list[object]]) -> None:
    frame = restate(head, reason, inserts(rows), (1,))
    told = decode(frame)
    assert told.kind is Kind.RESTATED
    for name in ("seqno", "mark", "chain", "origin", "origin_seqno", "csn"):
        assert getattr(told, name) == getattr(head, name)
    assert told.content[0] == LogComment(reason)
    assert [change.after for change in told.content[1:] if isinstance(change, RowChange)] == list(map(tuple, rows))
    assert changes_of(decode_batch(frame)[2]) == inserts(rows)
    assert not restated_fault(frame)


def test_the_byte_picture() -> None:
    """The layout of record.py, written down independently."""
    head = Head(0, 0, 0, 1, 2, 3, 4, 5, 6, 7)
    frame = pack_restated(head, "why", msgpack.packb(None), 1)
    origin = struct.pack(">BIBQBQ", 0xCE, 5, 0xCF, 6, 0xCF, 7)
    check = xxh3_64_intdigest(origin + b"\x91\xa3why\xc0", 4)
    assert msgpack.unpackb(frame[10:]) == [7, 2, 3, 4, 5, 6, 7, 6, 0, check, ["why"], None]
    assert frame[ORIGIN_OFFSET : ORIGIN_OFFSET + len(origin)] == origin
    assert frame[64:75] == b"\x06\x00\xcf" + check.to_bytes(8, "big")


def test_nothing_left_is_a_null_record_with_its_reason() -> None:
    head = Head(0, 0, 0, 1, 2, 3, 4, 5, 6, 7)
    told = decode(restate(head, WHO, (), (1, 3)))
    assert told.kind is Kind.NULL
    assert told.chain == 4
    assert told.content == (NullRecord(WHO, (1, 3)),)


@given(st.text(max_size=40), st.integers(1, 2**47), st.integers(0, 2**64 - 1), st.binary(max_size=20))
def test_null_records_of_many_frames_are_what_they_are_of_one(reason: str, seqno: int, chain: int, rest: bytes) -> None:
    maker = FrameMaker(next_seqno=seqno, chain=chain)
    data = rest + maker.transaction("a") + maker.transaction("b")
    second = len(rest) + read_head(data, len(rest)).frame_bytes
    made, offsets = null_maker(reason), (len(rest), second)
    assert made(data, offsets) == b"".join(pack_null(read_head(data, offset), reason, ()) for offset in offsets)


def test_what_is_too_large_for_a_frame_is_refused() -> None:
    head = Head(0, 0, 0, 1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(InternalError, match="limit"):
        restate(head, WHO, [*INSERT, [bytes(FRAME_BYTES_MAX)]], ())


def test_every_flipped_bit_is_noticed_even_where_the_outer_check_fits() -> None:
    """The check of a frame (CRC) can be made to fit by anybody who changes it: the inner one still tells."""
    frame = restate(read_head(FrameMaker(next_seqno=9).transaction("a")), WHO, inserts([[1, "masked"]]), (1,))
    chain_begins, origin_begins = ORIGIN_OFFSET - 8, ORIGIN_OFFSET
    for position in (*range(chain_begins, origin_begins), *range(origin_begins + 1, len(frame))):
        for bit in range(8):
            bad = bytearray(frame)
            bad[position] ^= 1 << bit
            with pytest.raises(ReplicateError):
                check_frame(bytes(bad))
            bad[6:10] = crc32c(bytes(bad[10:])).to_bytes(4, "big")
            with pytest.raises(ReplicateError):
                decode(bytes(bad))
            assert restated_fault(bytes(bad))


def test_other_frames_are_proven_by_their_hash() -> None:
    maker = FrameMaker()
    first = maker.transaction("a")
    chain = maker.chain
    second = maker.transaction("b")
    head = read_head(second)
    assert proven_after(second, head.kind, head.chain, chain)
    assert not proven_after(second, head.kind, head.chain, chain + 1)
    assert proven_after(restate(head, WHO, (), ()), Kind.NULL, head.chain, 0)
    assert proven_after(restate(head, WHO, inserts([[1]]), ()), Kind.RESTATED, head.chain, 0)
    forged = bytearray(first)
    forged[13] = Kind.RESTATED
    assert not proven_after(bytes(forged), Kind.RESTATED, read_head(first).chain, 0)


@pytest.mark.parametrize("length", range(11))
def test_a_frame_without_its_check(length: int) -> None:
    body_end = 64 + length
    frame = restate(Head(0, 0, 0, 1, 2, 3, 4, 5, 6, 7), WHO, inserts([[1]]), ())[:body_end]
    assert "no check" in restated_fault(frame)


# In a journal.


def journal_of(directory: Path) -> ToyJournal:
    """Three as they were, one told in other words, one that is gone, one as it was, a definition told in other words,
    and one more of another origin."""
    toy = ToyJournal(directory)
    toy.write(3)
    toy.append(restate(read_head(toy.maker.transaction("secret")), WHO, inserts([[4, "masked"], [5, "more"]]), (1,)))
    toy.append(restate(read_head(toy.maker.transaction("gone")), WHO, (), (1,)))
    toy.write(1)
    defined = make_definition("other")
    define = [int(Op.DEFINE), defined.table_id, defined.version, defined.pack()]
    toy.append(restate(read_head(toy.maker.transaction("x")), WHO, define, (1,)))
    toy.append(toy.maker.history(2))
    toy.append(restate(read_head(toy.maker.transaction("y")), WHO, inserts([[9]]), (1,)))
    toy.write(1)
    return toy


def test_a_journal_with_them_verifies_and_tells_where_it_stands(tmp_path: Path) -> None:
    toy = journal_of(tmp_path / "journal")
    found = toy.segment.scan()
    assert found.damaged is None
    assert found.last_seqno == toy.last_seqno == 10
    assert found.chains[toy.maker.origin] == (toy.maker.origin_seqno, toy.maker.chain)
    known = catalogue_before(toy.chain, toy.last_seqno + 1)
    assert known.chains == found.chains
    assert [one.table for one in known.definitions.values()] == ["other"]
    reader = ChainReader(toy.chain, 1)
    batch = reader.read(1 << 20, 10)
    reader.close()
    assert not isinstance(batch, LargeTransaction)
    assert batch is not None
    assert batch.count == 10
    bodies = decode_batch(batch.data)[2::3]
    assert [len(changes_of(body)) // 4 for body in bodies] == [1, 1, 1, 2, 0, 1, 1, 0, 1, 1]
    assert any(isinstance(one, DefinitionChange) for one in decode(toy.segment.read_frame(_place(toy, 7))).content)
    toy.close()


def _place(toy: ToyJournal, seqno: int) -> int:
    return frame_places(toy.chain, 1)[seqno]


@pytest.mark.parametrize("known", [True, False])
def test_a_label_that_is_not_its_own_is_found(tmp_path: Path, *, known: bool) -> None:
    """CHAIN of a frame told in other words is changed, and its outer check made to fit."""
    toy = journal_of(tmp_path / "journal")
    at = _place(toy, 4)
    frame = bytearray(toy.segment.read_frame(at))
    frame[ORIGIN_OFFSET - 1] ^= 1
    frame[6:10] = crc32c(bytes(frame[10:])).to_bytes(4, "big")
    toy.segment.append(at, bytes(frame))
    begin = toy.segment.read_catalogue()[1]
    found = scan(toy.segment.fd, begin, 1, chains={} if known else None, path="p")
    assert isinstance(found, ScanResult)
    assert found.damaged is not None
    assert (found.damaged.seqno, "restated" in found.damaged.reason) == (4, True)
    toy.close()


def test_the_one_after_it_must_continue_its_label(tmp_path: Path) -> None:
    toy = ToyJournal(tmp_path / "journal")
    toy.write(2)
    head = read_head(toy.maker.transaction("secret"))
    toy.append(restate(head._replace(chain=head.chain ^ 1), WHO, inserts([[1]]), (1,)))
    toy.write(1)
    found = toy.segment.scan()
    assert found.damaged is not None
    assert found.damaged.seqno == 4
    toy.close()


def test_a_scan_tells_the_last_one_and_what_was_before_it(tmp_path: Path) -> None:
    toy = ToyJournal(tmp_path / "journal")
    toy.write(2)
    before = toy.segment.scan()
    assert before.restated is None
    at = toy.append(restate(read_head(toy.maker.transaction("secret")), WHO, inserts([[1]]), (1,)))
    found = toy.segment.scan()
    assert found.restated == (at, toy.maker.origin, before.chains[toy.maker.origin])
    told = found.without_restated("because")
    assert (told.end_offset, told.last_seqno, told.frame_count, told.chains) == (
        before.end_offset, before.last_seqno, before.frame_count, before.chains,
    )  # fmt: skip
    toy.write(1)
    assert toy.segment.scan().restated is None, "it is not the last one"
    toy.close()


# Large ones.


def large_in(toy: ToyJournal, rows: int, label: Head) -> bytes:
    """Adopt a large transaction in the place of `label`, told in other words; its commit frame."""
    spool = Spool.create(toy.directory, label.origin)
    for number in range(rows):
        spool.write(pack_changes([*INSERT, [number, bytes(1000)]]))
    frame = pack_restated_large(label, WHO, *spool.commit_payload((1,)))
    maker = toy.maker
    header = header_after(
        toy.segment.header,
        end_offset=toy.end_offset,
        last_seqno=label.seqno - 1,
        origin_seqno=label.origin_seqno - 1,
        chain=0,
    )
    catalogue = toy.catalogue.at(
        toy.catalogue.vector.raised(maker.origin, 0, label.origin_seqno - 1),
        {maker.origin: (label.origin_seqno - 1, label.chain)},
    )
    spool.adopt(header, frame, catalogue)
    return frame


def test_a_large_one_in_a_journal(tmp_path: Path) -> None:
    toy = ToyJournal(tmp_path / "journal")
    toy.write(2)
    label = read_head(toy.maker.transaction("small at its origin"))
    frame = large_in(toy, 600, label)
    told = decode(frame)
    assert told.kind is Kind.RESTATED_LARGE
    assert isinstance(told.content[0], LargeCommit)
    assert told.content[1] == LogComment(WHO)
    assert large_commit_of(decode_batch(frame)[2])[0] == told.content[0].token
    reader = ChainReader(toy.chain, 3)
    found = reader.read(1 << 20, 3)
    reader.close()
    assert isinstance(found, LargeTransaction)
    assert found.commit_frame == frame
    assert len(list(found.parts())) == found.part_count > 1
    assert catalogue_before(toy.chain, 4).chains[label.origin] == (label.origin_seqno, label.chain)
    bad = bytearray(frame)
    bad[-1] ^= 1
    bad[6:10] = crc32c(bytes(bad[10:])).to_bytes(4, "big")
    with pytest.raises(JournalDamagedError, match="check of a restated"):
        decode(bytes(bad))
    toy.close()


def test_no_large_commit_is_seen_in_other_frames() -> None:
    maker = FrameMaker()
    for frame in (
        maker.transaction("a"),
        maker.null(),
        restate(read_head(maker.transaction()), WHO, inserts([[1]]), ()),
    ):
        assert large_commit_of(decode_batch(frame)[2]) == ()


@given(st.binary(max_size=200))
def test_junk_is_refused_by_name(junk: bytes) -> None:
    body = struct.pack(">BHBBQBQBQBIBQBQ", 0xDC, 9, 7, 0xCF, 2, 0xCF, 3, 0xCF, 4, 0xCE, 5, 0xCF, 6, 0xCF, 7) + junk
    with pytest.raises((FrameDamaged, ReplicateError)):
        decode(struct.pack(">BIBI", 0xCE, len(body), 0xCE, crc32c(body)) + body)
