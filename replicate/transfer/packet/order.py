"""In which order packets can be applied, and what those lack that cannot.

Guarantees: whatever is there, doubled, overlapping and in any order, the way goes as far as the bases allow, by the
packet that leads furthest at each step. A large transaction goes on in packets of the same sender only: its bytes are
that one's.
Leaves to others: files. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from replicate.model.vector import Position
from replicate.transfer.packet.format import PacketSummary


class Reached(Struct, frozen=True):
    """Everything up to `seqno` is there, and of the large transaction after it as many bytes as `parts` says by
    sender: they are those of its journal."""

    seqno: int
    parts: Mapping[bytes, int] = field(default_factory=dict)

    def after(self, packet: PacketSummary) -> Reached:
        """With the packet, which it takes."""
        last, part = packet.end.last_seqno, {packet.sender: packet.end_inside}
        return Reached(last, part) if last > self.seqno else Reached(self.seqno, {**self.parts, **part})

    def takes(self, packet: PacketSummary) -> bool:
        """Whether the packet goes on from here, and brings something."""
        has = self.parts.get(packet.sender, 0)
        if packet.end.last_seqno < self.seqno or (packet.end.last_seqno == self.seqno and packet.end_inside <= has):
            return False
        return packet.base.last_seqno < self.seqno or (packet.base.last_seqno == self.seqno and packet.inside <= has)


class Order(Struct, frozen=True):
    """`chosen`: to be taken in this order, as places in what was given; they lead to transaction `seqno`. `waiting`:
    those that bring something after that."""

    chosen: tuple[int, ...]
    waiting: tuple[int, ...]
    seqno: int


class TooMuch(Struct, frozen=True):
    """This site has transactions of an origin up to `ours`, of which `packet`, which leads further, has them up to
    `theirs`: another site took over there. `seqno`: our own number of the last one that both have."""

    packet: PacketSummary
    origin: int
    ours: int
    theirs: int
    seqno: int


def lacks_of(own: Position, packet: PacketSummary) -> tuple[int, ...]:
    """The origins of which the packet leads further than what is here. Numbers of two journals say nothing of that
    where these have parted."""
    return tuple(one for one in packet.end.vector.origins() if packet.end.vector.last(one) > own.vector.last(one))


def too_much(own: Position, packets: Iterable[PacketSummary]) -> TooMuch | None:
    """What must be taken back here before these packets can be applied; None where nothing must."""
    for packet in packets:
        if packet.end.last_seqno <= own.last_seqno and not lacks_of(own, packet):
            continue
        for origin in own.vector.origins():
            ours, theirs = own.vector.last(origin), packet.end.vector.last(origin)
            if ours > theirs:
                return TooMuch(packet, origin, ours, theirs, own.last_seqno - (ours - theirs))
    return None


def order_of(seqno: int, packets: Sequence[PacketSummary]) -> Order:
    """What can be applied after transaction `seqno`."""
    place, lead = Reached(seqno), 0
    way: list[int] = []
    left = sorted(range(len(packets)), key=lambda at: packets[at].base.last_seqno, reverse=True)
    near: list[int] = []  # those that may fit: they begin no later than what is reached, and bring something
    while True:
        while left and packets[left[-1]].base.last_seqno <= place.seqno:
            near.append(left.pop())
        near = [at for at in near if _ends(packets[at]) > (place.seqno, 0)]
        fitting = [at for at in near if place.takes(packets[at])]
        if not fitting:
            break
        at = max(fitting, key=lambda one: (_ends(packets[one]), -one))
        place = place.after(packets[at])
        way.append(at)
        near.remove(at)
        if packets[at].end.last_seqno > (packets[way[lead - 1]].end.last_seqno if lead else seqno):
            lead = len(way)
    waiting = tuple(at for at, packet in enumerate(packets) if _ends(packet) > (place.seqno, 0))
    return Order(tuple(way[:lead]), waiting, place.seqno)


def _ends(packet: PacketSummary) -> tuple[int, int]:
    return packet.end.last_seqno, packet.end_inside


class PacketGap(Struct, frozen=True):
    """What is missing before `packet` can be applied: the transactions `first_seqno` to `last_seqno`. `last_seqno` 0: a
    part of the large transaction `first_seqno`, before that packet, or, where `is_after`, after it."""

    packet: PacketSummary
    first_seqno: int
    last_seqno: int = 0
    is_after: bool = False


def absent_numbers(
    sender: bytes, waiting: Iterable[PacketSummary], offered: Iterable[PacketSummary]
) -> tuple[int, ...]:
    """The packets of that sender that lead to where those that wait begin, and are not among the offered ones; nor is
    one made again in their place. Of what is before these nobody here can know the numbers, which count receipts and
    packets for others, too."""
    here = {one.number: (one.base.last_seqno, one.last_seqno) for one in offered if one.sender == sender}
    found = {
        one.before: one.base.last_seqno
        for one in waiting
        if one.sender == sender and one.before and one.before not in here
    }
    return tuple(sorted(one for one, at in found.items() if not any(a < at <= b for a, b in here.values())))


def told_numbers(numbers: Sequence[int]) -> str:
    """Packets by their numbers, inside a sentence."""
    *first, last = map(str, numbers)
    return f"packets {', '.join(first)} and {last}" if first else f"packet {last}"


def gap_of(seqno: int, waiting: Iterable[PacketSummary]) -> PacketGap | None:
    """What is missing first after transaction `seqno`; None where nothing waits."""
    known = sorted(waiting, key=lambda one: (one.base.last_seqno, one.inside, one.number))
    before = [one for one in known if one.base.last_seqno > seqno or one.inside]
    if before:
        nearest = before[0]
        return PacketGap(nearest, seqno + 1, nearest.base.last_seqno if nearest.base.last_seqno > seqno else 0)
    return PacketGap(known[-1], seqno + 1, is_after=True) if known else None
