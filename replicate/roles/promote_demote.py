"""The two commands that change a role: may it be now, what is done first, and what the operator is told afterwards.

Guarantees: what was received is applied before an instance becomes primary, or it is in a file first; a promotion
beside a primary that was heard a moment ago is refused; every refusal comes before the role is touched; a command that
was killed is finished by the same command. Daemons that run stand aside, and follow the new role.
Leaves to others: the change itself (change_of_role.py); the other site, but for what it last said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import now, read_facts
from replicate.door.recovery.opening import require_seeded
from replicate.door.snapshot import door_of
from replicate.errors import DiskFullError, FrozenError, NotFoundError, ReplicateError, TryAgainError, UsageError
from replicate.filters.whose_words import read_content
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.journal.space import journal_space
from replicate.limits import KIB, MIB, SEGMENT_GROW_BYTES
from replicate.lost.keep import Kept, keep_lost_of
from replicate.lost.peers_lack import Owner, look
from replicate.lost.undelivered import Undelivered
from replicate.model.start_command import start_command
from replicate.pool.receive_pool import ReceivePool
from replicate.roles.change_of_role import NEVER_PRIMARY, become_primary, become_secondary, last_seqno, old_primary
from replicate.roles.daemons_down import daemons_down
from replicate.roles.given_role import was_given
from replicate.roles.succession import back
from replicate.roles.superseded import give_way

_ROOM_BYTES: Final = SEGMENT_GROW_BYTES + MIB
PROMOTION = "promotion"
DEMOTION = "demotion"


class Promoted(Struct, frozen=True):
    """`seqno`: the last transaction that it had when it became primary. `source`: who was primary before, "" when
    nobody knows. `source_seqno`: the last number that one was known to have written, None when nobody knows. `kept`:
    where stands what was received and could not be applied, `not_applied` why. `overruled`: from whom it took its role
    back, and after which transaction that one had taken over. `filter`: what it has came through that; "" for none.
    `was_primary`: since before this command. `by_switchover`: the source gave it the role, and had nothing more."""

    instance: str
    seqno: int
    incarnation: int
    source: str
    source_seqno: int | None
    not_applied: str = ""
    kept: Kept | None = None
    overruled: tuple[str, int] | None = None
    filter: str = ""
    was_primary: bool = False
    by_switchover: bool = False

    @property
    def missing_at_most(self) -> int | None:
        """So many of the transactions that were told of are not here."""
        if self.by_switchover:
            return 0
        return None if self.source_seqno is None else max(0, self.source_seqno - self.seqno)


class Demoted(Struct, frozen=True):
    """`seqno`: the last transaction of its journal. `lacking`: peers, and how many of them each had not acknowledged
    when it became secondary."""

    instance: str
    seqno: int
    incarnation: int
    lacking: tuple[tuple[str, int], ...]


def promote(
    instance: Instance,
    *,
    finish: Callable[[], int],
    timeout_s: float,
    expect: int | None = None,
    force: bool = False,
    is_restored: bool = False,
) -> Promoted:
    """Make a secondary primary. `finish` applies what was received; its last number.

    `expect`: refuse unless that is the last number then; who names it knows where the source has ended, and may do so a
    moment after that. `force`: also when the source was heard a moment ago, and when not all that was received can be
    applied (that is written to a file), and when another instance has superseded this one, which takes its role back
    then. `is_restored`: it was restored, and has back what it had. Of a primary only what was killed is finished.

    Raises TryAgainError (the source lives, the role was handed over, or another instance took over), UsageError
    (`expect` does not hold), DiskFullError (the journal of a primary could not begin: the instance is still secondary),
    NotFoundError (not seeded, or a region of the source waits for its seed), AlreadyRunningError, and what `finish` and
    the change raise.
    """
    instance.reload()
    instance.refuse_supplier("it takes writes already")
    fence = instance.content.fence
    if fence is not None:
        if not force:
            _refuse_beside_fence(instance, fence)
        give_way(instance, timeout_s=timeout_s)
    if instance.role == "primary":
        made = _promoted(instance, become_primary(instance, timeout_s=timeout_s), None)
        _refuse_another(instance, made, expect)
        return replace(made, was_primary=True, by_switchover=was_given(instance))
    instance.refuse_feed(NEVER_PRIMARY)
    instance.refuse_partial(NEVER_PRIMARY)
    require_seeded(instance)
    _refuse_frozen(instance)
    if not (force or is_restored):
        _refuse_restoring(instance)
    if not force:
        _refuse_beside_successor(instance)
        if expect is None:
            _refuse_beside_source(instance)  # before a daemon has stood aside for it
    with daemons_down(instance, PROMOTION, patience_s=timeout_s):
        instance.reload()  # an Update Process may have entered a region that waits until a moment ago
        if not force:
            _refuse_without_waiting(instance)
        if not force and expect is None:
            _refuse_beside_source(instance)
        told = _told_by_source(instance)
        applied, not_applied = _finished(instance, finish, force=force)
        if expect is not None and applied != expect:
            raise UsageError(
                f"the last transaction of {instance.name} is {applied}, not {expect}; it is still secondary",
                where=str(instance.path),
                do=f"Compare with the other site; to go on with {applied}: replicate -i {instance.named} promote "
                f"--expect {applied}",
            )
        _require_room(instance)
        kept = None
        if not_applied:
            again = f"replicate -i {instance.named} promote --force"
            owner = replace(Owner.of(instance), peers=())  # what is applied stays here
            kept = keep_lost_of(owner, cause=PROMOTION, again=again, force=True)
        instance.forget_waiting()
        become_primary(instance, timeout_s=timeout_s)
        overruled = None if fence is None else (fence.name, fence.seqno)
        made = _promoted(instance, applied, told)
        return replace(made, not_applied=not_applied, kept=kept, overruled=overruled)


def demote(instance: Instance, *, timeout_s: float) -> Demoted:
    """Make a primary secondary: it takes no more writes. Raises AlreadyRunningError and what the change raises."""
    instance.reload()
    instance.refuse_supplier(
        "there is no primary that it could follow",
        f"To have it seeded again by another supplier: replicate -i {instance.named} instance convert --role secondary",
    )
    with daemons_down(instance, DEMOTION, patience_s=timeout_s):
        lacking = _lacking(look(Owner.of(instance))) if instance.role == "primary" else ()
        seqno = become_secondary(instance, timeout_s=timeout_s)
    return Demoted(instance.name, seqno, instance.content.incarnation, lacking)


def _promoted(instance: Instance, seqno: int, told: int | None) -> Promoted:
    with door_of(instance) as door:
        histories = door.catalogue_now().histories
    source = old_primary(histories, instance.content.origin.key)
    through = read_content(instance.run_directory)
    return Promoted(
        instance.name,
        seqno,
        instance.content.incarnation,
        source,
        told,
        filter="" if through is None else through.filter,
    )


def _lacking(found: Undelivered) -> tuple[tuple[str, int], ...]:
    return tuple(
        (peer.name, found.last_seqno - peer.acknowledged_seqno)
        for peer in found.peers
        if peer.acknowledged_seqno < found.last_seqno
    )


def _refuse_another(instance: Instance, made: Promoted, expect: int | None) -> None:
    """UsageError when the one who gave `expect` has another promotion, or another instance, in mind."""
    if expect is None or expect == made.seqno:
        return
    since = f", since transaction {made.seqno}" if made.source else ", and has taken over from nobody"
    raise UsageError(
        f"{instance.name} is primary already{since}; {expect} was expected",
        where=str(instance.path),
        do=f"Nothing was changed. If another instance is meant, name it with -i; replicate -i {instance.named} status "
        "says how this one stands",
    )


def _require_room(instance: Instance) -> None:
    """DiskFullError where the first segment of a primary would find no room, once the role is changed."""
    free = journal_space(instance.journal_directory).disk_free_bytes
    if free < _ROOM_BYTES:
        raise DiskFullError(
            f"a primary begins a file of its journal, of {SEGMENT_GROW_BYTES // MIB} MiB, and {free // KIB} KiB are "
            f"free: {instance.name} is still secondary",
            where=str(instance.journal_directory),
            do="Make space on this file system, then give the same command",
        )


def _refuse_restoring(instance: Instance) -> None:
    """TryAgainError: it waits for what it had, and would give numbers twice."""
    if instance.content.is_restoring:
        raise TryAgainError(
            f"{instance.name} was restored from an older state, and waits for what its peers have of it",
            where=str(instance.path),
            do=f"replicate -i {instance.named} replica restore makes it primary once all have answered, and says who "
            f"has not; to go on without: replicate -i {instance.named} replica restore --force",
        )


def _refuse_beside_successor(instance: Instance) -> None:
    """TryAgainError when a switchover has given the role away, and the other site may have it by now."""
    successor = instance.content.successor
    if successor is not None and successor.is_pending:
        raise TryAgainError(
            f"the role of {instance.name} was handed over to {successor.name}, which may be primary by now",
            where=str(instance.path),
            do=f"Finish that: replicate -i {instance.named} switchover --to {successor.name}. If it never "
            f"comes back: replicate -i {instance.named} promote --force",
        )


def _refuse_beside_fence(instance: Instance, fence: Successor) -> NoReturn:
    """TryAgainError: another instance has taken over, and is primary."""
    raise TryAgainError(
        f"{fence.name} took over from {instance.name} after transaction {fence.seqno}, and is primary",
        where=str(instance.path),
        do=f"To follow it: replicate -i {instance.named} rollback. To take the role back, and have {fence.name} go "
        f"back: replicate -i {instance.named} promote --force",
    )


def _refuse_frozen(instance: Instance) -> None:
    """FrozenError: what was received would never be applied."""
    if instance.content.frozen is not None:
        raise FrozenError(
            f"{instance.name} is frozen: nothing is applied, and a primary would take no writes",
            where=str(instance.path),
            do=f"Thaw it first: replicate -i {instance.named} instance freeze off",
        )


def _refuse_without_waiting(instance: Instance) -> None:
    """NotFoundError when the source has a region that is not here."""
    if instance.waiting:
        raise NotFoundError(
            f"{instance.name} has not got region {', '.join(instance.waiting)}: it waits here for its seed",
            where=str(instance.path),
            do=f"If the source lives, seed first: {instance.way_out}; to go on without: replicate -i {instance.named} "
            "promote --force",
        )


def _refuse_beside_source(instance: Instance) -> None:
    """TryAgainError when the Receiver Server has heard its source so short a time ago that it counts as alive."""
    status = DaemonFiles(instance.path, "receiver").status.read()
    heard, _ = read_facts({} if status is None else status.facts)
    age_s = None if heard is None else now().age_s(heard)
    patience_s = instance.config.receiver.dead_after_s
    if age_s is None or age_s > patience_s:
        return
    raise TryAgainError(
        f"the source of {instance.name} was heard {age_s:.0f} s ago: two primaries would part",
        where=str(instance.path),
        do=f"See that it has ended, or make it secondary: replicate -i NAME demote there, which prints N; then "
        f"replicate -i {instance.named} promote --expect N. Without N: again after {patience_s:g} s, or at once: "
        f"replicate -i {instance.named} promote --force",
    )


def _told_by_source(instance: Instance) -> int | None:
    try:
        pool = ReceivePool.attach(instance.content.uuid)
    except ReplicateError:
        return None
    try:
        return max(pool.source_note()[0], pool.last_received_seqno) or None
    finally:
        pool.close()


def _finished(instance: Instance, finish: Callable[[], int], *, force: bool) -> tuple[int, str]:
    """The last number that is applied; why not all that was received is, "" when it is."""
    try:
        return finish(), ""
    except NotFoundError:
        raise
    except ReplicateError as error:
        if not force:
            raise
        return last_seqno(instance), str(error)


def _send(instance: Instance) -> list[str]:
    """How the peers get what is written now."""
    return [
        f"next: replicate -i {instance.named} packet export --to {peer.name}"
        if peer.by_packets
        else f"next: {start_command(f'source-{peer.name}', of=instance.named)}"
        for peer in instance.consumers
    ]


def next_steps(instance: Instance, promoted: Promoted) -> list[str]:
    """What to do after a promotion, as commands; nothing where there was none."""
    if promoted.overruled is not None:
        name, seqno = promoted.overruled
        return [
            f"next, there, before anything more is written: {back(f'replicate -i {name}', seqno)}",
            *_send(instance),
        ]
    if not promoted.source or promoted.by_switchover:
        return []
    lines = _send(instance)
    if not lines:
        lines = [f"next, for each secondary: replicate -i {instance.named} peer add NAME HOST:PORT"]
    if promoted.source and promoted.source != instance.name:
        lines.append(
            f"when {promoted.source} returns, there: replicate -i {promoted.source} demote; if it has transactions of "
            f"its own above {promoted.seqno}: replicate -i {promoted.source} rollback --to {promoted.seqno}"
        )
    return lines
