"""What can still be read of a damaged segment: its stretches of whole frames, one after the other.

Guarantees: after each bad place it goes on with the next frame that verifies, as `journal verify` does; the numbers
rise. Reads files only and takes no lock.
Leaves to others: whether what is missing was ever committed (tail.py), and what is done with the frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replicate.errors import DamagedError, FormatUnknownError
from replicate.journal.catalogue import with_frame
from replicate.journal.scan import frame_after, scan
from replicate.journal.segment import SegmentFile
from replicate.journal.tail import ScanResult
from replicate.model.transaction import Catalogue


class Salvaged(NamedTuple):
    """A frame that verifies, and what is in force after it as far as that can be read."""

    seqno: int
    frame: bytes
    catalogue: Catalogue


class BadPlace(NamedTuple):
    """Here it cannot be read. `seqno`: the number that should stand here; `why`, with the place."""

    seqno: int
    why: str


def last_standing(segment: SegmentFile) -> int:
    """The highest seqno that verifies in it, whatever lies before that. FormatUnknownError, JournalIOError."""
    return max((found.last_seqno for _, found in _stretches(segment)), default=0)


def salvaged(segment: SegmentFile) -> Iterator[Salvaged | BadPlace]:
    """Every transaction that can be read in a segment that is not an adopted one, and each bad place between them.

    A table or origin whose definition cannot be read is not in `catalogue`. FormatUnknownError, JournalIOError."""
    catalogue = Catalogue()
    try:
        catalogue, _ = segment.read_catalogue()
    except FormatUnknownError:
        raise
    except DamagedError as error:
        yield BadPlace(segment.header.first_seqno, str(error))
    for offset, found in _stretches(segment):
        first = found.last_seqno - found.frame_count + 1
        for seqno in range(first, found.last_seqno + 1):
            frame = segment.read_frame(offset)
            offset += len(frame)
            try:
                catalogue = with_frame(catalogue, frame)
            except FormatUnknownError:
                raise
            except DamagedError as error:  # its check is right and its content makes no sense
                yield BadPlace(seqno, str(error))
                continue
            yield Salvaged(seqno, frame, catalogue)
        if found.damaged is not None:
            yield BadPlace(found.last_seqno + 1, f"{found.damaged.reason} [{segment.path}, offset {found.end_offset}]")


def _stretches(segment: SegmentFile) -> Iterator[tuple[int, ScanResult]]:
    """Where each stretch of frames begins, and what stands there up to the next bad place."""
    header = segment.header
    try:
        catalogue, offset = segment.read_catalogue()
    except FormatUnknownError:
        raise
    except DamagedError:
        after = frame_after(segment.fd, header.catalogue_offset + 1, header.first_seqno, segment.path)
    else:
        found = scan(
            segment.fd, offset, header.first_seqno, chains=catalogue.chains, path=segment.path, all_marks=False
        )
        yield offset, found
        after = found.after
    while after is not None:
        found = scan(segment.fd, after.offset, after.seqno, path=segment.path, all_marks=False)
        yield after.offset, found
        after = found.after
