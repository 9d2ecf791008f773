"""What one site knows of all: its synchronization checkpoint records, the epoch matrix, and who has what of whom.

Guarantees: the same tables as `replicate scr`, `epochs` and `ruv --told` print; what cannot be told says why, and the
rest is told all the same. An instance that nobody has open is not opened for it.
Leaves to others: how often it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from replicate.compare.scr import array_of
from replicate.compare.seen_by import seen_by
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.pool.shared_memory import PoolKind, SharedMemory
from replicate.seeing.picture_json import RecordTable
from replicate.transfer.packet.matrix import matrix_of

NEEDS: Final = ("journal", "region")
"""Settings of what is opened."""


def record_tables(named: str) -> tuple[RecordTable, ...]:
    """All of an instance, now. Never raises."""
    return (
        _table("scr", "Synchronization checkpoint records", "For each origin, how far this site is.", named, _scr),
        _table("epochs", "Epoch matrix", "How far each replica is, as far as this one knows.", named, _epochs),
        _table("told", "Who has what of whom", "What each supplier has told that it has.", named, _told),
    )


Made = Sequence[Sequence[object]]
"""The head first."""


def _table(key: str, title: str, about: str, named: str, make: Callable[[Instance], Made]) -> RecordTable:
    try:
        instance = Instance.open(named, needs=NEEDS)
        SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid, owner_uid=instance.path.stat().st_uid).close()
        head, *rows = (tuple(map(str, row)) for row in make(instance))
    except (ReplicateError, OSError) as error:
        return RecordTable(key, title, about, why_not=str(error))
    return RecordTable(key, title, about, head, tuple(rows))


def _scr(instance: Instance) -> Made:
    return array_of(instance).table


def _epochs(instance: Instance) -> Made:
    return matrix_of(instance, time.time_ns()).table


def _told(instance: Instance) -> Made:
    rows = seen_by(instance)
    return [("supplier", *rows[0].last, "lacks"), *((one.name, *one.last.values(), one.lacks) for one in rows)]
