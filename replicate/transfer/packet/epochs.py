"""The epochs: how far each replica is, as last heard of it, and as it should be once what was exported has arrived.

A *row* says how far a replica is, in the stream and of each origin. Of itself an instance knows it exactly. Of another
it knows what that one has said (*heard*), and how far it has exported since (*estimated*). An export begins at the
estimate and moves it, without an answer; a packet that is lost leaves a gap until the estimate is taken back.

Guarantees: an estimate is above what was heard, or there is none. What a replica says of itself counts, newest word
first, also when it is less than before: then it was restored from a backup, and estimates of it are void.
Leaves to others: files (epochs_file.py), and the journal. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.errors import NotFoundError, UsageError
from replicate.model.vector import Position
from replicate.transfer.packet.format import OriginName, PacketSummary

EXPORTS_KEPT: Final = 1000
"""Of older exports `packet recover` knows nothing any more; the epochs do."""


class EpochRow(Struct, frozen=True):
    """`position`: how far the replica is (was, at `wall_ns`)."""

    position: Position
    wall_ns: int

    @property
    def seqno(self) -> int:
        """The last transaction that it has."""
        return self.position.last_seqno


class Replica(Struct, frozen=True):
    """One other replica."""

    heard: EpochRow | None = None
    estimated: EpochRow | None = None

    @property
    def known(self) -> EpochRow | None:
        """Where the next export to it begins; None when nothing is known."""
        return self.estimated or self.heard


class PacketExport(Struct, frozen=True):
    """A packet that was made: for whom, from where (`base`) to which transaction, and as which file."""

    number: int
    packet: bytes
    targets: tuple[str, ...]
    base: EpochRow
    last_seqno: int
    wall_ns: int
    file: str
    bytes: int


class LackingPacket(Struct, frozen=True):
    """Why packets wait: one before them is not here. `what` it would bring, and of whom; `do`: the command for the
    other side; `last_seqno`: the last one of it by our own numbers, after which it is not lacking any more; between
    suppliers `needs` says that instead, of each origin."""

    what: str
    do: str
    last_seqno: int
    needs: tuple[tuple[int, int], ...] = ()


class Epochs(Struct, frozen=True):
    """What this instance knows of all others. `last_number`: of its last packet. `origins`: by key, beside those that
    its own journal names. `waiting`: packets that are here and cannot be applied
    yet, by what they say they are, and the last transaction of each. `level`: by supplier the incarnation of ours that
    it has met, and has brought all to that it had then. `lacking`: the packet between others for which they wait."""

    replicas: Mapping[str, Replica] = field(default_factory=dict)
    exports: tuple[PacketExport, ...] = ()
    last_number: int = 0
    origins: Mapping[int, OriginName] = field(default_factory=dict)
    waiting: tuple[tuple[str, int], ...] = ()
    level: Mapping[str, int] = field(default_factory=dict)
    lacking: LackingPacket | None = None

    def of(self, name: str) -> Replica:
        """What is known of one; nothing, where it was never met."""
        return self.replicas.get(name, Replica())

    def _with(self, name: str, replica: Replica) -> Epochs:
        return replace(self, replicas={**self.replicas, name: replica})

    def before(self, targets: Iterable[str], seqno: int, inside: int = 0) -> int:
        """The number of the packet for any of them that brings `seqno`, and of the transaction after it the bytes
        `inside`: what goes on from there needs it. The last of several; 0 when there is none."""
        wanted, begins = set(targets), seqno if inside else seqno - 1
        made = [one for one in self.exports if wanted & set(one.targets) and one.base.seqno <= begins]
        return max(((min(one.last_seqno, seqno), one.number) for one in made), default=(0, 0))[1]

    def still_waits(self, own: Position, *, by_origins: bool) -> Epochs:
        """With those that wait on where everything up to `own` is here. `by_origins`: between suppliers, whose numbers
        say nothing of others' packets."""
        lacking = self.lacking
        if by_origins:
            if lacking is None or not any(own.vector.last(origin) < last for origin, last in lacking.needs):
                return replace(self, waiting=(), lacking=None)
            return self
        waiting = tuple(one for one in self.waiting if one[1] > own.last_seqno)
        is_lacking = waiting and lacking is not None and lacking.last_seqno > own.last_seqno
        return replace(self, waiting=waiting, lacking=lacking if is_lacking else None)

    def unconfirmed_since(self, name: str, now_ns: int, confirmed_seqno: int = 0) -> int:
        """When the first of the packets was made that the replica has not confirmed, in nanoseconds of the wall clock;
        `now_ns` when there is none. `confirmed_seqno`: what it has told on a line."""
        heard = self.of(name).heard
        has = max(confirmed_seqno, heard.seqno if heard else 0)
        made = [one.wall_ns for one in self.exports if name in one.targets and one.last_seqno > has]
        return min(made, default=now_ns)

    # What moves them.

    def exported(self, summary: PacketSummary, file: str, size: int) -> Epochs:
        """After a packet is whole and durable in `file`. A receipt brings nothing: it has a number, and moves no
        row."""
        if summary.is_receipt:
            return replace(self, last_number=summary.number)
        wall = summary.created_wall_ns
        export = PacketExport(
            summary.number, summary.packet, summary.targets, EpochRow(summary.base, wall), summary.last_seqno, wall,
            file, size,
        )  # fmt: skip
        moved = replace(
            self, last_number=summary.number, exports=(*self.exports, export)[-EXPORTS_KEPT:], waiting=self.waiting
        )
        for name in summary.targets:
            known = moved.of(name)
            if known.known is None or known.known.seqno < summary.last_seqno:
                moved = moved._with(name, replace(known, estimated=EpochRow(summary.end, wall)))
        return moved

    def heard(self, name: str, row: EpochRow, *, is_newest: bool = False) -> Epochs:
        """After the replica has said that it is there. An older word than the last one changes nothing, unless an
        operator says that it is the newest: two hosts' clocks may differ."""
        known = self.of(name)
        if known.heard is not None and row.wall_ns < known.heard.wall_ns and not is_newest:
            return self
        was_restored = known.heard is not None and row.seqno < known.heard.seqno
        is_there = known.estimated is not None and row.seqno >= known.estimated.seqno
        return self._with(name, Replica(row, None if was_restored or is_there else known.estimated))

    def back_to(self, seqno: int) -> Epochs:
        """After our journal was taken back to there: what was exported beyond it is of a past that is no more."""
        return replace(
            self,
            replicas={
                name: replace(one, estimated=None) if one.estimated is not None and one.estimated.seqno > seqno else one
                for name, one in self.replicas.items()
            },
        )

    def named(self, origins: Iterable[OriginName]) -> Epochs:
        """With the instances that further origins stand for."""
        return replace(self, origins={**self.origins, **{one.key: replace(one, begins=0) for one in origins}})

    def were_level(self, incarnation: int) -> set[str]:
        """Those that have been level with that incarnation of ours."""
        return {name for name, met in self.level.items() if met == incarnation}

    def estimate(self, name: str, row: EpochRow) -> Epochs:
        """As an operator says: the next export to it begins there. UsageError below what was heard of it."""
        known = self.of(name)
        if known.heard is not None and row.seqno < known.heard.seqno:
            raise UsageError(
                f"{name} has said that it has transaction {known.heard.seqno}; {row.seqno} is less",
                do=f"If it was restored from a backup, import its receipt: there, packet export --to HERE --receipt; "
                f"else say {known.heard.seqno} or more",
            )
        is_heard = known.heard is not None and row.seqno == known.heard.seqno
        return self._with(name, replace(known, estimated=None if is_heard else row))

    def recovered(self, name: str, number: int) -> Epochs:
        """As if the packet with that number had never been made for the replica: the next export begins where that one
        did, or at what was heard since. NotFoundError."""
        export = next((one for one in self.exports if one.number == number and name in one.targets), None)
        if export is None:
            known = [one.number for one in self.exports if name in one.targets]
            raise NotFoundError(
                f"no packet {number} was made for {name}" + (f"; known are {known[0]} to {known[-1]}" if known else ""),
                do=f"replicate -i INSTANCE packet exports lists them; or say where to begin: epochs set {name} N",
            )
        known_of = self.of(name)
        if known_of.known is not None and known_of.known.seqno <= export.base.seqno:
            return self
        is_heard = known_of.heard is not None and known_of.heard.seqno >= export.base.seqno
        return self._with(name, replace(known_of, estimated=None if is_heard else export.base))

    def confirmed(self, name: str) -> Epochs:
        """As if nothing had been exported to the replica since it was heard of last."""
        return self._with(name, replace(self.of(name), estimated=None))

    def without_places(self) -> Epochs:
        """As if nothing had been heard nor exported: what it was counted by is no more. The numbers of packets go
        on."""
        return replace(self, replicas={}, exports=(), waiting=(), level={}, lacking=None)

    def forgotten(self, name: str) -> Epochs:
        """Without a replica."""
        return replace(self, replicas={key: one for key, one in self.replicas.items() if key != name})
