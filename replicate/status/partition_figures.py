"""Figures by partition that are read from files: each time that somebody asks for them, and in a thread.

Guarantees: of an instance that has all tables in DEFAULT there are none, and no region is opened; what cannot be read
is left out. A record tells what its region holds: the commit, or the batch, has moved it with the rows.
Leaves to others: names and units (figures.py); what a daemon counts itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate.compare.scr_partitions import LastInPartition, last_within, stored_in
from replicate.door.recovery.opening import make_chain
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_STREAM
from replicate.model.moment import wall_ns

ByPartition = dict[str, dict[str, Any]]
"""The name of a figure -> the name of a partition -> its value."""
LOOKED_AT: Final = 20_000
"""So many transactions of a backlog are read: a tenth of a second."""


class StandsAt(Struct, frozen=True):
    """Up to where a peer has applied what is here, of how much, and which partitions it wants."""

    applied_seqno: int
    last_seqno: int
    wants: Callable[[int], bool]


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
    return _told(instance, _records(instance))


def not_applied(instance: Instance, at: Callable[[], StandsAt | None]) -> ByPartition:
    """The same, and of a peer that stands `at` what it wants and has not applied: how many transactions, and how old
    the oldest is. Of a partition whose part of a long backlog was not looked at that is left out. As `in_records`."""
    records, stands = _records(instance), at()
    found = _told(instance, records)
    if stands is None:
        return found
    wanted = {number: last for number, last in records.items() if stands.wants(number)}
    stop = min(stands.last_seqno, stands.applied_seqno + LOOKED_AT)
    lacking: dict[int, LastInPartition] = {}
    if any(last.seqno > stands.applied_seqno for last in wanted.values()):
        lacking = last_within(make_chain(instance), stands.applied_seqno + 1, stop)
    name, now_ns = instance.content.partitions.name, time.time_ns()
    for number, last in wanted.items():
        lacks = lacking.get(number)
        is_level = last.seqno <= stands.applied_seqno
        if is_level or lacks is not None:
            age_s = 0.0 if lacks is None else max(0.0, (now_ns - wall_ns(lacks.first_csn)) / 1e9)
            found.setdefault("partition_lag_s", {})[name(number)] = round(age_s, 3)
        if is_level or (lacks is not None and last.seqno <= stop):
            found.setdefault("partition_backlog", {})[name(number)] = 0 if lacks is None else lacks.count
    return found


def _records(instance: Instance) -> dict[int, LastInPartition]:
    """Of the partitions that are here, by number."""
    choice = instance.content.choice
    found = stored_in(instance.regions, newest=instance.role == "primary")
    return {
        number: last
        for number, last in sorted(found.items())
        if number != PARTITION_STREAM and (choice.holds(number) or number in choice.frozen)
    }


def _told(instance: Instance, records: Mapping[int, LastInPartition]) -> ByPartition:
    by_name = {instance.content.partitions.name(number): last for number, last in records.items()}
    return {
        "partition_seqno": {name: last.seqno for name, last in by_name.items()},
        "partition_origin_seqno": {name: last.origin_seqno for name, last in by_name.items()},
    }


def in_copy(instance: Instance) -> ByPartition:
    """The copy that a load waits for. Several that are loaded at once come in one. OSError."""
    numbers = instance.content.choice.loading
    if not numbers:
        return {}
    from replicate.transfer.seed.incoming import Incoming, seed_directory

    incoming = Incoming(seed_directory(instance.path))
    for path in (incoming.part, incoming.whole):
        if path.exists():
            size = path.stat().st_size
            return {"partition_copied": {instance.content.partitions.name(number): size for number in numbers}}
    return {}
