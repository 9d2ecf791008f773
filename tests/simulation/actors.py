"""The processes of a world: the product's three daemons as they are, and writers that commit through the real door.

Guarantees: a writer tells the oracle what it was told, no more; what it could not know it keeps to itself.
Leaves to others: faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, Final

import receiver_server.process
import source_server.consumer_state
import source_server.link
import source_server.process
import update_process.process
from replicate.daemon.figures import no_figures
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import BusyError, JournalIOError, OutcomeUnknownError, ReplicateError
from replicate.journal.record import read_head
from replicate.journal.spool import Spool
from replicate.journal.walk import walk
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges, FileFacts
from tests.simulation.host import REGIONS, SimulatedInstance
from tests.simulation.regions import INODE, ModelError
from tests.simulation.replaced import replaced
from tests.simulation.template import change, define, definition_of
from tests.simulation.watching import watched_links

Main = Callable[[Any], Coroutine[Any, Any, None]]


class Log:
    """A daemon's log: into the transcript. A refusal that must not be is a violation."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def bind(self, **_: Any) -> Log:
        return self

    def info(self, event: str, **fields: Any) -> None:
        if self._world.transcript is not None:
            self._world.log(event, *(f"{key}={value}" for key, value in fields.items()))

    warning = error = info


class Context:
    """DaemonContext."""

    def __init__(self, world: Any, name: str) -> None:
        host = world.kernel.process.host
        self.name = name
        self.config = host.config
        self.instance_path = host.path
        self.log = Log(world)
        self.stop_requested = world.trio.Event()
        self.figures = no_figures
        self.why_not_ready = str
        self.facts: dict[str, Any] = {}

    def status(self, *_: Any, **__: Any) -> None:
        pass

    def ready(self, _text: str) -> None:
        pass

    def follows(self, _instance: Any) -> None:
        pass


def source(peer: str) -> Main:
    """The Source Server to that peer."""

    async def main(world: Any) -> None:
        await source_server.process.serve(Context(world, f"source-{peer}"), peer)  # type: ignore[arg-type]

    return main


async def receiver(world: Any) -> None:
    await receiver_server.process.serve(Context(world, "receiver"))  # type: ignore[arg-type]


async def update(world: Any) -> None:
    await update_process.process.serve(Context(world, "update"))  # type: ignore[arg-type]


class AnyWriter:
    """One writing process: commits a few transactions, with pauses. What it writes, its kind says."""

    def __init__(self, world: Any, session: RegionSession) -> None:
        self.world = world
        self.is_idle = self._is_large = False
        self.session = session
        self.process = world.kernel.process

    async def run(self) -> None:
        world = self.world
        world.writers.append(self)
        pace = world.climate.pace_s
        while not world.is_healed:
            self.is_idle = True
            if world.left_to_write <= 0:
                await world.kernel.sleep(1.0)
                continue
            await world.kernel.sleep(world.dice.expovariate(1 / pace))
            self.is_idle = False
            if world.left_to_write > 0:
                self.commit()
        self.session.close()
        self.session.door.close()

    def make(self, rows: list[int], *, beside: bool) -> CapturedChanges:
        """The changes of a transaction; what it is to be known by comes into `rows`, before anything can fail."""
        raise AssertionError("a kind of writer says what it writes")

    def commit(self, *, beside: bool = False) -> None:
        """One transaction, whatever becomes of it. `beside`: in the middle of another's sync, so that this one's has to
        wait; the next step waits for it."""
        world = self.world
        try:
            self.session.begin(timeout_s=0)
        except BusyError:
            return
        world.left_to_write -= 1
        world.figures["submitted"] += 1
        rows: list[int] = []
        captured: CapturedChanges | None = None
        durability = self.session.door.durability
        policy = durability._policy
        try:
            if beside:
                durability._policy = "off"
            captured = self.make(rows, beside=beside)
            seqno = self.session.commit(captured)
        except ModelError:
            self.session.rollback()
            world.oracle.failed.update(rows)
            return
        except OutcomeUnknownError as error:
            world.log("outcome unknown", rows, error)
            self._forget(captured)
            raise
        except ReplicateError as error:
            world.log("commit failed", rows, repr(error))
            self.session.rollback()
            world.oracle.failed.update(rows)
            self._forget(captured)
            if isinstance(error, JournalIOError):
                raise
            return
        finally:
            durability._policy = policy
        self.process.check()
        world.log("committed", seqno, rows)
        if beside:
            self.is_idle = False
            world.kernel.at(0, lambda: world.call_as(self.process, lambda: self._wait(seqno, rows)))
        else:
            self._told(rows)

    def _wait(self, seqno: int, rows: list[int]) -> None:
        """The rest of a commit."""
        self.session.door.durability.after_commit(seqno)
        self.process.check()
        self._told(rows)

    def _told(self, rows: list[int]) -> None:
        self.acknowledged(rows)
        self.world.figures["acknowledged"] += 1

    def acknowledged(self, rows: list[int]) -> None:
        """They are committed."""
        raise AssertionError("a kind of writer says whom it tells")

    @staticmethod
    def _forget(captured: CapturedChanges | None) -> None:
        if captured is not None and captured.spool is not None:
            captured.spool.abort()

    def spooled(self, payload: bytes) -> Spool:
        """A spool that holds it."""
        door = self.session.door
        spool = Spool.create(door.instance.journal_directory, door.words[word.OWN_ORIGIN])
        try:
            spool.write(payload)
        except BaseException:
            spool.abort()
            raise
        return spool


class Writer(AnyWriter):
    """One of the primary's: inserts rows, into one region or both."""

    def __init__(self, world: Any) -> None:
        instance = SimulatedInstance.open("/paris")
        super().__init__(world, RegionSession(open_door(instance), "main"))
        for entry in instance.regions[1:]:
            run = str
            self.session.attach(entry, entry.name, FileFacts(7, INODE), run)

    def acknowledged(self, rows: list[int]) -> None:
        """They are committed."""
        self.world.oracle.on_acknowledged(rows)

    def make(self, rows: list[int], *, beside: bool) -> CapturedChanges:
        """New rows."""
        rows += [self.world.next_row() for _ in range(self._count(beside))]
        parts = self._regions_of(rows)
        self.world.oracle.on_submitted(parts)
        return self._changes(parts, is_plain=beside)

    def _count(self, beside: bool) -> int:
        dice = self.world.dice
        if self.world.climate.is_even:
            self._is_large = False
            return 1
        self._is_large = not beside and dice.random() < self.world.climate.large_share
        return int(dice.randrange(4, 9) if self._is_large else dice.choice([1, 1, 1, 2, 4]))

    def _regions_of(self, rows: list[int]) -> dict[int, list[int]]:
        """Number of the region -> the rows that go there."""
        dice = self.world.dice
        if self.world.climate.regions == 1:
            return {0: rows}
        place = dice.randrange(len(rows) + 1)
        return {number: part for number, part in enumerate((rows[:place], rows[place:])) if part}

    def _changes(self, parts: dict[int, list[int]], *, is_plain: bool) -> CapturedChanges:
        world, dice = self.world, self.world.dice
        connection: Any = self.session.connection
        is_large = self._is_large
        pieces: list[bytes] = []
        is_even = world.climate.is_even
        several = sum(map(len, parts.values())) > 1 or is_plain
        size = 400 if is_large else dice.choice([8, 8, 40, 150] if several else world.climate.sizes)
        touched: dict[str, bool] = {}
        for number, rows in parts.items():
            schema = "main" if number == 0 else REGIONS[number]
            version = connection.version(schema)
            touched[schema] = defines = not is_plain and not is_even and dice.random() < 0.06
            if defines:
                world.versions[number] = version = world.versions[number] + 1
                pieces += [change(Op.SCHEMA, 0, REGIONS[number], ["ALTER"]), define(version, number)]
            table_id = definition_of(version, number).table_id
            sizes = [40 if is_even else dice.randrange(size + 1) for _ in rows]
            pieces += [
                change(Op.INSERT, table_id, 0, [row, bytes(count)]) for row, count in zip(rows, sizes, strict=True)
            ]
            connection.run(rows, version=version if defines else 0, schema=schema)
        defines = any(touched.values())
        payload, changes = b"".join(pieces), 4 * len(pieces)
        world.log("commits", parts, len(payload), "large" if is_large else "", "defines" if defines else "")
        partitions = tuple(1 + number for number in parts)
        names = touched if world.climate.regions > 1 else None
        tables: dict[int, int] | None = None
        if len(parts) > 1 or (defines and world.climate.regions > 1):  # as of tables in two partitions
            tables = {
                definition_of(one, number).table_id: 1 + number
                for number in range(2)
                for one in range(1, world.versions[number] + 1)
            }
        if not is_large:
            return CapturedChanges(payload, changes, partitions, defines, None, defines, names, tables)
        return CapturedChanges(b"", changes, partitions, defines, self.spooled(payload), defines, names)


async def writer(world: Any) -> None:
    await Writer(world).run()


OF_HOST: Final[dict[str, tuple[tuple[str, Main], ...]]] = {
    "paris": (("source", source("oslo")),),
    "oslo": (("receiver", receiver), ("update", update)),
}


@contextlib.contextmanager
def watched(world: Any) -> Iterator[None]:
    """The oracle sees what the source sends and hears."""
    oracle = world.oracle
    state_class, link_class = source_server.consumer_state.ConsumerState, source_server.link.SourceLink
    kept = SimpleNamespace(
        acknowledged=state_class.acknowledged, begins_at=state_class.begins_at, send_batch=link_class.send_batch,
        send_large=link_class.send_large,
    )  # fmt: skip

    def acknowledged(self: Any, event: Any) -> None:
        oracle.on_reported(event.reply.last_durable_seqno)
        kept.acknowledged(self, event)

    async def begins_at(self: Any, next_seqno: int) -> None:
        oracle.on_start(next_seqno)
        await kept.begins_at(self, next_seqno)

    def send_batch(self: Any, batch: Any) -> None:
        kept.send_batch(self, batch)
        *_, (_, last) = walk(batch.data)
        oracle.on_sent(batch.last_seqno, last.chain)

    def send_large(self: Any, seqno: int, token: int, parts: int, frame: bytes) -> None:
        kept.send_large(self, seqno, token, parts, frame)
        oracle.on_sent(seqno, read_head(frame).chain)

    watching = replaced(
        (state_class, "acknowledged", acknowledged),
        (state_class, "begins_at", begins_at),
        (link_class, "send_batch", send_batch),
        (link_class, "send_large", send_large),
    )
    with watched_links(world), watching:
        yield
