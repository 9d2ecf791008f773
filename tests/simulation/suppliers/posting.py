"""One world of several suppliers that send packets to each other, beside their lines or in the place of some.

    PostWorld(seed, "safety").run()     any fault at any time; at the end all hosts lose power, and are judged
    PostWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S all have the same

A packet is made of what its target lacks by the epoch matrix, and moves the estimate of it. On its way it is lost, or
comes twice, or after later ones; an import may be killed, and comes again. An operator recovers a packet now and then.
Once the faults have ended, receipts come as well. In some worlds one site has no line at all.
Real: the matrix, the order of packets, the applier. The file of a packet is no part of it, nor what it is sealed by.
What else happens is in world.py. Guarantees: as there.
Leaves to others: how many worlds there are (../campaign.py), what is planted (post_plants.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

import source_server.restart
import source_server.unseen_transactions
import update_process.supplied_transactions
from replicate.door.recovery.opening import close_door, make_chain, open_door
from replicate.door.ruv_view import vectors_of
from replicate.door.secondary import open_apply_session
from replicate.errors import BusyError
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import read_head
from replicate.journal.walk import walk
from replicate.model.ruv import covers, lacks
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivedRecord, RecordKind
from replicate.transfer.packet import vector_order
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.export import with_live
from replicate.transfer.packet.format import BetweenSuppliers, OriginName, PacketSummary
from replicate.transfer.packet.supplier_rows import joined, vector_of
from replicate.transfer.packet.suppliers import SuppliersView, look_at_suppliers
from tests.simulation.host import Host, SimulatedInstance
from tests.simulation.oracle import ViolationError
from tests.simulation.suppliers.climate import SupplierClimate
from tests.simulation.suppliers.world import SupplierWorld
from tests.simulation.template import NAMES, NETWORK, rewrite_file, uuid_of
from update_process.packet_feed import FeedRecord, PacketFeed
from update_process.work_result import Waiting

BATCH_BYTES: Final = 2048


class PostClimate(SupplierClimate):
    """`lost`: the share of packets that never arrive; `twice`: of those that come once more. `is_alone`: the last site
    has no line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        dice = self.dice
        self.keep_only(NAMES[: min(3, len(self.names))])
        self.gone = self.turned_back = None
        self.is_alone: bool = dice.random() < 0.5
        if self.is_alone:
            self.links = tuple(link for link in self.links if self.names[-1] not in link)
        self.lost: float = dice.choice([0.0, 0.2, 0.5])
        self.twice: float = dice.choice([0.1, 0.4])
        self.every_s: float = dice.choice([0.2, 0.5, 1.0])


@dataclass(frozen=True)
class Packet:
    """`records`: as an import unpacks it."""

    summary: PacketSummary
    records: tuple[FeedRecord, ...]


class Unpacked(PacketFeed):
    """What some packets bring, in their order."""

    def __init__(self, packets: Sequence[Packet]) -> None:
        super().__init__([], NETWORK)
        every = [record for packet in packets for record in packet.records]
        self._records = (ReceivedRecord(*record, at, at + 1) for at, record in enumerate(every))


class PostWorld(SupplierWorld):
    """Suppliers send packets."""

    climate: PostClimate

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """As there."""
        return f"posting/{seed}/{mode}"

    def make_climate(self) -> PostClimate:
        """As there."""
        return PostClimate(self.dice)

    def begin(self) -> None:
        """As there. All know each other, so that journals are kept for all, and have the first copy of one of them."""
        super().begin()
        names = self.climate.names
        for host in self.hosts:
            others = [one for one in names if one != host.name]
            rewrite_file(host.disk, host.name, self.instance_file(host.name, others))
            self.kernel.at(self.dice.random(), lambda host=host: self._something(host))
        chains = dict(self.oracle.sites[names[0]].places)  # which goes on
        known = EpochRow(Position(self.oracle.sites[names[0]].seqno, vector_of(chains), chains), 1)
        self.epochs = {name: Epochs() for name in names}
        for name in names:
            for other in names:
                if other != name:
                    self.epochs[name] = self.epochs[name].heard(other, known)
        self.post: dict[str, list[Packet]] = {name: [] for name in names}
        self.receipts: dict[str, PacketSummary] = {}
        self.figures["worlds in which one has no line"] += self.climate.is_alone

    def _something(self, host: Host) -> None:
        """Now and then somebody exports, or imports."""
        if self.is_judging:
            return
        self.kernel.at(
            self.kernel.now + self.climate.every_s * (0.2 + self.dice.random()), lambda: self._something(host)
        )
        if not host.is_up:
            return
        if self.dice.random() < 0.5:
            self.start(host, f"export@{host.name}", exporting, again=False)
        elif self.post[host.name]:
            self.put_aside(host)
            self.start(host, f"import@{host.name}", importing, again=False)

    def put_aside(self, host: Host) -> None:
        """The Update Process, while packets are imported."""
        name = f"update@{host.name}"
        self.away[name] = self.kernel.now + 0.3
        for process in list(host.processes):
            if process.name == name and not process.is_dead:
                self.kill(process)

    # Export.

    @contextmanager
    def view(self, host: Host) -> Iterator[SuppliersView]:
        """What that host knows of the others."""
        door = open_door(SimulatedInstance.open(host.path))
        with door.locked():
            door.sync_to_end()  # no packet is ahead of what is certain
        last_seqno = int(door.words[word.LAST_SEQNO])

        def position_at(seqno: int) -> Position:
            if not 0 < seqno <= last_seqno:
                return Position(seqno)
            here = source_server.restart.catalogue_before(make_chain(door.instance), seqno + 1)
            return Position(seqno, here.vector, here.chains)

        yield look_at_suppliers(
            door.instance, door, with_live(door.instance, self.epochs[host.name], position_at, last_seqno)
        )
        door.close()

    def export(self, host: Host, targets: Sequence[str]) -> None:
        """What these lack, in one packet or in several."""
        with self.view(host) as view:
            self.receipts[host.name] = self._summary(view, host, (), Position(), Position())
            base = view.base(targets)
            while base.last_seqno < view.last_seqno:
                most = self.dice.choice([1, 3, 1000])
                base = self._post(view, host, targets, base, min(view.last_seqno, base.last_seqno + most))

    def _post(
        self, view: SuppliersView, host: Host, targets: Sequence[str], base: Position, last_seqno: int
    ) -> Position:
        """One packet; the base of the next one."""
        chain, reached = make_chain(view.instance), dict[int, tuple[int, int]]()
        begins = replace(
            source_server.restart.catalogue_before(chain, base.last_seqno + 1), histories=self._histories(view)
        )
        frame = source_server.restart._catalogue_frame(begins, base.last_seqno + 1)
        records: list[FeedRecord] = [(RecordKind.CATALOGUE, base.last_seqno + 1, base.last_seqno + 1, 1, frame)]
        with closing(ChainReader(chain, base.last_seqno + 1)) as reader:
            while reader.next_seqno <= last_seqno and (found := reader.read(BATCH_BYTES, last_seqno)) is not None:
                data = found.commit_frame if isinstance(found, LargeTransaction) else found.data
                heads = [(offset, head) for offset, head in walk(data)]
                reached.update({head.origin: (head.origin_seqno, head.chain) for _, head in heads})
                if isinstance(found, LargeTransaction):
                    if lacks(base.chains, heads[0][1].origin, heads[0][1].origin_seqno):
                        records += self._large(host, found)
                    continue
                frames = [
                    data[offset : offset + head.frame_bytes]
                    for offset, head in heads
                    if lacks(base.chains, head.origin, head.origin_seqno)
                ]
                records += self._framed(
                    host, [source_server.unseen_transactions.as_written(one) or one for one in frames]
                )
        end_chains = joined(base.chains, reached)
        end = Position(last_seqno, vector_of(end_chains), end_chains)
        summary = self._summary(view, host, tuple(targets), base, end)
        self.epochs[host.name] = self.epochs[host.name].exported(summary, "", 0)
        if len(records) > 1:
            self._send(Packet(summary, tuple(records)))
        return view.position(end.chains, end.last_seqno)

    def _framed(self, host: Host, frames: Sequence[bytes]) -> list[FeedRecord]:
        if not frames:
            return []
        self.oracle.on_sent(host.name, b"".join(frames))
        first, last = read_head(frames[0]).seqno, read_head(frames[-1]).seqno
        return [(RecordKind.FRAMES, first, last, len(frames), b"".join(frames))]

    def _large(self, host: Host, found: LargeTransaction) -> list[FeedRecord]:
        written = source_server.unseen_transactions.as_its_writer_wrote(found) or found
        if not isinstance(written, LargeTransaction):
            return self._framed(host, [written.data])
        self.oracle.on_sent(host.name, written.commit_frame)
        seqno = read_head(written.commit_frame).seqno
        parts: list[FeedRecord] = [(RecordKind.PARTS, seqno, seqno, 1, part) for part in written.parts()]
        return [*parts, (RecordKind.LARGE, seqno, seqno, 1, written.commit_frame)]

    @staticmethod
    def _histories(view: SuppliersView) -> Any:
        door = open_door(view.instance)
        found = vectors_of(door).catalogue.histories
        door.close()
        return found

    def _summary(
        self, view: SuppliersView, host: Host, targets: tuple[str, ...], base: Position, end: Position
    ) -> PacketSummary:
        here, content = view.supplied.end, view.instance.content
        origins = tuple(OriginName(one.origin.key, one.name, one.incarnation) for one in self._histories(view))
        epochs = self.epochs[host.name]
        suppliers = BetweenSuppliers(content.incarnation, met=tuple(map(view.incarnation, targets)))
        own = Position(view.last_seqno, vector_of(here), here)
        return PacketSummary(
            bytes(16), NETWORK, uuid_of(host.name), host.name, targets, epochs.last_number + 1,
            epochs.before(targets, base.last_seqno), base, 0, end, 0, own, origins,
            int(self.kernel.now * 1e9) + 2, "t", NETWORK * 2, suppliers,
        )  # fmt: skip

    def _send(self, packet: Packet) -> None:
        """It is on its way."""
        for name in packet.summary.targets:
            if not self.is_healed and self.dice.random() < self.climate.lost:
                self.figures["packets lost"] += 1
                continue
            for _ in range(1 + (self.dice.random() < self.climate.twice)):
                at = self.kernel.now + self.dice.choice([0.0, 0.1, 2.0]) * self.dice.random()
                self.kernel.at(at, lambda name=name: self.post[name].append(packet))
            self.figures["packets"] += 1

    # Import.

    def hear(self, host: Host, view: SuppliersView, one: PacketSummary, *, is_newest: bool) -> None:
        """How far its sender says that it is."""
        epochs = self.epochs[host.name].named(one.origins)
        place = view.reached(one.own.chains)
        if place is not None:
            row = EpochRow(Position(place, one.own.vector, one.own.chains), one.created_wall_ns)
            epochs = epochs.heard(one.sender_name, row, is_newest=is_newest)
        self.epochs[host.name] = epochs.confirmed(one.sender_name) if is_newest else epochs


async def exporting(world: Any) -> None:
    """For one other, or for all at once; to all, one by one, once the faults have ended, with their receipts."""
    host, dice = world.kernel.process.host, world.dice
    others = [name for name in world.climate.names if name != host.name]
    if not world.is_healed:
        epochs, other = world.epochs[host.name], dice.choice(others)
        known = [one.number for one in epochs.exports if other in one.targets]
        if known and dice.random() < 0.2:
            world.epochs[host.name] = epochs.recovered(other, dice.choice(known))
        with contextlib.suppress(BusyError):
            world.export(host, dice.sample(others, dice.choice([1, 1, len(others)])))
        return
    for other in others:
        with contextlib.suppress(BusyError):
            if other in world.receipts:
                with world.view(host) as view:
                    world.hear(host, view, world.receipts[other], is_newest=True)
            world.export(host, [other])


async def importing(world: Any) -> None:
    """Some of what has arrived, in any order; what was applied may turn up again."""
    host, dice = world.kernel.process.host, world.dice
    world.put_aside(host)  # also by one that was killed, and comes again
    there = list(world.post[host.name])
    if not there:
        return
    packets = dice.sample(there, dice.randint(1, len(there))) if not world.is_healed else there
    summaries = [one.summary for one in packets]
    session = open_apply_session(SimulatedInstance.open(host.path))
    here = session.position.chains
    if vector_order.forked_packet(here, summaries) or vector_order.knows_more_of(
        session.door.instance.content.origin.key, here, summaries
    ):
        raise ViolationError("packets", f"{host.name} is told of what it has not")
    order = vector_order.vector_order(here, summaries)
    feed = Unpacked([packets[at] for at in order.chosen])
    instance = session.door.instance
    applier = update_process.supplied_transactions.SupplierApplier(
        session, feed, instance.config.update, conflict_directory=instance.conflict_directory, streams=False
    )
    while (waiting := applier.work(1.0).waiting) in (Waiting.MORE, Waiting.LOCK, Waiting.BARRIER):
        await world.kernel.sleep(0.01)
    if waiting is not Waiting.NOTHING or not covers(session.position.chains, order.reached):
        raise ViolationError("packets", f"{host.name} has applied packets, and waits: {waiting.value}")
    applier.tell()
    applier.close()
    session.close()
    close_door(session.door)
    world.figures["imports"] += 1
    world.figures["packets taken"] += len(order.chosen)
    world.figures["packets that waited"] += len(order.waiting)
    with world.view(host) as view:
        for one in sorted(summaries, key=lambda one: one.created_wall_ns):
            world.hear(host, view, one, is_newest=False)
    if dice.random() < 0.7 or world.is_healed:
        waits = [packets[at] for at in order.waiting]
        done = [one for one in packets if one not in waits]
        world.post[host.name] = [one for one in world.post[host.name] if one not in done]
