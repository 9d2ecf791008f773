"""How much room the journal takes, and how full its disk is.

Guarantees: looks, opens nothing; a file that is pruned meanwhile is no error.
Leaves to others: what is in the files, and what is too full.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.journal.reserve import NAME as RESERVE_NAME

SEGMENT_ENDING: Final = ".journal"


class JournalSpace(Struct, frozen=True):
    """`bytes` is what the files take on the disk; `first_kept_seqno` is None where there is no segment."""

    first_kept_seqno: int | None
    segments: int
    bytes: int
    disk_percent: float
    disk_free_bytes: int


def journal_space(directory: Path) -> JournalSpace:
    """The journal in `directory`, now. Raises OSError."""
    first_seqnos = []
    used_bytes = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name == RESERVE_NAME:
                continue
            try:
                used_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:  # pruned meanwhile
                continue
            number = entry.name.removesuffix(SEGMENT_ENDING)
            if number != entry.name and number.isdigit():
                first_seqnos.append(int(number))
    disk = os.statvfs(directory)
    free_bytes = disk.f_bavail * disk.f_frsize
    return JournalSpace(min(first_seqnos, default=None), len(first_seqnos), used_bytes, fill_percent(disk), free_bytes)


def fill_percent(disk: os.statvfs_result) -> float:
    """How full a file system is, for those who are not root."""
    total = disk.f_blocks - disk.f_bfree + disk.f_bavail
    return round(100 * (1 - disk.f_bavail / total), 2) if total else 100.0
