"""The worlds of roles proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from msgspec.structs import replace

import replicate.door.recovery.opening
import replicate.door.recovery.recovery
import replicate.lost.file
import replicate.lost.keep
import replicate.roles.change_of_role
import replicate.roles.promote_demote
import replicate.roles.rollback
import replicate.roles.superseded
import replicate.roles.undo_transactions
import source_server.handover
from replicate.instance.instance import Instance
from replicate.journal.durable import DurableSidecar
from replicate.pool.shared_memory import PoolKind
from replicate.roles.handover import GiverStanding
from tests.simulation.plants import nothing
from tests.simulation.replaced import Change
from tests.simulation.roles.machine import DaemonLock

RoleGiver = source_server.handover.RoleGiver


def _leaves_one() -> list[Change]:
    """A rollback that leaves one transaction of what is lost."""

    def needed(instance: Any, to: int | None, timeout_s: float, tell: Any) -> tuple[int, str]:
        point, because = kept(instance, to, timeout_s, tell)
        return point + 1, because

    kept = replicate.roles.rollback._needed
    return [(replicate.roles.rollback, "_needed", needed)]


def _takes_one_too_many() -> list[Change]:
    """A rollback that takes back the last common transaction, too."""

    def needed(instance: Any, to: int | None, timeout_s: float, tell: Any) -> tuple[int, str]:
        point, because = kept(instance, to, timeout_s, tell)
        return point - 1, because

    kept = replicate.roles.rollback._needed
    return [(replicate.roles.rollback, "_needed", needed)]


def _no_lost_file() -> list[Change]:
    def keep(_owner: Any, **_: Any) -> Any:
        return SimpleNamespace(file=SimpleNamespace(path="nowhere"), lines=list)

    return [(replicate.roles.rollback, "keep_range", keep)]


def _lost_file_lacks_one() -> list[Change]:
    def keep(owner: Any, *, cause: str, first: int, last: int) -> Any:
        return kept(owner, cause=cause, first=min(first + 1, last), last=last)

    kept = replicate.roles.rollback.keep_range
    return [(replicate.roles.rollback, "keep_range", keep)]


def _lost_file_after_the_undo() -> list[Change]:
    """The file is written when all is undone, of what the journal held."""

    def process() -> Any:
        return DaemonLock.world.kernel.process

    def keep(owner: Any, **more: Any) -> Any:
        later[:] = [(process(), lambda: kept(owner, **more))]
        return SimpleNamespace(file=SimpleNamespace(path="later"), lines=list)

    def cut(*arguments: Any) -> None:
        for who, write in later:
            if who is process():
                write()
        later.clear()
        kept_cut(*arguments)

    later: list[tuple[Any, Callable[[], Any]]] = []
    kept, kept_cut = replicate.roles.rollback.keep_range, replicate.roles.rollback._cut_journal
    return [(replicate.roles.rollback, "keep_range", keep), (replicate.roles.rollback, "_cut_journal", cut)]


def _lost_file_not_synced() -> list[Change]:
    """Neither the file nor its name."""

    class UnsyncedOs:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def fsync(self, _fd: int) -> None:
            pass

    def write(*arguments: Any) -> Any:
        before = replicate.lost.file.os
        replicate.lost.file.os = UnsyncedOs(before)  # type: ignore[assignment]
        try:
            return kept(*arguments)
        finally:
            replicate.lost.file.os = before

    kept = replicate.lost.keep.write_lost
    return [(replicate.lost.keep, "write_lost", write), (replicate.lost.file, "sync_directory", nothing)]


def _no_marker() -> list[Change]:
    """Nobody knows of a rollback that was killed."""

    def put(path: Path, data: bytes, *more: Any) -> None:
        if path.name != replicate.roles.rollback.ROLLBACK_MARKER:
            kept(path, data, *more)

    kept = replicate.roles.rollback.replace_file
    return [(replicate.roles.rollback, "replace_file", put), (replicate.roles.rollback, "remove_file", nothing)]


def _opens_half_rolled_back() -> list[Change]:
    return [(replicate.door.recovery.opening, "_refuse_half_rolled_back", nothing)]


def _undo_begins_again() -> list[Change]:
    """A rollback that was killed begins again with all of it, wherever its region stands."""

    def reached(region: Any, to: int) -> int:
        found = kept(region, to)
        known.setdefault(region.where, found)
        return max(found, known[region.where])

    known: dict[str, int] = {}
    kept = replicate.roles.undo_transactions._reached
    return [(replicate.roles.undo_transactions, "_reached", reached)]


def _journal_not_cut() -> list[Change]:
    return [(replicate.roles.rollback, "_cut_journal", nothing)]


def _sidecar_not_lowered() -> list[Change]:
    return [(DurableSidecar, "reset", nothing)]


def _incarnation_used_again() -> list[Change]:
    """Neither a change of the role nor a rollback raises it."""

    def change(self: Any, role: Any, *arguments: Any, **more: Any) -> None:
        kept(self, role, *arguments, **more)
        with self._changing() as content:
            self._store(replace(content, incarnation=content.incarnation - 1))

    kept = Instance.change_role
    return [(Instance, "change_role", change), (Instance, "raise_incarnation", nothing)]


def _fence_not_kept() -> list[Change]:
    """A fence that is in memory only: the pool is retired, and the file says nothing."""
    return [(Instance, "note_successor", nothing)]


def _fence_without_its_pool() -> list[Change]:
    """Connections that are open never learn of it."""
    return [(replicate.roles.superseded, "PoolKind", SimpleNamespace(JOURNAL=PoolKind.RECEIVE))]


def _door_stays_open() -> list[Change]:
    """A switchover that closes no door, and gives the role wherever the journal ends."""

    async def close(self: Any, held: Any, deadline_s: float) -> None:
        await kept(self, held, deadline_s)
        self._closed._barrier.lift()
        self._closed.turn_away = nothing

    kept = RoleGiver._close
    return [(RoleGiver, "_close", close), (replicate.roles.change_of_role, "may_give", lambda **_: True)]


def _half_switchover_forgotten() -> list[Change]:
    """Who has given its role tells nobody."""

    def standing(self: Any) -> GiverStanding:
        found = kept(self)
        return GiverStanding.HAS_SUCCESSOR if found is GiverStanding.HAS_GIVEN else found

    kept = RoleGiver._standing
    return [(RoleGiver, "_standing", standing), (RoleGiver, "_tell", nothing)]


def _no_checkpoint_records() -> list[Change]:
    """A demoted site's regions do not say where they stand."""
    original = replicate.roles.change_of_role._checkpoint
    return [(replicate.roles.change_of_role, "_checkpoint", lambda door, timeout_s: (original(door, timeout_s)[0], []))]


def _pools_stay() -> list[Change]:
    """A change of the role retires no pool: who has one goes on as before."""
    kinds = SimpleNamespace(JOURNAL=PoolKind.RECEIVE, RECEIVE=PoolKind.RECEIVE)
    return [(replicate.roles.change_of_role, "PoolKind", kinds)]


def _renamed_and_not_synced() -> list[Change]:
    """What a killed change of the role has renamed is taken for durable. Worlds found that in the product."""
    return [(replicate.door.recovery.recovery, "sync_directory", nothing)]


PLANTS: Final[Mapping[str, Callable[[], list[Change]]]] = {
    "a rollback leaves one": _leaves_one,
    "a rollback takes one too many": _takes_one_too_many,
    "a rollback without its lost file": _no_lost_file,
    "a lost file lacks one": _lost_file_lacks_one,
    "a lost file is written after the undo": _lost_file_after_the_undo,
    "a lost file is not synced": _lost_file_not_synced,
    "a rollback leaves no mark": _no_marker,
    "a half rollback is opened": _opens_half_rolled_back,
    "a rollback begins again where it did": _undo_begins_again,
    "a rollback cuts no journal": _journal_not_cut,
    "a rollback leaves the durable mark": _sidecar_not_lowered,
    "an incarnation is used again": _incarnation_used_again,
    "a demotion without checkpoint records": _no_checkpoint_records,
    "a fence is not durable": _fence_not_kept,
    "a fence leaves its pool": _fence_without_its_pool,
    "a switchover closes no door": _door_stays_open,
    "a half switchover is forgotten": _half_switchover_forgotten,
    "a change of the role leaves the pools": _pools_stay,
    "a killed change of the role is taken for durable": _renamed_and_not_synced,
}

FOUND: Final[Mapping[str, tuple[str, int]]] = {
    "a rollback leaves one": ("roles-liveness", 9),
    "a rollback takes one too many": ("roles-liveness", 18),
    "a rollback without its lost file": ("roles-liveness", 9),
    "a lost file lacks one": ("roles-liveness", 9),
    "a lost file is written after the undo": ("roles-safety", 95),
    "a lost file is not synced": ("roles-liveness", 9),
    "a rollback leaves no mark": ("roles-liveness", 119),
    "a half rollback is opened": ("roles-liveness", 119),
    "a rollback begins again where it did": ("roles-liveness", 158),
    "a rollback cuts no journal": ("roles-liveness", 9),
    "a rollback leaves the durable mark": ("roles-liveness", 9),
    "an incarnation is used again": ("roles-liveness", 163),
    "a demotion without checkpoint records": ("roles-safety", 1),
    "a fence is not durable": ("roles-liveness", 163),
    "a fence leaves its pool": ("roles-safety", 18),
    "a switchover closes no door": ("roles-liveness", 2),
    "a half switchover is forgotten": ("roles-liveness", 3),
    "a change of the role leaves the pools": ("roles-liveness", 3),
    "a killed change of the role is taken for durable": ("roles-liveness", 15),
}
"""Worlds that find them, to be lived first."""
