"""A control word of a pool, written by one process and read by another: whole at every look.

    python -m tests.faults.torn_words [--seconds S]

Guarantees: counts looks at the word, and those that found neither value that was ever written.
Leaves to others: what the words mean.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from replicate.pool.control import WRITTEN
from replicate.pool.shared_memory import PoolKind, SharedMemory
from tests.faults.part import parser, run_part
from tests.harness.forking import fork

INSTANCE: Final = bytes(range(16))
VALUES: Final = (0x00FF_FFFF_FFFF, 0x0100_0000_0000)
"""From the one to the other every byte but the highest changes."""
SECONDS: Final = 3.0
AT_ONCE: Final = 10_000
LEAST: Final = ("looks at a word",)


def storm(memory: SharedMemory, deadline_s: float, figures: Counter[str]) -> None:
    """A child writes the two values in turns; we look."""
    words = memory.words
    words[WRITTEN] = VALUES[0]

    def write() -> int:
        while True:
            for _ in range(AT_ONCE):
                words[WRITTEN] = VALUES[1]
                words[WRITTEN] = VALUES[0]

    children: list[int] = []
    try:
        fork(write, children.append)
        while True:
            for _ in range(AT_ONCE):
                figures["torn words"] += words[WRITTEN] not in VALUES
            figures["looks at a word"] += AT_ONCE
            if time.monotonic() >= deadline_s:
                return
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    before = os.environ.get("REPLICATE_SHM_DIR")
    with tempfile.TemporaryDirectory(prefix="replicate-words-") as directory:
        os.environ["REPLICATE_SHM_DIR"] = str(Path(directory))
        memory = SharedMemory.create(PoolKind.JOURNAL, INSTANCE, configured_bytes=1 << 20, minimum_bytes=1 << 16)
        try:
            deadline_s = options.deadline_s if math.isfinite(options.seconds) else time.monotonic() + SECONDS
            storm(memory, deadline_s, figures)
        finally:
            memory.close()
            if before is None:
                os.environ.pop("REPLICATE_SHM_DIR", None)
            else:
                os.environ["REPLICATE_SHM_DIR"] = before


def main() -> int:
    return run_part(
        parser("tests.faults.torn_words").parse_args(), work, ("torn words", "parts that failed"), least=LEAST
    )


if __name__ == "__main__":
    sys.exit(main())
