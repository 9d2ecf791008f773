"""In which order packets between suppliers can be applied, what those lack that cannot, and which must not be.

Guarantees: a packet is chosen only where all that it needs is here by then, of each origin: what comes before it in the
journal of its sender. Whatever is there, doubled, overlapping and in any order, the way goes as far as that allows. A
large transaction goes on in packets of the same sender only: its bytes are that one's. Two transactions of one number
are found, and that we have less of our own than others have of it.
Leaves to others: files, who merges what. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from replicate.model.ruv import NOTHING, Forked, covers, lacks
from replicate.model.vector import Chains
from replicate.transfer.packet.format import NO_LARGE, BetweenSuppliers, PacketSummary
from replicate.transfer.packet.supplier_rows import UNPROVEN, joined

Part = tuple[bytes, int, int]
"""A large transaction of which something is here: whose journal the bytes are of, its origin and number."""


class VectorOrder(Struct, frozen=True):
    """`chosen`: to be taken in this order, as places in what was given. `waiting`: those that bring something more,
    among them chosen ones that end inside a large transaction which does not go on. `reached`: what is here then."""

    chosen: tuple[int, ...]
    waiting: tuple[int, ...]
    reached: Chains


class MissingRange(Struct, frozen=True):
    """Of an origin the numbers `first` to `last`."""

    origin: int
    first: int
    last: int


class VectorGap(Struct, frozen=True):
    """What is missing before `packet` can be applied. `missing` is empty where it is a part of a large transaction
    before it, or, where `is_after`, after it."""

    packet: PacketSummary
    missing: tuple[MissingRange, ...] = ()
    is_after: bool = False


def vector_order(here: Chains, packets: Sequence[PacketSummary]) -> VectorOrder:
    """What can be applied where that much is here; all of them are between suppliers."""
    reached: Chains = here
    parts: dict[Part, int] = {}
    chosen: list[int] = []
    left = [at for at, one in enumerate(packets) if not one.is_receipt]
    while True:
        left = [at for at in left if _brings(packets[at], reached, parts)]
        fitting = [at for at in left if _fits(packets[at], reached, parts)]
        if not fitting:
            break
        # The one that leads furthest first: what it covers, others need not bring again.
        at = max(fitting, key=lambda one: (_gain(packets[one], reached), -one))
        reached = joined(reached, packets[at].end.chains)
        packet = packets[at]
        if packet.end_inside:
            part = (packet.sender, *_said(packet).goes_on_after)
            parts[part] = max(parts.get(part, 0), packet.end_inside)
        chosen.append(at)
        left.remove(at)
    open_parts = [at for at in chosen if packets[at].end_inside and lacks(reached, *_said(packets[at]).goes_on_after)]
    return VectorOrder(tuple(chosen), tuple(sorted((*left, *open_parts))), reached)


def _said(packet: PacketSummary) -> BetweenSuppliers:
    assert packet.suppliers is not None
    return packet.suppliers


def _brings(packet: PacketSummary, reached: Chains, parts: Mapping[Part, int]) -> bool:
    if not covers(reached, packet.end.chains):
        return True
    after = _said(packet).goes_on_after
    return after != NO_LARGE and lacks(reached, *after) and parts.get((packet.sender, *after), 0) < packet.end_inside


def _fits(packet: PacketSummary, reached: Chains, parts: Mapping[Part, int]) -> bool:
    if not covers(reached, packet.base.chains):
        return False
    inside = _said(packet).goes_on
    return inside == NO_LARGE or not lacks(reached, *inside) or parts.get((packet.sender, *inside), 0) >= packet.inside


def _gain(packet: PacketSummary, reached: Chains) -> int:
    """How many transactions it brings."""
    ends = packet.end.chains.items()
    return sum(max(0, last - reached.get(origin, (NOTHING, 0))[0]) for origin, (last, _) in ends)


def vector_gap(reached: Chains, waiting: Iterable[PacketSummary]) -> VectorGap | None:
    """What is missing first where that much is reached; None where nothing waits."""
    found = [VectorGap(one, _missing(one, reached)) for one in waiting]
    before = [one for one in found if one.missing]
    if before:
        return min(before, key=lambda one: (sum(of.last - of.first + 1 for of in one.missing), one.packet.number))
    parts = sorted(found, key=lambda one: one.packet.number)
    for one in parts:
        inside = _said(one.packet).goes_on
        if inside != NO_LARGE and not covers(reached, one.packet.end.chains) and lacks(reached, *inside):
            return one
    return VectorGap(parts[-1].packet, is_after=True) if parts else None


def _missing(packet: PacketSummary, reached: Chains) -> tuple[MissingRange, ...]:
    return tuple(
        MissingRange(origin, reached.get(origin, (NOTHING, 0))[0] + 1, last)
        for origin, (last, _) in sorted(packet.base.chains.items())
        if lacks(reached, origin, last)
    )


def forked_packet(here: Chains, packets: Iterable[PacketSummary]) -> tuple[PacketSummary, Forked] | None:
    """The first packet that leads to another transaction under a number that is our last one, or needs one; None
    where there is none."""
    for packet in packets:
        for place in (packet.base, packet.end, packet.own):
            for origin, (number, chain) in sorted(place.chains.items()):
                ours = here.get(origin, (NOTHING, UNPROVEN))
                if ours[0] == number and UNPROVEN not in (ours[1], chain) and ours[1] != chain:
                    return packet, Forked(origin, number, ours[1], chain)
    return None


def knows_more_of(own: int, here: Chains, packets: Iterable[PacketSummary]) -> PacketSummary | None:
    """The first packet whose sender has more of what origin `own` writes than is here, where it is written: then we
    were turned back. None where none has."""
    for packet in packets:
        for place in (packet.base, packet.end, packet.own):
            if own in place.chains and lacks(here, own, place.chains[own][0]):
                return packet
    return None
