"""The net change of a piece, found by Spark: the engine for backlogs that would not fit into this process.

In two phases, all in the JVM. First the lowest and the highest place of each (table, key), without images; then the
images of just these places, by semi-join. Images that travelled through the aggregation would cost three times as much.
What is archived comes from Parquet; what is not yet is read from segments, once, into the stage.

Guarantees: what `rows` gives is what NetChange would give for the same transactions, rows without effect left out
unless `verify`. It is staged in files, so that memory does not bound the number of rows.
Refuses to know: whether histories contradict themselves (chain hashes have proven whose they are); applying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from replicate.errors import DamagedError
from replicate.transaction import TableDefinition
from update_process.replay.archive import rows as archive_rows
from update_process.replay.archive import write_counted
from update_process.replay.blocks import unpack_image
from update_process.replay.journals import Journals, Span
from update_process.replay.manifest import Range
from update_process.replay.net import NetRow, NetSequence
from update_process.replay.source import NAME
from update_process.replay.spark_errors import spark_work

BATCH_ROWS: Final = 16 * 1024
PLACES: Final = 65_536
"""More than one ordinary transaction has: seqno times this plus place orders all changes of a piece."""
_NEEDED: Final = ("seqno", "place", "table_id", "op", "key", "before", "after")
_OPS: Final = ("insert", "update", "delete", "sequence")


class SparkEngine:
    """Makes the Net of each piece of one replay. `stage`: a directory for what is staged; the caller's to remove."""

    def __init__(self, spark: Any, journals: Journals, stage: Path, *, verify: bool = False) -> None:
        self.spark = spark
        self.verify = verify
        self.stage = stage
        self.where = f"{journals.where}; stage {stage}"
        self._journals = journals
        self._counted: set[tuple[str, str]] = set()

    def __call__(self, definition_of: Callable[[int], TableDefinition], first_seqno: int) -> SparkNet:
        return SparkNet(self, first_seqno)

    def changes(self, first: int, last: int) -> Any:
        """A DataFrame of the row changes from `first` to `last`, from archives as far as they reach.

        DamagedError when an archive does not hold as many rows as its manifests say.
        """
        from pyspark.sql import functions as f

        parts = []
        archived: dict[str, list[Range]] = {}
        for span in self._journals.spans(first, last):
            if span.archive is not None and span.range is not None:
                archived.setdefault(span.archive.uri, []).append(span.range)
            else:
                parts.append(self._raw(span))
        for uri, ranges in archived.items():
            self._check_counts(uri, ranges)
            parts.append(archive_rows(self.spark, uri, "changes", ranges).select(*_NEEDED))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        rows = rows.where(f.col("seqno").between(first, last) & f.col("op").isin(*_OPS))
        return rows.withColumn("at", f.col("seqno") * PLACES + f.col("place"))

    def _raw(self, span: Span) -> Any:
        low, high = span.first_seqno, span.last_seqno
        raw = self.spark.read.format(NAME).option("path", str(span.directory))
        folder = self.stage / f"raw-{low}-{high}"
        write_staged(raw.option("first", low).option("last", high).load().select(*_NEEDED), folder)
        return self.spark.read.parquet(folder.as_uri())

    def _check_counts(self, uri: str, ranges: list[Range]) -> None:
        """Parquet's own footers say how many rows there are; pages are verified as they are read."""
        new = [one for one in ranges if (uri, one.name) not in self._counted]
        found = archive_rows(self.spark, uri, "changes", new).count() if new else 0
        if found != sum(one.changes for one in new):
            raise DamagedError(
                f"the archive's changes of {new[0].first_seqno}–{new[-1].last_seqno} are {found} rows, its manifests "
                f"say {sum(one.changes for one in new)}",
                where=uri,
                do="Run `replicate archive --verify`; or replay from segments",
            )
        self._counted.update((uri, one.name) for one in new)


def write_staged(rows: Any, folder: Path) -> None:
    """Write a DataFrame into the stage. DamagedError when not all of its rows are here then: executors that do not see
    this directory write into one of their own of that name, and nothing else would say so."""
    wanted = write_counted(rows, folder.as_uri())
    found = sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    if found != wanted:
        raise DamagedError(
            f"Spark has staged {wanted} rows, and {found} are here",
            where=str(folder),
            do="Mount this directory under the same path wherever executors run, or use a master on this machine",
        )


class SparkNet:
    """The net change of one piece."""

    key_count = 0
    """It is not known before the end; pieces are bounded by their bytes."""

    def __init__(self, engine: SparkEngine, first_seqno: int) -> None:
        self._engine = engine
        self._first_seqno = self._last_seqno = first_seqno
        self._staged: Path | None = None

    def fold(self, bodies: Sequence[Sequence[Any]]) -> None:
        """Note how far the piece goes."""
        self.until(bodies[-1][1])

    def until(self, last_seqno: int) -> None:
        """The piece goes as far as that."""
        self._last_seqno = last_seqno

    def rows(self) -> Iterator[NetRow]:
        """The net change of each row, from the stage."""
        for table_id, key, before, after, seqno in self._staged_rows("key <> ''"):
            passed = unpack_image(key) if before is None and after is None else None
            yield NetRow(
                table_id,
                None if before is None else unpack_image(before),
                None if after is None else unpack_image(after),
                seqno,
                passed,
            )

    def sequences(self) -> Iterable[NetSequence]:
        """The counters that moved."""
        for table_id, _, before, after, _ in self._staged_rows("key = ''"):
            yield NetSequence(table_id, _counter(before), _counter(after))

    def _staged_rows(self, which: str) -> Iterator[tuple[Any, ...]]:
        if self._staged is None:
            self._staged = self._stage()
        folder = self._staged / ("sequences" if which == "key = ''" else "rows")
        for path in sorted(folder.glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=["table_id", "key", "before", "after", "seqno"]):
                    yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _stage(self) -> Path:
        what = f"the net change from {self._first_seqno} to {self._last_seqno} can not be found"
        with spark_work(what, self._engine.where):
            return self._collapse()

    def _collapse(self) -> Path:
        from pyspark.sql import functions as f

        engine = self._engine
        rows = engine.changes(self._first_seqno, self._last_seqno)
        ends = rows.groupBy("table_id", "key").agg(f.min("at").alias("low"), f.max("at").alias("high")).persist()
        try:
            first = rows.join(ends.select(f.col("low").alias("at")), "at", "left_semi").select(
                "table_id", "key", "before", "seqno"
            )
            last = rows.join(ends.select(f.col("high").alias("at")), "at", "left_semi").select(
                "table_id", "key", "after"
            )
            net = first.join(last, ["table_id", "key"])
            folder = engine.stage / f"net-{self._first_seqno}"
            counters = f.length("key") == 0
            effect = ~f.col("before").eqNullSafe(f.col("after"))
            kept = net.where(~counters) if engine.verify else net.where(~counters & effect)
            write_staged(kept, folder / "rows")
            write_staged(net.where(counters).coalesce(1), folder / "sequences")
        finally:
            ends.unpersist()
        return folder


def _counter(packed: bytes | None) -> int | None:
    made: Any = None if packed is None else unpack_image(packed)
    return made if isinstance(made, int) else None
