"""A site's own indexes against its own rows, all the time: the patrol's half that needs no peer.

Guarantees: it takes no more of a core, and reads no more, than the patrol's settings give it; where it goes beside the
digests of a Source Server, both share that. Of the daemons of an instance one goes, and another one when that has
ended. A round goes on where it was. What is wrong is said at once, and kept. Nothing waits for it.
Leaves to others: what a part is (compare/index_check.py), what is kept (compare/index_found.py).
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import Any, Final

import trio

from replicate.compare.index_check import Slice, take_slice
from replicate.compare.index_found import (
    IndexesFound,
    indexes_path,
    look_at_indexes,
    note_indexes,
    now_at,
    standing_at,
    with_part,
)
from replicate.compare.patrol_rounds import Place, is_within, pause_s
from replicate.daemon.ticks import sleep_to_tick
from replicate.door.recovery.opening import SEEDING_MARKER
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.settings.load import parse_hours
from replicate.settings.table import ReceiverConfig, SourceConfig
from replicate.system.locks import FileLock

LOOK_S: Final = 1.0
"""How often it is looked whether it may go on."""
KEPT_S: Final = 10.0
"""How often what was found is kept; what is wrong, and the end of a round, at once."""


class IndexPatrol:
    """Of one daemon. `run` it as long as the daemon serves."""

    def __init__(
        self,
        instance: Instance,
        settings: SourceConfig | ReceiverConfig,
        log: Any,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._log = log
        self.beside = ""
        """What the patrol that digests is at, in this daemon; "" while it rests. Each of both takes half then."""
        self._kept_s = 0.0
        self._is_kept = False
        """Whether what is known stands in the file."""
        self.found = IndexesFound()
        """What is known, while this daemon is the one that goes."""
        self.goes = False
        """Whether a round is under way here."""

    async def run(self) -> None:
        """Until cancelled."""
        settings = self._settings
        if settings.patrol_percent <= 0:
            return
        hours = parse_hours(settings.patrol_hours, where="patrol_hours")
        with closing(FileLock(self._instance.locks_directory / "indexes.lock")) as lock:
            while not lock.try_acquire():
                await sleep_to_tick(LOOK_S)
            self.found = look_at_indexes(self._instance.path)
            self._is_kept = self.found != IndexesFound()
            try:
                while True:
                    place = self._place() if is_within(hours, time.localtime().tm_hour) else None
                    self.goes = place is not None
                    if place is None:
                        await sleep_to_tick(LOOK_S)
                    else:
                        await self._go(place)
            finally:
                self.goes = False
                self._keep()

    def figures(self, wall_ns: int) -> dict[str, Any]:
        """The last whole round, and what is wrong; nothing where nothing is known."""
        whole, damaged = self.found.whole, self.found.damaged
        found: dict[str, Any] = {}
        if whole.ended_wall_ns:
            age_s = max(0.0, (wall_ns - whole.began_wall_ns) / 1e9)
            found = {"index_entries": whole.entries, "index_age_s": age_s, "index_left_out": len(whole.left_out)}
        return {**found, "index_damaged": len(damaged)} if found or damaged else {}

    def _place(self) -> Place | None:
        """Where it stands, or the beginning of a round, as soon as one is due. None, too, while a seed replaces the
        regions, and before there is one: no round has looked at them then."""
        is_seeded = not (self._instance.path / SEEDING_MARKER).exists()
        if self._is_forgotten() or not is_seeded:
            self.found, self._is_kept = IndexesFound(), False
        if not is_seeded:
            return None
        at = standing_at(self.found)
        if at is not None:
            return at
        now_ns = time.time_ns()
        began_ns = min(self.found.whole.began_wall_ns, now_ns)  # the clock may have been set back
        if now_ns - began_ns < self._settings.patrol_round_s * 1e9:
            return None
        with suppress(ReplicateError):  # what is wrong with the file, `status` says
            self._instance.reload()
        return Place(now_ns) if self._instance.regions else None

    def _is_forgotten(self) -> bool:
        """Whether a seed, or a reindex, has ended what was found."""
        return self._is_kept and not indexes_path(self._instance.path).exists()

    async def _go(self, place: Place) -> None:
        """One part, and the rest after it."""
        settings, before = self._settings, self.found
        taken = await trio.to_thread.run_sync(take_slice, self._instance, place)
        is_last = taken.place is None
        found = with_part(before, place.round_wall_ns, taken.looked, is_last=is_last, wall_ns=time.time_ns())
        self.found = now_at(found, taken.place)
        self._say(before, taken)
        is_due = is_last or self.found.damaged != before.damaged or self.found.orphans != before.orphans
        if is_due or trio.current_time() - self._kept_s > KEPT_S:
            self._kept_s = trio.current_time()
            await trio.to_thread.run_sync(self._keep)
        share = 2.0 if self.beside else 1.0
        await trio.sleep(
            pause_s(
                busy_s=taken.busy_s,
                size=taken.size,
                percent=settings.patrol_percent / share,
                mb_per_s=settings.patrol_speed_mb / share,
            )
        )

    def _say(self, before: IndexesFound, taken: Slice) -> None:
        known = {(one.name, one.what) for one in before.damaged}
        for one in taken.looked.damaged:
            if (one.name, one.what) not in known:
                known.add((one.name, one.what))
                self._log.error("an index is damaged", name=one.name, what=one.what, key=one.key)
        lonely = {one.name for one in before.orphans}
        for row in taken.looked.orphans:
            if row.name not in lonely:
                table = f"{row.region}.{row.table}"
                self._log.warning("a row names one that is not there", table=table, key=row.key, parent=row.parent)

    def _keep(self) -> None:
        """On a full disk it goes on, and may begin its round again."""
        if not self._is_forgotten() and self.found != IndexesFound():
            with suppress(ReplicateError):
                note_indexes(self._instance.path, self.found)
                self._is_kept = True
