"""What a supplier does for partitions that several write when nothing arrives: it tells the others what it has seen, so
that they can forget, looks at its own journal, which may go then, and has its counters far from their blocks' ends.

Guarantees: a supplier that writes nothing itself tells within [update] tell_seen_s, or after TOLD_MAX transactions;
what only tells is never told of, so a network in which nobody writes falls silent.
Leaves to others: what arrives (supplied_transactions.py), how rows are merged (merging.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from replicate.door.absorb_stamps import bodies_of
from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession
from replicate.door.seen_told import is_news
from replicate.door.telling_transaction import SeenTeller
from replicate.door.writer_check import name_of
from replicate.errors import BusyError, ClockAheadError
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.model.transaction import Op
from replicate.pool import control as word
from update_process.merging import Merging
from update_process.window.columns import ONE_CHANGE, PAYLOAD

Awaited = Mapping[bytes, tuple[Mapping[int, int], float]]
"""By a supplier's UUID what it is to tell, and since when (seconds since 1970)."""
TOLD_MAX: Final = 10_000
LOOK_S: Final = 1.0
"""How often it is looked whether there is something to do."""


class Tending:
    """One per applier. No lock is held between two calls; `close` it."""

    def __init__(
        self, session: ApplySession, merging: Merging, tell_seen_s: float, is_heard: Callable[[], bool]
    ) -> None:
        """`is_heard`: whether a source is there by which it would come out that this site was turned back."""
        self._is_heard = is_heard
        self._session = session
        self._merging = merging
        self._words = session.door.words
        self._teller = SeenTeller(session.door)
        self._tell_seen_s = tell_seen_s
        self._untold = self._found_untold()
        """Transactions of others that were applied since ours told the last time."""
        self._since_s = self._looked_s = time.monotonic()
        self._awaited: Awaited = {}
        """Of each supplier that has not told all: what it was to tell, and since when."""
        self._rows: Mapping[bytes, Mapping[int, int]] = {}
        """What each supplier has, as of the last look."""
        self._tended_seqno = -1
        """The end of our journal when it was tended last."""

    def _found_untold(self) -> int:
        """What the process before us has left. Where nobody knows what was told (the pool is new): something."""
        door, told = self._session.door, self._words[word.TOLD_SEQNO]
        if not told or not is_news(door):
            return int(not told)
        own, last_seqno = self._words[word.OWN_ORIGIN], self._words[word.LAST_SEQNO]
        chain = make_chain(door.instance)
        reader = ChainReader(chain, max(told + 1, last_seqno - TOLD_MAX, chain.oldest_seqno()))
        return sum(
            isinstance(body, LargeTransaction) or (body[4] != own and _saying_more([body]) > 0)
            for body in bodies_of(reader, last_seqno)
        )

    def close(self) -> None:
        """What it tells by is given up."""
        self._teller.close()

    def applied(self, bodies: Sequence[Sequence[Any]]) -> None:
        """Transactions of others were applied."""
        if not self._untold or not is_news(self._session.door):
            self._untold, self._since_s = 0, time.monotonic()
        self._untold += _saying_more(bodies)

    def _await(self, lacking: Mapping[bytes, Mapping[int, tuple[int, int]]]) -> None:
        """What others are to tell, if anything is remembered for them."""
        self._awaited = awaited_next(self._awaited, lacking if self._merging.is_remembering else {}, time.time())

    def awaited(self) -> dict[str, float]:
        """Suppliers that have not told that they have what several write, and since when (seconds since 1970)."""
        return {name_of(self._session.door, one): since_s for one, (_, since_s) in self._awaited.items()}

    def told(self) -> dict[str, dict[str, int]]:
        """Who has what of whom, as of the last look: by supplier, and by origin ("NAME INCARNATION"), the last of its
        transactions that it has told that it has; of ours what was here. Nothing where nobody shares."""
        door, rows = self._session.door, self._rows
        histories = {one.origin.key: one for one in door.catalogue_now().histories} if rows else {}
        return {
            name_of(door, one): {
                f"{histories[origin].name} {histories[origin].incarnation}": last
                for origin, last in row.items()
                if origin in histories
            }
            for one, row in rows.items()
        }

    @property
    def is_full(self) -> bool:
        """Whether so much is to be told that it is time, whatever arrives."""
        return self._untold >= TOLD_MAX

    def tend(self, *, is_idle: bool = True, at_once: bool = False) -> None:
        """Raises what a commit raises; where somebody holds the region, it is tried again. `is_idle`: nothing waits to
        be applied. `at_once`: this process ends, so what is to be told is told now."""
        now_s, words = time.monotonic(), self._words
        at_once = at_once or self.is_full
        if not at_once and now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        if not self._untold and words[word.LAST_SEQNO] == self._tended_seqno:
            return
        session = self._session
        try:
            session.begin()
            self._merging.begin()
            self._tended_seqno = session.position.last_seqno
            if not self._merging.is_active:
                self._untold = 0
                session.rollback()
                return
            self._merging.tend(session.position, is_idle=is_idle)
            self._rows = self._merging.rows(session.position)
            self._await(self._merging.lacking(session.position))
            session.keep()
        except BusyError:
            return
        except BaseException:
            session.rollback()
            raise
        if not is_news(session.door):
            self._untold = 0
        elif not session.door.instance.takes_writes_now():
            return  # it was restored: it tells once all that it had is back
        elif not self._words[word.TOLD_SEQNO] and not self._is_heard():
            # The pool is new: since a boot, say, by which the machine may have been turned back. What is told now would
            # have a number that is another transaction's elsewhere.
            self._since_s = now_s
        elif self._untold and (at_once or now_s - self._since_s >= self._tell_seen_s):
            try:
                self._teller.tell(timeout_s=LOOK_S)
            except (BusyError, ClockAheadError):
                return
            self._untold = 0


def awaited_next(
    before: Awaited, lacking: Mapping[bytes, Mapping[int, tuple[int, int]]], now_s: float
) -> dict[bytes, tuple[Mapping[int, int], float]]:
    """Of each supplier what it is to tell (origin -> up to where), and since when. `lacking`: origin -> the last here
    and the last that it has told. One that has told what was awaited is awaited for the rest from now on."""
    found: dict[bytes, tuple[Mapping[int, int], float]] = {}
    for instance, origins in lacking.items():
        target, since_s = before.get(instance, ({}, now_s))
        if all(origin not in origins or origins[origin][1] >= last for origin, last in target.items()):
            target, since_s = {origin: last for origin, (last, _) in origins.items()}, now_s
        found[instance] = target, since_s
    return found


def _saying_more(bodies: Sequence[Sequence[Any]]) -> int:
    """How many transactions do more than tell what their writers have seen."""
    alone = [body[PAYLOAD] for body in bodies if len(body) == ONE_CHANGE]
    return len(bodies) - alone.count(Op.SEEN)
