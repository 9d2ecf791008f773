"""A primary that has met another one: it is judged which of them is superseded, and one that is gives its role up.

    door's lock · pool retired · instance file: fenced, by whom, after which transaction     no number is given any more
    locks of all regions · the change of change_of_role.py · instance file: secondary, and still fenced

Guarantees: from the first step on each commit is refused, and names the successor, also on connections that are open;
each step does no harm when the next one never comes, and is done again by the process that looks next; nothing that is
written is touched, so what only this site has can go to a lost file by `rollback`.
Leaves to others: by what proof (succession.py), when (encounters.py), going back (rollback.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import GapError, JournalMissingError
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.model.takeover import Takeover, takeovers_of
from replicate.model.vector import Position
from replicate.pool.shared_memory import PoolKind, retire
from replicate.roles.change_of_role import LOCK_TIMEOUT_S, become_secondary
from replicate.roles.succession import Other, Own, Superseded, Verdict, do_of, judge, text_of
from replicate.system.failpoint import hit
from replicate.transfer.seed.install import seed_lock


class Met(Struct, frozen=True):
    """What was made of another primary: as a sentence, and what to type."""

    verdict: Verdict
    text: str
    do: str

    @property
    def is_fenced(self) -> bool:
        """We are superseded, durably."""
        return isinstance(self.verdict, Superseded)


def own_takeovers(door: Door) -> tuple[Takeover, ...]:
    """What a primary can show another one: of its journal as it is now."""
    with door.locked():
        return takeovers_of(door.catalogue().histories, door.position().chains)


def meet(instance: Instance, other: Other, *, timeout_s: float = LOCK_TIMEOUT_S) -> Met | None:
    """Judge another primary; where we are superseded we are fenced on return. None where we are no primary, or fenced
    already. Raises what opening the door and its lock raise, and what writing the instance file does: we go on then as
    before."""
    instance.reload()
    if not instance.takes_writes:
        return None
    with door_of(instance) as door:
        own = _own(instance, door)
        verdict = judge(own, other, _position_before(instance))
        if isinstance(verdict, Superseded):
            _fence(instance, door, verdict, timeout_s)
    return Met(verdict, text_of(verdict, own, other), do_of(verdict, own, other))


def give_way(instance: Instance, *, timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """Make a primary that is fenced a secondary; whether it was one. BusyError (an application's transaction lasts
    longer than `timeout_s` seconds, or a seed or change of role is under way), and what the change raises: it takes no
    writes meanwhile, and this may be called again."""
    instance.reload()
    if instance.role != "primary" or instance.content.fence is None:
        return False
    with seed_lock(instance):
        become_secondary(instance, timeout_s=timeout_s, successor=instance.content.fence)
    return True


def _own(instance: Instance, door: Door) -> Own:
    with door.locked():
        histories, chains = door.catalogue().histories, door.position().chains
    content = instance.content
    return Own(
        content.name,
        content.uuid,
        content.incarnation,
        histories,
        takeovers_of(histories, chains),
        is_restored=content.is_restored or instance.was_copied,
        overruled=content.overruled,
    )


def _position_before(instance: Instance) -> Callable[[int], Position | None]:
    def look(seqno: int) -> Position | None:
        try:
            found = catalogue_before(make_chain(instance), seqno)
        except (GapError, JournalMissingError):
            return None
        return Position(seqno - 1, found.vector, found.chains)

    return look


def _fence(instance: Instance, door: Door, verdict: Superseded, timeout_s: float) -> None:
    takeover = verdict.takeover
    fence = Successor(verdict.by, takeover.after, origin=takeover.origin, heard_wall_ns=time.time_ns())
    with door.locked(timeout_s):
        retire(PoolKind.JOURNAL, instance.content.uuid)
        hit("fence.pool_retired")
        instance.note_successor(fence)
        hit("fence.noted")
