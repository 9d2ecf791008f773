"""Memory that a machine really has, for the time of a benchmark.

A virtual machine may give memory that is free back to its host ("free page reporting"), and has each page of it made
anew when it is touched: 4.7 µs a page where we measured, beside 1.4 for one that it had kept. A round that writes half
a gigabyte of files spends as much time on that as on anything else, and the next round, of whichever system, more or
less of it, as the host pleases: one and the same code gave 400 and 650 thousand transactions a second.

What is given back are whole blocks of 2 MiB. So a process takes memory, touches all of it, and lets go of seven pages
of each eight: what is free then has no whole block in it, stays with us, and is what the kernel hands out first.

Guarantees: what it has taken is free again when the process that began it has ended, however that was.
Refuses to know: what is measured.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

KEPT_OF: Final = 8
"""One page of so many is held."""
GIB: Final = 2**30


def hold(size_bytes: int) -> mmap.mmap:
    """Take so much that `size_bytes` of it are free and ours when this returns; what is returned holds the rest."""
    page, step = mmap.PAGESIZE, KEPT_OF * mmap.PAGESIZE
    taken = mmap.mmap(-1, size_bytes // (KEPT_OF - 1) // page * step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(taken), page):
        taken[at] = 1
    for at in range(0, len(taken), step):
        taken.madvise(mmap.MADV_DONTNEED, at + page, step - page)
    return taken


@contextmanager
def own_memory(gib: float) -> Iterator[None]:
    """Within it so many GiB of free memory are this machine's own; 0: it is left as it is."""
    if not gib:
        yield
        return
    words = [sys.executable, __file__, str(int(gib * GIB))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            raise RuntimeError(f"{gib} GiB could not be held")
        yield
        process.kill()


def main() -> None:
    """`own_memory.py BYTES`: hold until the other end of our standard input is closed."""
    held = hold(int(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
    held.close()


if __name__ == "__main__":
    main()
