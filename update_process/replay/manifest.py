"""The manifests of an archive: which ranges are finished, what they hold, and that they make one whole.

    URI/segments/FIRST-LAST/NAME.journal.zst   the journal's own files, compressed: a replay takes them over
    URI/changes/FIRST-LAST/*.parquet           one row for each change (blocks.CHANGE_COLUMNS)
    URI/transactions/FIRST-LAST/*.parquet      one row for each transaction
    URI/manifests/FIRST-LAST.json              says that the range is finished: counts, digests, segments, times

Guarantees: ranges that are given follow one another without a hole, are of one journal, and each bears its own name.
Refuses to know: how a range is made (archive.py), and who reads it. Without Spark.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from replicate.errors import DamagedError, FormatUnknownError, GapError, WrongInstanceError
from update_process.replay.archive_files import ArchiveFiles

FORMAT: Final = 2
"""1 had no segments."""
FOLDER: Final = "manifests"


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """A journal segment in the archive. `bytes` and `sha256`: of the segment as it was."""

    name: str
    first_seqno: int
    last_seqno: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Range:
    """One finished range, as its manifest has it. `digests`: of each kind of rows, independent of their order.

    `last_csn`: the highest of its transactions'. `files`: the names of each kind's Parquet files, which no other run
    gives again; nothing is known of them in an archive of an older release.
    """

    network: str
    instance: str
    first_seqno: int
    last_seqno: int
    transactions: int
    changes: int
    last_csn: int
    digests: dict[str, str]
    segments: tuple[SegmentCopy, ...]
    files: dict[str, list[str]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The name of its directories and of its manifest."""
        return f"{self.first_seqno:020d}-{self.last_seqno:020d}"

    def packed_name(self, segment: SegmentCopy) -> str:
        """Where below the archive's URI a segment's copy stands."""
        return f"segments/{self.name}/{segment.name}.zst"

    def count(self, what: str) -> int:
        """How many rows of `changes` or `transactions` it has."""
        return self.changes if what == "changes" else self.transactions

    def check_files(self, files: ArchiveFiles, what: str) -> None:
        """DamagedError when the files of `changes` or `transactions` are not those that were archived with it: some are
        gone, or they are another archive's."""
        folder = f"{what}/{self.name}"
        if what in self.files and files.names(folder, ".parquet") != self.files[what]:
            raise DamagedError(
                f"the {what} of {self.first_seqno}–{self.last_seqno} are not the files that were archived",
                where=f"{files.uri}/{folder}",
                do="Restore the archive, archive anew elsewhere, or replay with --engine local",
            )


def write_range(files: ArchiveFiles, made: Range) -> None:
    """From here on the range is part of the archive. JournalIOError, DiskFullError: it is not."""
    files.write(f"{FOLDER}/{made.name}.json", (json.dumps(asdict(made), sort_keys=True) + "\n").encode())


def read_ranges(files: ArchiveFiles) -> list[Range]:
    """All finished ranges in order. DamagedError, FormatUnknownError, GapError, WrongInstanceError when they do not
    make one archive; JournalIOError when they can not be read."""
    found = [_read(files, name) for name in files.names(FOLDER) if name.endswith(".json") and not name.startswith(".")]
    for one, following in pairwise(found):
        if following.first_seqno != one.last_seqno + 1:
            raise GapError(
                f"the archive's range {one.first_seqno}–{one.last_seqno} is followed by {following.first_seqno}",
                where=files.uri,
                do="Its manifests are mixed up: restore it, or archive anew elsewhere",
            )
        if (one.network, one.instance) != (following.network, following.instance):
            raise WrongInstanceError(
                "the archive holds ranges of two journals",
                where=files.uri,
                do="Its manifests are mixed up: restore it, or archive anew elsewhere",
            )
    return found


def _read(files: ArchiveFiles, name: str) -> Range:
    where = f"{files.uri}/{FOLDER}/{name}"
    try:
        made = json.loads(files.read(f"{FOLDER}/{name}"))
        if int(made["format"]) != FORMAT:
            raise FormatUnknownError(
                f"the manifest has format {int(made['format'])}, this release knows {FORMAT}",
                where=where,
                do="Use the release that wrote it, or archive anew elsewhere",
            )
        found = _range(made)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(
            f"this is no manifest: {error!r}", where=where, do="Restore it, or archive anew elsewhere"
        ) from error
    if f"{found.name}.json" != name:
        raise DamagedError(
            "a manifest does not bear its own name", where=where, do="Restore it, or archive anew elsewhere"
        )
    return found


def _range(made: dict[str, Any]) -> Range:
    """ValueError and its kin for what makes no sense."""
    segments = tuple(
        SegmentCopy(
            _segment_name(one["name"]),
            int(one["first_seqno"]),
            int(one["last_seqno"]),
            int(one["bytes"]),
            str(one["sha256"]),
        )
        for one in made["segments"]
    )
    found = Range(
        bytes.fromhex(made["network"]).hex(),
        bytes.fromhex(made["instance"]).hex(),
        int(made["first_seqno"]),
        int(made["last_seqno"]),
        int(made["transactions"]),
        int(made["changes"]),
        int(made["last_csn"]),
        {str(name): str(value) for name, value in made["digests"].items()},
        segments,
        {str(what): sorted(map(str, names)) for what, names in made.get("files", {}).items()},
    )
    wanted = found.first_seqno
    for one in segments:
        if one.first_seqno != wanted or one.last_seqno < wanted:
            raise ValueError(f"its segment {one.name} should begin with {wanted}")
        wanted = one.last_seqno + 1
    if wanted != found.last_seqno + 1:
        raise ValueError(f"its segments end with {wanted - 1}")
    return found


def _segment_name(name: Any) -> str:
    """Never a path."""
    text = str(name)
    if not text.endswith(".journal") or not text.removesuffix(".journal").isdecimal():
        raise ValueError(f"{text!r} is no segment's name")
    return text
