"""Applies packets between suppliers, by the applier of the Update Process itself, in this process: what several have
written is merged, so no net change will do.

The Update Process stands aside, as for every import. A source beside those of the lines would need a second producer
of the receive pool, and would find its errors in another process's log. This way an import ends with what has become of
it, also where no daemon runs.

Guarantees: nothing is applied before all that is to be applied has verified, nor before all is here that stands before
it in its sender's journal; what is here is passed over; whatever dies, the same command goes on. One that others have
more of than it has itself was turned back, and takes no writes then.
Leaves to others: the order (transfer/packet/vector_order.py), rows and conflicts
(update_process/supplied_transactions.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from replicate.door.recovery.opening import require_seeded
from replicate.door.snapshot import door_of
from replicate.errors import (
    DivergedError,
    PacketGapError,
    TurnedBackError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.model.ruv import covers
from replicate.model.vector import Chains
from replicate.pool.shared_memory import PoolKind, retire
from replicate.roles.restored_supplier import settle, turn_back
from replicate.roles.retiring import writers_of
from replicate.system.failpoint import hit
from replicate.transfer.packet.epochs_file import change_epochs
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.judge_packets import Inbox, unsealer_of
from replicate.transfer.packet.order import absent_numbers, told_numbers
from replicate.transfer.packet.vector_order import (
    MissingRange,
    VectorGap,
    VectorOrder,
    forked_packet,
    knows_more_of,
    vector_gap,
    vector_order,
)
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode
from update_process.packet_feed import PacketFeed
from update_process.replay.apply import Told
from update_process.replay.command import SparkSessions, apply_session, refuse_frozen
from update_process.replay.local_applier import work_off
from update_process.replay.unpacking import Imported, unpack, unpacking_room
from update_process.supplied_transactions import SupplierApplier

NAMED_MAX: Final = 4
"""Of more origins than these the rest is counted."""


def apply_between_suppliers(
    instance: Instance, inbox: Inbox, done: Imported, spark: SparkSessions | None, dry_run: bool, told: Told
) -> tuple[tuple[int, ...], PacketGapError | None]:
    """Apply what can be applied: the places of those packets that wait, and what is missing for the first of them.

    UsageError (Spark), NotFoundError (not seeded), TurnedBackError, DivergedError, DamagedError, and what the applier
    raises."""
    if spark is not None:
        raise UsageError(
            "Spark finds the net change of packets, and what several suppliers have written is merged instead",
            where=str(instance.path),
            do="Import without --engine and --master",
        )
    require_seeded(instance)
    summaries = [one.summary for one in inbox.packets]
    done.seqno, here = _position(instance)
    _refuse(instance, here, summaries, is_look=dry_run)
    order = vector_order(here, summaries)
    brings = {at for at, one in enumerate(summaries) if not one.is_receipt}
    done.known = len(brings - {*order.chosen, *order.waiting})
    if order.chosen:
        if not dry_run:
            refuse_frozen(instance)
        with unpacking_room(instance) as stage:
            done.seqno, here = _position(instance)  # until it stood aside, a line may have brought some of it
            order = vector_order(here, summaries)
            chosen = [inbox.packets[at] for at in order.chosen]
            segments = unpack(unsealer_of(instance), chosen, stage, told)
            hit("packet.unpacked")
            if not dry_run:
                _apply(instance, [next(directory.iterdir()) for directory, _ in segments], done, told)
        done.applied = tuple(str(inbox.packets[at].path) for at in order.chosen if at not in order.waiting)
        done.in_part = tuple(str(inbox.packets[at].path) for at in order.chosen if at in order.waiting)
    if not dry_run:
        _look_whether_restored(instance, order, summaries)
    return order.waiting, _gap(instance, order, summaries)


def _position(instance: Instance) -> tuple[int, Chains]:
    with door_of(instance) as door, door.locked():
        position = door.position()
    instance.reload()  # recovery may have raised its incarnation
    return position.last_seqno, position.chains


def _refuse(instance: Instance, here: Chains, packets: Sequence[PacketSummary], *, is_look: bool) -> None:
    """What must not be applied, nor answered. `is_look`: nothing is changed."""
    name = instance.name
    if (found := forked_packet(here, packets)) is not None:
        packet, fork = found
        raise DivergedError(
            f"packet {packet.number} of {packet.sender_name} has another transaction than {name} under number "
            f"{fork.origin_seqno} of {_names(packets).get(fork.origin, f'{fork.origin:08x}')}",
            where=str(instance.path),
            do="Nothing was applied. One of them was restored from a backup, or is used twice: compare both",
            origin=fork.origin,
            origin_seqno=fork.origin_seqno,
        )
    writers = writers_of(instance)
    gone = next((one for one in packets if writers.is_gone(one.sender)), None)
    if gone is not None:
        raise refusal(
            RefuseCode.RETIRED,
            f"packet {gone.number} is of {gone.sender_name}, which is gone for good, as {name} was told",
            name=gone.sender_name,
        )
    own = instance.content.origin.key
    more = knows_more_of(own, here, packets)
    if more is not None:
        if not is_look:
            turn_back(instance, origin=own)
        raise _turned_back(instance, more.sender_name)


def _turned_back(instance: Instance, sender: str) -> TurnedBackError:
    return TurnedBackError(
        f"{sender} has more of what {instance.name} writes itself than {instance.name} has: it was restored from an "
        "older state, and takes no writes until it has back what it had",
        where=str(instance.path),
        do=f"Say what is here: replicate -i {instance.named} packet export --to {sender} --receipt; import that there, "
        "export from there, and import that here. So with each of its peers",
    )


def _apply(instance: Instance, paths: Sequence[Path], done: Imported, told: Told) -> None:
    own = instance.content.origin.key
    try:
        with apply_session(instance) as session, closing(PacketFeed(paths, instance.content.network)) as feed:
            settings = instance.config.update
            applier = SupplierApplier(
                session, feed, settings, conflict_directory=instance.conflict_directory, streams=False
            )
            with closing(applier):
                work_off(instance, applier, done, told)
                if applier.has_to_part:  # the daemons stand aside: what lies there of one that is gone is dropped
                    retire(PoolKind.RECEIVE, instance.content.uuid)
                applier.tell()
            done.seqno = session.position.last_seqno
    except TurnedBackError as error:
        turn_back(instance, origin=own)
        raise _turned_back(instance, "the sender of a packet") from error


def _look_whether_restored(instance: Instance, order: VectorOrder, packets: Sequence[PacketSummary]) -> None:
    """One that was restored takes writes again once each peer has brought all that it had when it knew of that: a
    packet says which of our incarnations its sender has met."""
    instance.reload()
    if not instance.content.is_restoring:
        return
    now = instance.content.incarnation
    level = {
        one.sender_name: now
        for one in packets
        if _has_met(one, instance.name) == now and covers(order.reached, one.own.chains)
    }
    if not level:
        return
    known = change_epochs(instance.consumers_directory, lambda epochs: replace(epochs, level={**epochs.level, **level}))
    if {peer.name for peer in instance.peers if not peer.passive} <= known.were_level(now):
        settle(instance)


def _has_met(packet: PacketSummary, name: str) -> int:
    """The incarnation of a target that the packet's sender has met; 0: none."""
    if packet.suppliers is None or name not in packet.targets:
        return 0
    return packet.suppliers.met[packet.targets.index(name)]


# What is missing.


def _names(packets: Sequence[PacketSummary]) -> dict[int, str]:
    return {one.key: one.instance for packet in packets for one in packet.origins}


def _gap(instance: Instance, order: VectorOrder, packets: Sequence[PacketSummary]) -> PacketGapError | None:
    waiting = [packets[at] for at in order.waiting]
    gap = vector_gap(order.reached, waiting)
    if gap is None:
        return None
    return _gap_error(instance, gap, absent_numbers(gap.packet.sender, waiting, packets), _names(packets))


def _gap_error(instance: Instance, gap: VectorGap, absent: tuple[int, ...], names: dict[int, str]) -> PacketGapError:
    packet, me = gap.packet, instance.name
    which, there = f"packet {packet.number} of {packet.sender_name}", f"there: replicate -i {packet.sender_name}"
    recover = f"{there} packet recover --to {me}"
    receipt = f"send a receipt (replicate -i {instance.named} packet export --to {packet.sender_name} --receipt), then "
    if gap.is_after:
        what = f"{which} ends inside a large transaction, and the next packet is not here"
        do = f"Import that one. If it is lost, {recover} --number {packet.number}"
    else:
        missing = _told(gap.missing, names) if gap.missing else "the beginning of a large transaction"
        what = f"{which} needs {missing}, not here yet"
        do = f"{receipt}{recover} --receipt FILE"
        if absent:
            before = (
                f"Import {told_numbers(absent)}, and any before that is not here. If one is lost, {recover} --number "
            )
            before += str(absent[0])
            do = f"{before}. If several are lost, or {me} was restored, {do}"
        else:
            do = do[0].upper() + do[1:]
    facts: dict[str, Any] = {
        "packet": packet.number,
        "missing": [[one.origin, one.first, one.last] for one in gap.missing],
    }
    if gap.is_after:
        facts["is_after"] = True
    return PacketGapError(what, where=str(instance.path), do=do, **facts)


def _told(missing: Sequence[MissingRange], names: dict[int, str]) -> str:
    told = [_range(one, names.get(one.origin, f"origin {one.origin:08x}")) for one in missing[:NAMED_MAX]]
    more = len(missing) - len(told)
    return ", ".join(told) + (f" and of {more} more" if more else "")


def _range(one: MissingRange, name: str) -> str:
    if not one.last:
        return f"the beginning of {name}"
    first = max(1, one.first)
    return f"transactions {first} to {one.last} of {name}" if one.last > first else f"transaction {one.last} of {name}"
