"""The logs of one instance, followed: what they hold by now, then what is added to them.

Guarantees: a line is given once, whole, and in the order of its daemon; a log that was rotated is read to its end, and
then the new one; one that cannot be read now costs nothing but its lines. Bounded memory, and nothing is written.
Leaves to others: what a line means (logs/story.py), how often one looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.logs.files import BROKEN, LINE_BYTES_MAX, NAME, lines_of_log, opened_log
from replicate.logs.line import LogLine, read_line

COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst")


class _ReadUpTo(Struct):
    """Of the file that the system knows by this key."""

    path: Path
    offset: int


class FollowedLogs:
    """The logs in `directory`; those that were last written before `since_us` are not read."""

    def __init__(self, directory: Path, since_us: int = 0) -> None:
        self._directory = directory
        self._since_us = since_us
        self._known: dict[tuple[int, int], _ReadUpTo] = {}
        self._is_first = True

    def new_lines(self) -> Iterator[LogLine]:
        """What was added since the last call; at first, all there is."""
        found = self._there()
        is_first, self._is_first = self._is_first, False
        for _, key, path in sorted(found):
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _ReadUpTo(path, 0)
                if not is_first and path.suffix in COMPRESSED:  # what a rotation has made of a log that was read
                    known.offset = os.stat(path).st_size
            known.path = path
            with suppress(ReplicateError, *BROKEN):
                yield from self._read(known)
        for key in self._known.keys() - {key for _, key, _ in found}:
            del self._known[key]

    def _there(self) -> list[tuple[int, tuple[int, int], Path]]:
        """The logs, and when each was last written, in nanoseconds."""
        made = []
        with suppress(OSError):
            for path in self._directory.iterdir():
                with suppress(OSError):
                    about = path.stat()
                    if NAME.match(path.name) and about.st_mtime_ns >= self._since_us * 1000:
                        made.append((about.st_mtime_ns, (about.st_dev, about.st_ino), path))
        return made

    def _read(self, known: _ReadUpTo) -> Iterator[LogLine]:
        size = os.stat(known.path).st_size
        if size < known.offset:
            known.offset = 0  # it was cut, and is written from its start
        elif size == known.offset:
            return
        is_compressed = known.path.suffix in COMPRESSED
        if is_compressed:
            known.offset = size  # whole, or as far as it can be read: once
        with opened_log(known.path) as (file, _):
            if not is_compressed:
                file.seek(known.offset)
            for line in lines_of_log(file):
                if not is_compressed and not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                    return  # it is being written
                if not is_compressed:
                    known.offset += len(line)
                found = read_line(line)
                if found is not None:
                    yield found
