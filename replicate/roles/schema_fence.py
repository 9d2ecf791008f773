"""Changing the schema where several suppliers write: all others stand aside for it (model/schema_fences.py).

    fence:    `fenced` is committed here · the others hear of it, stand aside, and say so, twice
    change:   all statements in one transaction, after all that anybody wrote
    unfence:  `unfenced`, in the transaction of the change where the fence is for one alone: the others write again

Guarantees: each step is a transaction; the same call again goes on after a kill. Who shares what is as it was before.
While not all stand aside nothing is changed, and `unfence` lets everybody write again.
Leaves to others: what stands in the transaction of the change (door/fenced_schema.py), standing aside
(update_process/aside_for_schema.py), the statements (admin/schema_run.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from replicate.door.door import Door
from replicate.door.snapshot import door_of
from replicate.door.writer_check import name_of, suppliers_known
from replicate.errors import ConfigurationError, NotWriterError, TryAgainError
from replicate.instance.instance import Instance
from replicate.model.moment import first_csn
from replicate.model.schema_fences import Stand
from replicate.model.told_fences import ToldFence, told_fences
from replicate.model.transaction import FENCED, STANDS, UNFENCED
from replicate.model.writers import REST
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.roles.partition_writers import held_session, say, supplier_door
from replicate.system.failpoint import hit

LOOK_S: Final = 0.2
LOCK_S: Final = 5.0
"""How long an application's transaction is waited for at least, which is no reason to say that a supplier is."""


def fence(
    instance: Instance, *, timeout_s: float, is_once: bool = False, waits: Callable[[ToldFence], None] | None = None
) -> ToldFence:
    """Have all other suppliers stand aside, and wait up to `timeout_s` for them; nothing more is said where that was
    said already. `waits`: told who is waited for, whenever these are others. `is_once`: the first change of the schema
    ends it.

    NotPrimaryError (no supplier), NotWriterError (another one fences), TryAgainError (not all stand aside yet: it stays
    so, and the same call goes on), BusyError, and what a commit raises."""
    deadline_s = time.monotonic() + timeout_s
    with supplier_door(instance) as door:
        own = instance.content.uuid
        with held_session(door, max(timeout_s, LOCK_S)) as session:
            writers = session.parts[0].region.writers()
            others = [one for one in writers.fences.open(writers.retired) if one != own]
            if not writers.fences.is_fencing(own):
                if others:
                    who = name_of(door, others[0])
                    raise NotWriterError(
                        f"{who} changes the schema now, and {instance.name} stands aside",
                        where=str(instance.path),
                        do=f"Wait until it has ended that, or end it there: replicate -i {who} schema unfence",
                        writer=who,
                    )
                now = first_csn(time.time_ns() // 1000)
                number = writers.fences.next_number(own, max(int(door.words[word.LAST_CSN]) + 1, now))
                say(door, session, REST, [FENCED, own, number, is_once])
                hit("fence.said")
    return _stood(instance, deadline_s, waits)


def _stood(instance: Instance, deadline_s: float, waits: Callable[[ToldFence], None] | None) -> ToldFence:
    told: tuple[str, ...] = ()
    while True:
        found = next((one for one in fences(instance) if one.is_own), None)
        if found is None:
            raise ConfigurationError(
                "the fence was ended meanwhile, and nothing was changed", where=str(instance.path), do="Begin again"
            )
        if found.is_closed:
            hit("fence.closed")
            return found
        if waits is not None and found.awaited != told:
            told = found.awaited
            waits(found)
        if time.monotonic() >= deadline_s:
            raise _awaited(instance, found)
        time.sleep(LOOK_S)


def _awaited(instance: Instance, found: ToldFence) -> TryAgainError:
    name, first = instance.named, (found.awaited or ("NAME",))[0]
    return TryAgainError(
        f"{', '.join(found.awaited) or 'another supplier that fences'} is waited for: all suppliers stand aside until "
        "then, and nothing was changed",
        where=str(instance.path),
        do="Its Update Process must run, and be connected: give the same command again then. Where it is gone for "
        f"good, or no supplier any more: replicate -i {name} replica retire {first}. To let all write again: "
        f"replicate -i {name} schema unfence",
        awaited=", ".join(found.awaited),
    )


def unfence(instance: Instance, *, timeout_s: float) -> bool:
    """Let the others write again, with exactly the sharing that they had; whether they were kept from it. Raises as
    `fence`."""
    with supplier_door(instance) as door, held_session(door, max(timeout_s, LOCK_S)) as session:
        own, writers = instance.content.uuid, session.parts[0].region.writers()
        if not writers.fences.is_fencing(own):
            return False
        say(door, session, REST, [UNFENCED, own, writers.fences.by[own].number])
        return True


def stand(door: Door, one: Stand, *, timeout_s: float) -> None:
    """Say that this one stands aside, where that is to be said still. Raises what a commit raises."""
    own = door.instance.content.uuid
    with held_session(door, timeout_s) as session:
        writers = session.parts[0].region.writers()
        if one in writers.fences.to_stand(own, suppliers_known(door, writers), writers.retired):
            say(door, session, REST, [STANDS, one.fencer, one.number, own, one.turn])
            hit("fence.stands")


def fences(instance: Instance) -> list[ToldFence]:
    """All that are open, the one that comes first in front; none where there are no suppliers. Raises what opening the
    door and the region raises."""
    if not instance.regions:
        return []
    entry = instance.regions[0]
    with door_of(instance) as door, closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        return told_fences(opened.writers(), door.catalogue_now().histories, instance.content.uuid)
