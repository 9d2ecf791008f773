"""Removes of the journal what all replicas have, and, where an operator says so, what was exported long enough ago.

Guarantees: what a replica on a line has not confirmed is never removed; of one that gets packets, only what is in a
packet that was made before the time which was named (or longer ago than packets.keep_days), and no more. Estimates are
no reason to remove anything. All else is the pruning's (door/pruning.py).
Leaves to others: how a time is written.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from replicate.door.pruning import prune_journal
from replicate.door.snapshot import door_of
from replicate.instance.consumers import Consumer, needed_seqno, read_aged, read_consumer, write_aged
from replicate.instance.instance import Instance
from replicate.transfer.packet.epochs import Epochs
from replicate.transfer.packet.epochs_file import read_epochs

DAY_NS: Final = 86_400 * 10**9


class KeptFor(Struct, frozen=True):
    """For that peer everything after `seqno` is kept; None: nothing is. `aged`: because of packets' age, and not of
    what it has confirmed."""

    peer: str
    seqno: int | None
    aged: bool


class Scrubbed(Struct, frozen=True):
    """`removed`: the first transaction of each segment that is gone (or would be)."""

    removed: list[int]
    kept_for: tuple[KeptFor, ...]


def aged_by(instance: Instance, epochs: Epochs, before_ns: int) -> dict[str, int]:
    """Up to where packets go that were made before that time (nanoseconds of the wall clock), by peer without a
    line."""
    found: dict[str, int] = {}
    for peer in instance.peers:
        old = [one.last_seqno for one in epochs.exports if peer.name in one.targets and one.wall_ns < before_ns]
        if peer.by_packets and old:
            # What was taken back since was not exported, whatever the packets say.
            known = epochs.of(peer.name).known
            found[peer.name] = min(max(old), known.seqno if known else 0)
    return found


def note_aged(instance: Instance, aged: dict[str, int]) -> None:
    """Have the daemons keep no more than that. It only rises."""
    for name, seqno in aged.items():
        if seqno > read_aged(instance.consumers_directory, name):
            write_aged(instance.consumers_directory, name, seqno)


def age(instance: Instance, now_ns: int) -> None:
    """Note what is older than packets.keep_days; nothing where that is 0."""
    if days := instance.config.packets.keep_days:
        note_aged(instance, aged_by(instance, read_epochs(instance.consumers_directory), now_ns - days * DAY_NS))


def scrub(instance: Instance, *, before_ns: int | None, upto: int | None, dry_run: bool) -> Scrubbed:
    """Remove what may go, up to transaction `upto` at most. `before_ns`: what was exported before counts as arrived.
    Raises what pruning raises."""
    directory = instance.consumers_directory
    aged = {} if before_ns is None else aged_by(instance, read_epochs(directory), before_ns)
    if not dry_run:
        note_aged(instance, aged)
    with door_of(instance) as door:
        removed = prune_journal(door, aged=aged, upto=upto, dry_run=dry_run)
    kept = []
    for peer in instance.consumers:
        consumer = read_consumer(directory, peer.name) or Consumer(peer.name)
        needed = needed_seqno(directory, consumer)
        if needed is not None:
            needed = max(needed, aged.get(peer.name, 0))
        kept.append(KeptFor(peer.name, needed, needed is not None and needed > consumer.acknowledged_seqno))
    return Scrubbed(removed, tuple(kept))
