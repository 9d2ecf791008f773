"""The processes of a world of suppliers: the product's daemons as they are, and writers on every host.

Guarantees: a writer writes what it may, tells the oracle what it was told, and no more.
Refuses to know: faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import receiver_server.process
import replicate.door.door
import replicate.journal.spool
import replicate.journal.spool_format
import source_server.consumer_state
import source_server.link
import source_server.process
import update_process.process
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, NotFoundError, NotPrimaryError
from replicate.journal.segment import SegmentFile
from replicate.model.transaction import Op, TableDefinition
from replicate.region.protocol import CapturedChanges
from replicate.roles.retiring import retire
from tests.simulation.actors import AnyWriter, Context, replaced, watched_links
from tests.simulation.base import Main
from tests.simulation.host import SimulatedInstance
from tests.simulation.suppliers.content import Content, Image
from tests.simulation.suppliers.template import (
    SHARED_PARTITION,
    named_table,
    partition_of,
    shared_table,
    table_of,
    uuid_of,
)
from tests.simulation.template import change

KEYS: Final = 5
"""Of the table that all write."""
NAMES: Final = ("n1", "n2")
"""That a row may have."""
SHARED_TABLES: Final = (shared_table().table_id, named_table().table_id)
PART_BYTES: Final = 60
"""Of a large transaction: a change or two of the table that all write."""


def source(peer: str) -> Main:
    """The Source Server to that peer."""

    async def main(world: Any) -> None:
        await source_server.process.serve(Context(world, f"source-{peer}"), peer)  # type: ignore[arg-type]

    return main


async def receiver(world: Any) -> None:
    await receiver_server.process.serve(Context(world, "receiver"))  # type: ignore[arg-type]


async def update(world: Any) -> None:
    await update_process.process.serve(Context(world, "update"))  # type: ignore[arg-type]


async def operator(world: Any) -> None:
    """Says that one is gone for good, again and again until it is retired."""
    gone, _ = world.climate.gone
    host = world.kernel.process.host
    while True:
        with contextlib.suppress(BusyError, NotFoundError):  # NotFoundError: nothing of it has come here yet
            if retire(SimulatedInstance.open(host.path), gone, timeout_s=0).is_retired:
                await world.kernel.suspend()
        await world.kernel.sleep(1.0)


class SupplierWriter(AnyWriter):
    """One of a supplier's: changes rows of what it alone writes, and of the table that all write."""

    def __init__(self, world: Any) -> None:
        host = world.kernel.process.host
        super().__init__(world, RegionSession(open_door(SimulatedInstance.open(host.path)), "main"))
        self._name = host.name
        self._pieces: list[bytes] = []
        self._flat: list[Any] = []

    def commit(self, *, beside: bool = False) -> None:
        """As any writer does; not while this supplier waits for what it had before it was restored."""
        if self.world.climate.turned_back is None:
            super().commit(beside=beside)
            return
        with contextlib.suppress(NotPrimaryError):
            super().commit(beside=beside)

    def acknowledged(self, rows: list[int]) -> None:
        """They are committed."""
        self.world.oracle.on_acknowledged(self._name, rows)

    def make(self, rows: list[int], *, beside: bool) -> CapturedChanges:
        """Some changes, all of which bear the transaction's name."""
        world, dice = self.world, self.world.dice
        by = world.next_row()
        rows.append(by)
        self._pieces, self._flat = [], []
        content: Content = self.session.connection.working()
        own = self._own(content)
        is_shared = world.climate.is_shared and dice.random() < world.climate.shared_share
        is_large = not beside and dice.random() < world.climate.large_share
        partitions: dict[int, None] = {}
        if is_shared:
            partitions[SHARED_PARTITION] = None
            for _ in range(dice.choice([4, 8]) if is_large else dice.choice([1, 1, 2])):
                is_named = dice.random() < world.climate.named_share
                (self._change_named if is_named else self._change_shared)(content, by)
        if not is_shared or dice.random() < 0.2:
            partitions[own.partition] = None
            count = dice.randrange(4, 9) if is_large else dice.choice([1, 1, 1, 2, 4])
            size = 400 if is_large else dice.choice([8, 8, 40, 150] if count > 1 or beside else world.climate.sizes)
            for number in range(count):
                self._change_own(content, own, by, size, is_first=not number)
        world.oracle.on_submitted(by, self._flat)
        payload, count = b"".join(self._pieces), 4 * len(self._pieces)
        kinds = "".join("?IUD"[op] for op in self._flat[0::4])
        world.log("commits", by, kinds, len(payload), "large" if is_large else "", "shared" if is_shared else "")
        if is_large and payload:
            spool = self.spooled(payload)
            world.oracle.spooled[spool.origin, spool.token] = by
            return CapturedChanges(b"", count, tuple(partitions), False, spool, False)
        tables = {own.table_id: own.partition, **dict.fromkeys(SHARED_TABLES, SHARED_PARTITION)}
        return CapturedChanges(
            payload, count, tuple(partitions), False, None, False, None, tables if len(partitions) > 1 else None
        )

    def _own(self, content: Content) -> TableDefinition:
        """A table that it alone writes: its own, or that of one that is gone."""
        names = self.world.climate.names
        own = [one for one in names if not content.writers.not_of(uuid_of(self._name), (partition_of(one),))]
        return table_of(self.world.dice.choice(own) if len(own) > 1 else self._name)

    def _change_own(self, content: Content, table: TableDefinition, by: int, size: int, *, is_first: bool) -> None:
        """A row more, or another one, or one less: of what this transaction has not touched."""
        dice = self.world.dice
        rows = content.rows[table.table]
        body = bytes(dice.randrange(size + 1))
        lot = dice.random()
        old = [row for row in rows.values() if row[1] != by]
        if lot < 0.6 or not old:
            self._put(content, table, None, (self.world.next_row(), by, body))
            return
        before = dice.choice(old)
        if lot < 0.85 or is_first:
            self._put(content, table, before, (before[0], by, body))
        else:
            self._put(content, table, before, None)

    def _change_shared(self, content: Content, by: int) -> None:
        """The row of some key: made, changed in some columns, or gone."""
        dice, table = self.world.dice, shared_table()
        key = dice.randrange(1, KEYS + 1)
        before = content.rows[table.table].get(key)
        if before is not None and by in before:
            return
        if before is None:
            self._put(content, table, None, (key, by, by, by))
        elif dice.random() < 0.15 and self._flat:
            self._put(content, table, before, None)
        else:
            columns = dice.choice([(1,), (2,), (3,), (2, 3), (1, 2)])
            self._put(content, table, before, tuple(by if at in columns else value for at, value in enumerate(before)))

    def _change_named(self, content: Content, by: int) -> None:
        """The row of some key: made, under a name that no row has here, or none, or named otherwise, or gone."""
        dice, table = self.world.dice, named_table()
        key = dice.randrange(1, KEYS + 1)
        rows = content.rows[table.table]
        before = rows.get(key)
        if before is not None and by in before:
            return
        if before is not None and dice.random() < 0.2 and self._flat:
            self._put(content, table, before, None)
            return
        free = [name for name in NAMES if name not in {row[1] for row in rows.values()}]
        name = dice.choice([*free, None]) if before is None or dice.random() < 0.7 else before[1]
        self._put(content, table, before, (key, name, by))

    def _put(self, content: Content, table: TableDefinition, before: Image | None, after: Image | None) -> None:
        argument, values = 0, list(after or before or ())
        op = Op.INSERT if before is None else Op.DELETE
        if before is not None and after is not None:
            op = Op.UPDATE
            changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
            argument, values = sum(1 << at for at in changed), [*(after[at] for at in changed), *before]
        content.change(table, op, argument, values)
        self._pieces.append(change(op, table.table_id, argument, values))
        self._flat += [int(op), table.table_id, argument, values]


async def writer(world: Any) -> None:
    await SupplierWriter(world).run()


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees what hosts append, and what sources send and hear."""
    oracle = world.oracle
    state_class, link_class = source_server.consumer_state.ConsumerState, source_server.link.SourceLink
    kept = SimpleNamespace(
        acknowledged=state_class.acknowledged, send_batch=link_class.send_batch, send_large=link_class.send_large,
        append=SegmentFile.append, adopt=replicate.door.door.adopt,
    )  # fmt: skip

    def here() -> str:
        return str(world.kernel.process.host.name)

    def acknowledged(self: Any, event: Any) -> None:
        oracle.on_reported(here(), self.peer_name, event.reply.last_durable_seqno)
        kept.acknowledged(self, event)

    def send_batch(self: Any, batch: Any) -> None:
        kept.send_batch(self, batch)
        oracle.on_sent(here(), batch.data)

    def send_large(self: Any, seqno: int, token: int, parts: int, frame: bytes) -> None:
        kept.send_large(self, seqno, token, parts, frame)
        oracle.on_sent(here(), frame)

    def append(self: Any, offset: int, data: Any) -> int:
        frames = data if isinstance(data, bytes) else b"".join(map(bytes, data))
        name, has_failed = here(), False
        try:
            return int(kept.append(self, offset, data))
        except Exception:
            has_failed = True
            raise
        finally:  # also where it was killed: some of it may be there
            if any(frames[:1]) and not has_failed:  # zeros: what stood there is taken out
                oracle.on_appended(name, frames)

    def adopt(spool: Any, header: Any, frame: bytes, catalogue: Any, **more: Any) -> str:
        oracle.on_appended(here(), frame)
        return str(kept.adopt(spool, header, frame, catalogue, **more))

    watching = replaced(
        (replicate.journal.spool, "PART_BYTES", PART_BYTES),
        (replicate.journal.spool_format, "PART_BYTES", PART_BYTES),
        (state_class, "acknowledged", acknowledged),
        (link_class, "send_batch", send_batch),
        (link_class, "send_large", send_large),
        (SegmentFile, "append", append),
        (replicate.door.door, "adopt", adopt),
    )
    with watched_links(world), watching:
        yield
