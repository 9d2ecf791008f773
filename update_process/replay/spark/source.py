"""The Spark data source `replicate-journal`: raw journal segments as a table, read in parallel.

    spark.dataSource.register(JournalDataSource)
    spark.read.format("replicate-journal").option("path", "INSTANCE/journal").load()

Options: `path` (a directory of segments; needed), `rows` (`changes`, the default, or `transactions`), `first` and
`last` (numbers; what is read lies between them), `columns` (names with commas between; less is made and carried then,
since Spark does not say which ones it wants), `block_bytes`. Conditions on `seqno` are pushed down:
blocks outside of them are not read (`spark.sql.python.filterPushdown.enabled`). For an archive there is a third value
of `rows`: `files` has each block's rows written into the directory `into`, and gives the files' names.

Guarantees: rows come as Arrow batches; a hole or a damaged byte fails the query by name.
Leaves to others: sessions, archives, replays.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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

from replicate.audit.chain_parts import ChainPart, part_with
from replicate.errors import UsageError
from update_process.replay.archive.arrow_rows import batches_of, change_batches, transaction_batches
from update_process.replay.archive.blocks import BLOCK_BYTES, COLUMNS, Block, BlockReader, plan_blocks
from update_process.replay.archive.parquet import write_hidden

NAME: Final = "replicate-journal"
FILES: Final = "files"
"""The value of `rows` with which an archive is written: into the directory `into`, below names that `name` ends."""
FILE_COLUMNS: Final = (("what", "string"), ("file", "string"), ("rows", "bigint"))
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
        self.columns = _columns(options)
        self.block_bytes = int(options.get("block_bytes", BLOCK_BYTES))
        self.into = Path(options.get("into", ""))
        self.name = options.get("name", "")

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
        chain = part_with(self.path, self.first)  # a hole in front of it, or after what is wanted, is no matter
        first = max(self.first, chain.oldest_seqno() if self.first == 1 else 1)
        last = self.last
        is_newest = not isinstance(chain, ChainPart) or chain.is_newest
        if is_newest and last >= chain.last_segment().first_seqno:
            last = min(last, chain.scan_last()[1].last_seqno)
        return [BlockPartition(block) for block in plan_blocks(chain, first, last, self.block_bytes)]

    def read(self, partition: BlockPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one block within the range."""
        batches = change_batches if self.rows == "changes" else transaction_batches
        with _no_collector():
            if self.rows == FILES:
                yield self._written(partition.block)
            else:
                yield from batches(BlockReader(partition.block), self.first, self.last, self.columns)

    def _written(self, block: Block) -> pa.RecordBatch:
        """Write the block's rows, of each kind into a file of its own; what they are."""
        made = []
        for what in COLUMNS:
            found = batches_of(BlockReader(block), what, self.first, self.last)
            folder = self.into / what / self.name
            made.append((what, *write_hidden(folder, what, block.first_seqno, found)))
        names = [name for name, _ in FILE_COLUMNS]
        return pa.RecordBatch.from_arrays([pa.array(one) for one in zip(*made, strict=True)], names=names)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Rows by the million are no cycles: a fifth of the time. Others may work in this process afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _columns(options: dict[str, str]) -> list[str]:
    """The columns that are wanted, in the order of the table. UsageError."""
    rows = options.get("rows", "changes")
    names = [name for name, _ in (FILE_COLUMNS if rows == FILES else COLUMNS[rows])]
    asked = options.get("columns")
    if asked is None:
        return names
    wanted = {name.strip() for name in asked.split(",")}
    if not wanted <= set(names):
        raise UsageError(f"{NAME} has no column {min(wanted.difference(names))}", do=f"It has {', '.join(names)}")
    return [name for name in names if name in wanted]


class JournalDataSource(DataSource):
    """`replicate-journal`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """By the option `rows`. UsageError."""
        rows = self.options.get("rows", "changes")
        if rows == FILES:
            return ", ".join(f"`{name}` {kind}" for name, kind in FILE_COLUMNS)
        if rows not in COLUMNS or not self.options.get("path"):
            raise UsageError(
                f"{NAME} needs the option path, and rows is {' or '.join(COLUMNS)}", do="Give these options"
            )
        kinds = dict(COLUMNS[rows])
        return ", ".join(f"`{name}` {kinds[name]}" for name in _columns(dict(self.options)))

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return JournalReader(dict(self.options))
