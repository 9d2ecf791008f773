"""`region upgrade`: another schema for a region of a secondary, which the stream does not bring: that of a filter.

Guarantees: everything that was received is applied before; the journal begins again after it, with the new tables in
force, before the region has them, so a command that was killed is given again. A peer that lacks something of the
journal bars it.
Leaves to others: the filter, which tells what comes in the new tables (replicate/filters).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from replicate.admin.region_release import check_nothing_runs
from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import begin_journal
from replicate.door.snapshot import door_of, finish_regions
from replicate.errors import PermissionRefusedError, UndeliveredError
from replicate.instance.consumers import read_consumer
from replicate.instance.instance import Instance
from replicate.model.transaction import Catalogue
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.sqlite.scripted_upgrade import upgraded_by


class Upgraded(Struct, frozen=True):
    """`seqno`: the last transaction that the secondary has. `tables`: those that are others now."""

    seqno: int
    tables: tuple[str, ...]


def upgrade_region(
    instance: Instance, name: str, script: str, *, timeout_s: float, finish: Callable[[], object]
) -> Upgraded:
    """Run the script of SQL in the region `name`. `finish` applies what was received.

    Raises NotFoundError (no such region), PermissionRefusedError (a primary), AlreadyRunningError (a daemon runs),
    UndeliveredError (a peer of ours lacks something), what `finish` raises, and what the script does. Nothing is
    changed then."""
    entry = instance.region(name)
    where = str(instance.path)
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"{instance.name} is primary: its schema is changed by an application, and the stream tells it",
            where=where,
            do="Connect with replicate.connect, and change it there",
        )
    check_nothing_runs(instance.path, instance.named)
    with DaemonFiles(instance.path, "update").lock.kept_down("release"):
        finish()
        with door_of(instance) as door:
            finish_regions(door, timeout_s)
            position, known = door.position(), door.catalogue_now()
        for peer in instance.peers:
            consumer = read_consumer(instance.consumers_directory, peer.name)
            if consumer is not None and not peer.passive and consumer.acknowledged_seqno < position.last_seqno:
                raise UndeliveredError(
                    f"{peer.name} has {consumer.acknowledged_seqno} of {position.last_seqno}, and the journal begins "
                    "again after that",
                    where=where,
                    do=f"Let it catch up: replicate -i {instance.named} source start",
                )
        with upgraded_by(script, entry.path, region=entry.uuid, name=name) as definitions:
            before = {one.table_id for one in known.in_force().values() if one.region == name}
            kept = {key: one for key, one in known.in_force().items() if one.region != name}
            made = {one.table_id: one for one in (*kept.values(), *definitions)}
            begin_journal(instance, position, Catalogue(made, known.histories, position.vector, position.chains))
        retire(PoolKind.RECEIVE, instance.content.uuid)  # what held there spoke of the tables before
    changed = tuple(sorted({one.table for one in definitions if one.table_id not in before}))
    return Upgraded(position.last_seqno, changed)
