"""Changing an instance's role: all of it under the locks of every region and the commit lock, in one order.

    to secondary   regions say their position by checkpoint records · pool retired · instance file: secondary
    to primary     regions say their position by one ring slot · pools retired · instance file: primary · peers known

Guarantees: each step does no harm when the next one never comes, so a change that was killed anywhere left the old role
or the new one, and doing it again ends the same; no transaction is given a number, or applied, from the moment that the
locks are held; the process that has the instance open learns of the change by its retired pool and its risen
incarnation. Leaves to others: daemons (daemons_down.py), whether the change should be made (promote_demote.py), how
what was received is applied, and the other site."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from replicate.compare.patrol_found import forget_patrolled
from replicate.door.door import Door
from replicate.door.recovery.opening import SEEDING_MARKER, close_door, open_door, require_seeded
from replicate.door.recovery.redo_region import redo_region
from replicate.door.recovery.stale_wal import refuse_stale_file
from replicate.door.snapshot import door_of, finish_regions, take_snapshot
from replicate.errors import TryAgainError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked, regions_locked
from replicate.model.transaction import History
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.protocol import ScrRow, scr_rows, with_own_numbers
from replicate.region.sqlite.turn_role import begin_as_primary, begin_as_secondary
from replicate.roles.handover import may_give
from replicate.system.failpoint import hit
from replicate.system.files import replace_file

LOCK_TIMEOUT_S: Final = 30.0
NEVER_PRIMARY: Final = "never becomes primary"
"""A data feed."""


def become_secondary(
    instance: Instance,
    *,
    timeout_s: float = LOCK_TIMEOUT_S,
    successor: Successor | None = None,
    restoring: bool = False,
    permit: Callable[[], object] = lambda: None,
) -> int:
    """Make a primary a secondary; the last number of its journal, which every region holds. Nothing happens when it is
    one already. `successor`: who is made primary instead, which has all up to that number; or who has superseded it.
    `restoring`: it waits for what it had (restored_primary.py). `permit`: is asked when nobody commits any more; what
    it raises leaves all as it is.

    Raises BusyError (an application's transaction lasts longer than `timeout_s` seconds), TryAgainError (the journal
    goes beyond what the successor has) and what opening the door, redo and the disk raise: the instance is still
    primary then.
    """
    instance.reload()
    if instance.role == "secondary":
        return last_seqno(instance)
    successor = instance.content.fence or successor
    with standing_still(instance, timeout_s) as door:
        seqno, rows = _checkpoint(door, timeout_s)
        if successor is not None and not successor.is_fence:
            _check_end(instance, seqno, successor.seqno)
        permit()
        for entry in instance.regions:
            begin_as_secondary(entry.path, entry.uuid, rows)
            hit("role.region_turned")
        with door.locked(timeout_s):
            retire(PoolKind.JOURNAL, instance.content.uuid)
            hit("role.pool_retired")
            instance.change_role("secondary", successor, is_restoring=restoring)
            hit("role.changed")
    return seqno


def become_secondary_unread(instance: Instance, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """The same where its journal, or a region, cannot be read: neither is looked at, since a seed is to replace them.
    What others lack of it is lost. BusyError; the instance is still primary then."""
    with regions_locked(instance, timeout_s):
        # So that its Receiver Server does not look at them either. Before the role: it means nothing on a primary.
        replace_file(instance.path / SEEDING_MARKER, b"from nobody yet\n")
        retire(PoolKind.JOURNAL, instance.content.uuid)
        instance.change_role("secondary")


def become_primary(instance: Instance, *, timeout_s: float = LOCK_TIMEOUT_S, expect: int | None = None) -> int:
    """Make a secondary a primary, open for writers; the last number that it had applied. All that was received and is
    to be kept must have been applied before. Of a primary only what a killed change has left is done. `expect`: what
    that number has to be.

    Raises PermissionRefusedError (a data feed), NotFoundError (not seeded), BusyError, TryAgainError (it is not the one
    expected) and what opening the door, redo and the disk raise: the instance is still secondary then, or primary and
    this may be called again.
    """
    instance.reload()
    instance.refuse_feed(NEVER_PRIMARY)
    instance.refuse_partial(NEVER_PRIMARY)
    if instance.role == "secondary":
        require_seeded(instance)
        with standing_still(instance, timeout_s) as door:
            seqno = int(door.words[word.LAST_SEQNO])
            own = [one.incarnation for one in door.catalogue_now().histories if one.instance == instance.content.uuid]
            if expect is not None:
                _check_end(instance, seqno, expect)
            for entry in instance.regions:
                begin_as_primary(entry.path, entry.uuid, seqno)
                hit("role.region_turned")
            with door.locked(timeout_s):
                for kind in (PoolKind.RECEIVE, PoolKind.JOURNAL):
                    retire(kind, instance.content.uuid)
                    hit("role.pool_retired")
                # It may have been restored from before others of its own, which came back to it.
                instance.change_role("primary", above=max(own, default=0))
                forget_patrolled(instance.path)
                hit("role.changed")
    with door_of(instance) as door:  # its history record is written, if it is not there
        histories = door.catalogue_now().histories
    taken_over_at = begun_at(histories, instance.content.origin.key)
    _know_peers(instance, taken_over_at, histories)
    return taken_over_at


def _check_end(instance: Instance, seqno: int, expected: int) -> None:
    """TryAgainError unless its journal ends with that number. Nobody commits or applies meanwhile."""
    if not may_give(seqno=seqno, compared_at=expected):
        raise TryAgainError(
            f"the last transaction of {instance.name} is {seqno}, and both sites have all up to {expected}: its role "
            "stays as it is",
            where=str(instance.path),
            do="Try again",
        )


def begun_at(histories: Iterable[History], origin: int) -> int:
    """The last number before the incarnation with that key began; 0 when it has no record, or stands first."""
    return next((one.seqno - 1 for one in histories if one.origin.key == origin), 0)


def old_primary(histories: tuple[History, ...], origin: int) -> str:
    """The name of the instance that was primary before the incarnation with that key began; "" when none was."""
    before = [one for one in histories if one.origin.key != origin]
    return before[-1].name if before else ""


def last_seqno(instance: Instance) -> int:
    """The last number in its journal."""
    with door_of(instance) as door:
        return int(door.words[word.LAST_SEQNO])


@contextmanager
def standing_still(instance: Instance, timeout_s: float) -> Iterator[Door]:
    """The door, with the locks of all regions held: they hold what the journal holds, and nobody commits or applies.
    BusyError after `timeout_s` seconds."""
    deadline_s = time.monotonic() + timeout_s
    with ExitStack() as stack:
        door = open_door(instance, timeout_s)
        stack.callback(close_door, door)
        finish_regions(door, timeout_s)
        for entry in instance.regions:
            stack.enter_context(region_locked(instance, entry, max(0.0, deadline_s - time.monotonic())))
            refuse_stale_file(instance, entry)
        with door.locked(max(0.0, deadline_s - time.monotonic())):
            pass  # mends what a killed writer left at the journal's end
        for entry in instance.regions:
            if door.words[word.REGION_APPENDED + entry.region_id] != door.words[word.REGION_DONE + entry.region_id]:
                redo_region(door, entry, timeout_s)
        door.sync_to_end(timeout_s)
        yield door


def _checkpoint(door: Door, timeout_s: float) -> tuple[int, list[ScrRow]]:
    """The journal's last number, and the checkpoint records that say its position. The time stays the real one: what
    is written next must not be older."""
    with take_snapshot(door, timeout_s=timeout_s) as snapshot:
        assert snapshot is not None
        rows = scr_rows(snapshot.position, snapshot.csn)
        there = [row for region in snapshot.regions.opened.values() for row in region.checkpoint()]
        return snapshot.seqno, with_own_numbers(rows, there, snapshot.seqno)


def _know_peers(instance: Instance, taken_over_at: int, histories: tuple[History, ...]) -> None:
    """The old primary had all that was taken over. Of the others is kept what is known of them; of one that nothing is
    known of, that it has nothing."""
    name = old_primary(histories, instance.content.origin.key)
    directory = instance.consumers_directory
    with positions_locked(directory):
        for peer in instance.consumers:
            known = read_consumer(directory, peer.name)
            if peer.name == name and (known is None or known.acknowledged_seqno < taken_over_at):
                uuid = "" if known is None else known.uuid
                write_consumer(directory, Consumer(peer.name, taken_over_at, uuid))
            elif known is None:
                write_consumer(directory, Consumer(peer.name))
