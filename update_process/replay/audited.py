"""An archive, or several journals, for an audit: a stretch for each segment, unpacked only while it is read.

Guarantees: journals of one network alone; a number that none of them holds is refused by name before anything is read.
Leaves to others: what is asked (replicate/audit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from replicate.audit.query import Query
from replicate.audit.stretches import Sift, StretchMatches
from replicate.errors import NotFoundError, UsageError
from replicate.journal.chain import Chain
from replicate.journal.header import PARTIAL
from update_process.replay.archive.files import archive_uri, local_path, open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.backlog import Journals, is_archive, journal_directory, require_here


def find_in_journals(names: Sequence[str], query: Query, stage: Path) -> StretchMatches:
    """In archives and directories together. `stage`: a directory for segments of archives. What `Journals` and
    `StretchMatches` raise; UsageError for a journal that has not all, since others would pass for what it lacks."""
    for name in names:
        if not is_archive(name) and Chain(journal_directory(Path(name))).is_partial():
            raise UsageError(
                f"the journal is that of {PARTIAL}",
                where=name,
                do="Ask it alone",
            )
    return _found(Journals(names, _network_of(names[0]), stage=stage), query)


class SparkFound:
    """An archive, of which Spark says what is to be read. `row`: the words of the key of one row, where the history of
    that is asked for."""

    def __init__(self, spark: Any, name: str, query: Query, stage: Path, row: Sequence[str] | None = None) -> None:
        """NotFoundError for a directory that is not there, UsageError for a journal; what `find_in_journals` raises."""
        from update_process.replay.spark.audited import ArchiveTables

        def session() -> Any:
            return spark

        require_here([name])
        if not is_archive(name):
            raise UsageError(
                "Spark is asked about an archive", where=name, do="Name one with --journal; or leave --engine out"
            )
        journals = Journals([name], _network_of(name, session), stage=stage, spark=session)
        (archive,) = journals.archives
        self._tables = ArchiveTables(spark, archive.uri, archive.ranges)
        sift = self._tables.holding if row is None else partial(self._tables.holding_row, row)
        self.matches = _found(journals, query, sift)

    def counted(self, by: Sequence[str]) -> list[tuple[object, ...]]:
        """What `Counts.rows` gives, counted by Spark."""
        return self._tables.counted(by, self.matches)


def _found(journals: Journals, query: Query, sift: Sift | None = None) -> StretchMatches:
    last = journals.last_seqno if query.last_seqno is None else min(query.last_seqno, journals.last_seqno)
    first = max(query.first_seqno or 0, journals.oldest_seqno())
    if first > last:  # StretchMatches says what there is
        first, last = journals.oldest_seqno(), journals.last_seqno
    return StretchMatches(journals.stretches(first, last), query, journals.where, sift)


def _network_of(name: str, spark: Callable[[], Any] | None = None) -> bytes:
    if is_archive(name):
        ranges = read_ranges(open_files(archive_uri(name), spark))
        if not ranges:
            raise NotFoundError("the archive holds nothing yet", where=name, do="Run replicate -i INSTANCE archive")
        return bytes.fromhex(ranges[0].network)
    path = local_path(archive_uri(name))
    assert path is not None
    chain = Chain(journal_directory(path))
    return chain.segment(chain.first_seqnos()[0]).header.network
