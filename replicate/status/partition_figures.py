"""Figures by partition that are read from files: each time that somebody asks for them, and in a thread.

Guarantees: of an instance that has all tables in DEFAULT there are none, and no region is opened; what cannot be read
is left out. A record tells what its region holds: the commit, or the batch, has moved it with the rows.
Leaves to others: names and units (figures.py); what a daemon counts itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from replicate.compare.scr_partitions import stored_in
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_STREAM
from replicate.transfer.seed.incoming import Incoming, seed_directory

ByPartition = dict[str, dict[str, int]]
"""The name of a figure -> the name of a partition -> its value."""


class PartitionFigures:
    """Of one instance. `path`: of its directory; `figures_of`: one of the functions below."""

    def __init__(self, path: Path, figures_of: Callable[[Instance], ByPartition]) -> None:
        self._path = path
        self._figures_of = figures_of
        self._instance: Instance | None = None

    def look(self) -> ByPartition:
        """The figures, now; may take as long as a disk does."""
        try:
            if self._instance is None:
                self._instance = Instance.open(self._path)
            in_use = self._instance.partitions_now().in_use
            return self._figures_of(self._instance) if in_use or self._instance.content.held is not None else {}
        except (ReplicateError, OSError):
            return {}


def in_records(instance: Instance) -> ByPartition:
    """The checkpoint records in the regions. On a secondary each has all; on a primary, those of what changed it.
    ReplicateError, OSError."""
    names, choice = instance.content.partitions.name, instance.content.choice
    found = stored_in(instance.regions, newest=instance.role == "primary")
    by_name = {
        names(number): last
        for number, last in sorted(found.items())
        if number != PARTITION_STREAM and (choice.holds(number) or number in choice.frozen)
    }
    return {
        "partition_seqno": {name: last.seqno for name, last in by_name.items()},
        "partition_origin_seqno": {name: last.origin_seqno for name, last in by_name.items()},
    }


def in_copy(instance: Instance) -> ByPartition:
    """The copy that a load waits for. Several that are loaded at once come in one. OSError."""
    numbers = instance.content.choice.loading
    incoming = Incoming(seed_directory(instance.path))
    for path in (incoming.part, incoming.whole):
        if numbers and path.exists():
            size = path.stat().st_size
            return {"partition_copied": {instance.content.partitions.name(number): size for number in numbers}}
    return {}
