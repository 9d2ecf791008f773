"""Which boot of this machine is running: whether the machine may have lost power since a number was written.

Guarantees: the same number within one boot, another one (but for one chance in 2^64) after a restart.
Leaves to others: what is concluded from it. Tests of power loss set REPLICATE_BOOT_ID, which stands for the kernel's
id.
"""

from __future__ import annotations

import functools
import os
import uuid
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from replicate.system.os_errors import EXHAUSTED, exhausted

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_word() -> int:
    """64 bits of the kernel's boot id; never 0. Without /proc always 1: then nothing is concluded from it.

    ExhaustedError when no file can be opened now: a guess would say that the machine was restarted.
    """
    told = os.environ.get("REPLICATE_BOOT_ID")
    if told:
        return xxh3_64_intdigest(told.encode()) or 1
    return _kernels()


@functools.cache
def _kernels() -> int:
    try:
        text = BOOT_ID.read_text(encoding="ascii")
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise exhausted(error, "the machine's boot id cannot be read", str(BOOT_ID)) from error
        return 1
    return (uuid.UUID(text.strip()).int & 0xFFFF_FFFF_FFFF_FFFF) or 1
