"""Opening an instance's commit door: attach to the control block that is there, or recover and make a new one.

Guarantees: one door per process and instance, shared by its users and closed with the last; a door is only handed out
over a control block that recovery has made or that live processes use; a forked child gets its own. Leaves to others:
what recovery does (door/recovery/recovery.py), what a door is used for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.recovery.recovery import LOCK_TIMEOUT_S, attach_or_recover
from replicate.door.recovery.way_out import telling_way_out
from replicate.errors import BusyError, InternalError, NotFoundError, PoolReplacedError, TryAgainError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import commit_locked
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.header import FLAG_PARTIAL, SegmentHeader
from replicate.journal.record import history_payload
from replicate.journal.segment import grow_bytes_of
from replicate.journal.spool import remove_orphans
from replicate.model.transaction import Catalogue, History, Kind
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from replicate.pool.shared_memory import PoolKind, retire
from replicate.system.files import sync_directory
from replicate.system.os_errors import io_error
from replicate.system.standard_streams import hold_standard_descriptors

SEEDING_MARKER: Final = "seeding"
"""A file of this name in the instance says that a seed has begun and not ended (transfer/seed/direct.py)."""

ROLLBACK_MARKER: Final = "rolling-back"
"""A file of this name in the instance says that a rollback has begun and not ended (roles/rollback.py)."""

ORPHANS_WAIT_S: Final = 0.2
"""Longest wait for the commit lock only to tidy up: its holders need milliseconds, unless they stand still."""

_lock = threading.Lock()
_doors: Final[dict[tuple[int, str], Door]] = {}
_given_up: Final[deque[Door]] = deque()
"""Doors whose user has gone, and that are not counted off yet."""


def _begin_anew_in_child() -> None:
    """A forked child opens doors of its own, also when another thread of its parent was just opening one."""
    global _lock
    _lock = threading.Lock()
    _given_up.clear()


os.register_at_fork(after_in_child=_begin_anew_in_child)


def open_door(instance: Instance, timeout_s: float = LOCK_TIMEOUT_S) -> Door:
    """The door of `instance` in this process; `close_door` it once for each time it was opened. `timeout_s`: how long
    to wait for others that recover the instance or open it, and for locks; BusyError after that.

    Raises NotFoundError (a secondary that was not seeded yet, or only in part), JournalDamagedError,
    RegionDamagedError, ConflictError, BusyError and what opening files raises. Nothing stays open after a failure.
    """
    hold_standard_descriptors()  # SQLite takes the same care of its own files
    key = (os.getpid(), os.path.realpath(instance.path))
    _refuse_half_seeded(instance)
    _refuse_half_rolled_back(instance)
    try:
        with telling_way_out(instance):
            return _open(instance, key, time.monotonic() + timeout_s)
    finally:
        _close_given_up()


def _open(instance: Instance, key: tuple[int, str], deadline_s: float) -> Door:
    with _locked(instance, deadline_s):
        door = _doors.get(key)
        if door is not None and (door.words[word.FATAL] or not door.pool.is_current()):
            # It must be recovered, or somebody has done so meanwhile; those that still use the old one are told at
            # their next commit.
            del _doors[key]
            door = None
        if door is None:
            chain = make_chain(instance)
            while door is None:
                with contextlib.suppress(PoolReplacedError):  # a change of the role, say, has come between
                    door = _new(instance, chain, deadline_s)
            _doors[key] = door
        else:
            door.instance.reload()  # regions may have been added and released since it was opened
        if instance.role == "primary" and not instance.is_supplier and door.instance.partitions_now().in_use:
            door.words[word.KEEPS_RECORDS] = 1
        door.users += 1
        return door


def _new(instance: Instance, chain: Chain, deadline_s: float) -> Door:
    """A door of this process's own. PoolReplacedError when the pool has become another one meanwhile, and
    TryAgainError when that is so at the deadline still."""
    pool: JournalPool = attach_or_recover(instance, chain, deadline_s)
    try:
        is_others = pool.words[word.OWN_ORIGIN] != instance.content.origin.key
        if is_others or (pool.words[word.ROLE] == word.ROLE_SECONDARY and instance.takes_writes):
            instance.reload()  # another process has recovered it, or has heard who superseded it, since we read it
        door = Door(instance, pool, chain, on_close=close_door)
    except BaseException:
        pool.close()
        raise
    try:
        _remove_orphans(door, _left_s(deadline_s))
        open_history(door, _left_s(deadline_s))
    except PoolReplacedError as error:
        door.dispose()
        if time.monotonic() < deadline_s:
            raise
        raise TryAgainError(
            f"the pool of {instance.name} was replaced again and again", where=str(instance.path), do="Try again"
        ) from error
    except BaseException:
        door.dispose()
        raise
    return door


@contextlib.contextmanager
def _locked(instance: Instance, deadline_s: float) -> Iterator[None]:
    """`_lock`, waited for as long as another thread opens a door."""
    lock = _lock
    if not lock.acquire(timeout=min(_left_s(deadline_s), threading.TIMEOUT_MAX)):
        raise BusyError(
            "another thread of this process was opening an instance all the while",
            where=str(instance.path),
            do="Look for a stopped process that holds a lock of that instance",
        )
    try:
        yield
    finally:
        lock.release()


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())


def _remove_orphans(door: Door, timeout_s: float) -> None:
    """Spools and half made segments of killed processes. Those that live hold a lock on theirs. Nobody needs that now:
    while a holder of the lock stands still, they are left to the next one that comes."""
    with contextlib.suppress(BusyError), door.locked(min(timeout_s, ORPHANS_WAIT_S)):
        remove_orphans(door.instance.journal_directory)


def close_door(door: Door) -> None:
    """Give a door up; the last one closes it. Never waits: a connection may be collected as garbage at any moment, also
    while this thread opens a door. Then the process that holds the lock does the rest."""
    _given_up.append(door)
    _close_given_up()


def _close_given_up() -> None:
    while _given_up and _lock.acquire(blocking=False):
        last: Door | None = None
        try:
            door = _given_up.popleft()
            door.users -= 1
            if door.users <= 0:
                last = door
                for key, known in list(_doors.items()):
                    if known is door:
                        del _doors[key]
        except IndexError:
            pass  # another thread was quicker
        finally:
            _lock.release()
        if last is not None and last.pid == os.getpid():
            last.dispose()


def make_chain(instance: Instance) -> Chain:
    """The chain of the instance's own segments."""
    return Chain(
        instance.journal_directory,
        network=instance.content.network,
        instance=instance.content.uuid,
        grow_bytes=grow_bytes_of(instance.config.journal.segment_bytes),
    )


def is_being_seeded(instance: Instance) -> bool:
    """True while a seed has begun and not ended: it runs, or it was interrupted."""
    return instance.role != "primary" and (instance.path / SEEDING_MARKER).exists()


def is_seeded(instance: Instance) -> bool:
    """True when the instance has a journal: at once on a primary, after the whole seed on a secondary."""
    if instance.role == "primary":
        return True
    return bool(not is_being_seeded(instance) and make_chain(instance).first_seqnos() and instance.regions)


def require_seeded(instance: Instance) -> None:
    """NotFoundError when a secondary has not been seeded yet, or only in part."""
    _refuse_half_seeded(instance)
    if not is_seeded(instance):
        raise NotFoundError(
            "this secondary has not been seeded yet",
            where=str(instance.path),
            do=f"Run: replicate -i {instance.named} seed; or, where no line leads: … seed --from-file FILE",
        )


def _refuse_half_seeded(instance: Instance) -> None:
    if is_being_seeded(instance):
        raise NotFoundError(
            "this secondary has been seeded only in part",
            where=str(instance.path),
            do=f"Run replicate -i {instance.named} seed again",
        )


def _refuse_half_rolled_back(instance: Instance) -> None:
    if (instance.path / ROLLBACK_MARKER).exists():
        raise TryAgainError(
            f"a rollback of {instance.name} has begun and not ended: its regions and its journal stand apart",
            where=str(instance.path),
            do=f"Finish it: replicate -i {instance.named} rollback",
        )


def open_history(door: Door, timeout_s: float | None = None) -> None:
    """Append the record that opens our incarnation, if a primary's journal does not have it yet. `timeout_s`: for the
    commit lock.

    So it makes no difference whether the instance is new, or recovery raised the incarnation and was killed then.
    """
    if not door.instance.takes_writes or door.words[word.OWN_ORIGIN_SEQNO]:
        return
    with door.locked(timeout_s):
        begin_incarnation(door)


def begin_incarnation(door: Door) -> None:
    """The same with the commit lock held. Where an instance takes writes and its pool does not know that yet, it does
    afterwards: no transaction is given a number before that record."""
    catalogue = door.catalogue()
    content = door.instance.content
    own_origin = door.words[word.OWN_ORIGIN]
    if not door.words[word.OWN_ORIGIN_SEQNO] and all(h.origin.key != own_origin for h in catalogue.histories):
        if content.origin.key != own_origin:
            raise InternalError(f"incarnation {content.incarnation} is not the one that the journal pool is of")
        histories = [one for one in catalogue.histories if not content.is_supplier or one.instance == content.uuid]
        newest = histories[-1] if histories else None  # a supplier takes over from nobody but its own incarnations
        previous = 0 if newest is None else newest.origin.key
        reason = "took its role back" if content.overruled else _why_it_begins(newest, content.uuid)
        history = History(content.uuid, content.name, content.incarnation, previous, door.position().vector, reason)
        payload, count = history_payload(history)
        door.begin_whole()
        allotted = door.allot(payload, count, Kind.HISTORY)
        door.append(allotted.frame, allotted.seqno, 0, defines=True)
        door.durability.sync_appended(door.segment())
        door.finish_own(allotted, defines=True)
        door.durability.note_durable(allotted.seqno)
    if content.takes_writes:
        door.words[word.ROLE] = word.ROLE_PRIMARY


def _why_it_begins(newest: History | None, instance: bytes) -> str:
    """Of an incarnation of `instance`, after the incarnation that wrote the journal last."""
    if newest is None:
        return "a new instance"
    if newest.instance != instance:
        return f"took over from {newest.name}"
    return "numbers of the incarnation before could have been used twice"


def lower_consumers(instance: Instance, last_seqno: int) -> None:
    """What a consumer of the journal that is gone has acknowledged beyond `last_seqno` is no witness of what the new
    one must hold: recovery would find it cut off for ever, whatever is seeded. The pool was retired before."""
    consumers = instance.consumers_directory
    with positions_locked(consumers):  # after the pool was retired: so no Source Server writes one of before any more
        for peer in instance.peers:
            known = read_consumer(consumers, peer.name)
            if known is not None and known.acknowledged_seqno > last_seqno:
                write_consumer(consumers, replace(known, acknowledged_seqno=last_seqno))
            if (held := read_hold(consumers, peer.name)) is not None and held > last_seqno:
                write_hold(consumers, peer.name, None)


def begin_journal(instance: Instance, position: Position, catalogue: Catalogue) -> None:
    """Replace the instance's journal by an empty one after `position`, where `catalogue`'s definitions are in force.

    For a secondary, in a seed; the caller sees to it that no daemon of the instance runs. A process that has the old
    journal open learns it at its next use (its pool is retired). Raises BusyError, JournalIOError, DiskFullError; the
    journal is then empty or the old one's oldest part, and the next seed does it again."""
    directory = instance.journal_directory
    try:
        with commit_locked(instance, LOCK_TIMEOUT_S):
            retire(PoolKind.JOURNAL, instance.content.uuid)
            remove_orphans(directory)
            chain = make_chain(instance)
            for first_seqno in sorted(chain.first_seqnos(), reverse=True):
                os.unlink(chain.path_of(first_seqno))
            sync_directory(os.fspath(directory))
            lower_consumers(instance, position.last_seqno)
            DurableSidecar.create(directory / SIDECAR_NAME, position.last_seqno).close()
            content = instance.content
            header = SegmentHeader(
                content.network,
                content.uuid,
                content.incarnation,
                position.last_seqno + 1,
                time.time_ns(),
                flags=FLAG_PARTIAL if content.is_partial else 0,
            )
            in_force = catalogue.newest().at(position.vector, position.chains)
            make_chain(instance).create_first(header, in_force).close()
    except OSError as error:
        raise io_error(error, "the journal could not be begun again", str(directory)) from error
