"""The Parquet archive of a journal: sealed segments as rows that SQL and a replay read quickly. A Spark job.

    URI/changes/FIRST-LAST/*.parquet       one row for each change (blocks.CHANGE_COLUMNS)
    URI/transactions/FIRST-LAST/*.parquet  one row for each transaction
    URI/manifests/FIRST-LAST.json          says that the range is finished: counts, digests, segments, last chains

A range is whole segments. It is written first, and committed by renaming its manifest into place; what has no manifest
is not part of the archive, and is written anew by the next run.

Guarantees: running it again does nothing but what is not finished; ranges follow one another without a hole; an archive
of another network or of another instance's journal is refused, and so is a manifest that does not fit its neighbours.
Refuses to know: consumers and pruning; what reads the archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from replicate.errors import (
    DamagedError,
    FormatUnknownError,
    GapError,
    JournalIOError,
    JournalMissingError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.journal.chain import Chain
from update_process.replay.blocks import COLUMNS
from update_process.replay.source import NAME

FORMAT: Final = 1
RANGE_SEGMENTS: Final = 16
"""Segments that are committed together: what is done again, at most, after a kill."""


@dataclass(frozen=True, slots=True)
class Range:
    """One finished range, as its manifest has it. `digests`: of each kind of rows, independent of their order."""

    network: str
    instance: str
    first_seqno: int
    last_seqno: int
    transactions: int
    changes: int
    digests: dict[str, str]
    segments: list[str]
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The name of its directories and of its manifest."""
        return f"{self.first_seqno:020d}-{self.last_seqno:020d}"


@dataclass(frozen=True, slots=True)
class Archived:
    """What one run has done. `last_seqno`: up to where the archive reaches now (0: it is empty)."""

    ranges: int
    transactions: int
    changes: int
    last_seqno: int


class Archive:
    """The archive at `uri` (a local directory, or any URI that Spark writes)."""

    def __init__(self, spark: Any, uri: str) -> None:
        """UsageError when Spark does not know such a URI."""
        self._spark = spark
        self.uri = uri.rstrip("/")
        jvm = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._files = self._path(self.uri).getFileSystem(spark._jsc.hadoopConfiguration())
        except Exception as error:
            raise UsageError(f"this is no URI that Spark can read: {_first_line(error)}", where=uri) from error

    def ranges(self) -> list[Range]:
        """All finished ranges in order. DamagedError, FormatUnknownError, GapError, WrongInstanceError when they do not
        make one archive; JournalIOError when they can not be read."""
        folder = self._path(f"{self.uri}/manifests")
        try:
            if not self._files.exists(folder):
                return []
            names = [status.getPath().getName() for status in self._files.listStatus(folder)]
            found = [self._read(name) for name in sorted(names) if name.endswith(".json")]
        except (DamagedError, JournalIOError):
            raise
        except Exception as error:
            raise JournalIOError(
                f"the archive can not be read: {_first_line(error)}",
                where=self.uri,
                do="Look at the URI and its rights",
            ) from error
        for one, following in pairwise(found):
            if following.first_seqno != one.last_seqno + 1:
                raise GapError(
                    f"the archive's range {one.first_seqno}–{one.last_seqno} is followed by {following.first_seqno}",
                    where=self.uri,
                    do="Its manifests are mixed up: restore it, or archive anew elsewhere",
                )
            if (one.network, one.instance) != (following.network, following.instance):
                raise WrongInstanceError("the archive holds ranges of two journals", where=self.uri)
        return found

    def _read(self, name: str) -> Range:
        path = f"{self.uri}/manifests/{name}"
        stream = self._files.open(self._path(path))
        try:
            text = str(self._spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        try:
            made = json.loads(text)
            if int(made["format"]) > FORMAT:
                raise FormatUnknownError("the archive is of a later release", where=path, do="Upgrade this instance")
            found = Range(**made)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"this is no manifest: {error}", where=path) from error
        if f"{found.name}.json" != name:
            raise DamagedError("a manifest does not bear its own name", where=path)
        return found

    def rows(self, what: str, ranges: list[Range]) -> Any:
        """A DataFrame of `changes` or `transactions` of some ranges."""
        schema = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[what])
        paths = [f"{self.uri}/{what}/{one.name}" for one in ranges]
        return self._spark.read.schema(schema).parquet(*paths)

    # Writing.

    def add(self, chain: Chain, *, told: Callable[[Range], None] = lambda _range: None) -> Archived:
        """Archive the sealed segments of `chain` that are not yet there: all but the one that is appended to.

        WrongNetworkError and WrongInstanceError (another journal's archive), JournalMissingError (segments between the
        archive and the journal were pruned), what reading segments and `ranges` raise. What was finished stays.
        """
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
        done: list[Range] = []
        places = [at for at, first in enumerate(numbers[:-1]) if first >= next_seqno]
        for start in range(0, len(places), RANGE_SEGMENTS):
            taken = places[start : start + RANGE_SEGMENTS]
            first, last = numbers[taken[0]], numbers[taken[-1] + 1] - 1
            segments = [f"{numbers[at]:020d}.journal" for at in taken]
            made = self._write(chain, header.network.hex(), header.instance.hex(), first, last, segments)
            told(made)
            done.append(made)
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

    def _write(self, chain: Chain, network: str, instance: str, first: int, last: int, segments: list[str]) -> Range:
        made = Range(network, instance, first, last, 0, 0, {}, segments)
        counts: dict[str, int] = {}
        digests: dict[str, str] = {}
        for what in COLUMNS:
            rows = (
                self._spark.read.format(NAME)
                .option("path", chain.directory)
                .option("rows", what)
                .option("first", first)
                .option("last", last)
                .load()
            )
            rows.write.mode("overwrite").parquet(f"{self.uri}/{what}/{made.name}")
            counts[what], digests[what] = self._digest(what, made)
        wanted = last - first + 1
        if counts["transactions"] != wanted:
            raise GapError(f"{counts['transactions']} transactions were archived of {wanted}", where=self.uri)
        made = Range(network, instance, first, last, wanted, counts["changes"], digests, segments)
        self._commit(made)
        return made

    def _digest(self, what: str, made: Range) -> tuple[int, str]:
        """Of what was written, read back: the number of rows, and a digest that does not depend on their order."""
        from pyspark.sql import functions as f

        names = [name for name, _ in COLUMNS[what]]
        row = self.rows(what, [made]).agg(f.count("*"), f.bit_xor(f.xxhash64(*names))).first()
        return int(row[0]), f"{(row[1] or 0) & (2**64 - 1):016x}"

    def verify(self) -> list[Range]:
        """Compare every range with its manifest; DamagedError for the first that differs."""
        found = self.ranges()
        for one in found:
            for what, wanted in one.digests.items():
                if self._digest(what, one)[1] != wanted:
                    raise DamagedError(
                        f"the {what} of {one.first_seqno}–{one.last_seqno} are not what was archived", where=self.uri
                    )
        return found

    def _commit(self, made: Range) -> None:
        text = json.dumps({name: getattr(made, name) for name in Range.__dataclass_fields__}, sort_keys=True)
        folder = f"{self.uri}/manifests"
        temporary, final = self._path(f"{folder}/.{made.name}.tmp"), self._path(f"{folder}/{made.name}.json")
        try:
            self._files.mkdirs(self._path(folder))
            stream = self._files.create(temporary, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            well = self._files.rename(temporary, final)
        except Exception as error:
            raise JournalIOError(f"the manifest can not be written: {_first_line(error)}", where=self.uri) from error
        if not well:
            raise JournalIOError("the manifest can not be renamed into place", where=str(final))


def _first_line(error: Exception) -> str:
    """What a Java exception says, without its trace."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return text.strip().split("\n")[0]
