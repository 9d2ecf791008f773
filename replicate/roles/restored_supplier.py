"""A supplier whose files are older than what it has sent: restored from a backup, or turned back with its machine.

It would give numbers twice, and change rows that it has changed otherwise. So it takes no writes, in an incarnation of
its own, until the others have brought back what it had: then each supplier that it is to hear has been level once.

Guarantees: from `turn_back` on no application's transaction gets a number here before `settle`; what it committed in
between, if anything, shows as DIVERGED on those that have the other one. Rows that wait for a unique value of others
are removed, on all suppliers, before it takes writes. Each may be called again.
Leaves to others: who has found it out, and when the others are level.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from replicate.door.absorb_stamps import absorb, shared_tables, was_shared
from replicate.door.door import Door
from replicate.door.own_removal import OwnRemoval
from replicate.door.recovery.opening import begin_incarnation
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.model.transaction import TableDefinition
from replicate.model.vector import U64_MAX, Position
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.protocol import MergingRows
from replicate.roles.change_of_role import LOCK_TIMEOUT_S, standing_still


def turn_back(
    instance: Instance, *, origin: int | None = None, other_has: int = U64_MAX, timeout_s: float = LOCK_TIMEOUT_S
) -> bool:
    """It has been found to be older than what others have of it; False when that is known already, or it has by now
    what they have (`other_has`: of the origin that it writes). Raises what `standing_still` raises: nothing has changed
    then.

    `origin`: which of its incarnations others have more of. It may be the one that waits for what it had: the same
    backup came back before, and then another one has written under that number."""
    instance.reload()
    own = instance.content.origin.key
    if not instance.is_supplier or (instance.content.is_restoring if origin is None else origin != own):
        return False
    with standing_still(instance, timeout_s) as door, door.locked(timeout_s):
        if door.words[word.OWN_ORIGIN] != own or door.words[word.OWN_ORIGIN_SEQNO] >= other_has:
            return False
        for kind in (PoolKind.RECEIVE, PoolKind.JOURNAL):  # by these its Update Process learns of it
            retire(kind, instance.content.uuid)
        instance.raise_incarnation(is_restored=True)
    return True


def settle(instance: Instance, *, though_retired: bool = False) -> bool:
    """All that it had is back: it takes writes again; False when it does already, or is gone for good by what others
    say, unless that is said to be an error. Raises what `standing_still` raises: it waits still then."""
    instance.reload()
    if not instance.is_supplier:
        raise ConfigurationError(
            f"{instance.name} is {instance.told_role}: nothing has to come back there",
            where=str(instance.path),
            do="Only a supplier that was restored waits for what it had",
        )
    if instance.takes_writes or (instance.content.retired_by is not None and not though_retired):
        return False
    with door_of(instance) as door:
        if was_shared(instance):
            _settle_shared(instance, door)
        else:
            with standing_still(instance, LOCK_TIMEOUT_S):  # its record has a number, which a batch has reckoned with
                _settle(instance, door)
    return True


def _settle(instance: Instance, door: Door) -> None:
    with door.locked():
        instance.restoring_is_over()
        door.instance.reload()
        begin_incarnation(door)  # before the lock is free: what waits for it commits at once


def _settle_shared(instance: Instance, door: Door) -> None:
    """Rows that wait still are removed before: an application does not see them, and might give one its key."""
    with standing_still(instance, LOCK_TIMEOUT_S), door.locked():
        begin_incarnation(door)  # so that all know whose transaction comes
    session = ApplySession(door)
    rows = session.merging()
    try:
        while True:
            session.begin()
            definitions, position = door.catalogue_now().definitions, session.position
            rows.begin()
            absorb(rows, door, position.last_seqno, shared_tables(definitions, session.writers()))
            if not (waiting := rows.waiting):
                rows.finish(position.last_seqno)
                _settle(instance, door)
                session.keep()
                return
            removal = OwnRemoval(session, rows, partial(_partition_of, definitions))
            removal.next_stamp()
            removal.commit(position, waiting, partial(_finish, rows))
            removal.committed()
    finally:
        session.close()


def _finish(rows: MergingRows, after: Position) -> None:
    rows.finish(after.last_seqno)


def _partition_of(definitions: Mapping[int, TableDefinition], table_id: int) -> int:
    return definitions[table_id].partition
