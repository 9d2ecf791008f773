"""Which connections of a listener stay open: so many in all, and so many from one address, and always room for one
more.

Guarantees: memory is bounded by the two limits. A newcomer is let in as long as there is a guest that may go for it
(`who_goes`). Of one address, strangers and those that were answered each keep half of the places, against the other
kind: neither a crowd that says nothing nor one that begins as a source does keeps a source out, as long as it takes
each of its steps before half as many others take one. A crowd from one address pushes nobody of another one out. A
guest that was let go counts no more.
Leaves to others: sockets, clocks, who the peers are. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

CONNECTIONS_MAX: Final = "CONNECTIONS_MAX"
CONNECTIONS_PER_ADDRESS_MAX: Final = "CONNECTIONS_PER_ADDRESS_MAX"


class Standing(IntEnum):
    """What is known of a guest."""

    STRANGER = 0
    ANSWERED = 1
    """It has said what a source begins with, whole, and was answered: it is on its way to prove who it is."""
    PROVEN = 2
    """It has proven who it is, and is not served yet: it goes where nobody else may."""
    SERVED = 3
    """It never goes for another one."""


class Guest(Struct, eq=False):
    """A connection that was let in. `close` ends it from outside; `closed_for`: why that was done, "" as long as it
    was not. `rises`: called when its standing has risen."""

    address: str
    close: Callable[[], object]
    standing: Standing = Standing.STRANGER
    closed_for: str = ""
    rises: Callable[[Guest], object] = lambda _guest: None

    def answered(self) -> None:
        """Its first words were what a source says, and it was answered."""
        if self.standing < Standing.ANSWERED:
            self.standing = Standing.ANSWERED
            self.rises(self)


def who_goes(guests: Iterable[Guest]) -> Guest | None:
    """The one that is closed for a newcomer, of those that are here in the order in which they took their last step;
    None: nobody may.

    Those that have proven nothing go first; of them, those of the address that has the most; of these, the kind that
    there is more of (strangers, where there are as many of both); of that, the first."""
    may_go = [guest for guest in guests if guest.standing is not Standing.SERVED]
    may_go = [guest for guest in may_go if guest.standing < Standing.PROVEN] or may_go
    by_address = Counter(guest.address for guest in may_go)
    may_go = [guest for guest in may_go if by_address[guest.address] == max(by_address.values())]
    by_standing = Counter(guest.standing for guest in may_go)
    # `max` gives the first of equals.
    return max(may_go, key=lambda guest: (by_standing[guest.standing], -guest.standing), default=None)


class Admission:
    """The connections of one listener."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._guests: dict[Guest, None] = {}  # in the order of their last steps

    def __iter__(self) -> Iterator[Guest]:
        return iter(tuple(self._guests))

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._guests)

    def enter(self, address: str, close: Callable[[], object]) -> Guest | str:
        """Let one in, and close another one for it where there is no room. The reason, one of those above, where it
        cannot be let in: all that are here are served."""
        of_address = [guest for guest in self._guests if guest.address == address]
        reason, here = "", [*self._guests]
        if len(of_address) >= self._per_address_max:
            reason, here = CONNECTIONS_PER_ADDRESS_MAX, of_address
        elif len(here) >= self._connections_max:
            reason = CONNECTIONS_MAX
        if reason:
            goes = who_goes(here)
            if goes is None:
                return reason
            self.leave(goes)
            goes.closed_for = reason
            goes.close()
        guest = Guest(address, close, rises=self._rises)
        self._guests[guest] = None
        return guest

    def _rises(self, guest: Guest) -> None:
        if guest in self._guests:
            self._guests[guest] = self._guests.pop(guest)

    def leave(self, guest: Guest) -> None:
        """It has gone. May be called twice."""
        self._guests.pop(guest, None)
