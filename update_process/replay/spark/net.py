"""The net change of a piece, found by Spark: the engine for backlogs that would not fit into this process.

In two phases, all in the JVM. First the lowest and the highest place of each (table, key), without images; then, by a
join, the images of just these places. Images that travelled through the aggregation would cost three times as much.
What is archived comes from Parquet; what is not yet is read from segments, once, into the stage.

Guarantees: what `rows` gives is what NetChange would give for the same transactions, rows without effect left out
unless `verify`. It is staged in files, so that memory does not bound the number of rows.
Leaves to others: whether histories contradict themselves (chain hashes have proven whose they are); applying.
"""

from __future__ import annotations

import functools
import operator
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from replicate.errors import DamagedError
from replicate.model.transaction import TableDefinition
from replicate.system.failpoint import hit
from update_process.plan import Window
from update_process.replay.archive.archive import require_rows, write_counted
from update_process.replay.archive.archive import rows as archive_rows
from update_process.replay.archive.blocks import unpack_image
from update_process.replay.archive.manifest import Range
from update_process.replay.backlog import Journals, Span
from update_process.replay.net import EVERY_PART, NetColumns, NetRow, NetSequence, Part
from update_process.replay.spark.errors import spark_work
from update_process.replay.spark.progress import TasksTold, tasks_told
from update_process.replay.spark.source import NAME
from update_process.replay.spark.staged import staged_columns, staged_counters, staged_rows, staged_tables

BROADCAST_ENDS_MAX: Final = 6_000_000
"""Ends that every executor holds in memory, some 60 bytes each; where there are more, images are shuffled to them."""
PLACES: Final = 65_536
"""More than one ordinary transaction has: seqno times this plus place orders all changes of a piece."""
LOW: Final = 1
HIGH: Final = 2
"""What a place is to its key; the only one is both."""
_NEEDED: Final = ("seqno", "place", "table_id", "key", "before", "after")


def _silent(_done: int, _whole: int) -> None:
    pass


class SparkEngine:
    """Makes the Net of each piece of one replay. `stage`: a directory for what is staged; the caller's to remove."""

    def __init__(
        self, spark: Any, journals: Journals, stage: Path, *, verify: bool = False, told: TasksTold = _silent
    ) -> None:
        """`told`: see `tasks_told`."""
        self.spark = spark
        self.verify = verify
        self.told = told
        self.stage = stage
        self.where = f"{journals.where}; stage {stage}"
        self._journals = journals
        self._counted: set[tuple[str, str]] = set()
        # What is broadcast is as slow as the machine, and five minutes are no reason to fail.
        spark.conf.set("spark.sql.broadcastTimeout", "86400")

    def __call__(self, definition_of: Callable[[int], TableDefinition], first_seqno: int) -> SparkNet:
        for pattern in ("net-*", "raw-*"):  # of the piece before, which is applied by now
            for folder in self.stage.glob(pattern):
                shutil.rmtree(folder, ignore_errors=True)
        return SparkNet(self, first_seqno)

    def changes(self, first: int, last: int) -> tuple[Any, int]:
        """A DataFrame of the row changes from `first` to `last`, from archives as far as they reach; no more than so
        many are there.

        DamagedError when an archive does not hold as many rows as its manifests say.
        """
        from pyspark.sql import functions as f

        parts = []
        most = 0
        archived: dict[str, list[Span]] = {}
        for span in self._journals.spans(first, last):
            if span.archive is not None and span.range is not None:
                archived.setdefault(span.archive.uri, []).append(span)
            else:
                raw, count = self._raw(span)
                parts.append(raw)
                most += count
        for uri, spans in archived.items():
            ranges = [span.range for span in spans if span.range is not None]
            self._check_counts(uri, ranges)
            most += sum({one.name: one.changes for one in ranges}.values())
            found = archive_rows(self.spark, uri, "changes", ranges).select(*_NEEDED)
            # What a range holds besides may be told by another archive, and must not be there twice.
            within = (f.col("seqno").between(*bounds) for bounds in joined(spans))
            parts.append(found.where(functools.reduce(operator.or_, within)))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        # Changes of a row, or of a counter, have a key; nothing else has.
        rows = rows.where(f.col("seqno").between(first, last) & f.col("key").isNotNull())
        return rows.withColumn("at", f.col("seqno") * PLACES + f.col("place")), most

    def _raw(self, span: Span) -> tuple[Any, int]:
        low, high = span.first_seqno, span.last_seqno
        raw = self.spark.read.format(NAME).option("path", str(span.directory)).option("columns", ",".join(_NEEDED))
        folder = self.stage / f"raw-{low}-{high}"
        count = write_staged(raw.option("first", low).option("last", high).load().select(*_NEEDED), folder)
        return self.spark.read.parquet(folder.as_uri()), count

    def _check_counts(self, uri: str, ranges: list[Range]) -> None:
        """Parquet's own footers say how many rows there are; pages are verified as they are read."""
        new = [one for one in ranges if (uri, one.name) not in self._counted]
        require_rows(self.spark, uri, "changes", new)
        self._counted.update((uri, one.name) for one in new)


def joined(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """The first and last number of each stretch that spans, in order, cover without a gap."""
    found: list[tuple[int, int]] = []
    for span in spans:
        if found and found[-1][1] + 1 == span.first_seqno:
            found[-1] = found[-1][0], span.last_seqno
        else:
            found.append((span.first_seqno, span.last_seqno))
    return found


def write_staged(rows: Any, folder: Path) -> int:
    """Write a DataFrame into the stage; how many rows it has. DamagedError when not all are here: executors that
    do not see this directory write into one of their own of that name, and nothing else would say so."""
    wanted = write_counted(rows, folder.as_uri())
    found = sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    if found != wanted:
        raise DamagedError(
            f"Spark has staged {wanted} rows, and {found} are here",
            where=str(folder),
            do="Mount this directory under the same path wherever executors run, or use a master on this machine",
        )
    return wanted


class SparkNet:
    """The net change of one piece."""

    def __init__(self, engine: SparkEngine, first_seqno: int) -> None:
        self._engine = engine
        self._first_seqno = self._last_seqno = first_seqno
        self._staged: Path | None = None
        self.key_count = 0
        """Rows with an effect; 0 until they are staged: pieces are bounded by their bytes."""

    def take(self, window: Window, start: int, stop: int) -> None:
        """Note how far the piece goes."""
        del start
        self.until(window.first_seqno + stop - 1)

    def until(self, last_seqno: int) -> None:
        """The piece goes as far as that."""
        self._last_seqno = last_seqno

    def table_ids(self) -> Iterable[int]:
        """Every table of which rows were touched."""
        with self._reading() as folder:
            return staged_tables(folder)

    def rows(self, parts: Part = EVERY_PART) -> Iterator[NetRow]:
        """The net change of each row, from the stage: in a few runs, each by keys."""
        with self._reading() as folder:
            yield from staged_rows(folder, parts)

    def columns(self, parts: Part = EVERY_PART) -> Iterator[NetColumns]:
        """The same by columns, those of a table in a batch together."""
        with self._reading() as folder:
            yield from staged_columns(folder, parts)

    def sequences(self) -> Iterable[NetSequence]:
        """The counters that moved."""
        with self._reading() as folder:
            found = staged_counters(folder)
        return [NetSequence(table_id, _counter(before), _counter(after)) for table_id, before, after in found]

    @contextmanager
    def _reading(self) -> Iterator[Path]:
        if self._staged is None:
            self._staged = self._stage()
        with spark_work("what was staged cannot be read", str(self._staged)):
            yield self._staged

    def _stage(self) -> Path:
        what = f"the net change from {self._first_seqno} to {self._last_seqno} cannot be found"
        with spark_work(what, self._engine.where), tasks_told(self._engine.spark, self._engine.told):
            return self._collapse()

    def _collapse(self) -> Path:
        from pyspark.sql import functions as f

        engine = self._engine
        rows, most = engine.changes(self._first_seqno, self._last_seqno)
        ends = _ends(rows)
        is_kept = most > BROADCAST_ENDS_MAX
        try:
            # As numbers, all ends fit into memory where images would not: no image is shuffled that is not wanted.
            is_small = not is_kept or ends.persist().count() <= BROADCAST_ENDS_MAX
            wanted = rows.join(f.broadcast(ends) if is_small else ends, "at").select(
                "key",
                "table_id",
                "seqno",
                f.when(f.col("end").bitwiseAND(LOW) == LOW, f.col("before")).alias("before"),
                f.when(f.col("end").bitwiseAND(HIGH) == HIGH, f.col("after")).alias("after"),
            )
            # Sorted, so that rows come out by their keys: in the order in which they lie in the database. Of one or two
            # rows of a key one has the image before, and one the image after, if there are any.
            by_key = wanted.repartition("key", "table_id").sortWithinPartitions("key", "table_id")
            net = by_key.groupBy("key", "table_id").agg(
                f.max("before").alias("before"), f.max("after").alias("after"), f.min("seqno").alias("seqno")
            )
            folder = engine.stage / f"net-{self._first_seqno}"
            counters = f.length("key") == 0
            effect = ~f.col("before").eqNullSafe(f.col("after"))
            self.key_count = write_staged(net if engine.verify else net.where(counters | effect), folder)
            hit("replay.staged")
        finally:
            if is_kept:
                ends.unpersist()
        return folder


def _ends(rows: Any) -> Any:
    """The lowest and the highest place of each key, and which of them it is."""
    from pyspark.sql import functions as f

    low, high = f.col("low"), f.col("high")
    by_key = rows.groupBy("table_id", "key").agg(f.min("at").alias("low"), f.max("at").alias("high"))

    def one(at: Any, end: int) -> Any:
        return f.struct(at.alias("at"), f.lit(end).alias("end"))

    both = f.array(one(low, LOW), one(high, HIGH))
    found = by_key.select(f.explode(f.when(low == high, f.array(one(low, LOW | HIGH))).otherwise(both)).alias("found"))
    return found.select("found.at", "found.end")


def _counter(packed: bytes | None) -> int | None:
    made: Any = None if packed is None else unpack_image(packed)
    return made if isinstance(made, int) else None
