"""An archive, or several journals, for an audit: a stretch for each segment, unpacked only while it is read.

Guarantees: journals of one network alone; a number that none of them holds is refused by name before anything is read.
Leaves to others: what is asked (replicate/audit).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replicate.audit.query import Query
from replicate.audit.stretches import StretchMatches
from replicate.errors import NotFoundError
from replicate.journal.chain import Chain
from update_process.replay.archive.files import archive_uri, local_path, open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.backlog import Journals, is_archive, journal_directory


def find_in_journals(names: Sequence[str], query: Query, stage: Path) -> StretchMatches:
    """In archives and directories together. `stage`: a directory for segments of archives. What `Journals` and
    `StretchMatches` raise."""
    journals = Journals(names, _network_of(names[0]), stage=stage)
    last = journals.last_seqno if query.last_seqno is None else min(query.last_seqno, journals.last_seqno)
    first = max(query.first_seqno or 0, journals.oldest_seqno())
    if first > last:  # StretchMatches says what there is
        first, last = journals.oldest_seqno(), journals.last_seqno
    return StretchMatches(journals.stretches(first, last), query, journals.where)


def _network_of(name: str) -> bytes:
    if is_archive(name):
        ranges = read_ranges(open_files(archive_uri(name)))
        if not ranges:
            raise NotFoundError("the archive holds nothing yet", where=name, do="Run replicate -i INSTANCE archive")
        return bytes.fromhex(ranges[0].network)
    path = local_path(archive_uri(name))
    assert path is not None
    chain = Chain(journal_directory(path))
    return chain.segment(chain.first_seqnos()[0]).header.network
