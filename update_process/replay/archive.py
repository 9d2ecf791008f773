"""Writing the Parquet archive of a journal: sealed segments, and their rows for SQL and Spark. A Spark job.

Its layout is manifest.py's. A range is whole segments. It is written first, synced, and committed by renaming its
manifest into place; what has no manifest is not part of the archive, and is written anew by the next run.

Guarantees: running it again does nothing but what is not finished; ranges follow one another without a hole; an archive
of another network, of another instance's journal, or of another course of this one is refused, and so is a manifest
that does not fit its neighbours. One run at a time (where the archive is a directory).
Refuses to know: consumers and pruning; what reads the archive.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicate.errors import (
    DamagedError,
    DivergedError,
    GapError,
    JournalMissingError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.failpoint import hit
from replicate.journal.chain import Chain
from replicate.journal.scan import scan
from replicate.journal.segment import SegmentFile
from update_process.replay.archive_files import open_files, pack_file, unpack_file
from update_process.replay.blocks import COLUMNS
from update_process.replay.manifest import Range, SegmentCopy, read_ranges, write_range
from update_process.replay.source import NAME
from update_process.replay.spark_errors import spark_work

RANGE_SEGMENTS: Final = 16
"""Segments that are committed together: what is done again, at most, after a kill."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run has done. `last_seqno`: up to where the archive reaches now (0: it is empty)."""

    ranges: int
    transactions: int
    changes: int
    last_seqno: int


@dataclass(frozen=True, slots=True)
class Step:
    """Progress: what is archived so far, of all that this run will archive."""

    last_seqno: int
    segments: int
    all_segments: int
    transactions: int
    changes: int


Told = Callable[[Step], None]


def _silent(_step: Step) -> None:
    pass


def rows(spark: Any, uri: str, what: str, ranges: list[Range]) -> Any:
    """A DataFrame of `changes` or `transactions` of some ranges of the archive at `uri`."""
    schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[what])
    return spark.read.schema(schema).parquet(*(f"{uri}/{what}/{one.name}" for one in ranges))


def _chains_behind(segment: SegmentFile) -> dict[int, tuple[int, int]]:
    """Where each origin stands behind the segment's last frame."""
    if segment.header.adopted:
        return dict(segment.scan_adopted().chains)
    known, begin = segment.read_catalogue()
    return dict(scan(segment.fd, begin, segment.header.first_seqno, chains=known.chains, path=segment.path).chains)


def write_counted(frame: Any, uri: str) -> int:
    """Write a DataFrame as Parquet; how many rows its tasks have written, whoever sees them."""
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

    def add(self, chain: Chain, *, told: Told = _silent) -> Archived:
        """Archive the sealed segments of `chain` that are not yet there: all but the one that is appended to.

        WrongNetworkError and WrongInstanceError (another journal's archive), JournalMissingError (segments between the
        archive and the journal were pruned), DivergedError (the journal does not go on where the archive ends: it was
        restored from an older copy), BusyError (another run), what reading segments and `ranges` raise. What was
        finished stays.
        """
        with self._files.locked():
            return self._add(chain, told)

    def _add(self, chain: Chain, told: Told) -> Archived:
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
            self._check_link(known[-1], chain, numbers)
        done: list[Range] = []
        places = [at for at, first in enumerate(numbers[:-1]) if first >= next_seqno]
        for start in range(0, len(places), self._range_segments):
            taken = places[start : start + self._range_segments]
            bounds = [(numbers[at], numbers[at + 1] - 1) for at in taken]
            made = self._write(chain, header.network.hex(), header.instance.hex(), bounds)
            done.append(made)
            counts = (sum(one.transactions for one in done), sum(one.changes for one in done))
            told(Step(made.last_seqno, start + len(taken), len(places), *counts))
        return Archived(
            len(done),
            sum(one.transactions for one in done),
            sum(one.changes for one in done),
            (done or known)[-1].last_seqno if done or known else 0,
        )

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

    def _check_link(self, last: Range, chain: Chain, numbers: list[int]) -> None:
        """Was the next segment written behind the last one in the archive? Its head alone does not tell: a machine that
        was put back to a snapshot may have written that segment's end, and all that follows, once more."""
        copy = last.segments[-1]
        link = None
        if last.last_seqno + 1 in numbers:
            with chain.open(last.last_seqno + 1) as segment:
                header = segment.header
                link = header.previous_first_seqno, header.previous_check, dict(segment.read_catalogue()[0].chains)
        with tempfile.TemporaryDirectory(prefix="replicate-archive-") as directory:
            self._unpack(last, copy, Path(directory))
            with Chain(directory).open(copy.first_seqno) as segment:
                end = segment.header.first_seqno, segment.header.check, _chains_behind(segment)
        if link != end:
            raise DivergedError(
                f"the archive ends with transaction {last.last_seqno}, and the journal does not go on from there",
                where=f"{chain.directory}; {self.uri}",
                do="The journal is a restored copy, or was begun anew: begin another archive",
            )

    def _write(self, chain: Chain, network: str, instance: str, bounds: list[tuple[int, int]]) -> Range:
        first, last = bounds[0][0], bounds[-1][1]
        name = f"{first:020d}-{last:020d}"
        counts: dict[str, int] = {}
        digests: dict[str, str] = {}
        for what in COLUMNS:
            with spark_work(f"{first} to {last} can not be archived", f"{chain.directory}; {self.uri}"):
                counts[what], digests[what] = self._rows_of(what, chain, first, last)
            hit("archive.rows")
        wanted = last - first + 1
        if counts["transactions"] != wanted:
            raise GapError(f"{counts['transactions']} transactions were archived of {wanted}", where=self.uri)
        last_csn = self._parquet("transactions", name).agg({"csn": "max"}).first()[0]
        made = Range(network, instance, first, last, wanted, counts["changes"], last_csn, digests, ())
        copies = tuple(self._copy(chain, made, *pair) for pair in bounds)
        files = {what: self._files.names(f"{what}/{name}", ".parquet") for what in COLUMNS}
        made = Range(network, instance, first, last, wanted, counts["changes"], last_csn, digests, copies, files)
        hit("archive.before_manifest")
        write_range(self._files, made)
        hit("archive.manifest")
        return made

    def _rows_of(self, what: str, chain: Chain, first: int, last: int) -> tuple[int, str]:
        """Write one kind of rows of a range, and read it back: how many they are, and their digest."""
        name = f"{first:020d}-{last:020d}"
        found = (
            self._spark.read.format(NAME)
            .option("path", chain.directory)
            .option("rows", what)
            .option("first", first)
            .option("last", last)
            .load()
        )
        wanted = write_counted(found, f"{self.uri}/{what}/{name}")
        self._files.sync(f"{what}/{name}")
        count, digest = self._digest(what, name)
        if count != wanted:
            raise DamagedError(
                f"Spark has written {wanted} rows, and {count} are there",
                where=f"{self.uri}/{what}/{name}",
                do="Name an archive that this machine and all executors see under the same URI",
            )
        return count, digest

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
                with spark_work(f"the {what} of {one.first_seqno}–{one.last_seqno} can not be read", self.uri):
                    digest = self._digest(what, one.name)
                if digest != (one.count(what), wanted):
                    raise DamagedError(
                        f"the {what} of {one.first_seqno}–{one.last_seqno} are not what was archived",
                        where=f"{self.uri}/{what}/{one.name}",
                        do="Restore the archive, or archive anew elsewhere",
                    )
            for copy in one.segments:
                self._check_copy(one, copy)
        return found
