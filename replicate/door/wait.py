"""Waiting until an instance has applied (or committed) a transaction, by its number here or by that of its origin.

Guarantees: returns as soon as the number is there, whether the Update Process applied it or an application committed
it, and whatever is rolled back or seeded meanwhile; says how far the instance is when the time is over. Wakes nobody:
it reads one shared word, and takes the commit lock for a moment where an origin is asked for and that word has moved.
Leaves to others: why the instance is behind (status says that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.snapshot import door_of
from replicate.errors import NotFoundError, NotPrimaryError, TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.model.ruv import NOTHING
from replicate.model.transaction import History
from replicate.pool import control as word

PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.05
"""A transaction is usually there within milliseconds; later we look twenty times a second."""


def poll_until(reached: Callable[[], bool], timeout_s: float, *, pause_s_max: float = PAUSE_S_MAX) -> bool:
    """Look again and again, at growing intervals, until `reached` or for `timeout_s` seconds; the last answer."""
    deadline = time.monotonic() + timeout_s
    pause_s = PAUSE_S_MIN
    while not reached():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s_max, pause_s * 1.5)
    return True


def wait_for_seqno(instance: Instance, seqno: int, *, timeout_s: float) -> int:
    """Wait until the last transaction in the instance's databases is `seqno` or later; returns its number.

    Raises UsageError (a negative number), TryAgainError when `timeout_s` seconds were not enough, and what opening the
    door raises.
    """
    if seqno < 0:
        raise UsageError(f"{seqno} is no sequence number", do="Give --seqno N, with N at least 0")
    deadline_s = time.monotonic() + timeout_s
    while True:
        with _door_in_time(instance, deadline_s) as door:
            words = door.words
            is_known = partial(_is_reached_or_retired, words, seqno)
            poll_until(is_known, max(0.0, deadline_s - time.monotonic()))
            last, is_retired = int(words[word.LAST_SEQNO]), words[word.POOL_STATE] == word.STATE_CLOSED
        if last >= seqno and not is_retired:
            return last
        if time.monotonic() >= deadline_s:
            raise TryAgainError(
                f"transaction {seqno} was not applied within {timeout_s:g} s; the last one is {last}",
                where=str(instance.path),
                do="replicate -i INSTANCE status names the bottleneck",
                wanted=seqno,
                last=last,
            )
        instance.reload()  # a rollback, a seed or a change of role has retired the pool: the numbers are others since


class OriginReached(Struct, frozen=True):
    """The last transaction of an origin that is in the databases of an instance."""

    origin: str
    incarnation: int
    last: int


class _OfOrigin:
    """How far one door's instance has the transactions of an incarnation."""

    def __init__(self, door: Door, name: str, incarnation: int) -> None:
        self._door = door
        self._wanted = name, incarnation
        self._looked_at = -1
        self.last = NOTHING
        self.newest = 0
        """Of that name, the newest incarnation that is known here."""

    def has(self, origin_seqno: int) -> bool:
        """Whether it has that transaction, or the pool is retired."""
        words = self._door.words
        moved_to = int(words[word.LAST_SEQNO])
        if moved_to != self._looked_at:
            self._looked_at = moved_to
            self._look()
        return self.last >= origin_seqno or bool(words[word.POOL_STATE] == word.STATE_CLOSED)

    def _look(self) -> None:
        name, incarnation = self._wanted
        with self._door.locked():
            chains, histories = self._door.position().chains, self._door.catalogue().histories
        of_name = [one for one in histories if one.name == name]
        self.newest = max((one.incarnation for one in of_name), default=0)
        found = [chains.get(one.origin.key, (NOTHING, 0))[0] for one in of_name if one.incarnation == incarnation]
        self.last = max(found, default=NOTHING)


def wait_for_origin(instance: Instance, origin: str, origin_seqno: int, *, timeout_s: float) -> OriginReached:
    """Wait until a supplier has transaction `origin_seqno` of `origin` in its database: NAME/INCARNATION, or NAME alone
    for the newest incarnation that is known here now.

    Raises UsageError (no number, no origin), NotPrimaryError (no supplier), NotFoundError (no record here says who that
    is), TryAgainError when `timeout_s` seconds were not enough, and what opening the door raises.
    """
    if origin_seqno < 0:
        raise UsageError(f"{origin_seqno} is no number of a transaction", do="Give --seqno N, with N at least 0")
    if not instance.is_supplier:
        raise NotPrimaryError(
            f"{instance.name} is {instance.told_role}: only suppliers have transactions of several origins",
            where=str(instance.path),
            do=f"Its own number is enough there: replicate -i {instance.named} wait --seqno N",
        )
    deadline_s = time.monotonic() + timeout_s
    with _door_in_time(instance, deadline_s) as door:
        name, incarnation = _incarnation_named(origin, door.catalogue_now().histories)
    while True:
        with _door_in_time(instance, deadline_s) as door:
            found = _OfOrigin(door, name, incarnation)
            poll_until(lambda: found.has(origin_seqno), max(0.0, deadline_s - time.monotonic()))  # noqa: B023
            is_retired = door.words[word.POOL_STATE] == word.STATE_CLOSED
        if found.last >= origin_seqno and not is_retired:
            return OriginReached(name, incarnation, found.last)
        if time.monotonic() >= deadline_s:
            last = "none of it is here" if found.last == NOTHING else f"the last one is {found.last}"
            do = f"replicate -i {instance.named} status shows what each source has sent"
            if found.newest > incarnation:
                do += f"; {name} has begun incarnation {found.newest} since, which counts from 1 again"
            raise TryAgainError(
                f"transaction {origin_seqno} of {name}/{incarnation} has not come within {timeout_s:g} s; {last}",
                where=str(instance.path),
                do=do,
                wanted=origin_seqno,
                last=found.last,
            )
        instance.reload()  # as above


def _incarnation_named(origin: str, known: Sequence[History]) -> tuple[str, int]:
    name, slash, text = origin.partition("/")
    if slash and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{origin!r} is no origin", do="Give --origin NAME, or NAME/INCARNATION")
    incarnations = [one.incarnation for one in known if one.name == name]
    if not incarnations:
        names = ", ".join(sorted({one.name for one in known}))
        raise NotFoundError(f"no record has said here who {name!r} is", do=f"There is {names or 'none yet'}")
    return name, int(text) if slash else max(incarnations)


def _is_reached_or_retired(words: memoryview, seqno: int) -> bool:
    return bool(words[word.LAST_SEQNO] >= seqno or words[word.POOL_STATE] == word.STATE_CLOSED)


@contextmanager
def _door_in_time(instance: Instance, deadline_s: float) -> Iterator[Door]:
    """The door, waited for until then while a rollback is under way."""
    with ExitStack() as stack:
        while True:
            try:
                door = stack.enter_context(door_of(instance))
                break
            except TryAgainError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(PAUSE_S_MAX)
        yield door
