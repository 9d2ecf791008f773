"""Which boot of this machine is running: whether the machine may have lost power since a number was written.

Guarantees: the same number within one boot, another one (but for one chance in 2^64) after a restart.
Refuses to know: what is concluded from it. Tests of power loss set REPLICATE_BOOT_ID, which stands for the kernel's id.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from xxhash import xxh3_64_intdigest


def boot_word() -> int:
    """64 bits of the kernel's boot id; never 0. Without /proc always 1: then nothing is concluded from it."""
    told = os.environ.get("REPLICATE_BOOT_ID")
    if told:
        return xxh3_64_intdigest(told.encode()) or 1
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return 1
    return (uuid.UUID(text.strip()).int & 0xFFFF_FFFF_FFFF_FFFF) or 1
