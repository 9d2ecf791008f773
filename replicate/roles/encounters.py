"""What a daemon makes of the other primaries that it meets: each is judged once for each new word of it, in a thread.

Guarantees: an instance that is superseded is fenced before `met` returns, and made secondary as soon as applications
let go of their regions, by any of its daemons, also when it was killed in between; what was found of another primary is
shown as long as it was heard lately.
Leaves to others: who says what on a connection (the servers), the judgement (succession.py), the steps (superseded.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import trio

from replicate.daemon.ticks import sleep_to_tick
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.roles.succession import Other, Superseding
from replicate.roles.superseded import Met, give_way, meet

SHOWN_S: Final = 150.0
"""So long another primary counts as there after it was heard: a Source Server that was refused by one tries again once
a minute."""
LOOK_S: Final = 1.0
GIVE_WAY_S: Final = 5.0
"""So long applications' transactions are waited for at a time, with the lock of seeds and role changes held."""


class Encounters:
    """Of one daemon, across its connections. All of it belongs to the event loop's thread."""

    def __init__(self, instance: Instance, log: Any) -> None:
        self._instance = instance
        self._log = log
        self._judged: tuple[Other, int] | None = None
        self._shown: dict[str, str] | None = None
        self._heard_s = 0.0
        self._lock = trio.Lock()
        self._gives_way = False
        self._problem = ""

    @property
    def facts(self) -> dict[str, Any]:
        """For the daemon's status: the other primary that was heard lately."""
        is_there = self._shown is not None and trio.current_time() < self._heard_s + SHOWN_S
        return {"other_primary": self._shown if is_there else None}

    @property
    def gives_way(self) -> bool:
        """The other primary is superseded by us: it is secondary as soon as it believes that."""
        return self._gives_way

    def gone(self) -> None:
        """The other site is no primary any more."""
        self._shown = self._judged = None
        self._gives_way = False

    async def met(self, other: Other) -> None:
        """Another primary has said who it is, on a connection on which it may."""
        self._heard_s = trio.current_time()
        async with self._lock:
            if self._judged == (other, self._instance.content.incarnation):
                return
            try:
                found = await trio.to_thread.run_sync(partial(meet, self._instance, other))
            except ReplicateError as error:
                self._log.error("another primary was met, and not judged", error=str(error), code=error.code)
                return
            if found is None:
                return
            self._judged = other, self._instance.content.incarnation
            self._say(other, found)

    def _say(self, other: Other, found: Met) -> None:
        instance = self._instance
        do = instance.pasteable(found.do)
        self._gives_way = isinstance(found.verdict, Superseding)
        self._shown = None if found.is_fenced else {"name": other.name, "text": found.text, "do": do}
        event = "fenced: superseded by another primary" if found.is_fenced else "another primary was met"
        write = self._log.error if found.is_fenced else self._log.warning
        write(event, primary=other.name, text=found.text, do=do)

    async def run(self) -> None:
        """Give way whenever we are fenced and still primary, until cancelled."""
        while True:
            content = self._instance.content
            if content.role == "primary" and content.fence is not None:
                await self._give_way()
            await sleep_to_tick(LOOK_S)

    async def _give_way(self) -> None:
        try:
            if await trio.to_thread.run_sync(partial(give_way, self._instance, timeout_s=GIVE_WAY_S)):
                self._problem = ""
                self._log.warning("secondary, as another primary has superseded this one")
        except ReplicateError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.error("fenced, and not secondary yet", error=str(error), code=error.code)
