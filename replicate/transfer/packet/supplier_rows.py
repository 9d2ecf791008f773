"""What one supplier knows of what another one has, origin by origin: the rows of the epoch matrix between suppliers.

    heard      its last word: a packet or receipt of it, or its acknowledgement on a line
    told       what its own transactions say that it has seen (SEEN), however they came here
    exported   what packets for it were made of, whether or not they have arrived: an estimate

Guarantees: what a supplier writes it has, so nothing of its present life is ever exported to it. What it told counts
beside its last word only where it has written since: one that was restored has less than it told. A row asks nothing of
its supplier that is not here: who has more has what is before it.
Leaves to others: where rows are kept (epochs.py), which place of our journal they come to, files. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from replicate.limits import PARTITION_STREAM
from replicate.model.ruv import NOTHING, lacks
from replicate.model.seen import Told, merged_told
from replicate.model.transaction import History
from replicate.model.vector import Chains, Origin, SynchronizationVector
from replicate.transfer.packet.epochs import Replica
from replicate.transfer.packet.format import OriginName

UNPROVEN: Final = 0
"""In the place of a chain hash that nobody has told: the number alone is known. What comes after it proves itself."""


class MetSupplier(Struct, frozen=True):
    """One that our journal names. `living`: the origin that it writes now; `told`: what that one has told."""

    name: str
    instance: bytes
    incarnation: int
    living: int
    told: Told


class SupplierRow(Struct, frozen=True):
    """`heard`: what it has; `known`: with what was exported to it since. By origin its last number, and the chain hash
    there."""

    heard: Chains
    known: Chains


def met_suppliers(
    histories: Iterable[History], names: Iterable[OriginName], seen: Mapping[int, Told]
) -> dict[str, MetSupplier]:
    """All that the journal's `histories` name, by name. `names`: of origins that packets have named since; `seen`: what
    each origin has told."""
    newest = {one.name: one for one in histories}  # of one that was made again, too, they stand in their order
    later = tuple(names)
    found = {}
    for name, one in newest.items():
        known = (of.incarnation for of in later if of.key == Origin(one.instance, of.incarnation).key)
        incarnation, told = max(known, default=0), dict[int, int]()
        if incarnation <= one.incarnation:  # else it was restored, and no journal has heard of that yet
            incarnation = one.incarnation
            base = {origin: last for (origin, partition), last in one.base.items() if partition == PARTITION_STREAM}
            told = merged_told(base, seen.get(one.origin.key, {}))
        living = Origin(one.instance, incarnation).key
        found[name] = MetSupplier(name, one.instance, incarnation, living, told)
    return found


def row_of(met: MetSupplier | None, replica: Replica, here: Chains) -> SupplierRow | None:
    """What is known of one; None where nothing is. `here`: what we have."""
    if met is None and replica.known is None:
        return None
    heard = {} if replica.heard is None else dict(replica.heard.position.chains)
    if met is not None:
        last = here.get(met.living, (NOTHING, UNPROVEN))
        if replica.heard is None or lacks(heard, met.living, last[0]):
            heard = joined(heard, {origin: (number, UNPROVEN) for origin, number in met.told.items()})
        if last[0] != NOTHING:
            heard = joined(heard, {met.living: last})
    exported = {} if replica.estimated is None else replica.estimated.position.chains
    return SupplierRow(proven(heard, here), proven(joined(heard, exported), here))


def joined(one: Chains, other: Chains) -> dict[int, tuple[int, int]]:
    """The higher of both, origin by origin; of the same number the one with a hash."""
    made = dict(one)
    for origin, place in other.items():
        if lacks(made, origin, place[0]) or (made[origin][0] == place[0] and made[origin][1] == UNPROVEN):
            made[origin] = place
    return made


def proven(row: Chains, here: Chains) -> dict[int, tuple[int, int]]:
    """With the hash of each number that is our last one, where nobody has told another."""
    return {
        origin: here[origin]
        if chain == UNPROVEN and number == here.get(origin, (NOTHING, UNPROVEN))[0]
        else (number, chain)
        for origin, (number, chain) in row.items()
    }


def needed(row: Chains, here: Chains) -> dict[int, tuple[int, int]]:
    """What must be there of a row before anything after it: no more than is here."""
    return {
        origin: place if place[0] <= here[origin][0] else here[origin]
        for origin, place in row.items()
        if origin in here
    }


def lowest(rows: Sequence[Chains]) -> dict[int, tuple[int, int]]:
    """What all of them have: of each origin that all have met the lowest."""
    found = {}
    for origin in set(rows[0]).intersection(*rows[1:]):
        number = min(row[origin][0] for row in rows)
        found[origin] = number, max(row[origin][1] for row in rows if row[origin][0] == number)
    return found


def vector_of(chains: Chains) -> SynchronizationVector:
    """The numbers alone."""
    return SynchronizationVector({(origin, PARTITION_STREAM): last for origin, (last, _) in chains.items()})
