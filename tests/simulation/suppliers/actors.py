"""The processes of a world of suppliers beside the daemons: writers on every host, and an operator.

Guarantees: a writer writes what it may, tells the oracle what it was told, and no more.
Leaves to others: faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import replicate.journal.spool
import replicate.journal.spool_format
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, NotFoundError, NotPrimaryError
from replicate.region.protocol import CapturedChanges, FileFacts
from replicate.roles.retiring import retire
from tests.simulation.actors import AnyWriter
from tests.simulation.content import Content
from tests.simulation.draft import Draft
from tests.simulation.host import REGIONS, SimulatedInstance
from tests.simulation.regions import INODE
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
SHARED_TABLES: Final = tuple(make(region).table_id for region in REGIONS for make in (shared_table, named_table))
CONNECTIONS: Final = (REGIONS, REGIONS, REGIONS[::-1], REGIONS[:1], REGIONS[1:])
"""Where there are two regions: those that an application opens, the first one as main."""
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
        first, *others = world.dice.choice(CONNECTIONS) if world.climate.regions > 1 else ("main",)
        super().__init__(world, opened(host, first, others))
        self._name = host.name
        self._schemas = {part.entry.name: part.schema for part in self.session.parts}

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
        regions = self._regions()
        own = self._own(self._content(regions[0]))
        is_shared = world.climate.is_shared and dice.random() < world.climate.shared_share
        draft = Draft(world, self._content, by, is_large=not beside and dice.random() < world.climate.large_share)
        partitions: dict[int, None] = {}
        for region in regions:
            self._change(draft, region, own, partitions, is_shared=is_shared, is_small=beside)
        world.oracle.on_submitted(by, draft.flat)
        payload = draft.payload
        kind = "large" if draft.is_large else ""
        world.log("commits", by, draft.kinds, len(payload), kind, "shared" if is_shared else "", *regions[1:])
        touched = {self._schemas[one]: False for one in regions} if len(self._schemas) > 1 else None
        world.figures["commits in two regions"] += len(regions) > 1
        if draft.is_large and payload:
            spool = self.spooled(payload)
            world.oracle.spooled[spool.origin, spool.token] = by
            return CapturedChanges(b"", draft.elements, tuple(partitions), False, spool, False, touched)
        own_tables = {table_of(own, one).table_id: partition_of(own) for one in REGIONS}
        tables = {**own_tables, **dict.fromkeys(SHARED_TABLES, SHARED_PARTITION)}
        several = tables if len(partitions) > 1 else None
        return CapturedChanges(payload, draft.elements, tuple(partitions), False, None, False, touched, several)

    def _regions(self) -> tuple[str, ...]:
        """Those that the next transaction changes, of those that it has."""
        here, dice = tuple(self._schemas), self.world.dice
        return here if len(here) < 2 or dice.random() < 0.5 else (dice.choice(here),)

    def _content(self, region: str) -> Content:
        return self.session.connection.working(self._schemas[region])  # type: ignore[no-any-return]

    def _own(self, content: Content) -> str:
        """Whose tables it alone writes: its own, or those of one that is gone."""
        names = self.world.climate.names
        own = [one for one in names if not content.writers.not_of(uuid_of(self._name), (partition_of(one),))]
        return self.world.dice.choice(own) if len(own) > 1 else self._name  # type: ignore[no-any-return]

    def _change(
        self, draft: Draft, region: str, own: str, partitions: dict[int, None], *, is_shared: bool, is_small: bool
    ) -> None:
        """Rows of a region."""
        world, dice = self.world, self.world.dice
        if is_shared:
            partitions[SHARED_PARTITION] = None
            for _ in range(dice.choice([4, 8]) if draft.is_large else dice.choice([1, 1, 2])):
                is_named = dice.random() < world.climate.named_share
                (self._change_named if is_named else self._change_shared)(draft, region)
        if not is_shared or dice.random() < 0.2:
            partitions[partition_of(own)] = None
            draft.change_some(table_of(own, region), world.climate.sizes, is_small=is_small)

    def _change_shared(self, draft: Draft, region: str) -> None:
        """The row of some key: made, changed in some columns, or gone."""
        dice, table, by = self.world.dice, shared_table(region), draft.by
        key = dice.randrange(1, KEYS + 1)
        before = draft.rows_of(table).get(key)
        if before is not None and by in before:
            return
        if before is None:
            draft.put(table, None, (key, by, by, by))
        elif dice.random() < 0.15 and draft.flat:
            draft.put(table, before, None)
        else:
            columns = dice.choice([(1,), (2,), (3,), (2, 3), (1, 2)])
            draft.put(table, before, tuple(by if at in columns else value for at, value in enumerate(before)))

    def _change_named(self, draft: Draft, region: str) -> None:
        """The row of some key: made, under a name that no row has here, or none, or named otherwise, or gone."""
        dice, table = self.world.dice, named_table(region)
        key = dice.randrange(1, KEYS + 1)
        rows = draft.rows_of(table)
        before = rows.get(key)
        if before is not None and draft.by in before:
            return
        if before is not None and dice.random() < 0.2 and draft.flat:
            draft.put(table, before, None)
            return
        free = [name for name in NAMES if name not in {row[1] for row in rows.values()}]
        name = dice.choice([*free, None]) if before is None or dice.random() < 0.7 else before[1]
        draft.put(table, before, (key, name, draft.by))


def opened(host: Any, first: str, others: Sequence[str]) -> RegionSession:
    """A session of one region, with others attached."""
    session = RegionSession(open_door(SimulatedInstance.open(host.path)), first)
    for name in others:
        session.attach(session.door.instance.region(name), f"at_{name}", FileFacts(7, INODE), str)
    return session


async def writer(world: Any) -> None:
    await SupplierWriter(world).run()


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees what hosts append, and what sources send and hear."""
    small = [(module, "PART_BYTES", PART_BYTES) for module in (replicate.journal.spool, replicate.journal.spool_format)]
    with watched_frames(world), replaced(*small):
        yield
