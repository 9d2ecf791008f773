"""Up to where every supplier that shares a partition has told that it has our journal.

A supplier asks each that it meets for what it lacks: one that was restored, or whose way was another one so far, asks a
supplier that never sent it anything. So what it may lack stays, though another one serves it today.

Guarantees: what was not told counts as lacking. One that was retired, or that shares nothing, is not waited for.
Leaves to others: who tells when (update_process/supplier_upkeep.py), what is removed (pruning.py). Blocks on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from replicate.door.absorb_stamps import writers_and_seen
from replicate.door.door import Door
from replicate.door.ruv_view import start_for
from replicate.journal.chain import Chain
from replicate.limits import PARTITION_STREAM
from replicate.model.seen import Told, merged_told, stable
from replicate.model.transaction import History


def known_to_all(door: Door, chain: Chain) -> int | None:
    """The number up to which all have told that they have all of it; None where nobody shares. `chain`: our journal.
    Raises what opening the region and reading the journal raise."""
    instance = door.instance
    if not instance.is_supplier:
        return None
    writers, told = writers_and_seen(instance)
    members = writers.members()
    if not members:
        return None
    with door.locked():
        position, histories = door.position(), door.catalogue().histories
    origins = {one: [history.origin.key for history in histories if history.instance == one] for one in members}
    rows = {key: merged_told(told.get(key, {}), _base(histories, key)) for keys in origins.values() for key in keys}
    here = {origin: last for origin, (last, _) in position.chains.items()}
    known = {origin: (last, 0) for origin, last in stable(origins, rows, here, instance.content.uuid).items()}
    return start_for(chain, known, position.last_seqno) - 1


def _base(histories: Sequence[History], key: int) -> Told:
    """What an origin began with, which it has."""
    bases = (one.base for one in histories if one.origin.key == key)
    rows = ({of: last for (of, partition), last in base.items() if partition == PARTITION_STREAM} for base in bases)
    empty: Told = {}
    return reduce(merged_told, rows, empty)
