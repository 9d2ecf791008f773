"""Imports packets: what they bring is unpacked, verified, and applied as a replay applies journals.

    looked at (transfer/packet/judge_packets.py) · put in order (order.py) · unpacked into the stage, one directory for
    each segment, every byte verified · replayed, with our own journal byte for byte (on a supplier:
    supplied_transactions.py) · the senders' words noted

Guarantees: nothing is applied before all that is to be applied has verified; then those of a replay: whatever dies
leaves the secondary at the end of a piece, and the same command goes on. What was applied already is not again. What
cannot be applied yet waits, and says what it lacks.
Leaves to others: the command line; how packets travel.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from replicate.door.recovery.opening import require_seeded
from replicate.door.snapshot import door_of
from replicate.errors import (
    DivergedError,
    NotFoundError,
    PacketGapError,
    PermissionRefusedError,
    ReplicateError,
    RollbackNeededError,
)
from replicate.instance.instance import Instance
from replicate.model.vector import U64_MAX, Position
from replicate.pool import control as word
from replicate.roles.source_refusal import SourceVerdict, note_verdict
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error
from replicate.transfer.packet.epochs import Epochs, LackingPacket
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.packet.excerpt import judge_excerpt
from replicate.transfer.packet.export import LOCK_TIMEOUT_S, packets_lock
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.judge_packets import Inbox, Offered, look, take_words, unsealer_of
from replicate.transfer.packet.order import (
    Order,
    PacketGap,
    TooMuch,
    absent_numbers,
    gap_of,
    lacks_of,
    order_of,
    told_numbers,
    too_much,
)
from update_process.replay.apply import Told
from update_process.replay.backlog import Journals
from update_process.replay.command import (
    SparkSessions,
    one_session,
    refuse_frozen,
    replay_locked,
    require_secondary,
)
from update_process.replay.excerpts import apply_by_transactions, goes_by_transactions, refuse_spark
from update_process.replay.run import silent
from update_process.replay.unpacking import Imported, unpack, unpacking_room


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
    lock = packets_lock(instance)
    try:
        lock.acquire(LOCK_TIMEOUT_S, what="the lock of the packets")
        inbox = look(instance, paths, now_s)
        done = Imported(for_others=inbox.for_others, dry_run=dry_run, errors=list(inbox.refused))
        if instance.is_supplier:
            from update_process.replay.supplied_packets import (
                apply_between_suppliers,  # here: a secondary needs none of it
            )

            places, gap = apply_between_suppliers(instance, inbox, done, spark, dry_run, told)
        else:
            inbox = _without_another_past(instance, _without_misfits(instance, inbox, done), done)
            order = _apply(instance, inbox, done, spark, dry_run, told)
            places, missing = order.waiting, gap_of(order.seqno, (inbox.packets[at].summary for at in order.waiting))
            gap = None if missing is None else _gap_error(instance, inbox, missing, order)
        waiting = [inbox.packets[at].summary for at in places]
        done.waiting = tuple(str(inbox.packets[at].path) for at in places)
        hit("packet.applied")
        if not dry_run:
            known = _waiting(instance, waiting, gap)
            done.heard, refused = take_words(instance, inbox.packets, known.waiting, lacking=known.lacking)
            done.errors += [error for _, error in refused]
            if remove:
                kept = {inbox.packets[at].path for at in places} | {path for path, _ in refused}
                _remove((one.path for one in inbox.packets if one.path not in kept), done)
        if gap is not None:
            done.errors.append(gap)
    finally:
        lock.close()
    return done


def _without_misfits(instance: Instance, inbox: Inbox, done: Imported) -> Inbox:
    """Without those that may not go on what is here, and would bring something. One that is here already may have been
    taken when less was wanted."""
    misfits: dict[Path, ReplicateError] = {}
    for one in inbox.packets:
        try:
            judge_excerpt(instance, one.summary, str(one.path))
        except ReplicateError as error:
            misfits[one.path] = error
    if not misfits:
        return inbox
    require_seeded(instance)
    here = _last_seqno(instance), 0
    ends = {one.path: (one.summary.end.last_seqno, one.summary.end_inside) for one in inbox.packets}
    refused = [path for path in misfits if ends[path] > here]
    done.errors += [misfits[path] for path in refused]
    return replace(inbox, packets=tuple(one for one in inbox.packets if one.path not in refused))


def _without_another_past(instance: Instance, inbox: Inbox, done: Imported) -> Inbox:
    """Without those that have what a takeover has cut off here, and, on a primary, what somebody else has written. They
    may be the only place of it: they are named, and never taken for known ones, nor removed."""
    if all(one.summary.is_receipt for one in inbox.packets):
        return inbox
    require_seeded(instance)
    with door_of(instance) as door, door.locked():
        own, histories = door.position(), door.catalogue_now().histories
    ended = {one.origin.key for one in histories[:-1]}
    taken = []
    for one in inbox.packets:
        more = () if one.summary.is_receipt else lacks_of(own, one.summary)
        if cut := [origin for origin in more if origin in ended]:
            done.errors.append(_of_another_past(instance, one, own, cut[0], histories[-1].name))
        elif more and instance.role == "primary":
            done.errors.append(_of_another_primary(instance, one, own, more[0]))
        else:
            taken.append(one)
    return replace(inbox, packets=tuple(taken))


def _has_more(one: Offered, own: Position, origin: int) -> str:
    packet = one.summary
    name = next((known.instance for known in packet.origins if known.key == origin), f"{origin:08x}")
    return (
        f"packet {packet.number} of {packet.sender_name} has transactions of {name} up to its number "
        f"{packet.end.vector.last(origin)}, and here are those up to {own.vector.last(origin)}"
    )


def _of_another_past(instance: Instance, one: Offered, own: Position, origin: int, by: str) -> DivergedError:
    sender = one.summary.sender_name
    return DivergedError(
        f"{_has_more(one, own, origin)}, where {by} took over",
        where=str(one.path),
        do=f"Nothing of it was applied. Keep it until {sender} has rolled back to there: then these are in its lost "
        f"file. If {sender} does not come back, it is the place where they are. To look at them: replicate -i "
        f"{instance.named} packet show {shlex.quote(str(one.path))} --transactions",
    )


def _of_another_primary(instance: Instance, one: Offered, own: Position, origin: int) -> PermissionRefusedError:
    sender = one.summary.sender_name
    return PermissionRefusedError(
        f"{_has_more(one, own, origin)}; {instance.name} is primary, and takes none",
        where=str(one.path),
        do=f"If {sender} is primary now: replicate -i {instance.named} demote, then import it again",
    )


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
    order, by_transactions = order_of(done.seqno, summaries), False
    brings = [at for at, one in enumerate(summaries) if not one.is_receipt]
    done.known = len(set(brings) - {*order.chosen, *order.waiting})
    if (more := too_much(_position(instance), [summaries[at] for at in brings])) is not None:
        require_secondary(instance)
        raise _rollback_first(instance, more, dry_run)
    if order.chosen or order.waiting:
        require_secondary(instance)
        bring = [summaries[at] for at in (*order.chosen, *order.waiting)]
        if by_transactions := goes_by_transactions(instance, bring):
            refuse_spark(instance, spark)
    if not order.chosen:
        return order
    if not dry_run:
        refuse_frozen(instance)
    with unpacking_room(instance) as stage, one_session(spark, told) as get:
        order = order_of(_last_seqno(instance), summaries)
        if not order.chosen:  # until it stood aside, the line has brought all of it
            done.seqno = order.seqno
            return order
        chosen = [inbox.packets[at] for at in order.chosen]
        segments = unpack(unsealer_of(instance), chosen, stage, told)
        hit("packet.unpacked")
        if by_transactions:
            if not dry_run:
                apply_by_transactions(
                    instance, [one.summary for one in chosen], [directory for directory, _ in segments], done, told
                )
        else:
            journals = Journals((), instance.content.network, stage=stage, segments=segments)
            done.replayed = replay_locked(
                instance,
                journals,
                stage,
                get,
                last_seqno=order.seqno,
                dry_run=dry_run,
                told=told,
                is_of_packets=True,
            )
    if done.replayed is not None and not dry_run:
        done.seqno = order.seqno
    done.applied = tuple(str(inbox.packets[at].path) for at in order.chosen if at not in order.waiting)
    done.in_part = tuple(str(inbox.packets[at].path) for at in order.chosen if at in order.waiting)
    return order


def _last_seqno(instance: Instance) -> int:
    with door_of(instance) as door:
        return int(door.words[word.LAST_SEQNO])


def _position(instance: Instance) -> Position:
    with door_of(instance) as door, door.locked():
        return door.position()


def _rollback_first(instance: Instance, more: TooMuch, dry_run: bool) -> RollbackNeededError:
    """What the packet says is kept for `rollback`, as a source's refusal is."""
    packet, here = more.packet, f"replicate -i {instance.named}"
    names = {one.key: one.instance for one in packet.origins}
    of = names.get(more.origin, f"{more.origin:08x}")
    by = min(((one.begins, one.instance) for one in packet.origins if one.begins > more.seqno), default=(0, ""))[1]
    do = f"Take back what is more, and have it kept in a file: {here} rollback --to {more.seqno}; then import again"
    if by in ("", of):  # it began again by itself: as one does that was restored from a backup
        do = (
            f"Nobody took over from {of}: what is here may be the only copy. If {of} was restored from a backup, have "
            f"it get that back: replicate -i {of} replica restore, there. If {of} was demoted and nothing is to come "
            f"back, where this site was primary: {here} rollback --to {more.seqno}"
        )
    elif not dry_run:
        origin, common = more.origin, more.theirs
        told = SourceVerdict(packet.sender_name, instance.content.incarnation, origin, common, more.seqno + 1, by)
        note_verdict(instance, told)
    return RollbackNeededError(
        f"{instance.name} has transactions of {of} up to its number {more.ours}; {packet.sender_name}, which goes "
        f"on otherwise, has them up to {more.theirs}",
        where=str(instance.path),
        do=do,
        seqno=more.seqno,
        origin=more.origin,
    )


def _remove(paths: Iterable[Path], done: Imported) -> None:
    """Where one cannot be, the others are left, too: the import has done all else, and says so."""
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            done.errors.append(io_error(error, "a packet that is applied could not be removed", str(path)))
            return
        done.removed += 1


def _reached(instance: Instance, inbox: Inbox, order: Order) -> Position:
    """What is here once the chosen ones are applied: a look has not applied them."""
    ends = [inbox.packets[at].summary.end for at in order.chosen]
    return max([_position(instance), *ends], key=lambda one: one.last_seqno)


def _gap_error(instance: Instance, inbox: Inbox, gap: PacketGap, order: Order) -> PacketGapError:
    packet, first, last = gap.packet, gap.first_seqno, gap.last_seqno
    offered = [one.summary for one in inbox.packets]
    absent = absent_numbers(packet.sender, [offered[at] for at in order.waiting], offered)
    facts: dict[str, Any] = {"packet": packet.number, "first_seqno": first, "last_seqno": last}
    which = f"packet {packet.number} of {packet.sender_name}"
    recover = f"there: replicate -i {packet.sender_name} packet recover --to {instance.name}"
    if gap.is_after:
        what = f"{which} holds the beginning of the large transaction {first}, and the next packet is not here"
        do = f"Import that one. If it is lost, {recover} --number {packet.number}"
        facts["is_after"] = True
    else:
        missing = f"transactions {first} to {last}" if last > first else f"transaction {first}"
        missing += _of_whom(_reached(instance, inbox, order), packet)
        missing = missing if last else f"the beginning of the large transaction {first}"
        what = f"{which} needs {missing}, not here yet"
        others = f"there: replicate -i {packet.sender_name} epochs set {instance.name} {first - 1}"
        do = (
            f"Import {told_numbers(absent)}, and any before from transaction {first} on. If they are lost, "
            f"{others}; if it is one alone, {recover} --number {absent[0]}"
            if absent
            else f"Send a receipt (replicate -i {instance.named} packet export --to {packet.sender_name} --receipt), "
            f"then {recover} --receipt FILE"
        )
    return PacketGapError(what, where=str(instance.path), do=do, **facts)


def _of_whom(reached: Position, packet: PacketSummary) -> str:
    """The epochs that are lacking, by the origins that wrote them."""
    here, names = reached.vector, {one.key: one.instance for one in packet.origins}
    told = [
        f"{first} to {last} of {names.get(origin, f'origin {origin:08x}')}"
        for origin in packet.base.vector.origins()
        if (first := here.last(origin) + 1) <= (last := packet.base.vector.last(origin))
    ]
    return f" ({', '.join(told)})" if told else ""


def _waiting(instance: Instance, packets: Sequence[PacketSummary], gap: PacketGapError | None) -> Epochs:
    """For `status`: what waits, of this import and of those before it. A packet that is looked at again has not come
    any nearer by itself, and one that is not offered now lies somewhere."""
    before = read_epochs(instance.consumers_directory)
    if before.waiting:
        with suppress(NotFoundError):  # it is filled again
            before = before.still_waits(_position(instance), by_origins=instance.is_supplier)
    # A supplier cannot tell by its own number when such a packet is not waited for any more.
    now = tuple((told_of(one), U64_MAX if instance.is_supplier else _ends(one)) for one in packets)
    earlier = tuple(one for one in before.waiting if one not in now)
    lacking = [one for one in (_lacking(gap), before.lacking) if one is not None]
    return replace(before, waiting=(*now, *earlier), lacking=min(lacking, key=lambda one: one.last_seqno, default=None))


def _ends(packet: PacketSummary) -> int:
    """The last transaction of which it brings something."""
    return packet.last_seqno + (packet.end_inside > 0)


def _lacking(gap: PacketGapError | None) -> LackingPacket | None:
    """For `status`; None where no packet is lacking between others, and the one that follows has only not come yet."""
    if gap is None or gap.facts.get("is_after"):
        return None
    last_seqno, missing = gap.facts.get("last_seqno"), gap.facts.get("missing")
    needs = tuple((origin, last) for origin, _, last in missing) if isinstance(missing, list) else ()
    return LackingPacket(gap.what, gap.do, last_seqno if isinstance(last_seqno, int) and last_seqno else U64_MAX, needs)
