"""The manifests of an archive: which ranges are finished, what they hold, and that they make one whole.

    URI/segments/FIRST-LAST/NAME.journal.zst   the journal's own files, compressed: a replay takes them over
    URI/changes/FIRST-LAST/*.parquet           one row for each change (blocks.CHANGE_COLUMNS)
    URI/transactions/FIRST-LAST/*.parquet      one row for each transaction
    URI/manifests/FIRST-LAST.json              says that the range is finished: counts, digests, segments, times

Where nobody can keep a second run out (anywhere but in a directory of this machine), what a run writes is in folders of
its own, FIRST-LAST-RUN, which its manifest names; and a manifest that is there is not replaced. So two runs at once
write nothing over, and their ranges may overlap.

Guarantees: ranges that are given follow one another without a hole or an overlap, as far as any reach; they are of one
journal, and each bears its own name.
Leaves to others: how a range is made (archive.py), and who reads it. Without Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, field, to_builtins

from replicate.errors import BusyError, DamagedError, FormatUnknownError, GapError, WrongInstanceError
from update_process.replay.archive.files import ArchiveFiles

FORMAT: Final = 2
"""1 had no segments."""
FORMAT_APART: Final = 3
"""The same with `folder`, which 2 does not know."""
FOLDER: Final = "manifests"
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.json")
_PLACE: Final = re.compile(r"\d{20}-\d{20}(-[0-9a-zA-Z]+)?")


class SegmentCopy(Struct, frozen=True):
    """A journal segment in the archive. `bytes` and `sha256`: of the segment as it was."""

    name: str
    first_seqno: int
    last_seqno: int
    bytes: int
    sha256: str


class Range(Struct, frozen=True):
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
    folder: str = ""

    @property
    def name(self) -> str:
        """The name of its manifest."""
        return range_name(self.first_seqno, self.last_seqno)

    @property
    def place(self) -> str:
        """The name of its folders."""
        return self.folder or self.name

    def packed_name(self, segment: SegmentCopy) -> str:
        """Where below the archive's URI a segment's copy stands."""
        return f"segments/{self.place}/{segment.name}.zst"

    def count(self, what: str) -> int:
        """How many rows of `changes` or `transactions` it has."""
        return self.changes if what == "changes" else self.transactions

    def check_files(self, files: ArchiveFiles, what: str) -> None:
        """DamagedError when the files of `changes` or `transactions` are not those that were archived with it: some are
        gone, or they are another archive's."""
        folder = f"{what}/{self.place}"
        if what in self.files and files.names(folder, ".parquet") != self.files[what]:
            raise DamagedError(
                f"the {what} of {self.first_seqno}–{self.last_seqno} are not the files that were archived",
                where=f"{files.uri}/{folder}",
                do="Restore the archive, archive again elsewhere, or replay with --engine local",
            )


def is_place(name: str) -> bool:
    """Whether a folder can be a range's, by its name."""
    return _PLACE.fullmatch(name) is not None


def range_name(first_seqno: int, last_seqno: int) -> str:
    """What a range is called."""
    return f"{first_seqno:020d}-{last_seqno:020d}"


def write_range(files: ArchiveFiles, made: Range) -> None:
    """From here on the range is part of the archive. JournalIOError, DiskFullError: it is not; BusyError: another run
    has archived the same range meanwhile, and what we have written is nobody's."""
    facts = to_builtins(made)
    if not made.folder:
        del facts["folder"]
    name, data = f"{FOLDER}/{made.name}.json", (json.dumps(facts, sort_keys=True) + "\n").encode()
    if files.keeps_out:
        files.write(name, data)
    elif not files.write_new(name, data) and _read(files, f"{made.name}.json").folder != made.folder:
        raise _another(files, made.first_seqno, made.last_seqno)


def require_alone(files: ArchiveFiles, made: Range) -> None:
    """BusyError when another run has archived a part of `made`, too. Both are whole, and readers take either."""
    for name in files.names(FOLDER):  # by their names: where files are far away reading all of them takes long
        named = _NAME.fullmatch(name)
        if named is None:
            continue
        first, last = map(int, named.groups())
        if first <= made.last_seqno and made.first_seqno <= last and name != f"{made.name}.json":
            raise _another(files, first, last)


def _another(files: ArchiveFiles, first_seqno: int, last_seqno: int) -> BusyError:
    return BusyError(
        f"another `replicate archive` has archived {first_seqno}–{last_seqno} meanwhile",
        where=files.uri,
        do="Nothing is lost or twice; let one run at a time write there, and run this again when it has ended",
    )


def read_ranges(files: ArchiveFiles) -> list[Range]:
    """All finished ranges in order. DamagedError, FormatUnknownError, GapError, WrongInstanceError when they do not
    make one archive; JournalIOError when they cannot be read."""
    found = _all(files)
    for one, following in pairwise(found):
        if (one.network, one.instance) != (following.network, following.instance):
            raise WrongInstanceError(
                "the archive holds ranges of two journals",
                where=files.uri,
                do="Its manifests are mixed up: restore it, or archive again elsewhere",
            )
    chosen = gapless(found)
    for one in found:
        if one.last_seqno > chosen[-1].last_seqno:
            raise GapError(
                f"the archive's range {chosen[-1].first_seqno}–{chosen[-1].last_seqno} is followed by "
                f"{one.first_seqno}",
                where=files.uri,
                do="Its manifests are mixed up: restore it, or archive again elsewhere",
            )
    return chosen


def gapless(found: Sequence[Range]) -> list[Range]:
    """Of ranges in the order of their names, those that follow one another from the first number on as far as any do.
    Two runs at once may have made some that overlap."""
    ends: dict[int, Range] = {}
    for one in found:
        if (one.first_seqno == found[0].first_seqno or one.first_seqno - 1 in ends) and one.last_seqno not in ends:
            ends[one.last_seqno] = one
    chosen: list[Range] = []
    end = max(ends, default=0)
    while end in ends:
        chosen.append(ends[end])
        end = ends[end].first_seqno - 1
    return chosen[::-1]


def named_places(files: ArchiveFiles) -> set[str]:
    """The folders that manifests name. What `read_ranges` raises for a manifest that is none."""
    return {one.place for one in _all(files)}


def _all(files: ArchiveFiles) -> list[Range]:
    """Every finished range, by its first and last number."""
    return [_read(files, name) for name in files.names(FOLDER) if name.endswith(".json") and not name.startswith(".")]


def _read(files: ArchiveFiles, name: str) -> Range:
    where = f"{files.uri}/{FOLDER}/{name}"
    try:
        made = json.loads(files.read(f"{FOLDER}/{name}"))
        if int(made["format"]) not in (FORMAT, FORMAT_APART):
            raise FormatUnknownError(
                f"the manifest has format {int(made['format'])}, this release knows {FORMAT} and {FORMAT_APART}",
                where=where,
                do="Use the release that wrote it, or archive again elsewhere",
            )
        found = _range(made)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(
            f"this is no manifest: {error!r}", where=where, do="Restore it, or archive again elsewhere"
        ) from error
    if f"{found.name}.json" != name:
        raise DamagedError(
            "a manifest does not bear its own name", where=where, do="Restore it, or archive again elsewhere"
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
        int(made["format"]),
        _folder(made) if int(made["format"]) == FORMAT_APART else "",
    )
    wanted = found.first_seqno
    for one in segments:
        if one.first_seqno != wanted or one.last_seqno < wanted:
            raise ValueError(f"its segment {one.name} should begin with {wanted}")
        wanted = one.last_seqno + 1
    if wanted != found.last_seqno + 1:
        raise ValueError(f"its segments end with {wanted - 1}")
    return found


def _folder(made: dict[str, Any]) -> str:
    """A folder of the range's own: never a path."""
    name = range_name(int(made["first_seqno"]), int(made["last_seqno"]))
    text = str(made["folder"])
    if not text.startswith(f"{name}-") or not text.removeprefix(f"{name}-").isalnum() or not text.isascii():
        raise ValueError(f"{text!r} is no folder of {name}")
    return text


def _segment_name(name: Any) -> str:
    """Never a path."""
    text = str(name)
    if not text.endswith(".journal") or not text.removesuffix(".journal").isdecimal():
        raise ValueError(f"{text!r} is no segment's name")
    return text
