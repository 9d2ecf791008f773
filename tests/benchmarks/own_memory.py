"""Memory that a machine really has, for the time of a benchmark.

A virtual machine may give memory that is free back to its host ("free page reporting"), and has each page of it made
again when it is touched: 4.7 µs a page where we measured, beside 1.4 for one that it had kept. A round that writes half
a gigabyte of files spends as much time on that as on anything else, and the next round, of whichever system, more or
less of it, as the host pleases: one and the same code gave 400 and 650 thousand transactions a second.

What is given back are whole blocks of 2 MiB. So a process takes memory, touches all of it, and lets go of all but one
page of each block: what is free then has no whole block in it, stays with us, and is what the kernel hands out first,
also to files, which it gives pieces of up to 1 MiB. (Of the memory itself it keeps every eighth page where only root
may know which block a page is in, and files get no more than 16 KiB at once then.)

Guarantees: what it has taken is free again when the process that began it has ended, however that was.
Leaves to others: what is measured.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

BLOCK_PAGES: Final = 512
KEPT_OF: Final = 8
"""One page of so many is held where nothing is known of blocks."""
GIB: Final = 2**30


def hold(size_bytes: int) -> mmap.mmap:
    """Have `size_bytes`, or some more, free and ours when this returns; what is returned holds the rest."""
    page = mmap.PAGESIZE
    count = size_bytes // (KEPT_OF - 1) // page * KEPT_OF
    taken = mmap.mmap(-1, count * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(taken), page):
        taken[at] = 1
    kept = [*_one_of_each_block(taken, count), count]
    for place, following in pairwise(kept):
        if following - place > 1:
            taken.madvise(mmap.MADV_DONTNEED, (place + 1) * page, (following - place - 1) * page)
    return taken


def _one_of_each_block(taken: mmap.mmap, count: int) -> list[int]:
    """Which pages are the first ones met of a block of physical memory; the first of all is among them."""
    numbers = array("Q")
    with memoryview(taken) as view, open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(ctypes.addressof(ctypes.c_char.from_buffer(view)) // mmap.PAGESIZE * numbers.itemsize)
        numbers.frombytes(pagemap.read(count * numbers.itemsize))
    blocks = [(number & (1 << 55) - 1) // BLOCK_PAGES for number in numbers]
    if not any(blocks):  # the kernel tells only root
        return list(range(0, count, KEPT_OF))
    return sorted({block: place for place, block in reversed(list(enumerate(blocks)))}.values())


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
        try:
            yield
        finally:
            process.kill()


def main() -> None:
    """`own_memory.py BYTES`: hold until the other end of our standard input is closed."""
    held = hold(int(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
    held.close()


if __name__ == "__main__":
    main()
