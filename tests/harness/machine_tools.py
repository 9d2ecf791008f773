"""What this machine lets a test do with tools of Debian's: to trace a process, to make and mount a file system.

Guarantees: the answer is found by trying, once; a tool that is there and may not work here (in a container, say) counts
as missing. Leaves to others: which test asks.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
WAIT_S: Final = 60.0


def _ends_well(*words: str) -> bool:
    try:
        done = subprocess.run(words, capture_output=True, timeout=WAIT_S, env={**os.environ, "PATH": PATH})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@functools.cache
def can_trace() -> bool:
    """Whether strace is here, and may trace a process that it has started."""
    return _ends_well("strace", "-f", "-o", os.devnull, "true")


@functools.cache
def can_make(filesystem: str) -> bool:
    """Whether a file system of this kind ("ext4", "xfs") can be made here, and the kernel knows it. Not whether we may
    mount it."""
    if shutil.which(f"mkfs.{filesystem}", path=PATH) is None:
        return False
    kinds = Path("/proc/filesystems")
    return filesystem in kinds.read_text().split() or _ends_well("modprobe", "-q", filesystem)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A tmpfs of `size` ("64k", "80m") at the new directory `path`, for a block; where none may be mounted, the test is
    skipped."""
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", path], check=False).returncode:
        pytest.skip("cannot mount a small tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def enlarge(path: Path, size: str) -> None:
    """Give a small disk more room."""
    subprocess.run(["mount", "-o", f"remount,size={size}", path], check=True)
