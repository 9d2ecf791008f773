"""Writing the Parquet archive of a journal: sealed segments, and their rows for SQL and Spark. A Spark job.

Its layout is manifest.py's. A range of whole segments is written first, synced, and committed by renaming its manifest
into place. What has no manifest is no part of the archive: the next run writes it again.

Guarantees: a second run does only what is not finished. Ranges follow one another without a hole. Refused are an
archive of another network, instance or course of this journal, and a manifest that does not fit its neighbours. One
run at a time in a local directory. Elsewhere nobody can keep a second one out: what either writes stays whole, readers
take each transaction once, and one of them ends by BusyError. What a killed run leaves, the next one removes
(elsewhere: on demand, after a day).
Leaves to others: consumers, pruning, reading.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import (
    BusyError,
    DamagedError,
    DivergedError,
    GapError,
    JournalMissingError,
    NotFoundError,
    TryAgainError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from replicate.journal.scan import scan
from replicate.journal.segment import SegmentFile
from replicate.system.failpoint import hit
from update_process.replay.archive.blocks import COLUMNS
from update_process.replay.archive.files import local_path, open_files, pack_file, unpack_file
from update_process.replay.archive.manifest import (
    FOLDER,
    FORMAT_APART,
    Range,
    SegmentCopy,
    is_place,
    named_places,
    range_name,
    read_ranges,
    require_alone,
    write_range,
)
from update_process.replay.archive.parquet import forget, seen
from update_process.replay.spark.errors import spark_work
from update_process.replay.spark.progress import tasks_told
from update_process.replay.spark.source import FILES, NAME

RANGE_SEGMENTS: Final = 16
"""Segments that are committed together: what is done again, at most, after a kill."""
KINDS: Final = (*COLUMNS, "segments")
"""What a range has folders of."""
LEFT_AFTER_S: Final = 86_400.0
"""Where nobody can keep a run out: a folder to which nothing was written for so long is no run's any more."""


class Archived(Struct, frozen=True):
    """What one run has done. `last_seqno`: up to where the archive reaches now (0: it is empty). `cleaned`: folders of
    killed runs that it has removed."""

    ranges: int
    transactions: int
    changes: int
    last_seqno: int
    cleaned: int = 0


class Step(Struct, frozen=True):
    """Progress: what is archived so far, of all that this run will archive. `tasks`: those that Spark has done for the
    next range, of `all_tasks` that are known."""

    last_seqno: int
    segments: int
    all_segments: int
    transactions: int
    changes: int
    tasks: int = 0
    all_tasks: int = 0


Told = Callable[[Step], None]


def _silent(_step: Step) -> None:
    pass


def _tell_tasks(told: Told, step: Step, done: int, whole: int) -> None:
    told(replace(step, tasks=done, all_tasks=whole))


def rows(spark: Any, uri: str, what: str, ranges: list[Range]) -> Any:
    """A DataFrame of `changes` or `transactions` of some ranges of the archive at `uri`."""
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[what])
    return spark.read.schema(schema).parquet(*(f"{uri}/{what}/{one.place}" for one in ranges))


def require_rows(spark: Any, uri: str, what: str, ranges: list[Range]) -> None:
    """DamagedError when the files of `changes` or `transactions` of some ranges are not those that were archived, or
    do not hold as many rows as the manifests say. Only what Parquet's footers tell is read."""
    for one in ranges:
        one.check_files(open_files(uri, lambda: spark), what)
    found, wanted = rows(spark, uri, what, ranges).count() if ranges else 0, sum(one.count(what) for one in ranges)
    if found != wanted:
        raise DamagedError(
            f"the archive's {what} of {ranges[0].first_seqno}–{ranges[-1].last_seqno} are {found} rows, its manifests "
            f"say {wanted}",
            where=uri,
            do="Run `replicate -i INSTANCE archive --verify`; or ask the segments with --engine local",
        )


def _chains_after(segment: SegmentFile) -> dict[int, tuple[int, int]]:
    """Where each origin stands after the segment's last frame."""
    if segment.header.adopted:
        return dict(segment.scan_adopted().chains)
    known, begin = segment.read_catalogue()
    return dict(scan(segment.fd, begin, segment.header.first_seqno, chains=known.chains, path=segment.path).chains)


def _check_of(chain: Chain, first_seqno: int) -> int:
    """What no other segment has, though it may begin with the same number."""
    with chain.open(first_seqno) as segment:
        return segment.header.check


def _is_taken_back(chain: Chain, following: int, check: int) -> bool:
    """Whether the segment `following` is not the one any more that had that `check`. A rollback takes the last ones
    first: while that one stands, nothing before it was cut. What was pruned was not taken back."""
    numbers = chain.first_seqnos()
    if following in numbers:
        return _check_of(chain, following) != check
    return not numbers or numbers[0] < following


def write_counted(frame: Any, uri: str) -> int:
    """Write a DataFrame as Parquet; how many rows its tasks have written, seen or not."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    frame.observe(seen, f.count(f.lit(1)).alias("rows")).write.mode("overwrite").parquet(uri)
    return int(seen.get["rows"])


class Archive:
    """The archive at `uri` (a local directory, or any URI that Spark writes)."""

    def __init__(self, spark: Any, uri: str, *, range_segments: int = RANGE_SEGMENTS) -> None:
        """UsageError when Spark does not know such a URI."""
        self._spark = spark
        self._files = open_files(uri.rstrip("/"), lambda: spark)
        self._range_segments = range_segments
        self.uri = self._files.uri

    def ranges(self) -> list[Range]:
        """All finished ranges in order; raises what `read_ranges` raises."""
        return read_ranges(self._files)

    def rows(self, what: str, ranges: list[Range]) -> Any:
        """A DataFrame of `changes` or `transactions` of some ranges."""
        return rows(self._spark, self.uri, what, ranges)

    def add(self, chain: Chain, *, clean: bool = False, reached: int = 0, told: Told = _silent) -> Archived:
        """Archive the sealed segments of `chain` that are not yet there: all but the one that is appended to. `clean`:
        remove what killed runs have left, also where the archive is no directory of this machine. `reached`: up to
        where it is known to have come before.

        NotFoundError (nothing is there, and it had come somewhere: begun again where its disk is not mounted, it would
        let go of segments that the archive itself then lacks), WrongNetworkError and WrongInstanceError
        (another journal's archive), JournalMissingError (segments between the archive and the journal were
        pruned), DivergedError (the journal does not go on where the archive ends: it was restored from an older
        copy, or taken back), BusyError (another run), TryAgainError (it was taken back meanwhile), what reading
        segments and `ranges` raise. What was finished stays.
        """
        if reached and not self._files.names(FOLDER):
            raise NotFoundError(
                f"nothing is archived here, where everything up to transaction {reached} was",
                where=self.uri,
                do="Mount or restore it; if it is lost, begin another archive: name another place in journal.archive",
            )
        with self._files.locked():
            return self._add(chain, clean, told)

    def _add(self, chain: Chain, clean: bool, told: Told) -> Archived:
        known = self.ranges()
        numbers = chain.first_seqnos()
        if not numbers:
            raise JournalMissingError("the journal has no segment", where=chain.directory)
        header = chain.segment(numbers[0]).header
        if known:
            self._check_same(known[-1], header.network.hex(), header.instance.hex())
        next_seqno = known[-1].last_seqno + 1 if known else numbers[0]
        if next_seqno < numbers[0]:
            raise JournalMissingError(
                f"the archive ends with transaction {next_seqno - 1}, the journal begins with {numbers[0]}",
                where=chain.directory,
                do="What is between was pruned before it was archived: begin another archive",
            )
        if known:
            self._require_link(known[-1], chain)
        cleaned = self._clean() if clean or self._files.keeps_out else 0
        done: list[Range] = []
        places = [at for at, first in enumerate(numbers[:-1]) if first >= next_seqno]
        step = Step(next_seqno - 1, 0, len(places), 0, 0)
        for start in range(0, len(places), self._range_segments):
            taken = places[start : start + self._range_segments]
            bounds = [(numbers[at], numbers[at + 1] - 1) for at in taken]
            told(step)
            with tasks_told(self._spark, partial(_tell_tasks, told, step)):
                made = self._write(chain, header.network.hex(), header.instance.hex(), bounds)
            done.append(made)
            counts = (sum(one.transactions for one in done), sum(one.changes for one in done))
            step = Step(made.last_seqno, start + len(taken), len(places), *counts)
            told(step)
        return Archived(
            len(done),
            sum(one.transactions for one in done),
            sum(one.changes for one in done),
            (done or known)[-1].last_seqno if done or known else 0,
            cleaned,
        )

    def _clean(self) -> int:
        """Remove the folders that no manifest names; how many there were. A run that is locked out writes none;
        elsewhere one that was written to of late may be a run's that is at work."""
        bound_s = float("inf") if self._files.keeps_out else time.time() - LEFT_AFTER_S
        written: dict[str, float] = {}
        for what in KINDS:
            for place, at_s in self._files.folders(what).items():
                written[place] = max(at_s, written.get(place, 0.0))
        named = named_places(self._files)  # read last: a run that has come to its end meanwhile is among them
        left = [place for place, at_s in written.items() if is_place(place) and place not in named and at_s <= bound_s]
        for place in left:
            for what in KINDS:
                self._files.remove(f"{what}/{place}")
        return len(left)

    def _check_same(self, last: Range, network: str, instance: str) -> None:
        if last.network != network:
            raise WrongNetworkError(
                f"the archive is of network {last.network}, the journal of {network}", where=self.uri
            )
        if last.instance != instance:
            raise WrongInstanceError(
                f"the archive is of instance {last.instance}, the journal of {instance}",
                where=self.uri,
                do="Give each instance's journal an archive of its own",
            )

    def require_link(self, chain: Chain) -> None:
        """DivergedError when `chain` does not go on where the archive ends. An empty one fits each."""
        if known := self.ranges():
            self._require_link(known[-1], chain)

    def _require_link(self, last: Range, chain: Chain) -> None:
        """Was the next segment written after the last one in the archive? Its head alone does not tell: a machine that
        was put back to a snapshot may have written that segment's end, and all that follows, once more."""
        copy = last.segments[-1]
        link = None
        if last.last_seqno + 1 in chain.first_seqnos():
            with chain.open(last.last_seqno + 1) as segment:
                header = segment.header
                link = header.previous_first_seqno, header.previous_check, dict(segment.read_catalogue()[0].chains)
        with tempfile.TemporaryDirectory(prefix="replicate-archive-") as directory:
            self._unpack(last, copy, Path(directory))
            with Chain(directory).open(copy.first_seqno) as segment:
                end = segment.header.first_seqno, segment.header.check, _chains_after(segment)
        if link != end:
            raise DivergedError(
                f"the archive ends with transaction {last.last_seqno}, and the journal does not go on from there",
                where=f"{chain.directory}; {self.uri}",
                do="The journal is a restored copy, was taken back, or was begun again: begin another archive",
            )

    def _write(self, chain: Chain, network: str, instance: str, bounds: list[tuple[int, int]]) -> Range:
        name = range_name(bounds[0][0], bounds[-1][1])
        place = name if self._files.keeps_out else f"{name}-{uuid.uuid4().hex[:16]}"
        following = bounds[-1][1] + 1
        check = _check_of(chain, following)
        try:
            try:
                made = self._made(chain, network, instance, bounds, place)
                hit("archive.before_manifest")
                self._require_there(made)
            finally:
                if _is_taken_back(chain, following, check):  # what was read may have been cut before that
                    raise TryAgainError(
                        f"the journal was taken back while {bounds[0][0]} to {following - 1} were archived: nothing "
                        "of them is in the archive",
                        where=chain.directory,
                        do="Give the same command",
                    )
        except BaseException:
            self._withdraw(place)
            raise
        try:
            write_range(self._files, made)
        except BusyError:  # only then it is nobody's: after any other failure the manifest may be there
            self._withdraw(place)
            raise
        hit("archive.manifest")
        if not self._files.keeps_out:
            require_alone(self._files, made)
        return made

    def _require_there(self, made: Range) -> None:
        """DamagedError when what the manifest will name is not there any more: somebody has cleaned up."""
        for what in COLUMNS:
            made.check_files(self._files, what)
        copies = self._files.names(f"segments/{made.place}", ".zst")
        if copies != sorted(f"{one.name}.zst" for one in made.segments):
            raise DamagedError(
                "what was copied is not there any more",
                where=f"{self.uri}/segments/{made.place}",
                do="Let one run at a time write there; run this again",
            )

    def _withdraw(self, place: str) -> None:
        """Remove what has no manifest, where no run after us would write it over."""
        if not self._files.keeps_out:
            for what in KINDS:
                self._files.remove(f"{what}/{place}")

    def _made(self, chain: Chain, network: str, instance: str, bounds: list[tuple[int, int]], name: str) -> Range:
        """Write all of a range but its manifest, into folders called `name`."""
        first, last = bounds[0][0], bounds[-1][1]
        counts: dict[str, int] = {}
        digests: dict[str, str] = {}
        with spark_work(f"{first} to {last} cannot be archived", f"{chain.directory}; {self.uri}"):
            here = local_path(self.uri)
            if here is not None:
                counts = self._files_of(here, name, chain, first, last)
            for what in COLUMNS:
                if here is None:
                    counts[what] = self._rows_of(what, name, chain, first, last)
                digests[what] = self._read_back(what, name, counts[what])
                hit("archive.rows")
        wanted = last - first + 1
        if counts["transactions"] != wanted:
            raise GapError(f"{counts['transactions']} transactions were archived of {wanted}", where=self.uri)
        last_csn = self._parquet("transactions", name).agg({"csn": "max"}).first()[0]
        made = Range(network, instance, first, last, wanted, counts["changes"], last_csn, digests, ())
        if name != made.name:
            made = replace(made, folder=name, format=FORMAT_APART)
        copies = tuple(self._copy(chain, made, *pair) for pair in bounds)
        files = {what: self._files.names(f"{what}/{name}", ".parquet") for what in COLUMNS}
        return replace(made, segments=copies, files=files)

    def _files_of(self, here: Path, name: str, chain: Chain, first: int, last: int) -> dict[str, int]:
        """Have the files of a range written where its rows are decoded: how many they are, of each kind."""
        for what in COLUMNS:  # what a run that was killed has left
            shutil.rmtree(here / what / name, ignore_errors=True)
        found = self._journal(FILES, chain, first, last).option("into", str(here)).option("name", name)
        counts = dict.fromkeys(COLUMNS, 0)
        for row in found.load().collect():
            seen(here / row.what / name, row.file)
            counts[row.what] += row.rows
        for what in COLUMNS:  # of tasks that were done twice
            forget(here / what / name)
        return counts

    def _rows_of(self, what: str, name: str, chain: Chain, first: int, last: int) -> int:
        """Have one kind of rows of a range written by Java, which knows more file systems: how many they are."""
        found = self._journal(what, chain, first, last).load()
        return write_counted(found, f"{self.uri}/{what}/{name}")

    def _journal(self, rows: str, chain: Chain, first: int, last: int) -> Any:
        found = self._spark.read.format(NAME).option("path", chain.directory).option("rows", rows)
        return found.option("first", first).option("last", last)

    def _read_back(self, what: str, name: str, wanted: int) -> str:
        """The digest of what was written, if it is as many rows."""
        self._files.sync(f"{what}/{name}")
        count, digest = self._digest(what, name)
        if count != wanted:
            raise DamagedError(
                f"Spark has written {wanted} rows, and {count} are there",
                where=f"{self.uri}/{what}/{name}",
                do="Name an archive that this machine and all executors see under the same URI",
            )
        return digest

    def _copy(self, chain: Chain, made: Range, first: int, last: int) -> SegmentCopy:
        """Copy a segment into the archive, and read it back."""
        source = Path(chain.path_of(first))
        with tempfile.TemporaryDirectory(prefix="replicate-archive-") as directory:
            packed = Path(directory) / "packed"
            copy = SegmentCopy(source.name, first, last, *pack_file(source, packed))
            self._files.store(packed, made.packed_name(copy))
        hit("archive.copied")
        self._check_copy(made, copy)
        return copy

    def _check_copy(self, made: Range, copy: SegmentCopy) -> None:
        with tempfile.TemporaryDirectory(prefix="replicate-archive-") as directory:
            self._unpack(made, copy, Path(directory))

    def _unpack(self, one: Range, copy: SegmentCopy, directory: Path) -> None:
        name, packed = one.packed_name(copy), directory / "packed"
        self._files.fetch(name, packed)
        unpack_file(packed, directory / copy.name, copy.bytes, copy.sha256, where=f"{self.uri}/{name}")

    def _parquet(self, what: str, name: str) -> Any:
        schema = ", ".join(f"`{column}` {kind}" for column, kind in COLUMNS[what])
        return self._spark.read.schema(schema).parquet(f"{self.uri}/{what}/{name}")

    def _digest(self, what: str, name: str) -> tuple[int, str]:
        """Of what was written, read back: the number of rows, and a digest that does not depend on their order."""
        from pyspark.sql import functions as f

        columns = [column for column, _ in COLUMNS[what]]
        row = self._parquet(what, name).agg(f.count("*"), f.bit_xor(f.xxhash64(*columns))).first()
        return int(row[0]), f"{(row[1] or 0) & (2**64 - 1):016x}"

    def verify(self) -> list[Range]:
        """Compare every range with its manifest, rows and segments; DamagedError for the first that differs."""
        found = self.ranges()
        for one in found:
            for what, wanted in one.digests.items():
                one.check_files(self._files, what)
                with spark_work(f"the {what} of {one.first_seqno}–{one.last_seqno} cannot be read", self.uri):
                    digest = self._digest(what, one.place)
                if digest != (one.count(what), wanted):
                    raise DamagedError(
                        f"the {what} of {one.first_seqno}–{one.last_seqno} are not what was archived",
                        where=f"{self.uri}/{what}/{one.place}",
                        do="Restore the archive, or archive again elsewhere",
                    )
            for copy in one.segments:
                self._check_copy(one, copy)
        return found
