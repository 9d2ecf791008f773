"""Becoming a supplier: one of several instances of a network that write.

The first supplier was a primary; it writes everything, and says so in a transaction. Others were its secondaries, with
all that it had sent, and write nothing until something is given to them. All of it travels in the stream.

Guarantees: a conversion that was killed anywhere is finished by the same call; what does not fit is refused by name
before anything is changed.
Leaves to others: who writes what (partition_writers.py), daemons (daemons_down.py), the steps of a change of role
(change_of_role.py).
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from msgspec import Struct

from replicate.door.recovery.opening import make_chain, require_seeded
from replicate.door.recovery.way_out import way_out_of_changed_schema
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError, DamagedError, NotFoundError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.lost.keep import Kept, keep_lost
from replicate.model.writers import REST, Writers
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.kind import KIND
from replicate.region.protocol import Unmergeable
from replicate.region.sqlite.region_state import refuse_changed
from replicate.region.sqlite.turn_role import begin_as_primary, begin_as_supplier
from replicate.roles.change_of_role import become_secondary, become_secondary_unread, standing_still
from replicate.roles.daemons_down import daemons_down
from replicate.roles.partition_writers import give_number, tell_added_regions, unmergeable_tables, written
from replicate.roles.retiring import gone_of
from replicate.system.failpoint import hit
from replicate.transfer.packet.epochs import Epochs
from replicate.transfer.packet.epochs_file import change_epochs

CONVERSION: Final = "conversion"


class Converted(Struct, frozen=True):
    """`seqno`: the last transaction before it. `writes_all`: it is the first supplier of its network."""

    name: str
    role: str
    seqno: int
    incarnation: int
    writes_all: bool
    single: tuple[Unmergeable, ...] = ()
    """Of a dry run: tables that no more than one supplier at a time can write."""
    kept: Kept | None = None
    """Where what nobody else has stands, of one that was a supplier."""


def convert(
    instance: Instance, role: str, *, timeout_s: float, dry_run: bool = False, force: bool = False
) -> Converted:
    """Make a primary or a secondary a supplier, or a supplier a secondary; nothing happens to one that is it already.
    `force`: a secondary also where peers lack something, which is written to a file first, and where its journal or
    region cannot be read, for a seed that replaces them.

    ConfigurationError for what cannot be one, NotFoundError (not seeded), AlreadyRunningError, BusyError,
    UndeliveredError (peers lack something of a supplier), and what the change raises."""
    instance.reload()
    if role == "secondary":
        return _to_secondary(instance, timeout_s=timeout_s, dry_run=dry_run, force=force)
    writers = _check(instance)
    if dry_run:
        with door_of(instance) as door:
            single = tuple(unmergeable_tables(door, REST, keys_chosen=False))
        return Converted(instance.name, role, 0, instance.content.incarnation, not writers.by, single)
    if not instance.is_supplier:
        with daemons_down(instance, CONVERSION, patience_s=timeout_s):
            _become_supplier(instance, timeout_s=timeout_s)
    with door_of(instance) as door:  # its history record is written, if it is not there
        seqno = int(door.words[word.LAST_SEQNO])
        if not writers.by:
            give_number(door, REST, instance.content.uuid, timeout_s=timeout_s)
        elif len(instance.regions) > 1:
            tell_added_regions(door, timeout_s=timeout_s)
    _know_peers(instance)
    return Converted(instance.name, role, seqno, instance.content.incarnation, not writers.by)


def _to_secondary(instance: Instance, *, timeout_s: float, dry_run: bool, force: bool) -> Converted:
    if instance.role != "secondary" and not instance.is_supplier:
        raise ConfigurationError(
            f"{instance.name} is primary",
            where=str(instance.path),
            do=f"To hand its role over: replicate -i {instance.named} switchover",
        )
    seqno = 0
    kept: Kept | None = None
    if instance.is_supplier and not dry_run:
        again = f"replicate -i {instance.named} instance convert --role secondary --force"
        with daemons_down(instance, CONVERSION, patience_s=timeout_s):

            def keep() -> Kept | None:
                nonlocal kept
                kept = keep_lost(instance, cause="instance convert", again=again, force=force)
                return kept

            if not force:
                keep()  # what is refused is refused before anybody stands still
            try:  # and what an application has committed by then counts, too
                seqno = become_secondary(instance, timeout_s=timeout_s, permit=keep)
            except (DamagedError, NotFoundError):
                if not force:
                    raise
                keep()
                become_secondary_unread(instance, timeout_s=timeout_s)
            _forget_places(instance)
    return Converted(instance.name, "secondary", seqno, instance.content.incarnation, False, kept=kept)


def _forget_places(instance: Instance) -> None:
    """A supplier's journal ends with its role: the one that its next seed begins counts otherwise. So it is not known
    any more what of it others have: it is kept for them until they say so."""
    directory = instance.consumers_directory
    with positions_locked(directory):
        for peer in instance.peers:
            known = read_consumer(directory, peer.name) or Consumer(peer.name)
            write_consumer(directory, Consumer(peer.name, 0, known.uuid))
    change_epochs(directory, Epochs.without_places)


def _check(instance: Instance) -> Writers:
    """Who writes what, as its region says. Raises the refusal."""
    instance.refuse_feed("is no supplier: what others write there is no part of the stream")
    instance.refuse_partial("is no supplier: it has not all partitions")
    for element in instance.content.partitions.elements:
        raise ConfigurationError(
            f"every supplier has all definitions, and {element} is in a partition of its own",
            where=str(instance.path),
            do=f"Have everybody get it: replicate -i {instance.named} partition element {element} ALL",
        )
    if not instance.regions:
        raise ConfigurationError(
            f"{instance.name} has no region",
            where=str(instance.path),
            do=f"First: replicate -i {instance.named} {'seed' if instance.role == 'secondary' else 'region add FILE'}",
        )
    if instance.waiting:
        raise ConfigurationError(
            f"every supplier has all regions, and {', '.join(sorted(instance.waiting))} waits here for its seed",
            where=str(instance.path),
            do=f"Fill it first: replicate -i {instance.named} seed --region {min(instance.waiting)}",
        )
    if instance.content.is_restoring and not instance.is_supplier:
        raise ConfigurationError(
            f"{instance.name} was restored from an older state, and waits until others have brought back what it had",
            where=str(instance.path),
            do=f"First: replicate -i {instance.named} replica restore",
        )
    if instance.content.successor is not None and not instance.is_supplier and instance.role == "primary":
        raise ConfigurationError(
            f"{instance.name} takes no writes: {instance.content.successor}", where=str(instance.path)
        )
    if instance.role == "secondary":
        require_seeded(instance)
    found = []
    for entry in instance.regions:
        if not instance.is_supplier:  # what it is now would count as what it was
            refuse_changed(entry.path, region=entry.uuid, changed_do=way_out_of_changed_schema(instance, entry.name))
        with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            found.append((opened.writers(), opened.absorbed()))
    writers, absorbed = found[0][0], min(absorbed for _, absorbed in found)
    added = [entry.name for entry, (one, _) in zip(instance.regions, found, strict=True) if writers.by and not one.by]
    if added and (writers.was_shared or writers.retiring or writers.retired or writers.fences.by):
        raise ConfigurationError(
            f"region {added[0]} was added since several suppliers wrote here: it does not know what they share, or who "
            "is gone",
            where=str(instance.path),
            do=f"Give it up: replicate -i {instance.named} region release {added[0]}",
        )
    if not instance.is_supplier and writers.was_shared and absorbed < make_chain(instance).oldest_seqno() - 1:
        raise ConfigurationError(
            f"{instance.name} does not know who wrote rows that several suppliers write, from before its seed",
            where=str(instance.path),
            do=f"Seed it again, and then make it a supplier: replicate -i {instance.named} seed --restart",
        )
    if not instance.is_supplier and writers.is_gone(instance.content.uuid):
        raise ConfigurationError(
            f"{instance.name} is gone for good, as a supplier: its source says so, and nobody takes what it writes",
            where=str(instance.path),
            do="Make another one, of another name: replicate replica join",
        )
    if instance.role == "secondary" and not writers.by:
        raise ConfigurationError(
            f"the source of {instance.name} is no supplier",
            where=str(instance.path),
            do="Make that one a supplier first (there: replicate -i INSTANCE instance convert --role supplier); its "
            "stream says so here",
        )
    return writers


def _become_supplier(instance: Instance, *, timeout_s: float) -> None:
    was_secondary = instance.role == "secondary"
    with standing_still(instance, timeout_s) as door:
        seqno = int(door.words[word.LAST_SEQNO])
        own = [one.incarnation for one in door.catalogue_now().histories if one.instance == instance.content.uuid]
        for entry in instance.regions:
            if was_secondary:
                begin_as_primary(entry.path, entry.uuid, seqno)
            begin_as_supplier(entry.path, entry.uuid, begins_at=door.chain.oldest_seqno())
            hit("role.region_turned")
        if was_secondary:
            _forget_places(instance)  # a conversion to a secondary was killed before it did
        with door.locked(timeout_s):
            for kind in (PoolKind.RECEIVE, PoolKind.JOURNAL):
                retire(kind, instance.content.uuid)
                hit("role.pool_retired")
            # It may have been restored from before others of its own, which a seed has brought back.
            instance.change_role("primary", is_supplier=True, above=max(own, default=0))
            hit("role.changed")


def _know_peers(instance: Instance) -> None:
    """Of a peer that nothing is known of, that it has nothing."""
    for peer in instance.consumers:
        if read_consumer(instance.consumers_directory, peer.name) is None:
            write_consumer(instance.consumers_directory, Consumer(peer.name))


class KnownSupplier(Struct, frozen=True):
    """An instance that has written here. `transactions`: of all its incarnations; `writes`: partitions, by name;
    `told`: what else is to be said."""

    name: str
    incarnation: int
    transactions: int
    writes: tuple[str, ...]
    told: str


def replicas(instance: Instance) -> list[KnownSupplier]:
    """By name. Raises what opening the door and the region raises."""
    with door_of(instance) as door:
        histories = door.catalogue_now().histories
        with door.locked():
            chains = door.position().chains
    writes: dict[str, list[str]] = {}
    for one in written(instance):
        for who in (one.by, *one.others):
            writes.setdefault(who, []).append(one.name)
    peers = {peer.name for peer in instance.peers}
    gone = {one.name: one for one in gone_of(instance)}
    found: dict[bytes, KnownSupplier] = {}
    for history in histories:
        known = found.get(history.instance)
        count = chains.get(history.origin.key, (0, 0))[0] + (0 if known is None else known.transactions)
        is_own = history.instance == instance.content.uuid
        told = "this one" if is_own else "a peer" if history.name in peers else "comes by way of others"
        if is_own and instance.content.is_restoring:
            told = "this one; waits for what it had"
        if is_own and (by := instance.content.retired_by) is not None:
            told = f"this one; gone for good, by what {by.name} says"
        if (lost := gone.get(history.name)) is not None:
            told = "retired" if lost.is_retired else f"gone; waited for: {', '.join(lost.awaited) or 'nobody'}"
        found[history.instance] = KnownSupplier(
            history.name, history.incarnation, count, tuple(writes.get(history.name, ())), told
        )
    return sorted(found.values(), key=lambda one: one.name)
