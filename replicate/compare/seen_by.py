"""Who has what of whom, as one supplier knows it: what each other that shares a partition has told that it has.

Guarantees: each has at least what is said here; our own row is exact. Nothing is asked of another host, so what was
told on the way here counts only once it has come.
Leaves to others: who tells when (update_process/supplier_upkeep.py), what is forgotten by it (model/seen.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from msgspec import Struct

from replicate.door.absorb_stamps import writers_and_seen
from replicate.door.snapshot import door_of
from replicate.errors import NotPrimaryError
from replicate.instance.instance import Instance
from replicate.model.seen import Told, merged_told
from replicate.model.transaction import History


class SeenBy(Struct, frozen=True):
    """What one supplier has. `last`: "NAME INCARNATION" of each origin -> the number of the last that it has; 0: none
    that is known of. `lacks`: how many of those that are here it has not told of."""

    name: str
    last: dict[str, int]
    lacks: int


def seen_by(instance: Instance) -> tuple[SeenBy, ...]:
    """Our own row, then that of each other supplier that writes what several write, or has, by name. NotPrimaryError
    where it is no supplier; raises what opening its door and its region raises."""
    if not instance.is_supplier:
        raise NotPrimaryError(
            f"{instance.name} is {instance.told_role}: suppliers tell each other what they have",
            where=str(instance.path),
            do=f"See how far it is: replicate -i {instance.named} ruv",
        )
    with door_of(instance) as door:
        with door.locked():
            here = {origin: last for origin, (last, _) in door.position().chains.items()}
            histories = [one for one in door.catalogue().histories if one.origin.key in here]
        writers, told = writers_and_seen(instance)
    members = writers.members() - {instance.content.uuid}
    found = []
    for member in members:
        own = {one.origin.key: here[one.origin.key] for one in histories if one.instance == member}
        seen = reduce(merged_told, (told.get(origin, {}) for origin in own), own)
        found.append(_row(_name(histories, member), histories, seen, here))
    return (_row(instance.name, histories, here, here), *sorted(found, key=lambda one: one.name))


def _name(histories: Sequence[History], instance: bytes) -> str:
    names = [one.name for one in histories if one.instance == instance]
    return names[-1] if names else instance.hex()


def _row(name: str, histories: Sequence[History], seen: Told, here: Told) -> SeenBy:
    last = {f"{one.name} {one.incarnation}": seen.get(one.origin.key, 0) for one in histories}
    return SeenBy(name, last, sum(max(0, number - seen.get(origin, 0)) for origin, number in here.items()))
