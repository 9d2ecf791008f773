"""What one site knows of all: its synchronization checkpoint records, the epoch matrix, and who has what of whom.

Guarantees: the same tables as `replicate scr`, `epochs` and `ruv --told` print; what cannot be told says why, and the
rest is told all the same. An instance that nobody has open is not opened for it.
Leaves to others: how often it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from replicate.compare.scr import array_of
from replicate.compare.seen_by import seen_by
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.transfer.packet.matrix import matrix_of

NEEDS: Final = ("journal", "region")
"""Settings of what is opened."""


@dataclass(frozen=True, slots=True)
class RecordTable:
    """`why_not`: why there are no rows; "" where there are."""

    key: str
    title: str
    about: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    why_not: str = ""


def record_tables(named: str) -> tuple[RecordTable, ...]:
    """All of an instance, now. Never raises."""
    return (
        _table("scr", "Synchronization checkpoint records", "For each origin, how far this site is.", named, _scr),
        _table("epochs", "Epoch matrix", "How far each replica is, as far as this one knows.", named, _epochs),
        _table("told", "Who has what of whom", "What each supplier has told that it has.", named, _told),
    )


Made = tuple[Sequence[str], Sequence[Sequence[object]]]


def _table(key: str, title: str, about: str, named: str, make: Callable[[Instance], Made]) -> RecordTable:
    try:
        instance = Instance.open(named, needs=NEEDS)
        SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid, owner_uid=instance.path.stat().st_uid).close()
        head, rows = make(instance)
    except (ReplicateError, OSError) as error:
        return RecordTable(key, title, about, why_not=str(error))
    return RecordTable(key, title, about, tuple(head), tuple(tuple(map(str, row)) for row in rows))


def _scr(instance: Instance) -> Made:
    array = array_of(instance)
    head = ("audit name", "incarnation", "partition", "global commit", "local commit")
    rows: list[tuple[object, ...]] = [
        (one.audit_name, one.log_file_timestamp, one.partition_id, one.global_commit_id, one.local_commit_id)
        for one in array.records
    ]
    rows += [
        (one.audit_name, one.log_file_timestamp, one.partition_id, one.global_commit_id, one.local_commit_id)
        for one in array.partitions
    ]
    return head, rows


def _epochs(instance: Instance) -> Made:
    found = matrix_of(instance, time.time_ns())
    rows = []
    for one in found.rows:
        heard = "now" if one.kind == "own" else "never" if one.age_s is None else f"{one.age_s:.0f} s ago"
        rows.append((one.name, one.kind, *one.epochs, one.seqno, heard))
    return ("replica", "kind", *found.origins, "transaction", "heard"), rows


def _told(instance: Instance) -> Made:
    rows = seen_by(instance)
    return ("supplier", *rows[0].last, "lacks"), [(one.name, *one.last.values(), one.lacks) for one in rows]
