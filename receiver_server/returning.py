"""The return of an old primary by itself: refused for what it has more, it goes back to where another site took over.

Guarantees: only where receiver.auto_rollback is set, and by the rules of `replicate rollback` without --to: behind a
record that another instance took over, to the point that our own journal proves, with what is taken back in a durable
file before anything is undone; a fence needs no other word. A rollback that was killed is finished first. What bars
the way is said once, with the command that helps, and tried again only for another word of a source.
Leaves to others: the rollback (replicate/roles/rollback.py), what a source has said (replicate/roles/verdict.py).
"""

from __future__ import annotations

from typing import Final

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.errors import JournalIOError, ReplicateError, TryAgainError
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.roles.rollback import RolledBack, rollback
from replicate.roles.verdict import SourceVerdict, look_at_verdict

GOING_BACK: Final = "going back to where another site took over"
AGAIN_S: Final = 10.0
"""After a rollback that was begun has met what may pass, as a full disk."""
_AGAIN: Final = (JournalIOError.exit_code, TryAgainError.exit_code)


class Returning:
    """Of one run of the daemon."""

    def __init__(self, context: DaemonContext, instance: Instance) -> None:
        self._context = context
        self._instance = instance
        self._tried: SourceVerdict | None = None
        self.kept: SourceVerdict | None = None
        """What is kept of the last refusal by a source."""
        self._tried_fence: Successor | None = None
        self.wanted = trio.Event()
        """A source's word is there that we can go back by: the daemon ends what it does for that."""
        self.problem = ""
        """Why we cannot go back by what was said, "" where nothing bars the way."""

    def heard(self, verdict: SourceVerdict) -> None:
        """A source has refused us, and that is kept."""
        if self._context.config.receiver.auto_rollback and verdict.may_lead_back and verdict != self._tried:
            self.wanted.set()

    async def go_back(self) -> None:
        """While nothing of this daemon is open: go back if that is wanted, or was begun. Returns when nothing is to be
        done, or can be."""
        context = self._context
        self.wanted = trio.Event()
        while not context.stop_requested.is_set() and self._is_due():
            context.status(GOING_BACK)
            context.asks_aside = True
            try:
                self._done(await trio.to_thread.run_sync(self._go_back))
                return
            except ReplicateError as error:
                self._failed(error)
                if not self._is_begun or error.exit_code not in _AGAIN:
                    return
            finally:
                context.asks_aside = False
            context.status(f"{GOING_BACK}: {self.problem}")
            context.ready(context.text)
            with trio.move_on_after(AGAIN_S):
                await context.stop_requested.wait()

    @property
    def _is_begun(self) -> bool:
        return (self._instance.path / ROLLBACK_MARKER).exists()

    def _is_due(self) -> bool:
        if not self._context.config.receiver.auto_rollback:
            return False
        verdict, fence = look_at_verdict(self._instance), self._instance.content.fence
        is_told = verdict is not None and verdict.may_lead_back and verdict != self._tried
        return self._is_begun or is_told or (fence is not None and fence != self._tried_fence)

    def _go_back(self) -> RolledBack:
        return rollback(self._instance, None, by=self._context.name)

    def _done(self, done: RolledBack) -> None:
        self._tried, self._tried_fence, self.problem = None, None, ""
        file = None if done.kept is None else str(done.kept.file.path)
        self._context.log.warning(
            "went back by itself", to=done.to, last_seqno=done.last, because=done.because, file=file
        )

    def _failed(self, error: ReplicateError) -> None:
        self.problem = f"could not go back by itself: {error.what}"
        if error.exit_code not in _AGAIN:
            self._tried, self._tried_fence = look_at_verdict(self._instance), self._instance.content.fence
        self._context.log.error("could not go back by itself", error=str(error), code=error.code)
