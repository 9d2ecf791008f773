"""Figures by partition that are read from files: each time that somebody asks for them, and in a thread.

Guarantees: of an instance that has all tables in DEFAULT there are none, and no region is opened; what cannot be read
is left out. A record tells what its region holds: the commit, or the batch, has moved it with the rows.
Leaves to others: names and units (figures.py); what a daemon counts itself.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from replicate.compare.scr_partitions import stored_in
from replicate.errors import ReplicateError
from replicate.instance.instance import FILE_NAME, Instance
from replicate.limits import PARTITION_STREAM
from replicate.transfer.seed.incoming import Incoming, seed_directory

ByPartition = dict[str, dict[str, int]]
"""The name of a figure -> the name of a partition -> its value."""


class _FromFiles(ABC):
    """What the files of an instance tell."""

    def __init__(self, path: Path) -> None:
        """`path`: of the instance's directory."""
        self._path = path
        self._opened: tuple[tuple[int, int], Instance] | None = None
        """And what its file was then: it is read again when it has changed."""

    def look(self) -> ByPartition:
        """The figures, now; may take as long as a disk does."""
        try:
            instance = self._instance()
            content = instance.content
            return self.figures_of(instance) if content.held is not None or content.partitions.in_use else {}
        except (ReplicateError, OSError):
            return {}

    def _instance(self) -> Instance:
        found = os.stat(self._path / FILE_NAME)
        stamp = (found.st_ino, found.st_mtime_ns)
        if self._opened is None or self._opened[0] != stamp:
            self._opened = stamp, Instance.open(self._path)
        return self._opened[1]

    @abstractmethod
    def figures_of(self, instance: Instance) -> ByPartition:
        """By their names in daemon/figures.py. ReplicateError, OSError."""


class RecordFigures(_FromFiles):
    """The checkpoint records in the regions. On a secondary each has all; on a primary, those of what changed it."""

    def figures_of(self, instance: Instance) -> ByPartition:
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


class CopyFigures(_FromFiles):
    """The copy that a load waits for. Several that are loaded at once come in one."""

    def figures_of(self, instance: Instance) -> ByPartition:
        numbers = instance.content.choice.loading
        incoming = Incoming(seed_directory(instance.path))
        for path in (incoming.part, incoming.whole):
            if numbers and path.exists():
                size = path.stat().st_size
                return {"partition_copied": {instance.content.partitions.name(number): size for number in numbers}}
        return {}
