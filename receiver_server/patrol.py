"""The secondary's side of the patrol: verifies each range that the source tells of, and keeps what was found.

Guarantees: nothing waits for it; a range is verified as soon as the
transaction is applied at which the source has digested it, on a connection of its own. A difference is said at once. At
most WAITING_MAX ranges wait. What comes beyond that, or waits when this server or the connection ends, counts as passed
over, and the next round has it; a round without its end never counts as whole.
Leaves to others: how a range is verified (compare/range_check.py), what is kept (compare/patrol_found.py).

The Update Process has no part in it: it would have to end a batch at each such number. Here later changes are taken out
of the digest by the journal, and nothing stops. Ranges come only while this server runs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from replicate.compare.patrol_found import (
    Different,
    Outcome,
    Patrolled,
    RangeVerdict,
    look_at_patrolled,
    note_patrolled,
    patrolled_path,
    taken,
)
from replicate.compare.range_check import verify
from replicate.daemon.index_patrol import IndexPatrol
from replicate.errors import BusyError, RegionDamagedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.wire.message import Check

WAITING_MAX: Final = 256
LOOK_S: Final = 0.1
"""How often it is looked whether the transaction of a range is applied."""
KEPT_S: Final = 2.0
"""How often what was found is kept; a difference and the end of a round at once."""


class PatrolFound:
    """What is kept, as this daemon knows it. A compare and a seed may end what was found, and change the file."""

    def __init__(self, instance_path: Path, indexes: IndexPatrol) -> None:
        self._path = instance_path
        self.indexes = indexes
        """The patrol of our own indexes."""
        self._file = _which(instance_path)
        self.now = look_at_patrolled(instance_path)

    def look(self) -> Patrolled:
        """What is known now. Blocks on the disk where somebody else has changed the file."""
        file = _which(self._path)
        if file != self._file:
            self._file = file
            known = look_at_patrolled(self._path)
            self.now = Patrolled(self.now.source, self.now.here, known.whole, known.different)
        return self.now

    def keep(self) -> None:
        """What writing a small file raises."""
        note_patrolled(self._path, self.now)
        self._file = _which(self._path)

    def figures(self, wall_ns: int) -> dict[str, Any]:
        """The last whole round, and what differs; nothing where nothing is known."""
        whole, different = self.now.whole, self.now.different
        found: dict[str, Any] = {}
        if whole.ended_wall_ns:
            age_s = max(0.0, (wall_ns - whole.began_wall_ns) / 1e9)
            found = {"patrol_verified_rows": whole.rows, "patrol_age_s": age_s, "patrol_passed": whole.passed}
        found |= {"patrol_different": len(different)} if found or different else {}
        return found | self.indexes.figures(wall_ns)


def _which(instance_path: Path) -> tuple[int, int]:
    """Of the file that is there; (0, 0) for none."""
    try:
        found = os.stat(patrolled_path(instance_path))
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


class Verifying:
    """Of one connection. `run` it beside the stream, and tell it what is `heard`."""

    def __init__(self, instance: Instance, found: PatrolFound, log: Any, source: str, *, is_filtered: bool) -> None:
        """`source`: the name of the instance that sends. `is_filtered`: the rows here are in other words."""
        self._instance = instance
        self._found = found
        self._log = log
        self._source = source
        self._is_filtered = is_filtered
        self._checks: deque[Check] = deque()
        self._came = trio.Event()
        self._kept_s = trio.current_time()
        self._is_news = False
        """Something was found that is not kept."""

    def heard(self, check: Check) -> None:
        """The source tells of a range."""
        if len(self._checks) < WAITING_MAX:
            self._checks.append(check)
            self._came.set()

    async def run(self, applied_seqno: Callable[[], int], differs: Callable[[str], object]) -> None:
        """Until cancelled. `applied_seqno`: what the regions hold for certain; `differs` is called for each range that
        differs, with what may be told of it: no key."""
        try:
            while True:
                await self._came.wait()
                self._came = trio.Event()
                while self._checks:
                    verdict = await self._verify(self._checks[0], applied_seqno())
                    if verdict.outcome is Outcome.NOT_YET:
                        await trio.sleep(LOOK_S)
                        continue
                    await self._take(self._checks.popleft(), verdict)
                    if verdict.outcome is Outcome.DIFFERENT:
                        differs(self._found.now.different[-1].brief)
        finally:
            if self._is_news:
                self._found.look()  # a seed may have ended what was found, and then this connection
                with suppress(ReplicateError):
                    self._found.keep()

    async def _verify(self, check: Check, applied_seqno: int) -> RangeVerdict:
        if self._is_filtered:
            return RangeVerdict(Outcome.PASSED, "a filter is set here, which tells rows in other words")
        if all(entry.name != check.region for entry in self._instance.regions):
            with suppress(ReplicateError):  # it may have come since
                self._instance.reload()
        try:
            return await trio.to_thread.run_sync(verify, self._instance, check, applied_seqno)
        except RegionDamagedError as error:
            return RangeVerdict(Outcome.DIFFERENT, str(error))
        except BusyError:
            return RangeVerdict(Outcome.NOT_YET)
        except ReplicateError as error:
            return RangeVerdict(Outcome.PASSED, str(error))

    async def _take(self, check: Check, verdict: RangeVerdict) -> None:
        found = self._found
        before = found.look()
        found.now = taken(before, self._source, check, verdict, time.time_ns())
        if verdict.outcome is Outcome.DIFFERENT:
            self._say(found.now.different[-1], verdict.why)
        self._is_news = True
        is_due = check.is_last or found.now.different != before.different
        if is_due or trio.current_time() - self._kept_s > KEPT_S:
            self._kept_s = trio.current_time()
            try:
                await trio.to_thread.run_sync(found.keep)
                self._is_news = False
            except ReplicateError as error:
                self._log.warning("what the patrol found is not kept", error=str(error), code=error.code)

    def _say(self, one: Different, why: str) -> None:
        self._log.error(
            "rows differ from the source's",
            table=one.name, keys=one.keys, seqno=one.seqno, row_count=one.rows, digest=one.digest,
            source_row_count=one.source_rows, source_digest=one.source_digest, **({"error": why} if why else {}),
        )  # fmt: skip
