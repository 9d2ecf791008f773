"""An audit of an archive of any size: Spark finds the segments that hold what is asked for, in its tables, and counts.

Guarantees: no segment is passed over that holds a change that is asked for, so that what reads the rest (replicate/
audit) tells the same as without Spark; counts are the same, too. Files of the archive that are gone, or have lost rows,
are refused by name. What comes to this process grows with the segments and the groups, not with the archive; and with
the keys that one row has had.
Leaves to others: reading segments, decoding, showing (replicate/audit, audited.py above).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgpack
import pyarrow as pa
from msgspec.structs import replace

from replicate.audit.count import SPANS_US, in_order
from replicate.audit.selection import KeyValue, Selection, TableName, asked_row, row_named
from replicate.audit.stretches import Stretch, StretchMatches
from replicate.errors import UsageError
from replicate.journal.record import CHANGES_BEGIN, LARGE_BEGINS
from replicate.model.moment import CSN_COUNTER_BITS, shown_us
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.transaction import Kind
from replicate.model.vector import U64_MAX
from update_process.replay.archive.archive import require_rows, rows
from update_process.replay.archive.manifest import Range
from update_process.replay.spark.errors import spark_work

_WITHOUT_CHANGES: Final = tuple(
    kind.name.lower() for kind in Kind if kind not in CHANGES_BEGIN and kind not in LARGE_BEGINS
)


class ArchiveTables:
    """The tables `changes` and `transactions` of some ranges of the archive at `uri`. Everything raises DamagedError
    where an archive has lost rows, and what `spark_work` makes of Spark's errors."""

    def __init__(self, spark: Any, uri: str, ranges: Sequence[Range]) -> None:
        self.spark = spark
        self.uri = uri
        self.ranges = ranges

    def holding(self, found: StretchMatches, stretches: Sequence[Stretch]) -> Sequence[Stretch]:
        """A Sift: the stretches with a transaction that `found` asks for."""
        wanted = found.selection
        if wanted.is_everything or not stretches:
            return stretches
        if not wanted.reads_changes:
            return self._with(self._transactions(wanted, found), stretches)
        asked = []
        if wanted.comment is not None:
            asked.append(self._comments(wanted, found))
        if wanted.chooses_changes:
            asked.append(self._changes(wanted, found).where(_chosen(wanted, by_key=_is_told_by_bytes(found, wanted))))
        held = [self._with(one, stretches) for one in asked]
        return [one for one in held[0] if one in held[-1]]

    def holding_row(self, words: Sequence[str], found: StretchMatches, stretches: Sequence[Stretch]) -> list[Stretch]:
        """The stretches with a change of the row that an operator names so, under any key that it may have had.

        UsageError for words that are no key of the table."""
        from pyspark.sql import functions as f

        (table,) = found.selection.tables
        key, columns = row_named(words, found.known().in_force()[table])
        changes = self._changes(found.selection, found).where(_chosen(found.selection))
        if not _is_told_by_bytes(found, replace(found.selection, key=key, columns=columns)):
            return self._with(changes, stretches)
        # An UPDATE that changes a key has two rows, one after the other: the old key, and then the new one.
        moved = changes.where((f.col("op") == "update") & (f.col("after").isNull() | f.col("before").isNull()))
        left = moved.where(f.col("before").isNotNull()).select(
            "seqno", (f.col("place") + 1).alias("place"), f.col("key").alias("old")
        )
        keys = new = set(packed_keys(key))
        with spark_work("the keys of a row cannot be looked for", self.uri):
            while new:
                came = moved.where(f.col("before").isNull() & f.col("key").isin(*new)).select("seqno", "place")
                older = {
                    bytes(one.old) for one in came.join(left, ["seqno", "place"]).select("old").distinct().collect()
                }
                new = older - keys
                keys = keys | new
        return self._with(changes.where(f.col("key").isin(*keys)), stretches)

    def counted(self, by: Sequence[str], found: StretchMatches) -> list[tuple[object, ...]]:
        """The rows of `audit count`, as `Counts.rows` gives them. `by`: words that `Counts` takes."""
        from pyspark.sql import functions as f

        wanted = found.selection
        if not _is_told_by_bytes(found, wanted):
            raise UsageError("Spark counts rows by the bytes of their key alone", do="Leave --engine out")
        changes = self._changes(wanted, found).where(_chosen(wanted))
        if wanted.comment is not None:
            changes = changes.join(self._comments(wanted, found).select("seqno").distinct(), "seqno", "left_semi")
        # Of an UPDATE of a key both rows count as the one change that they are.
        is_second = (f.col("op") == "update") & f.col("before").isNull()
        place = f.col("place") - is_second.cast("int")
        changes = changes.withColumn("change", place)
        if not wanted.reads_changes:
            changes = changes.unionByName(
                self._transactions(wanted, found)
                .where(f.col("kind").isin(*_WITHOUT_CHANGES))
                .withColumn("op", f.col("kind")),
                allowMissingColumns=True,
            )
        many = (f.count_distinct("seqno"), f.count_distinct("seqno", "change"))
        with spark_work("the archive cannot be counted", self.uri):
            counted = changes.groupBy(*map(_group, by)).agg(*many).collect()
        origins = {one.origin.key: f"{one.name}/{one.incarnation}" for one in found.known().histories}
        told = (
            [_told(word, value, origins) for word, value in zip(by, one[: len(by)], strict=True)] + list(one[len(by) :])
            for one in counted
        )
        return in_order(map(tuple, told))

    def _with(self, frame: Any, stretches: Sequence[Stretch]) -> list[Stretch]:
        """Of stretches that follow one another, those with a `seqno` of the frame."""
        firsts = [one.first_seqno for one in stretches]

        # Sent as it is: an executor needs PyArrow and NumPy for it, and nothing of ours.
        def places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import numpy
            import pyarrow

            for batch in batches:
                at = numpy.searchsorted(firsts, batch.column(0).to_numpy(zero_copy_only=False), "right") - 1
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array(numpy.unique(at))], names=["at"])

        with spark_work("the archive cannot be searched", self.uri):
            held = frame.select("seqno").mapInArrow(places, "at bigint").distinct().collect()
        return [stretches[at] for at in sorted(one.at for one in held if one.at >= 0)]

    def _transactions(self, wanted: Selection, found: StretchMatches) -> Any:
        return self._rows("transactions", wanted, found)

    def _changes(self, wanted: Selection, found: StretchMatches) -> Any:
        return self._rows("changes", wanted, found)

    def _comments(self, wanted: Selection, found: StretchMatches) -> Any:
        from pyspark.sql import functions as f

        assert wanted.comment is not None
        changes = self._changes(wanted, found)
        return changes.where((f.col("op") == "comment") & f.col("text").contains(f.lit(wanted.comment)))

    def _rows(self, what: str, wanted: Selection, found: StretchMatches) -> Any:
        """Of the transactions whose head is asked for."""
        from pyspark.sql import functions as f

        first, last = found.first_seqno, found.last_seqno
        ranges = [one for one in self.ranges if one.last_seqno >= first and one.first_seqno <= last]
        with spark_work("the archive cannot be read", self.uri):
            require_rows(self.spark, self.uri, what, ranges)
            frame = rows(self.spark, self.uri, what, ranges).where(f.col("seqno").between(first, last))
        if wanted.first_csn:
            frame = frame.where(f.col("csn") >= wanted.first_csn)
        if wanted.last_csn != U64_MAX:
            frame = frame.where(f.col("csn") <= wanted.last_csn)
        return frame.where(f.col("origin").isin(*wanted.origins)) if wanted.origins else frame


def packed_keys(key: Sequence[KeyValue]) -> list[bytes]:
    """Every key that an operator may mean, as the archive has it."""
    found = []
    for values in itertools.product(*map(_values, key)):
        try:
            found.append(msgpack.packb(values, use_bin_type=True))
        except (OverflowError, UnicodeEncodeError):  # no row has it
            continue
    return found


def _values(one: KeyValue) -> list[Any]:
    # 0.0 and -0.0 are one to a comparison, and two as they are packed.
    return [value for _, value in one] + [-value for kind, value in one if kind is float and value == 0]


def _is_told_by_bytes(found: StretchMatches, wanted: Selection) -> bool:
    """Whether the rows that are asked for are those with one of some packed keys."""
    key = wanted.key
    if key is None:
        return True
    tables = [one for one in found.known().definitions.values() if one.name in wanted.tables]
    return not wanted.columns and not any(asked_row(one, key).collations for one in tables)


def _chosen(wanted: Selection, *, by_key: bool = True) -> Any:
    """The condition for a row of `changes` that a selection asks for; not `by_key`: whatever its key."""
    from pyspark.sql import functions as f

    conditions = [f.lit(True)]
    if wanted.ops:
        conditions.append(f.col("op").isin(*(op.name.lower() for op in wanted.ops)))
    if wanted.partitions:
        conditions.append(f.col("partition").isin(*wanted.partitions))
    if wanted.tables:
        conditions.append(functools.reduce(operator.or_, map(_is_of, sorted(wanted.tables))))
    if wanted.key is not None:
        conditions.append(f.col("op").isin("insert", "update", "delete"))
        if by_key:
            conditions.append(f.col("key").isin(*packed_keys(wanted.key)))
    return functools.reduce(operator.and_, conditions)


def _is_of(name: TableName) -> Any:
    from pyspark.sql import functions as f

    region, _, table = name
    return (f.col("region") == region) & (f.col("table_name") == table)


def _told(word: str, value: Any, origins: Mapping[int, str]) -> object:
    """What `audit count` says of a group."""
    if word == "origin":
        return origins.get(value, f"{value:08x}")
    if word == "partition":
        return "" if value is None else ONLY_DEFAULT.name(value)
    return shown_us(value * SPANS_US[word]) if word in SPANS_US else value


def _group(word: str) -> Any:
    """The column that a word of `audit count --by` groups by."""
    from pyspark.sql import functions as f

    if word == "table":
        return (
            f.when(f.col("table_name").isNull(), "").otherwise(f.concat("region", f.lit("."), "table_name")).alias(word)
        )
    if word in SPANS_US:
        return f.floor(f.shiftright("csn", CSN_COUNTER_BITS) / SPANS_US[word]).alias(word)
    return f.col(word)
