"""The fences that are open, as people are told of them: who has all others stand aside, who does, who does not yet.

Guarantees: names where there are records that name them, else UUIDs; the same order everywhere.
Leaves to others: what a fence is (schema_fences.py), where this is read. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from replicate.model.moment import shown_us
from replicate.model.transaction import History
from replicate.model.writers import Writers


class ToldFence(Struct, frozen=True):
    """A fence that is open. `by`: who fences; `awaited`: those that do not stand aside for it yet, by name. `is_own`:
    it is this one's; `is_once`: it ends with the first change of the schema; `is_closed`: it is this one's, and the
    schema may be changed. `stands`: those that do stand aside; `since`: when it began, in UTC."""

    by: str
    awaited: tuple[str, ...]
    is_own: bool
    is_once: bool
    is_closed: bool
    stands: tuple[str, ...]
    since: str


def told_fences(writers: Writers, histories: Collection[History], own: bytes) -> list[ToldFence]:
    """All that are open, the one that comes first in front. `histories`: of all that have ever begun to write here;
    `own`: of which instance it is told."""
    known = writers.known(one.instance for one in histories)
    names = {one.instance: one.name for one in histories}
    fences, retired = writers.fences, writers.retired

    def named(found: Collection[bytes]) -> tuple[str, ...]:
        return tuple(sorted(names.get(one, one.hex()) for one in found))

    return [
        ToldFence(
            by=names.get(one, one.hex()),
            awaited=named(awaited := fences.awaited(one, known, retired)),
            is_own=one == own,
            is_once=fences.by[one].is_once,
            is_closed=one == own and fences.is_ours(own, known, retired),
            stands=named(known - retired - awaited - {one}),
            since=f"{shown_us(fences.since_us(one))} UTC",
        )
        for one in fences.open(retired)
    ]
