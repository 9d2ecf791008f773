"""How long it takes to make changes that were put off, foretold from those that were made last: how long a batch gets.

Guarantees: what is foretold is never more than at the same time for each change, and never less than a quarter of that.
Leaves to others: clocks, databases. Pure.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

BY_PAGE_MAX: Final = 0.75
"""Of the time, at most, that is taken to go by pages: of a change that touches several, some goes by the change."""
COUNTED_MIN: Final = 1024
"""Of fewer changes no pages are counted: it would cost more than is learned."""


class Pace(Struct, frozen=True):
    """`changes` (1 at least) took `seconds`, and read `pages_read` of `pages` that there are.

    Changes here and there in a table cost a page each while they are few; of more, several share one. A time for each
    change, taken of a short batch, foretells several times what a long one takes. So the second batch of a catch-up was
    short, and each of its changes as dear as those of the first. As much of the time as there were pages for each
    change is taken to go by pages, of which ever fewer are new: n changes of rows drawn by chance touch
    P (1 - e^(-n/P)) of P pages. Of a million updates in random order, on a table of 30,000 pages, with three daemons on
    two processors, a change took
    10.7 µs among the first 18,600;
    5.5 µs among 84,000;
    2.9 to 3.4 µs among 206,000.

    Taken out, and put in again: it is worth less than a tenth, but without it a catch-up may fall below 0.97 of what it
    was. CPU of an Update Process a row, updates in random order, in turns after 8c22656, load 3 to 6, medians with and
    without it:
    4.5 and 4.7 µs, 1,000,000 rows, 6 rounds;
    4.7 and 5.1 µs, 600,000 rows, 5 rounds.
    """

    changes: int
    seconds: float
    pages_read: int = 0
    pages: int = 0

    def seconds_for(self, changes: int) -> float:
        """What so many should take."""
        times = changes / self.changes
        if times <= 1 or self.pages_read <= 0:
            return self.seconds * times
        by_page = min(self.pages_read / self.changes, BY_PAGE_MAX)
        pages = max(self.pages, self.pages_read)
        grown = _touched(changes, pages) / _touched(self.changes, pages)
        return self.seconds * (by_page * grown + (1 - by_page) * times)


def _touched(changes: int, pages: int) -> float:
    """Pages that so many changes by chance touch, of so many."""
    return -pages * math.expm1(-changes / pages)
