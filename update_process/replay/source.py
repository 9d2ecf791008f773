"""The Spark data source `replicate-journal`: raw journal segments as a table, read in parallel.

    spark.dataSource.register(JournalDataSource)
    spark.read.format("replicate-journal").option("path", "INSTANCE/journal").load()

Options: `path` (a directory of segments; needed), `rows` (`changes`, the default, or `transactions`), `first` and
`last` (numbers; what is read lies between them), `columns` (names with commas between; less is made and carried then,
since Spark does not say which ones it wants), `block_bytes`. Conditions on `seqno` are pushed down:
blocks outside of them are not read (`spark.sql.python.filterPushdown.enabled`).

Guarantees: rows come as Arrow batches; a hole or a damaged byte fails the query by name.
Refuses to know: sessions, archives, replays.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
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
from replicate.transaction import Op
from update_process.replay.blocks import (
    BATCH_ROWS,
    BLOCK_BYTES,
    CHANGE_COLUMNS,
    COLUMNS,
    TRANSACTION_COLUMNS,
    Block,
    BlockReader,
    ChangeRows,
    plan_blocks,
)

NAME: Final = "replicate-journal"
_ARROW: Final = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_LAST: Final = 2**62
_OF_TRANSACTION: Final = tuple(
    one for one in CHANGE_COLUMNS[: CHANGE_COLUMNS.index(("wall", "timestamp")) + 1] if one[0] != "place"
)
_OF_TABLE: Final = CHANGE_COLUMNS[
    CHANGE_COLUMNS.index(("partition", "bigint")) : CHANGE_COLUMNS.index(("op", "string"))
]
_OPS: Final = pa.array([{int(op): op.name.lower() for op in Op}.get(number) for number in range(max(Op) + 1)])
"""By number."""


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
        gc.disable()  # the process serves our tasks only, and millions of rows are no cycles: a fifth of the time
        reader = BlockReader(partition.block)
        if self.rows == "changes":
            for rows in reader.changes(self.first, self.last):
                yield arrow_changes(rows, self.columns)
            return
        found = reader.transactions(self.first, self.last)
        while batch := list(islice(found, BATCH_ROWS)):
            yield _table(TRANSACTION_COLUMNS, batch).select(self.columns)


def arrow_changes(rows: ChangeRows, columns: Sequence[str]) -> pa.RecordBatch:
    """Those columns of some rows. What rows share is made once, and copied in C."""
    transactions = _table(_OF_TRANSACTION, rows.transactions)
    tables = _table(_OF_TABLE, rows.tables)
    transaction_at, table_at = pa.array(rows.transaction_at, pa.int32()), pa.array(rows.table_at, pa.int32())
    made: list[Any] = []
    for name in columns:
        if name in transactions.schema.names:
            made.append(transactions.column(name).take(transaction_at))
        elif name in tables.schema.names:
            made.append(tables.column(name).take(table_at))
        elif name == "op":
            made.append(_OPS.take(pa.array(rows.ops, pa.int32())))
        elif name == "text":
            texts = [rows.texts.get(at) for at in range(len(rows.keys))] if rows.texts else None
            made.append(pa.nulls(len(rows.keys), pa.string()) if texts is None else pa.array(texts, pa.string()))
        else:
            values = {"place": rows.places, "key": rows.keys, "before": rows.befores, "after": rows.afters}[name]
            made.append(pa.array(values, type=_ARROW[dict(CHANGE_COLUMNS)[name]]))
    return pa.RecordBatch.from_arrays(made, names=list(columns))


def _table(columns: Sequence[tuple[str, str]], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    values = zip(*rows, strict=True) if rows else repeat((), len(columns))
    arrays = [pa.array(one, type=_ARROW[kind]) for one, (_, kind) in zip(values, columns, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def _columns(options: dict[str, str]) -> list[str]:
    """The columns that are wanted, in the order of the table. UsageError."""
    names = [name for name, _ in COLUMNS[options.get("rows", "changes")]]
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
        if rows not in COLUMNS or not self.options.get("path"):
            raise UsageError(
                f"{NAME} needs the option path, and rows is {' or '.join(COLUMNS)}", do="Give these options"
            )
        kinds = dict(COLUMNS[rows])
        return ", ".join(f"`{name}` {kinds[name]}" for name in _columns(dict(self.options)))

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return JournalReader(dict(self.options))
