"""The return of an old primary by itself: refused for what it has more, it goes back to where another site took over.

Guarantees: it happens only where receiver.auto_rollback is set, and by the rules of `replicate rollback` without --to:

* there is a record that another instance took over (a fence needs no other word);
* it goes to the point that our own journal proves;
* what is taken back is in a durable file before anything is undone.

A rollback that was killed is finished first. What bars the way is said once, with the command that helps, and tried
again only for another word of a source. Where a schema change bars it and receiver.auto_seed is set, the instance is
filled again, after the same file. An interrupted copy is finished.
Leaves to others: the rollback (replicate/roles/rollback.py), what a source has said
(replicate/roles/source_refusal.py), the copy (replicate/transfer/seed/request.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.files import DaemonFiles
from replicate.daemon.standing_aside import asked_aside
from replicate.door.recovery.opening import ROLLBACK_MARKER, SEEDING_MARKER
from replicate.errors import JournalIOError, NotSupportedError, ReplicateError, TryAgainError
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.lost.keep import keep_lost_of
from replicate.lost.peers_lack import Owner
from replicate.roles.daemons_down import wait_until_down
from replicate.roles.source_refusal import SourceVerdict, look_at_verdict

if TYPE_CHECKING:
    from replicate.roles.rollback import RolledBack
    from replicate.transfer.seed.install import Seeded

GOING_BACK: Final = "going back to where another site took over"
AGAIN_S: Final = 10.0
"""After a rollback that was begun, or a copy, has met what may pass, as a full disk."""
UPDATE: Final = "update"
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
        self._barred = 0
        """In which incarnation a schema change barred the way back; 0: in none."""

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

    async def fill_again(self) -> None:
        """While the daemon serves: a copy from the source, where nothing else leads back and that is wanted."""
        while self._wants_copy():
            try:
                seeded = await trio.to_thread.run_sync(self._fill_again, abandon_on_cancel=True)
            except ReplicateError as error:
                problem = f"could not be filled again by itself: {error.what}"
                if problem != self.problem:
                    self._context.log.error("could not be filled again by itself", error=str(error), code=error.code)
                self.problem = problem
                await trio.sleep(AGAIN_S)
            else:
                self._barred, self.problem = 0, ""
                self._context.log.warning("filled again by itself", seqno=seeded.seqno, regions=list(seeded.regions))

    def _wants_copy(self) -> bool:
        """Also where one was interrupted. An operator's own, which was quicker, is another incarnation."""
        receiver, path = self._context.config.receiver, self._instance.path
        if not (receiver.auto_rollback and receiver.auto_seed):
            return False
        return (path / SEEDING_MARKER).exists() or Instance.open(path).content.incarnation == self._barred

    def _fill_again(self) -> Seeded:
        """The Update Process stands aside meanwhile."""
        from replicate.transfer.seed.request import seed_over_connection

        path, patience_s = self._instance.path, self._instance.config.daemon.stop_timeout_s
        deadline_s = time.monotonic() + patience_s
        with asked_aside(path, patience_s, daemon=UPDATE):
            wait_until_down(DaemonFiles(path, UPDATE).lock, deadline_s)
            instance = Instance.open(path)
            if not (path / SEEDING_MARKER).exists():
                again = f"replicate -i {instance.named} rollback --to N"
                keep_lost_of(Owner.of(instance), cause="seed --restart", again=again, force=False)
            return seed_over_connection(instance, None, restart=True, told=lambda *_: None)

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
        from replicate.roles.rollback import rollback  # few ever go back, and its room is large

        return rollback(self._instance, None, by=self._context.name)

    def _done(self, done: RolledBack) -> None:
        self._tried, self._tried_fence, self.problem = None, None, ""
        file = None if done.kept is None else str(done.kept.file.path)
        self._context.log.warning(
            "went back by itself", to=done.to, last_seqno=done.last, because=done.because, file=file
        )

    def _failed(self, error: ReplicateError) -> None:
        self.problem = f"could not go back by itself: {error.what}"
        if isinstance(error, NotSupportedError):
            self._barred = Instance.open(self._instance.path).content.incarnation
        if error.exit_code not in _AGAIN:
            self._tried, self._tried_fence = look_at_verdict(self._instance), self._instance.content.fence
        self._context.log.error("could not go back by itself", error=str(error), code=error.code)
