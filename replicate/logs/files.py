"""The files of logs: which there are, in which order, plain or compressed; and a story of all their lines.

Guarantees: a file is read once from its start to its end, line by line, in bounded memory, however large it is or its
lines are; it is told by its first bytes how it is compressed; what cannot be read to its end gives what stands before
that. What is odd about a file is said by name. Nothing is written.
Leaves to others: what a line is (line.py) and means (story.py).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

import zstandard
from msgspec import Struct

from replicate.errors import NotFoundError, UsageError
from replicate.logs.line import read_line
from replicate.logs.story import LogStory
from replicate.system.os_errors import io_error

NAME: Final = re.compile(r"(source-.+|receiver|update)\.log([.-].+)?\Z")
"""Of a daemon's log, and of what a rotation makes of it."""
LINE_BYTES_MAX: Final = 1 << 20
LOOK_LINES: Final = 1000
"""So many lines a file may begin with that are none of a daemon's, to be put in its place in time."""
BROKEN: Final = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError)
"""What reading a damaged or unfinished file raises."""


class LogFiles(Struct, frozen=True):
    """What was read: the files, in their order in time, and what is odd about them."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


def logs_of(directory: Path) -> list[Path]:
    """The logs of an instance, or of a directory of logs. NotFoundError when there is none."""
    place = directory / "log" if (directory / "log").is_dir() else directory
    try:
        found = sorted(path for path in place.iterdir() if NAME.match(path.name) and path.is_file())
    except OSError as error:
        raise io_error(error, "the logs cannot be listed", str(place)) from error
    if not found:
        raise NotFoundError(
            "there is no log of a daemon", where=str(place), do="Name files, an instance, or a directory of logs"
        )
    return found


def read_logs(named: Iterable[Path], story: LogStory) -> LogFiles:
    """Have `story` take every line of these files (of a directory: of its logs), oldest file first, and end.

    NotFoundError, PermissionRefusedError, JournalIOError: a file cannot be opened. UsageError: it is no file, or what
    the story raises."""
    paths: list[Path] = []
    for one in named:
        paths += logs_of(one) if one.is_dir() else [one]
    notes: list[str] = []
    ordered: list[tuple[int, Path]] = []
    known: dict[tuple[int, int] | bytes, Path] = {}
    for path in paths:
        found = _look(path)
        twin = next((known[key] for key in found.keys if key in known), None)
        if twin is not None:
            if twin != path:
                notes.append(f"{path} is {twin} again, and left out")
            continue
        known.update(dict.fromkeys(found.keys, path))
        if found.is_empty:
            notes.append(f"{path} is empty")
        ordered.append((found.first_us, path))
    ordered.sort(key=lambda pair: pair[0])
    for _, path in ordered:
        _read(path, story, notes)
    story.end()
    return LogFiles(tuple(path for _, path in ordered), tuple(notes))


class _First(Struct, frozen=True):
    """`keys`: by which the same file, or a copy of it, is known again."""

    first_us: int
    keys: tuple[tuple[int, int] | bytes, ...]
    is_empty: bool


def _look(path: Path) -> _First:
    with opened_log(path) as (file, key):
        try:
            for number, line in enumerate(lines_of_log(file)):
                found = read_line(line)
                if found is not None:
                    return _First(found.at_us, (key, line), False)
                if number >= LOOK_LINES:
                    break
            else:
                return _First(2**63, (key,), os.stat(path).st_size == 0)
        except BROKEN:
            pass  # where it is read, that is said
    return _First(2**63, (key,), False)


def _read(path: Path, story: LogStory, notes: list[str]) -> None:
    others = lines = 0
    is_torn = False
    with opened_log(path) as (file, _):
        try:
            for line in lines_of_log(file):
                lines += 1
                found = read_line(line)
                is_torn = not line.endswith(b"\n") and found is None
                if found is not None:
                    story.take(found)
                elif line.strip() and not is_torn:
                    others += 1
        except UsageError:
            raise
        except BROKEN as error:
            how = str(error) or type(error).__name__
            notes.append(f"{path} is damaged, or not yet written to its end, after {_lines(lines)}: {how}")
    if others:
        notes.append(f"{path} has {_lines(others)} that no daemon has written; left out")
    if is_torn:
        notes.append(f"{path} ends within a line, which is left out")


def _lines(number: int) -> str:
    return f"{number} line{'' if number == 1 else 's'}"


def lines_of_log(file: IO[bytes]) -> Iterator[bytes]:
    """Each line; one that is longer than LINE_BYTES_MAX in pieces, the last one as far as it is there."""
    while line := file.readline(LINE_BYTES_MAX):
        yield line


@contextmanager
def opened_log(path: Path) -> Iterator[tuple[IO[bytes], tuple[int, int]]]:
    """The file, as if it were not compressed, and by which numbers the system knows it. NotFoundError,
    PermissionRefusedError, JournalIOError; UsageError: it is no file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError("there is no such log", where=str(path), do="Name files that are there") from error
    except OSError as error:
        raise io_error(error, "the log cannot be opened", str(path)) from error
    with open(handle, "rb") as plain:
        about = os.fstat(plain.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise UsageError("this is no file", where=str(path), do="Name logs, as they lie in the log directory")
        begin = plain.read(6)
        plain.seek(0)
        yield _uncompressed(plain, begin), (about.st_dev, about.st_ino)


def _uncompressed(plain: IO[bytes], begin: bytes) -> IO[bytes]:
    if begin.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(plain))
    if begin.startswith(b"BZh"):
        return cast(IO[bytes], bz2.open(plain))
    if begin == b"\xfd7zXZ\x00":
        return cast(IO[bytes], lzma.open(plain))
    if begin.startswith(b"\x28\xb5\x2f\xfd"):
        reader = zstandard.ZstdDecompressor().stream_reader(plain, read_across_frames=True)
        return cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, reader)))
    return plain
