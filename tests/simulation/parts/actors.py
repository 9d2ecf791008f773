"""Who writes in a world with partitions: ../actors.py's writer, whose transactions go over tables of several partitions
and now and then put a table into another one, as `partition assign` does.

Guarantees: as there. Leaves to others: faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import source_server.link
from replicate.admin import subscriptions
from replicate.admin.subscriptions import set_
from replicate.errors import BusyError
from replicate.journal.record import read_part
from replicate.limits import PARTITION_NONE
from replicate.model.partitions import MOVED_EMPTY
from replicate.model.transaction import Op, TableDefinition
from replicate.region.protocol import CapturedChanges
from tests.simulation import actors
from tests.simulation.host import REGIONS, SimulatedInstance
from tests.simulation.parts.climate import PARTITIONS
from tests.simulation.parts.template import define, definition_of, name_of
from tests.simulation.replaced import replaced
from tests.simulation.template import change


def _schema(region: int) -> str:
    return "main" if region == 0 else REGIONS[region]


class PartsWriter(actors.Writer):
    """One of the primary's: inserts rows into tables of any partition."""

    def _now(self, number: int) -> TableDefinition:
        """The n-th table as it is committed; the transaction has the write lock."""
        region, _ = self.world.climate.placed[number]
        connection: Any = self.session.connection
        found: TableDefinition = connection.parts[_schema(region)].state[name_of(number)]
        return found

    def _all(self) -> dict[int, TableDefinition]:
        return {number: self._now(number) for number in range(len(self.world.climate.placed))}

    def make(self, rows: list[int], *, beside: bool) -> CapturedChanges:
        """New rows; or a table moves."""
        climate, dice = self.world.climate, self.world.dice
        if not beside and not climate.is_even and dice.random() < climate.move_share:
            number = dice.randrange(len(climate.placed))
            before = self._now(number)
            after = dice.choice([*range(1, 1 + PARTITIONS), PARTITION_NONE])
            if after != before.partition and climate.may_move(before.partition, after):
                return self._move(number, before, after)
        return super().make(rows, beside=beside)

    def _move(self, number: int, before: TableDefinition, partition: int) -> CapturedChanges:
        world = self.world
        self._is_large = False
        region, _ = world.climate.placed[number]
        connection: Any = self.session.connection
        after = self._next(number, partition)
        has_rows = any(world.table_of.get(row) == number for row in connection.parts[_schema(region)].rows)
        came = before.partition | (0 if has_rows else MOVED_EMPTY)
        payload = change(Op.COMMENT, after.table_id, came, ["moved"]) + define(after)
        self._defined(after, region)
        connection.open(_schema(region)).schema += 1
        world.log("moves", after.table, before.partition, partition)
        world.figures["tables moved"] += 1
        names = {_schema(region): True} if world.climate.regions > 1 else None
        return CapturedChanges(payload, 8, tuple(sorted({before.partition, partition})), True, None, True, names)

    def _next(self, number: int, partition: int) -> TableDefinition:
        self.world.forms[number] += 1
        return definition_of(number, self.world.climate.placed[number][0], partition, self.world.forms[number])

    def _defined(self, definition: TableDefinition, region: int) -> None:
        connection: Any = self.session.connection
        connection.open(_schema(region)).state[definition.table] = definition

    def _regions_of(self, rows: list[int]) -> dict[int, list[int]]:
        """Each row has a table, any of them, and so a partition; number of the region -> the rows that go there."""
        world, dice = self.world, self.world.dice
        placed, partition_of, found = world.climate.placed, {}, dict[int, list[int]]()
        for row in rows:
            number = world.table_of[row] = dice.randrange(len(placed))
            partition_of[row] = self._now(number).partition
            found.setdefault(placed[number][0], []).append(row)
        world.oracle.partition_of.update(partition_of)
        return {region: found[region] for region in sorted(found)}

    def _changes(self, parts: dict[int, list[int]], *, is_plain: bool) -> CapturedChanges:
        world, dice = self.world, self.world.dice
        climate, is_large = world.climate, self._is_large
        connection: Any = self.session.connection
        several = sum(map(len, parts.values())) > 1 or is_plain
        size = 400 if is_large else dice.choice([8, 8, 40, 150] if several else climate.sizes)
        known, pieces, touched, sections = self._all(), list[bytes](), dict[str, bool](), set[int]()
        for region, rows in parts.items():
            schema = _schema(region)
            touched[schema] = defines = not is_plain and not climate.is_even and dice.random() < climate.define_share
            if defines:
                number = world.table_of[rows[0]]
                known[number] = after = self._next(number, known[number].partition)
                pieces += [change(Op.SCHEMA, 0, REGIONS[region], ["ALTER"]), define(after)]
                self._defined(after, region)
            for row in rows:
                table = known[world.table_of[row]]
                count = 40 if climate.is_even else dice.randrange(size + 1)
                more = [None] * (len(table.columns) - 2) if climate.has_list(world.table_of[row]) else []
                pieces.append(change(Op.INSERT, table.table_id, 0, [row, bytes(count), *more]))
                sections.add(table.partition)
            connection.run(rows, version=int(defines), schema=schema)
        defines = any(touched.values())
        payload, changes = b"".join(pieces), 4 * len(pieces)
        partitions = tuple(sorted(sections))
        world.log("commits", parts, partitions, len(payload), "large" if is_large else "", "defines" if defines else "")
        names = touched if climate.regions > 1 else None
        is_mixed = len(sections) + defines > 1
        tables = {one.table_id: one.partition for one in self._all().values()} if is_mixed else None
        world.figures["transactions over several partitions"] += len(partitions) > 1
        if not is_large:
            return CapturedChanges(payload, changes, partitions, defines, None, defines, names, tables)
        return CapturedChanges(b"", changes, partitions, defines, self.spooled(payload), defines, names)


async def writer(world: Any) -> None:
    await PartsWriter(world).run()


async def operator(world: Any) -> None:
    """The secondary's: wants less from some moment on, and says so until it is done."""
    climate = world.climate
    await world.kernel.sleep(max(0.0, climate.gives_up_s - world.kernel.now))
    while True:
        try:
            set_(SimulatedInstance.open("/oslo"), list(map(str, climate.left)))
        except BusyError:
            await world.kernel.sleep(0.2)
            continue
        world.figures["subscriptions given up in part"] += 1
        await world.kernel.suspend()


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees each change that leaves the primary, too."""
    oracle, link_class = world.oracle, source_server.link.SourceLink
    kept = SimpleNamespace(
        send_batch=link_class.send_batch, send_parts=link_class.send_parts, send_large=link_class.send_large
    )

    def send_batch(self: Any, batch: Any) -> None:
        oracle.on_leaving_batch(batch.data)
        kept.send_batch(self, batch)

    def send_parts(self: Any, seqno: int, token: int, first_part: int, count: int, frames: bytes) -> None:
        begin = 0
        for number in range(first_part, first_part + count):
            head, found, _ = read_part(frames, begin)
            assert found == number
            end = begin + head.frame_bytes
            oracle.on_leaving_part(token, number, bytes(frames[begin:end]))
            begin = end
        kept.send_parts(self, seqno, token, first_part, count, frames)

    def send_large(self: Any, seqno: int, token: int, parts: int, frame: bytes) -> None:
        oracle.on_leaving_large(token, parts)
        kept.send_large(self, seqno, token, parts, frame)

    with (
        replaced(
            (subscriptions, "tables_by_partition", lambda _instance: {}),
            (link_class, "send_batch", send_batch),
            (link_class, "send_parts", send_parts),
            (link_class, "send_large", send_large),
        ),
        actors.watched(world),
    ):
        yield
