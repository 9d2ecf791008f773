"""Whatever was done to a packet on its way, it is found before anything of it is used."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
import zstandard

from replicate.errors import DamagedError, FormatUnknownError, NotFoundError, ReplicateError, UsageError
from replicate.transfer.packet.format import PACKET, PIECE_BYTES, PacketRecord, SegmentPart, Signature, pack_end
from replicate.transfer.packet.read import PacketReader, packets_in
from replicate.transfer.packet.write import PacketWriter
from replicate.transfer.records import HEAD_BYTES, PREFIX_BYTES
from tests.harness.packets import summary


def make(path: Path, *, seed: int = 1, signed: bool = True, end_inside: int = 0, given: int = 0) -> bytes:
    noise = random.Random(seed)
    with PacketWriter(path) as writer:
        writer.segment(SegmentPart(6))
        writer.piece(noise.randbytes(40))
        writer.piece(b"a" * 400)
        writer.segment(SegmentPart(8, 500, 100))
        writer.piece(noise.randbytes(given or 400))
        one = summary(5, 9 if not end_inside else 7, number=seed, end_inside=end_inside)
        writer.finish(one, lambda _body: Signature(b"pem", b"value") if signed else None)
    return path.read_bytes()


def read(path: Path) -> list[bytes]:
    with PacketReader(path) as reader:
        return [b"".join(pieces) for _, pieces in reader.segments()]


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    whole = make(path)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x21
        path.write_bytes(changed)
        with pytest.raises((DamagedError, FormatUnknownError)):
            read(path)


def test_every_cut_is_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    whole = make(path, signed=False)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError) as caught:
            PacketReader(path)
        assert str(path) in caught.value.where


def test_something_after_the_end_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    path.write_bytes(make(path) + b"\0")
    with pytest.raises(DamagedError, match="after its end"):
        PacketReader(path)


def test_a_piece_of_another_packet_in_its_place_is_found(tmp_path: Path) -> None:
    """Every record of it verifies; the whole does not."""
    one, other = make(tmp_path / "one", seed=1), make(tmp_path / "other", seed=2)
    assert len(one) == len(other)
    begin = PREFIX_BYTES + sum(map(len, PACKET.pack_record(PacketRecord.SEGMENT, 0, SegmentPart(6).pack())))
    end = begin + HEAD_BYTES + 4 + 40
    (tmp_path / "x.packet").write_bytes(one[:begin] + other[begin:end] + one[end:])
    with pytest.raises(DamagedError, match="as a whole does not verify"):
        read(tmp_path / "x.packet")


def test_a_record_that_was_doubled_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    whole = make(path)
    begin = PREFIX_BYTES + sum(map(len, PACKET.pack_record(PacketRecord.SEGMENT, 0, SegmentPart(6).pack())))
    end = begin + HEAD_BYTES + 4 + 40
    path.write_bytes(whole[:end] + whole[begin:end] + whole[end:])
    with pytest.raises(DamagedError):
        read(path)


def test_it_may_end_within_a_large_transaction_only_where_it_says_so(tmp_path: Path) -> None:
    make(tmp_path / "well.packet", end_inside=350, given=250)
    assert [len(one) for one in read(tmp_path / "well.packet")] == [440, 250]
    for end_inside, given in ((351, 250), (0, 250), (350, 249)):
        path = tmp_path / f"{end_inside}-{given}.packet"
        make(path, end_inside=end_inside, given=given)
        with pytest.raises(DamagedError, match="ends too early"):
            read(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.packet"
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    with PacketWriter(path) as writer:
        writer.segment(SegmentPart(6))
        writer._record(PacketRecord.PIECE, struct.pack(">I", PIECE_BYTES), bomb)
        writer.finish(summary(5, 9))
    with pytest.raises(DamagedError, match="PIECE makes no sense"):
        read(path)


def test_a_segment_is_no_longer_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "long.packet"
    with PacketWriter(path) as writer:
        writer.segment(SegmentPart(6, 10))
        writer.piece(bytes(range(11)))
        writer.finish(summary(5, 9))
    with pytest.raises(DamagedError, match="longer than it says"):
        read(path)


def test_pieces_of_no_segment_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lost.packet"
    with PacketWriter(path) as writer:
        writer.piece(b"a")
        writer.finish(summary(5, 9))
    with pytest.raises(DamagedError, match="out of its order"):
        read(path)


@pytest.mark.parametrize("position", [0, PREFIX_BYTES - 1, PREFIX_BYTES + 1, 2**63])
def test_an_end_that_leads_nowhere_is_refused(tmp_path: Path, position: int) -> None:
    path = tmp_path / "one.packet"
    whole = make(path)
    end = b"".join(PACKET.pack_record(PacketRecord.END, len(whole) - HEAD_BYTES - 8, pack_end(position)))
    path.write_bytes(whole[: -len(end)] + end)
    with pytest.raises(DamagedError):
        PacketReader(path)


def test_only_a_plain_file_is_opened(tmp_path: Path) -> None:
    make(tmp_path / "one.packet")
    (tmp_path / "link.packet").symlink_to(tmp_path / "one.packet")
    os.mkfifo(tmp_path / "fifo.packet")
    with pytest.raises(ReplicateError):
        PacketReader(tmp_path / "link.packet")
    for name in ("fifo.packet", "."):
        with pytest.raises(UsageError, match="no plain file"):
            PacketReader(tmp_path / name)
    with pytest.raises(NotFoundError):
        PacketReader(tmp_path / "none.packet")


def test_a_file_that_shrinks_meanwhile_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    whole = make(path)
    with PacketReader(path) as reader:
        os.truncate(path, len(whole) // 3)
        with pytest.raises(DamagedError):
            reader.verify()
    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedError):
        PacketReader(path)


def test_of_a_file_that_grows_meanwhile_what_comes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "one.packet"
    whole = make(path)
    with PacketReader(path) as reader:
        segments = reader.segments()
        found = [b"".join(next(segments)[1])]
        with open(path, "ab") as file:
            file.write(whole)
        found += [b"".join(pieces) for _, pieces in segments]
    assert [len(one) for one in found] == [440, 400]
    with pytest.raises(DamagedError):
        PacketReader(path)


def test_packets_are_found_by_their_suffix(tmp_path: Path) -> None:
    for name in ("b.packet", "a.packet", ".c.packet.part", ".d.packet", "readme.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in packets_in(tmp_path)] == ["a.packet", "b.packet"]
    assert packets_in(tmp_path / "readme.txt") == [tmp_path / "readme.txt"]
    with pytest.raises(NotFoundError):
        packets_in(tmp_path / "none")
