"""What an audit may read, besides a live instance: segment files by their names, and directories of them.

Guarantees: files of one journal alone, of one network; a hole between them is refused by the numbers that are missing,
unless what is asked for lies on one side of it. Nothing is written, and no lock is taken.
Leaves to others: archives (update_process), which query is asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from replicate.audit.chain_parts import parts_of
from replicate.audit.query import Matches, Query, find
from replicate.errors import (
    GapError,
    NotFoundError,
    ReplicateError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.header import SegmentHeader
from replicate.journal.segment import open_segment
from replicate.model.moment import last_csn


def find_in_instance(instance: Instance, query: Query) -> Matches:
    """In an instance's journal, which tells of all up to now. Raises as `find`."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    now = last_csn(time.time_ns() // 1000)
    return find(chain, query, marks_are_ours=instance.told_role == "primary", known_to_csn=now)


def find_in_directory(directory: Path, query: Query) -> Matches:
    """In a directory of segments. GapError for a hole in the middle of what is asked for; UsageError for a directory of
    two networks or journals; raises as `find`."""
    headers = [Chain(directory).segment(number).header for number in Chain(directory).first_seqnos()]
    _check_one_journal(headers, str(directory))
    parts = parts_of(directory)
    if not parts:
        raise NotFoundError("no journal segment is here", where=str(directory), do="Name a directory of segments")
    return _find_in_parts(list(parts), query, str(directory), is_whole=True)


def is_partial(chain: Chain) -> bool:
    """Whether the journal is that of a secondary which does not get all. A file that cannot be read says nothing here:
    reading what is asked for says what is wrong."""
    with suppress(ReplicateError):
        return chain.is_partial()
    return False


class NamedFiles(Chain):
    """Segment files that were named one by one, wherever they are and whatever they are called."""

    def __init__(self, paths: dict[int, str], where: str) -> None:
        super().__init__(where)
        self._paths = paths

    def first_seqnos(self) -> list[int]:
        return sorted(self._paths)

    def path_of(self, first_seqno: int) -> str:
        return self._paths[first_seqno]


def find_in_files(paths: Sequence[Path], query: Query) -> Matches:
    """In segment files. UsageError for one file twice; NotFoundError, WrongNetworkError, WrongInstanceError, GapError;
    what `open_segment` and `find` raise."""
    where = ", ".join(map(os.fspath, paths))
    found: dict[int, tuple[str, SegmentHeader]] = {}
    for path in paths:
        with open_segment(os.fspath(path)) as segment:
            header = segment.header
        if header.first_seqno in found:
            raise UsageError(
                f"two files begin with transaction {header.first_seqno}", where=where, do="Name one of them"
            )
        found[header.first_seqno] = os.fspath(path), header
    _check_one_journal([header for _, header in found.values()], where)
    parts: list[dict[int, str]] = []
    before: SegmentHeader | None = None
    for number in sorted(found):
        named, header = found[number]
        if before is None or header.previous_first_seqno != before.first_seqno:
            parts.append({})
        parts[-1][number] = named
        before = header
    return _find_in_parts([NamedFiles(part, where) for part in parts], query, where, is_whole=False)


def _check_one_journal(headers: Sequence[SegmentHeader], where: str) -> None:
    for header in headers[1:]:
        if header.network != headers[0].network:
            raise WrongNetworkError("these are segments of two networks", where=where, do="Name those of one")
        if header.instance != headers[0].instance:
            raise WrongInstanceError("these are segments of two journals", where=where, do="Name those of one")


def _find_in_parts(parts: Sequence[Chain], query: Query, where: str, *, is_whole: bool) -> Matches:
    """In the one part that holds all that is asked for. `is_whole`: what its directory says of the end counts."""
    query.check()
    numbers = [part.oldest_seqno() for part in parts]
    first = query.first_seqno
    at = max((place for place, number in enumerate(numbers) if number <= (first or 0)), default=0)
    if at == len(parts) - 1:
        return find(parts[at], query, is_whole=is_whole, marks_are_ours=False)
    end = find(parts[at], Query(), is_whole=False, marks_are_ours=False).last_seqno
    if query.last_seqno is not None and query.last_seqno <= end:
        return find(parts[at], query, is_whole=False, marks_are_ours=False)
    raise GapError(
        f"transactions {end + 1} to {numbers[at + 1] - 1} are missing, or some of them",
        where=where,
        do=f"Ask for what lies on one side: --to {end}, or --from {numbers[at + 1]}",
    )
