"""The processes of a world of suppliers beside the daemons: writers on every host, and an operator.

Guarantees: a writer writes what it may, tells the oracle what it was told, and no more.
Leaves to others: faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import replicate.journal.spool
import replicate.journal.spool_format
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, NotFoundError, NotPrimaryError
from replicate.model.transaction import TableDefinition
from replicate.region.protocol import CapturedChanges
from replicate.roles.retiring import retire
from tests.simulation.actors import AnyWriter
from tests.simulation.content import Content
from tests.simulation.draft import Draft
from tests.simulation.host import SimulatedInstance
from tests.simulation.replaced import replaced
from tests.simulation.suppliers.template import (
    SHARED_PARTITION,
    named_table,
    partition_of,
    shared_table,
    table_of,
)
from tests.simulation.template import uuid_of
from tests.simulation.watching import watched_frames

KEYS: Final = 5
"""Of the table that all write."""
NAMES: Final = ("n1", "n2")
"""That a row may have."""
SHARED_TABLES: Final = (shared_table().table_id, named_table().table_id)
PART_BYTES: Final = 60
"""Of a large transaction: a change or two of the table that all write."""


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
        content: Content = self.session.connection.working()
        own = self._own(content)
        is_shared = world.climate.is_shared and dice.random() < world.climate.shared_share
        draft = Draft(world, content, by, is_large=not beside and dice.random() < world.climate.large_share)
        partitions: dict[int, None] = {}
        if is_shared:
            partitions[SHARED_PARTITION] = None
            for _ in range(dice.choice([4, 8]) if draft.is_large else dice.choice([1, 1, 2])):
                is_named = dice.random() < world.climate.named_share
                (self._change_named if is_named else self._change_shared)(draft)
        if not is_shared or dice.random() < 0.2:
            partitions[own.partition] = None
            draft.change_some(own, world.climate.sizes, is_small=beside)
        world.oracle.on_submitted(by, draft.flat)
        payload = draft.payload
        kind = "large" if draft.is_large else ""
        world.log("commits", by, draft.kinds, len(payload), kind, "shared" if is_shared else "")
        if draft.is_large and payload:
            spool = self.spooled(payload)
            world.oracle.spooled[spool.origin, spool.token] = by
            return CapturedChanges(b"", draft.elements, tuple(partitions), False, spool, False)
        tables = {own.table_id: own.partition, **dict.fromkeys(SHARED_TABLES, SHARED_PARTITION)}
        several = tables if len(partitions) > 1 else None
        return CapturedChanges(payload, draft.elements, tuple(partitions), False, None, False, None, several)

    def _own(self, content: Content) -> TableDefinition:
        """A table that it alone writes: its own, or that of one that is gone."""
        names = self.world.climate.names
        own = [one for one in names if not content.writers.not_of(uuid_of(self._name), (partition_of(one),))]
        return table_of(self.world.dice.choice(own) if len(own) > 1 else self._name)

    def _change_shared(self, draft: Draft) -> None:
        """The row of some key: made, changed in some columns, or gone."""
        dice, table, by = self.world.dice, shared_table(), draft.by
        key = dice.randrange(1, KEYS + 1)
        before = draft.content.rows[table.table].get(key)
        if before is not None and by in before:
            return
        if before is None:
            draft.put(table, None, (key, by, by, by))
        elif dice.random() < 0.15 and draft.flat:
            draft.put(table, before, None)
        else:
            columns = dice.choice([(1,), (2,), (3,), (2, 3), (1, 2)])
            draft.put(table, before, tuple(by if at in columns else value for at, value in enumerate(before)))

    def _change_named(self, draft: Draft) -> None:
        """The row of some key: made, under a name that no row has here, or none, or named otherwise, or gone."""
        dice, table = self.world.dice, named_table()
        key = dice.randrange(1, KEYS + 1)
        rows = draft.content.rows[table.table]
        before = rows.get(key)
        if before is not None and draft.by in before:
            return
        if before is not None and dice.random() < 0.2 and draft.flat:
            draft.put(table, before, None)
            return
        free = [name for name in NAMES if name not in {row[1] for row in rows.values()}]
        name = dice.choice([*free, None]) if before is None or dice.random() < 0.7 else before[1]
        draft.put(table, before, (key, name, draft.by))


async def writer(world: Any) -> None:
    await SupplierWriter(world).run()


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees what hosts append, and what sources send and hear."""
    small = [(module, "PART_BYTES", PART_BYTES) for module in (replicate.journal.spool, replicate.journal.spool_format)]
    with watched_frames(world), replaced(*small):
        yield
