"""Imports packets: what they bring is unpacked, verified, and applied as a replay applies journals.

    looked at (transfer/packet/offered.py) · put in order (order.py) · unpacked into the stage, one directory for each
    segment, every byte verified · replayed, with our own journal byte for byte · the senders' words noted

Guarantees: nothing is applied before all that is to be applied has verified; then those of a replay: whatever dies
leaves the secondary at the end of a piece, and the same command goes on. What was applied already is not again. What
cannot be applied yet waits, and says what it lacks.
Refuses to know: the command line; how packets travel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replicate.daemon.aside import asked_aside
from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import require_seeded
from replicate.door.snapshot import door_of
from replicate.errors import DamagedError, NotFoundError, PacketGapError, ReplicateError, RollbackNeededError
from replicate.instance.instance import Instance
from replicate.journal.segment import segment_name
from replicate.limits import MIB
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.roles.alone import wait_until_down
from replicate.system.failpoint import hit
from replicate.system.files import write_all
from replicate.system.os_errors import io_error
from replicate.transfer.packet.export import LOCK_TIMEOUT_S, packets_lock
from replicate.transfer.packet.format import PacketSummary, SegmentPart
from replicate.transfer.packet.offered import Inbox, Offered, look, take_words, unsealer_of
from replicate.transfer.packet.order import Order, PacketGap, TooMuch, gap_of, order_of, too_much
from replicate.transfer.packet.read import PacketReader
from replicate.transfer.seed.file import require_free
from replicate.transfer.seed.install import seed_lock
from update_process.replay.apply import Progress, Told
from update_process.replay.backlog import Journals
from update_process.replay.command import (
    DAEMONS,
    SparkSessions,
    one_session,
    replay_locked,
    require_own_words,
    require_secondary,
    stage_of,
    stopped_daemons,
)
from update_process.replay.run import Summary as Replayed
from update_process.replay.run import silent

LOOK_EVERY_BYTES: Final = 64 * MIB
"""So often it is looked whether the disk still has room."""


@dataclass(slots=True)
class Imported:
    """What an import has done. `applied`: packets that are applied whole; `in_part`: up to
    the large transaction that goes on in another one; `known`: those that brought nothing new;
    `waiting`: those that need others first; `heard`: replicas that have said how far they are."""

    seqno: int = 0
    applied: tuple[str, ...] = ()
    in_part: tuple[str, ...] = ()
    known: int = 0
    waiting: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    for_others: int = 0
    removed: int = 0
    dry_run: bool = False
    replayed: Replayed | None = None
    errors: list[ReplicateError] = field(default_factory=list)
    """What the command ends with: packets that were refused, words that do not fit, a gap."""


def import_packets(
    instance: Instance,
    paths: Sequence[Path],
    *,
    now_s: float,
    spark: SparkSessions | None = None,
    dry_run: bool = False,
    remove: bool = False,
    told: Told = silent,
) -> Imported:
    """Apply what the packets at `paths`, files and directories, bring. `remove`: those that are applied whole, or bring
    nothing new. `now_s`: the wall clock.

    Raises NotFoundError (no such path; not seeded), what a replay raises (PermissionRefusedError, AlreadyRunningError,
    …), and DamagedError for a chosen packet that does not verify; nothing is applied then. What is wrong with others
    is in `errors`.
    """
    instance.refuse_supplier("it takes no packets yet")
    lock = packets_lock(instance)
    try:
        lock.acquire(LOCK_TIMEOUT_S, what="the lock of the packets")
        inbox = look(instance, paths, now_s)
        done = Imported(for_others=inbox.for_others, dry_run=dry_run, errors=list(inbox.refused))
        order = _apply(instance, inbox, done, spark, dry_run, told)
        waiting = [inbox.packets[at].summary for at in order.waiting]
        done.waiting = tuple(str(inbox.packets[at].path) for at in order.waiting)
        hit("packet.applied")
        if not dry_run:
            done.heard, refused = take_words(
                instance, inbox.packets, tuple((told_of(one), one.last_seqno) for one in waiting)
            )
            done.errors += [error for _, error in refused]
            if remove:
                kept = {inbox.packets[at].path for at in order.waiting} | {path for path, _ in refused}
                done.removed = _remove(one.path for one in inbox.packets if one.path not in kept)
        if (gap := gap_of(order.seqno, waiting)) is not None:
            done.errors.append(_gap_error(instance, gap))
    finally:
        lock.close()
    return done


@contextmanager
def _aside(instance: Instance) -> Iterator[None]:
    """The daemons that apply stand aside meanwhile, if they run: a line goes on afterwards where the packets ended."""
    deadline_s = time.monotonic() + instance.config.daemon.stop_timeout_s
    with ExitStack() as stack:
        for name, _ in DAEMONS:
            stack.enter_context(asked_aside(instance.path, max(0.0, deadline_s - time.monotonic()), daemon=name))
        for name, _ in DAEMONS:
            wait_until_down(DaemonFiles(instance.path, name).lock, deadline_s)
        yield


def told_of(summary: PacketSummary) -> str:
    """What a packet is, for people."""
    return f"packet {summary.number} of {summary.sender_name}, {summary.first_seqno} to {summary.last_seqno}"


def _apply(
    instance: Instance, inbox: Inbox, done: Imported, spark: SparkSessions | None, dry_run: bool, told: Told
) -> Order:
    summaries = [one.summary for one in inbox.packets]
    if all(one.is_receipt for one in summaries):
        with suppress(NotFoundError):  # one that is not seeded has nothing to say of itself
            done.seqno = _last_seqno(instance)
        return Order((), (), done.seqno)
    require_seeded(instance)
    done.seqno = _last_seqno(instance)
    order = order_of(done.seqno, summaries)
    brings = [at for at, one in enumerate(summaries) if not one.is_receipt]
    done.known = len(set(brings) - {*order.chosen, *order.waiting})
    if order.chosen or order.waiting:
        require_secondary(instance)
        require_own_words(instance, ())
        bring = [summaries[at] for at in (*order.chosen, *order.waiting)]
        if (more := too_much(_position(instance), bring)) is not None:
            raise _rollback_first(instance, more)
    if not order.chosen:
        return order
    with (
        seed_lock(instance),
        _aside(instance),
        stopped_daemons(instance, "packet import"),
        stage_of(instance) as stage,
        one_session(spark, told) as get,
    ):
        order = order_of(_last_seqno(instance), summaries)
        if not order.chosen:  # until it stood aside, the line has brought all of it
            done.seqno = order.seqno
            return order
        chosen = [inbox.packets[at] for at in order.chosen]
        segments = _unpack(instance, chosen, stage, told)
        hit("packet.unpacked")
        journals = Journals((), instance.content.network, stage=stage, segments=segments)
        done.replayed = replay_locked(
            instance, journals, stage, get, last_seqno=order.seqno, dry_run=dry_run, told=told
        )
    done.seqno = done.seqno if dry_run else order.seqno
    done.applied = tuple(str(inbox.packets[at].path) for at in order.chosen if at not in order.waiting)
    done.in_part = tuple(str(inbox.packets[at].path) for at in order.chosen if at in order.waiting)
    return order


def _last_seqno(instance: Instance) -> int:
    with door_of(instance) as door:
        return int(door.words[word.LAST_SEQNO])


def _position(instance: Instance) -> Position:
    with door_of(instance) as door, door.locked():
        return door.position()


def _rollback_first(instance: Instance, more: TooMuch) -> RollbackNeededError:
    names = {one.key: one.instance for one in more.packet.origins}
    of = names.get(more.origin, f"{more.origin:08x}")
    return RollbackNeededError(
        f"{instance.name} has transactions of {of} up to its number {more.ours}; {more.packet.sender_name}, which goes "
        f"on otherwise, has them up to {more.theirs}",
        where=str(instance.path),
        do=f"Take back what is more, and have it kept in a file: replicate -i {instance.named} rollback --to "
        f"{more.seqno}; then import again",
        seqno=more.seqno,
        origin=more.origin,
    )


def _unpack(instance: Instance, packets: Sequence[Offered], stage: Path, told: Told) -> list[tuple[Path, int]]:
    """The segments of these packets, each in a directory of its own below the stage, and with which transaction it
    ends; all of them have verified. What is here of a large transaction only in part is left out: it is waited for, or
    another packet has it whole."""
    unpacked: dict[Path, _Unpacked] = {}
    whole, done, room = sum(one.size for one in packets), 0, 0
    for number, one in enumerate(packets):
        with PacketReader(one.path, unsealer_of(instance)) as reader:
            if reader.summary != one.summary:  # which was judged, and has the digest of all that follows
                raise DamagedError("this packet was replaced meanwhile", where=str(one.path), do="Import it again")
            open_: _Unpacked | None = None
            for part, pieces in reader.segments():
                if open_ is not None:
                    open_.last_seqno = part.first_seqno - 1
                # What goes on in the next packet is the sender's own segment: its bytes come together again.
                name = f"large-{one.summary.sender.hex()}" if part.size else f"{number}"
                directory = stage / f"{name}-{part.first_seqno}"
                here = unpacked.get(directory) or unpacked.setdefault(directory, _Unpacked(directory, part))
                for piece in pieces:
                    if room <= 0:
                        require_free(stage, LOOK_EVERY_BYTES, "unpacking packets")
                        room = LOOK_EVERY_BYTES
                    here.add(part.offset, piece)
                    room -= len(piece)
                open_ = None if part.size else here
            if open_ is not None:
                open_.last_seqno = one.summary.last_seqno
        done += one.size
        told(Progress("unpacking", done, whole))
    return [(directory, one.last_seqno) for directory, one in unpacked.items() if one.is_whole]


class _Unpacked:
    """A segment in the making, in the directory (made)."""

    def __init__(self, directory: Path, part: SegmentPart) -> None:
        self.path = directory / segment_name(part.first_seqno)
        self.last_seqno = part.first_seqno
        """The last transaction in it."""
        self._size = part.size
        self._reached = 0
        """All bytes before this offset are there."""
        self._written = (-1, 0)
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise io_error(error, "a packet could not be unpacked", str(directory)) from error

    @property
    def is_whole(self) -> bool:
        return self._reached == self._size or not self._size

    def add(self, offset: int, piece: bytes) -> None:
        """The next bytes of a part that begins at `offset`. DiskFullError, JournalIOError."""
        begins, count = self._written
        at = offset + count if begins == offset else offset
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, piece, at)
            finally:
                os.close(fd)
        except OSError as error:
            raise io_error(error, "a packet could not be unpacked", str(self.path)) from error
        self._written = (offset, at - offset + len(piece))
        if at <= self._reached:
            self._reached = max(self._reached, at + len(piece))


def _remove(paths: Iterable[Path]) -> int:
    removed = 0
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise io_error(error, "a packet that is applied could not be removed", str(path)) from error
        removed += 1
    return removed


def _gap_error(instance: Instance, gap: PacketGap) -> PacketGapError:
    packet, first, last = gap.packet, gap.first_seqno, gap.last_seqno
    which = f"packet {packet.number} of {packet.sender_name}"
    recover = f"there: replicate -i {packet.sender_name} packet recover --to {instance.name}"
    if gap.is_behind:
        what = f"{which} holds the beginning of the large transaction {first}, and the packet behind it is not here"
        do = f"Import that one. If it is lost, {recover} --number {packet.number}"
    else:
        missing = f"transactions {first} to {last}" if last > first else f"transaction {first}"
        missing = missing if last else f"the beginning of the large transaction {first}"
        what = f"{which} needs {missing}, not here yet"
        do = (
            f"Import packet {packet.before}. If it is lost, {recover} --number {packet.before}"
            if packet.before
            else f"Send a receipt (replicate -i {instance.named} packet export --to {packet.sender_name} --receipt), "
            f"then {recover} --receipt FILE"
        )
    return PacketGapError(
        what, where=str(instance.path), do=do, packet=packet.number, first_seqno=first, last_seqno=last
    )
