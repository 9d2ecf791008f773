"""Suppliers that are lists in memory, and exchange packets by the very decisions of the product: whole worlds of them
in a thousandth of the time.

Guarantees: a transaction that is taken before one that its writer had seen, or out of its origin's order, fails the
test at once, and so does one that is taken twice. What is drawn depends on the seed alone.
Leaves to others: rows, frames, files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from replicate.limits import PARTITION_STREAM
from replicate.model.ruv import NOTHING, lacks
from replicate.model.seen import merged_told
from replicate.model.transaction import History
from replicate.model.vector import Chains, Origin, Position, SynchronizationVector
from replicate.transfer.packet import supplier_rows
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.format import BetweenSuppliers, OriginName, PacketSummary
from replicate.transfer.packet.vector_order import knows_more_of, vector_order

NETWORK = bytes(16)
Order = Callable[[Chains, Sequence[PacketSummary]], Sequence[int]]


def in_order(here: Chains, packets: Sequence[PacketSummary]) -> Sequence[int]:
    """As the product takes them."""
    return vector_order(here, packets).chosen


@dataclass(frozen=True)
class ModelTransaction:
    """A transaction. `seen`: what its writer had. `is_first`: it is the record that opens its origin."""

    origin: int
    number: int
    chain: int
    seen: Mapping[int, int]


@dataclass
class Carried:
    """A packet, and what is in it."""

    summary: PacketSummary
    transactions: tuple[ModelTransaction, ...]


@dataclass
class Site:
    """One supplier."""

    name: str
    uuid: bytes
    incarnation: int = 1
    journal: list[ModelTransaction] = field(default_factory=list)
    epochs: Epochs = field(default_factory=Epochs)
    is_restoring: bool = False

    @property
    def origin(self) -> int:
        return Origin(self.uuid, self.incarnation).key

    def chains(self, upto: int | None = None) -> dict[int, tuple[int, int]]:
        return {one.origin: (one.number, one.chain) for one in self.journal[:upto]}


class World:
    """So many suppliers. `order`: which packets are taken, and when; `passes_over`: whether what is here is not taken
    again. Faults are planted by these."""

    def __init__(self, seed: int, count: int, *, order: Order = in_order, passes_over: bool = True) -> None:
        self.rng = random.Random(seed)
        self.order = order
        self.passes_over = passes_over
        self.clock = 0
        self.sites = {name: Site(name, bytes([at]) * 16) for at, name in enumerate("abcd"[:count], 1)}
        self.histories: dict[int, History] = {}
        self.carried: list[tuple[str, Carried]] = []
        self.turned_back = 0
        first = next(iter(self.sites.values()))
        for site in self.sites.values():
            site.journal = list(first.journal)
            self.open(site)

    def now(self) -> int:
        self.clock += 1
        return self.clock

    # What sites do.

    def open(self, site: Site) -> None:
        """An incarnation begins."""
        seen = {origin: last for origin, (last, _) in site.chains().items()}
        base = SynchronizationVector({(origin, PARTITION_STREAM): last for origin, last in seen.items()})
        self.histories[site.origin] = History(site.uuid, site.name, site.incarnation, 0, base, "test")
        site.journal.append(ModelTransaction(site.origin, 0, self.rng.getrandbits(60) + 1, seen))

    def write(self, site: Site) -> None:
        """One transaction, which tells what its writer has."""
        if site.is_restoring:
            return
        chains = site.chains()
        seen = {origin: last for origin, (last, _) in chains.items() if origin != site.origin}
        number = chains[site.origin][0] + 1
        site.journal.append(ModelTransaction(site.origin, number, self.rng.getrandbits(60) + 1, seen))

    def take(self, site: Site, one: ModelTransaction) -> None:
        """One comes. AssertionError where it must not come now."""
        here = site.chains()
        last = here.get(one.origin, (NOTHING, 0))
        if last[0] >= one.number and self.passes_over:
            assert last[0] > one.number or last[1] == one.chain, "two transactions of one number"
            return
        assert one.origin != site.origin, f"{site.name} is sent what it should have written itself"
        assert one.number == last[0] + 1, f"{site.name} has {last[0]} of an origin, and number {one.number} comes"
        for origin, number in one.seen.items():
            assert not lacks(here, origin, number), f"{site.name} takes what comes after what it has not got"
        site.journal.append(one)

    def met(self, site: Site) -> dict[str, supplier_rows.MetSupplier]:
        """Whom its journal names."""
        here, seen = site.chains(), dict[int, Mapping[int, int]]()
        for one in site.journal:
            seen[one.origin] = merged_told(seen.get(one.origin, {}), one.seen)
        histories = [self.histories[origin] for origin in here]
        return supplier_rows.met_suppliers(histories, site.epochs.origins.values(), seen)

    def _reached(self, site: Site, known: Chains) -> int:
        """Up to which place of its journal one has everything that knows that much."""
        lacking = (at for at, one in enumerate(site.journal) if lacks(known, one.origin, one.number))
        return next(lacking, len(site.journal))

    def _row(self, site: Site, other: str) -> supplier_rows.SupplierRow:
        row = supplier_rows.row_of(self.met(site).get(other), site.epochs.of(other), site.chains())
        return row or supplier_rows.SupplierRow({}, {})

    def export(self, site: Site, targets: Sequence[str], most: int = 10**9) -> list[Carried]:
        """What these lack, `most` transactions in a packet."""
        here = site.chains()
        known = supplier_rows.lowest([supplier_rows.needed(self._row(site, one).known, here) for one in targets])
        made = []
        while (begin := self._reached(site, known)) < len(site.journal):
            count, end = 0, begin
            while end < len(site.journal) and count < most:
                count += lacks(known, site.journal[end].origin, site.journal[end].number)
                end += 1
            inside = tuple(one for one in site.journal[begin:end] if lacks(known, one.origin, one.number))
            own = {self.sites[target].origin for target in targets}
            assert len(own) > 1 or not any(one.origin in own for one in inside), "an echo"
            base = Position(begin, supplier_rows.vector_of(known), known)
            known = supplier_rows.joined(known, site.chains(end))
            made.append(
                Carried(self._note(site, targets, base, Position(end, supplier_rows.vector_of(known), known)), inside)
            )
        return made

    def receipt(self, site: Site, target: str) -> Carried:
        """How far it is."""
        here = site.chains()
        own = Position(len(site.journal), supplier_rows.vector_of(here), here)
        return Carried(self._note(site, [target], own, own), ())

    def _note(self, site: Site, targets: Sequence[str], base: Position, end: Position) -> PacketSummary:
        here, met = site.chains(), self.met(site)
        names = [self.histories[origin] for origin in here]
        summary = PacketSummary(
            bytes(16), NETWORK, site.uuid, site.name, tuple(targets), site.epochs.last_number + 1,
            site.epochs.before(targets, base.last_seqno), base, 0, end, 0,
            Position(len(site.journal), supplier_rows.vector_of(here), here),
            tuple(OriginName(one.origin.key, one.name, one.incarnation) for one in names), self.now(), "t", NETWORK * 2,
            BetweenSuppliers(site.incarnation, met=tuple(met[one].incarnation if one in met else 0 for one in targets)),
        )  # fmt: skip
        site.epochs = site.epochs.exported(summary, "", 0)
        return summary

    def bring(self, site: Site, packets: Sequence[Carried], *, is_newest: bool = False) -> int:
        """An import of some packets; how many were taken."""
        summaries = [one.summary for one in packets]
        here = site.chains()
        if knows_more_of(site.origin, here, summaries) is not None:
            self._turn_back(site)
            return 0
        chosen = self.order(here, summaries)
        for at in chosen:
            for one in packets[at].transactions:
                self.take(site, one)
        newest = {}
        for one in sorted(summaries, key=lambda one: one.created_wall_ns):
            newest[one.sender_name] = one
        for name, one in newest.items():
            self._hear(site, name, one, is_newest=is_newest)
        return len(chosen)

    def _hear(self, site: Site, name: str, one: PacketSummary, *, is_newest: bool) -> None:
        assert one.suppliers is not None
        living = Origin(one.sender, one.suppliers.incarnation).key
        site.epochs = site.epochs.named([*one.origins, OriginName(living, name, one.suppliers.incarnation)])
        chains, here = dict(one.own.chains), site.chains()
        if living in here:
            chains = supplier_rows.joined(chains, {living: here[living]})
        place = self._reached(site, one.own.chains)
        row = EpochRow(Position(place, supplier_rows.vector_of(chains), chains), one.created_wall_ns)
        site.epochs = site.epochs.heard(name, row, is_newest=is_newest)

    def line(self, source: Site, target: Site, most: int) -> None:
        """A line brings what the target lacks, as much as that; it tells the source."""
        here = target.chains()
        if target.origin in source.chains() and lacks(here, target.origin, source.chains()[target.origin][0]):
            self._turn_back(target)
            return
        lacking = [one for one in source.journal if lacks(here, one.origin, one.number) and one.origin != target.origin]
        for one in lacking[:most]:
            self.take(target, one)

    def restore(self, site: Site, length: int, epochs: Epochs, *, finds_out: bool) -> None:
        """Its files are those of a while ago. `finds_out`: by itself; else others tell it, and it writes nothing until
        then: what it would, they would refuse."""
        site.journal, site.epochs, site.is_restoring = site.journal[:length], epochs, True
        site.incarnation += finds_out

    def _turn_back(self, site: Site) -> None:
        self.turned_back += 1
        site.incarnation += 1
        site.is_restoring = True

    # Worlds.

    def step(self) -> None:
        """Something happens."""
        rng, sites = self.rng, list(self.sites.values())
        site = rng.choice(sites)
        others = [one for one in sites if one is not site]
        what = rng.random()
        if what < 0.35:
            for _ in range(rng.randint(1, 3)):
                self.write(site)
        elif what < 0.6:
            targets = rng.sample(others, rng.randint(1, len(others)))
            for one in self.export(site, [one.name for one in targets], rng.choice([1, 2, 5, 99])):
                self.carried += [(target.name, one) for target in targets if rng.random() < 0.8]  # else it is lost
        elif what < 0.85:
            there = [one for name, one in self.carried if name == site.name]
            taken = rng.sample(there, rng.randint(0, len(there)))
            self.bring(site, taken)
            if rng.random() < 0.7:  # else they turn up again
                self.carried = [(name, one) for name, one in self.carried if name != site.name or one not in taken]
        elif what < 0.93:
            self.line(site, rng.choice(others), rng.choice([1, 3, 99]))
        else:
            other = rng.choice(others)
            known = [one.number for one in site.epochs.exports if other.name in one.targets]
            if known:
                site.epochs = site.epochs.recovered(other.name, rng.choice(known))

    def heal(self) -> None:
        """What operators do: receipts, recoveries, exports, imports, until nobody lacks anything."""
        for _ in range(3 * len(self.sites) + 3):
            for site in self.sites.values():
                for other in self.sites.values():
                    if site is not other:
                        self.bring(site, [self.receipt(other, site.name)], is_newest=True)
                        site.epochs = site.epochs.confirmed(other.name)
                        self.bring(other, self.export(site, [other.name]))
            if self.is_level and not any(one.is_restoring for one in self.sites.values()):
                return
            for site in self.sites.values():
                if site.is_restoring and self.is_level:
                    site.is_restoring = False
                    if site.origin not in site.chains():  # else nobody had more than it
                        self.open(site)

    @property
    def is_level(self) -> bool:
        """Whether all have everything."""
        vectors = [one.chains() for one in self.sites.values()]
        return all(one == vectors[0] for one in vectors)
