"""journal/space.py: what the journal takes, where it begins, and how full the disk is for those who are not root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.journal.reserve import NAME as RESERVE_NAME
from replicate.journal.segment import segment_name
from replicate.journal.space import fill_percent, journal_space


def test_segments_count_and_what_else_lies_there_takes_room_only(tmp_path: Path) -> None:
    empty = journal_space(tmp_path)
    assert (empty.first_kept_seqno, empty.segments, empty.bytes) == (None, 0, 0)
    for first in (40, 7, 1000):
        (tmp_path / segment_name(first)).write_bytes(b"x" * 5000)
    for other in ("durable", f"{segment_name(3)}.tmp", "x.journal", ".journal"):
        (tmp_path / other).write_bytes(b"x" * 5000)
    found = journal_space(tmp_path)
    assert (found.first_kept_seqno, found.segments) == (7, 3)
    blocks = sum(path.stat().st_blocks for path in tmp_path.iterdir())
    assert found.bytes == blocks * 512
    (tmp_path / RESERVE_NAME).write_bytes(b"x" * 100_000)
    assert journal_space(tmp_path).bytes == found.bytes, "room that is kept free is not taken"


def test_a_hole_in_a_file_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    path.touch()
    os.truncate(path, 1 << 30)
    assert journal_space(tmp_path).bytes < 1 << 20


def test_a_file_that_is_pruned_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (1, 2):
        (tmp_path / segment_name(first)).touch()
    real = os.scandir

    class Pruning:
        def __init__(self, path: Path) -> None:
            self.entries = list(real(path))

        def __enter__(self) -> list[os.DirEntry[str]]:
            (tmp_path / segment_name(1)).unlink()
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Pruning)
    found = journal_space(tmp_path)
    assert (found.first_kept_seqno, found.segments) == (2, 1)


@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [(100, 50, 45, 52.63), (100, 5, 0, 100.0), (100, 100, 100, 0.0), (0, 0, 0, 100.0), (100, 100, 95, 0.0)],
)
def test_what_only_root_may_fill_is_full_for_others(blocks: int, free: int, available: int, percent: float) -> None:
    """5 of 100 blocks are root's: of the other 95, 45 are left, or none, or all."""
    disk = os.statvfs_result((4096, 4096, blocks, free, available, 0, 0, 0, 0, 255))
    assert fill_percent(disk) == percent
