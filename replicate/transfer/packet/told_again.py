"""The segment of a large transaction that a packet tells in other words, as a file: packets take bytes of files.

Guarantees: memory holds a part of it; the same words of the same transaction are the same bytes, whenever they are
made, so that a packet may end inside it and another one go on, and what of two exports is put together fits. Nothing of
it lies beside the packets, which may be sealed. Files are removed at the end; what a killed export has left, by the
next one.
Leaves to others: what the words are (packet_changes.py), and that one process exports at a time.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from replicate.errors import InternalError
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.journal.segment import open_segment, segment_name
from replicate.journal.spool import Spool
from replicate.journal.walk import walk
from replicate.limits import SEGMENT_HEADER_BYTES
from replicate.system.os_errors import io_error
from replicate.transfer.packet.packet_changes import LargeTold
from replicate.transfer.seed.file import require_free


class ToldSegments:
    """Those of one run of exports, below `directory`, which is this run's own, and is made when it is needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path_of(self, told: LargeTold, seqno: int, path: str) -> str:
        """The segment of what is told in the place of the large transaction `seqno`, whose own segment is at `path`.
        DiskFullError, JournalIOError, JournalDamagedError."""
        place = self._directory / f"{told.token:016x}"
        made = place / segment_name(seqno)
        if made.exists():
            told.learn()
            return str(made)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_free(place, os.stat(path).st_size, "a large transaction that is told again")
        except OSError as error:
            raise io_error(error, "a large transaction cannot be told again", str(place)) from error
        spool = Spool.receiving(place / "parts")
        try:
            self._write(spool, told, path)
        finally:
            spool.abort()  # does nothing after its adoption
        return str(made)

    def _write(self, spool: Spool, told: LargeTold, path: str) -> None:
        with open_segment(path) as segment:
            header, (catalogue, _) = segment.header, segment.read_catalogue()
        plain = replace(header, flags=0, commit_offset=0, catalogue_offset=SEGMENT_HEADER_BYTES)
        for item in told.items:
            if isinstance(item, StreamParts):
                for offset, head in walk(item.frames):
                    spool.write_frame(item.frames[offset : offset + head.frame_bytes])
            elif isinstance(item, StreamLarge):
                spool.adopt(plain, item.frame, catalogue)
            else:
                raise InternalError("a large transaction goes on as an ordinary one", where=path)

    def clear(self) -> None:
        """Remove all of them, and what a killed run has left."""
        shutil.rmtree(self._directory, ignore_errors=True)
        with suppress(OSError):
            self._directory.parent.rmdir()  # unless a replay has something there
