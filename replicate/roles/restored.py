"""A supplier whose files are older than what it has sent: restored from a backup, or turned back with its machine.

It would give numbers twice, and change rows that it has changed otherwise. So it takes no writes, in an incarnation of
its own, until the others have brought back what it had: then each supplier that it is to hear has been level once.

Guarantees: from `turn_back` on no transaction gets a number here before `settle`; what it committed in between, if
anything, shows as DIVERGED on those that have the other one. Each may be called again.
Refuses to know: who has found it out, and when the others are level.
"""

from __future__ import annotations

from replicate.door.recovery.opening import begin_incarnation
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.model.vector import U64_MAX
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.roles.role import LOCK_TIMEOUT_S, standing_still


def turn_back(instance: Instance, *, other_has: int = U64_MAX, timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """It has been found to be older than what others have of it; False when that is known already, or it has by now
    what they have (`other_has`: of the origin that it writes). Raises what `standing_still` raises: nothing has changed
    then."""
    instance.reload()
    if instance.content.is_restoring or not instance.is_supplier:
        return False
    with standing_still(instance, timeout_s) as door, door.locked(timeout_s):
        if door.words[word.OWN_ORIGIN_SEQNO] >= other_has:
            return False
        for kind in (PoolKind.RECEIVE, PoolKind.JOURNAL):  # by these its Update Process learns of it
            retire(kind, instance.content.uuid)
        instance.raise_incarnation(is_restored=True)
    return True


def settle(instance: Instance) -> bool:
    """All that it had is back: it takes writes again; False when it does already. Raises what opening the door
    raises."""
    instance.reload()
    if not instance.is_supplier:
        raise ConfigurationError(
            f"{instance.name} is {instance.told_role}: nothing has to come back there",
            where=str(instance.path),
            do="Only a supplier that was restored waits for what it had",
        )
    if not instance.content.is_restoring:
        return False
    with door_of(instance) as door, door.locked():
        instance.restoring_is_over()
        door.instance.reload()
        begin_incarnation(door)  # before the lock is free: what waits for it commits at once
    return True
