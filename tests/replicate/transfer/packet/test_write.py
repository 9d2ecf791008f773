"""A packet is there whole and under its name, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.errors import AlreadyExistsError, DiskFullError, InternalError, JournalIOError
from replicate.system import failpoint
from replicate.transfer.packet.format import PIECE_BYTES, SegmentPart
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.packet.write import PacketWriter
from tests.harness.packets import summary


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


def write(path: Path, pieces: list[bytes]) -> None:
    with PacketWriter(path) as writer:
        writer.segment(SegmentPart(6))
        for piece in pieces:
            writer.piece(piece)
        writer.finish(summary(5, 9))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    pieces = [b"a" * 1000, os.urandom(300), b"z"]
    write(tmp_path / "one.packet", pieces)
    with PacketReader(tmp_path / "one.packet") as reader:
        assert [(part, b"".join(got)) for part, got in reader.segments()] == [(SegmentPart(6), b"".join(pieces))]
        assert reader.summary.base == summary(5, 9).base
        assert reader.bytes < 1300  # what compresses is compressed
    assert os.listdir(tmp_path) == ["one.packet"]
    assert (tmp_path / "one.packet").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "plan", ["packet.write:1:errno=ENOSPC", "packet.write:3:errno=ENOSPC", "packet.before_rename:1:errno=EIO"]
)
def test_after_a_failure_nothing_is_left(tmp_path: Path, plan: str) -> None:
    failpoint.arm(plan)
    with pytest.raises((DiskFullError, JournalIOError)):
        write(tmp_path / "one.packet", [b"a"])
    assert os.listdir(tmp_path) == []


def test_no_file_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "one.packet", [b"a"])
    before = (tmp_path / "one.packet").read_bytes()
    with pytest.raises(AlreadyExistsError):
        write(tmp_path / "one.packet", [b"b"])
    (tmp_path / "link.packet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExistsError):
        write(tmp_path / "link.packet", [b"b"])
    assert (tmp_path / "one.packet").read_bytes() == before


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".one.packet.part").write_bytes(b"rest")
    write(tmp_path / "one.packet", [b"a"])
    assert os.listdir(tmp_path) == ["one.packet"]


@pytest.mark.parametrize("size", [0, PIECE_BYTES + 1])
def test_a_piece_has_its_bounds(tmp_path: Path, size: int) -> None:
    with PacketWriter(tmp_path / "one.packet") as writer, pytest.raises(InternalError):
        writer.piece(bytes(size))
    assert os.listdir(tmp_path) == []
