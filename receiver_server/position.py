"""From where to ask for the stream: the position just after what is applied or stands in the receive pool.

Guarantees: nothing that is applied or in the pool is asked for again, and nothing that is neither is left out. The
place up to which the pool is freed is noted *before* the applied position is read: what is freed later is still found
in the pool, and what was freed before is applied. (The pool's only producer is our caller, which does not write now.)
After a loss of power the regions may lack what our journal holds: until the Update Process has recovered it no place
is known: what is durable here may be pruned there, and would be refused as lost.
Leaves to others: connections, how the pool is made again when it does not fit. Blocks on the disk: call it in a thread.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from msgspec import Struct

from replicate.daemon.last_run import start_again
from replicate.door.recovery.opening import ROLLBACK_MARKER, is_seeded
from replicate.door.snapshot import door_of
from replicate.errors import DamagedError, GapError, ReplicateError, TryAgainError
from replicate.instance.instance import Instance
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.record import read_head, read_part
from replicate.journal.walk import walk
from replicate.limits import PARTITION_STREAM
from replicate.model.vector import Position
from replicate.pool.journal_pool import JournalPool
from replicate.pool.receive_pool import READ, ReceivedRecord, ReceivePool, RecordKind
from replicate.region.kind import KIND
from replicate.region.protocol import scr_chains, scr_vector
from replicate.wire.introduction import refusal
from replicate.wire.message import Introduction, RefuseCode

OPENING_S: Final = 1.0
"""Our caller tries again, and looks in between whether it is to stop."""


class NotRecoveredError(TryAgainError):
    """Our journal holds, or may hold, what the regions do not have yet: the Update Process brings them together."""


class ReceivedParts(Struct, frozen=True):
    """How much of the large transaction `seqno` is here: parts 0 to `next_part` - 1 of the spool `token`."""

    seqno: int
    token: int
    next_part: int


class Reference(Struct, frozen=True):
    """`position`: after the last transaction received whole. `applied_seqno`: what the regions hold of that.

    `parts`: what is here of the next one, when it is a large one.
    """

    applied_seqno: int
    position: Position
    parts: ReceivedParts | None = None


def find_applied(instance: Instance) -> Position | None:
    """What every region has applied; None while the instance is not seeded. Reads the instance file again.

    Raises what opening a region raises.
    """
    instance.reload()
    if not is_seeded(instance):
        return None
    return min((_applied_in(instance, index) for index in range(len(instance.regions))), key=lambda p: p.last_seqno)


def find_vector(instance: Instance, peer: Introduction) -> Position:
    """On a supplier: what its journal has, of all origins. Raises what opening the door and the region raises, and the
    refusal of a `peer` that is gone for good."""
    from replicate.roles.retiring import writers_of  # here: no secondary needs it

    instance.reload()
    if writers_of(instance).is_gone(peer.instance):
        raise refusal(RefuseCode.RETIRED, f"{peer.name} is gone for good, as {instance.name} was told", name=peer.name)
    with door_of(instance) as door, door.locked(OPENING_S):
        found = door.position()
    instance.reload()  # opening the door may have begun an incarnation
    return found


def _durable_seqno(instance: Instance) -> int | None:
    """What the mark beside our journal calls durable, 0 without one; None when nobody has recovered the journal since
    the machine was started: then there is no journal pool either."""
    try:
        mark = DurableSidecar(instance.journal_directory / SIDECAR_NAME)
        try:
            is_recovered = mark.is_of_this_boot() or _has_journal_pool(instance)
            return mark.read() if is_recovered else None
        finally:
            mark.close()
    except DamagedError:  # or there is none: the Update Process will say so
        return 0


def _has_journal_pool(instance: Instance) -> bool:
    """A whole one of this boot, that is: recovery makes it last."""
    try:
        JournalPool.attach(instance.content.uuid).close()
    except ReplicateError:
        return False
    return True


def _applied_in(instance: Instance, index: int) -> Position:
    entry, content = instance.regions[index], instance.content
    with closing(KIND.reader(entry.path, region=entry.uuid, opening_s=OPENING_S)) as opened:
        opened.check_identity(network=content.network, instance=content.uuid)
        rows = opened.checkpoint()
    return Position(max((row.seqno for row in rows), default=0), scr_vector(rows), scr_chains(rows))


def find_reference(instance: Instance, pool: ReceivePool, known: ReceivedParts | None = None) -> Reference | None:
    """Where the stream should begin; None while the instance is not seeded. `known`: the parts that were put into the
    pool last, as far as the caller remembers.

    GapError or DamagedError when what the pool holds does not continue what is applied: it must be made again.
    NotRecoveredError until the Update Process has been at work since the machine was started, and until a rollback that
    was begun has ended.
    """
    first_address = pool.words[READ]
    # Before the regions are read, which always have what is durable: they commit before it is called so.
    if (instance.path / ROLLBACK_MARKER).exists():
        raise NotRecoveredError(
            "a rollback has begun and not ended: regions and journal stand apart",
            where=str(instance.path),
            do=f"Finish it: replicate -i {instance.named} rollback",
        )
    durable_seqno = _durable_seqno(instance)
    applied = find_applied(instance)
    if applied is None:
        return None
    if durable_seqno is None or durable_seqno > applied.last_seqno:
        raise NotRecoveredError(
            f"the regions hold transactions up to {applied.last_seqno}; what the journal holds after that is not "
            "recovered yet",
            where=str(instance.path),
            do=f"Start the Update Process: {start_again(instance, 'update')}",
        )
    walker = _RecordWalk(applied)
    for record in pool.peek(first_address):
        walker.take(record)
    position = walker.position()
    parts = walker.parts
    if parts is None and known is not None and known.seqno == position.last_seqno + 1:
        parts = known
    return Reference(applied.last_seqno, position, parts)


class _RecordWalk:
    """Goes through the pool's records after a position."""

    def __init__(self, applied: Position) -> None:
        self._applied = applied
        self._last_seqno = applied.last_seqno
        self._chains = dict(applied.chains)
        self.parts: ReceivedParts | None = None

    def position(self) -> Position:
        vector = self._applied.vector
        for origin, (origin_seqno, _) in self._chains.items():
            vector = vector.raised(origin, PARTITION_STREAM, origin_seqno)
        return Position(self._last_seqno, vector, self._chains)

    def take(self, record: ReceivedRecord) -> None:
        """Move on by one record; what is applied already is passed over."""
        if record.kind is RecordKind.CATALOGUE or record.last_seqno <= self._last_seqno:
            return
        if record.first_seqno > self._last_seqno + 1:
            raise GapError(
                f"the receive pool goes on with transaction {record.first_seqno}, {self._last_seqno + 1} is next",
                do=_ANEW,
            )
        if record.kind is RecordKind.PARTS:
            self._take_parts(record)
            return
        if record.kind is RecordKind.LARGE:
            head = read_head(record.data)
            self._chains[head.origin] = (head.origin_seqno, head.chain)
        else:
            self._take_frames(record)
        self._last_seqno = record.last_seqno
        self.parts = None

    def _take_frames(self, record: ReceivedRecord) -> None:
        seqno = record.first_seqno
        for _, head in walk(record.data):
            if head.seqno != seqno:
                raise DamagedError(f"the receive pool holds transaction {head.seqno} at the place of {seqno}", do=_ANEW)
            if seqno > self._last_seqno:
                self._chains[head.origin] = (head.origin_seqno, head.chain)
            seqno += 1
        if seqno != record.last_seqno + 1:
            raise DamagedError(f"a record of the receive pool ends with transaction {seqno - 1}", do=_ANEW)

    def _take_parts(self, record: ReceivedRecord) -> None:
        # The first parts may be freed already: the Update Process holds them in its open transaction. If it does not
        # hold them any more (it died), it asks for a restart when it meets a later part.
        head, first_part, _ = read_part(record.data)
        before = self.parts
        if before is not None and first_part and (before.token, before.next_part) != (head.csn, first_part):
            raise GapError(
                f"the receive pool goes on with part {first_part} of transaction {record.first_seqno}, "
                f"{before.next_part} is next",
                do=_ANEW,
            )
        self.parts = ReceivedParts(record.first_seqno, head.csn, first_part + record.count)


_ANEW: Final = "The pool is made again, and what is not applied is sent again"
