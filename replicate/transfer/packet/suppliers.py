"""What a supplier's journal and region say of the others, at one moment: whom they have met, what each has told, and at
which place of our journal begins what one lacks.

Guarantees: a place is found by the vectors of both, as a Source Server finds it (door/ruv_view.py); what has forked, or
is held no more, is refused by the same named errors.
Leaves to others: what is heard and exported (epochs.py), what follows of all that together (supplier_rows.py). Blocks
on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from replicate.door.absorb_stamps import writers_and_seen
from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.ruv_view import start_for, vectors_of
from replicate.errors import JournalMissingError, NotFoundError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.model.ruv import Decision, Forked, NotHeld, Supplied, decide
from replicate.model.vector import Chains, Position
from replicate.transfer.packet.epochs import EpochRow, Epochs, Replica
from replicate.transfer.packet.supplier_rows import (
    MetSupplier,
    SupplierRow,
    lowest,
    met_suppliers,
    needed,
    row_of,
    vector_of,
)
from replicate.wire.vector_refusals import refused


class SuppliersView(Struct, frozen=True):
    """`supplied`: what our journal has and holds; `last_seqno`: where it ends. `names`: by origin."""

    instance: Instance
    chain: Chain
    epochs: Epochs
    met: Mapping[str, MetSupplier]
    supplied: Supplied
    last_seqno: int
    names: Mapping[int, str]

    def row(self, name: str) -> SupplierRow | None:
        """What is known of that one; None where nothing is."""
        return row_of(self.met.get(name), self.epochs.of(name), self.supplied.end)

    def incarnation(self, name: str) -> int:
        """The last one of it that was met; 0: none."""
        return self.met[name].incarnation if name in self.met else 0

    def rows(self) -> Epochs:
        """What is known of all others, each at its place of our journal; the same epochs otherwise."""
        found = dict[str, Replica]()
        for name in sorted({*self.met, *self.epochs.replicas} - {self.instance.name}):
            replica, row = self.epochs.of(name), self.row(name)
            if row is not None:
                heard_ns = replica.heard.wall_ns if replica.heard else 0
                heard = EpochRow(self.position(row.heard), heard_ns)
                is_more = replica.estimated is not None and row.known != row.heard
                found[name] = Replica(heard, EpochRow(self.position(row.known), 0) if is_more else None)
        return replace(self.epochs, replicas=found)

    def decide(self, known: Chains) -> Decision:
        """As a Source Server does for one that knows that much. DivergedError."""
        decision = decide(known, self.supplied)
        if isinstance(decision, Forked):
            raise refused(decision, self.names)
        return decision

    def reached(self, known: Chains) -> int | None:
        """Up to which place of our journal one has everything that knows that much; None where it lacks what the
        journal holds no more. DivergedError, and what reading raises."""
        if isinstance(self.decide(known), NotHeld):
            return None
        return start_for(self.chain, known, self.last_seqno) - 1

    def base(self, names: Sequence[str]) -> Position:
        """What all these should have, and the place of our journal after which one of them lacks something.
        NotFoundError where nothing is known of one; DivergedError, JournalMissingError."""
        rows = []
        for name in names:
            row = self.row(name)
            if row is None:
                raise NotFoundError(
                    f"nothing is known of what {name} has",
                    where=str(self.instance.path),
                    do=f"Seed it: replicate -i {self.instance.named} seed --to-file FILE --for {name}; or import its "
                    f"receipt (there: packet export --to {self.instance.name} --receipt)",
                )
            decision = self.decide(row.known)
            if isinstance(decision, NotHeld):
                raise JournalMissingError(
                    f"{name} cannot be given all that it lacks: {refused(decision, self.names).what}",
                    where=str(self.chain.directory),
                    do=f"Have that one export to {name}; or fill it again (there: instance convert --role secondary; "
                    f"here: replicate -i {self.instance.named} seed --to-file FILE --for {name})",
                )
            rows.append(needed(row.known, self.supplied.end))
        return self.position(lowest(rows))

    def position(self, known: Chains, after_seqno: int = 0) -> Position:
        """The place of our journal after which who knows that much lacks something, and all that it knows.
        `after_seqno`: up to there it knows all."""
        start = start_for(self.chain, known, self.last_seqno, after_seqno=after_seqno)
        return Position(start - 1, vector_of(known), known)


def look_at_suppliers(instance: Instance, door: Door, epochs: Epochs, end: Position | None = None) -> SuppliersView:
    """As it is now; of our journal up to `end` (None: its last transaction). Raises what reading journal and region
    raises."""
    viewed = vectors_of(door)
    _, seen = writers_and_seen(instance)
    histories = viewed.catalogue.histories
    met = met_suppliers(histories, epochs.origins.values(), seen)
    at = end or viewed.end
    names = {one.origin.key: one.name for one in histories}
    supplied = Supplied(at.chains, viewed.supplied.begin)
    return SuppliersView(instance, make_chain(instance), epochs, met, supplied, at.last_seqno, names)
