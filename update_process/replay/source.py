"""The Spark data source `replicate-journal`: raw journal segments as a table, read in parallel.

    spark.dataSource.register(JournalDataSource)
    spark.read.format("replicate-journal").option("path", "INSTANCE/journal").load()

Options: `path` (a directory of segments; needed), `rows` (`changes`, the default, or `transactions`), `first` and
`last` (numbers; what is read lies between them), `block_bytes`. Conditions on `seqno` are pushed down:
blocks outside of them are not read (`spark.sql.python.filterPushdown.enabled`).

Guarantees: rows come as Arrow batches; a hole or a damaged byte fails the query by name.
Refuses to know: sessions, archives, replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from replicate.errors import UsageError
from replicate.journal.chain import Chain
from update_process.replay.blocks import BLOCK_BYTES, COLUMNS, Block, BlockReader, plan_blocks

NAME: Final = "replicate-journal"
BATCH_ROWS: Final = 16 * 1024
_ARROW: Final = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_LAST: Final = 2**62


@dataclass
class BlockPartition(InputPartition):
    """One block."""

    block: Block

    def __init__(self, block: Block) -> None:
        super().__init__(None)
        self.block = block


class JournalReader(DataSourceReader):
    """Plans blocks on the driver, decodes them on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self.path = options["path"]
        self.rows = options.get("rows", "changes")
        self.first = int(options.get("first", 1))
        self.last = int(options.get("last", _LAST))
        self.block_bytes = int(options.get("block_bytes", BLOCK_BYTES))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the range; every filter is still Spark's to apply, since a block is read whole."""
        for one in filters:
            if getattr(one, "attribute", None) == ("seqno",):
                value = getattr(one, "value", None)
                if isinstance(value, int):
                    self._narrow(one, value)
            yield one

    def _narrow(self, one: Filter, value: int) -> None:
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            self.first = max(self.first, value + isinstance(one, GreaterThan))
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
            self.last = min(self.last, value - isinstance(one, LessThan))

    def partitions(self) -> list[BlockPartition]:
        """The blocks; what lies above the last whole transaction is not there yet."""
        chain = Chain(self.path)
        first = max(self.first, chain.oldest_seqno() if self.first == 1 else 1)
        last = self.last
        if last >= chain.last_segment().first_seqno:
            last = min(last, chain.scan_last()[1].last_seqno)
        return [BlockPartition(block) for block in plan_blocks(chain, first, last, self.block_bytes)]

    def read(self, partition: BlockPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one block within the range."""
        columns = COLUMNS[self.rows]
        schema = pa.schema([(name, _ARROW[kind]) for name, kind in columns])
        rows = (row for row in BlockReader(partition.block).rows(self.rows) if self.first <= row[0] <= self.last)
        while batch := list(islice(rows, BATCH_ROWS)):
            arrays: list[Any] = [
                pa.array(values, type=field.type)
                for values, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class JournalDataSource(DataSource):
    """`replicate-journal`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """By the option `rows`. UsageError."""
        rows = self.options.get("rows", "changes")
        if rows not in COLUMNS or not self.options.get("path"):
            raise UsageError(
                f"{NAME} needs the option path, and rows is {' or '.join(COLUMNS)}", do="Give these options"
            )
        return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS[rows])

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return JournalReader(dict(self.options))
