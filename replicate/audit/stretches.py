"""Several stretches of one journal that are opened one after the other: the segments of an archive, say, which are
unpacked only while they are read.

Guarantees: a query over them is answered as over one chain, and no stretch is opened that the numbers asked for leave
out. Leaves to others: where they come from, and that they follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from copy import copy

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.query import Matches, Query, csn_at, is_in_order_of_time, known_at_end, not_held, not_told_of
from replicate.audit.read import Frames, Match, StretchReader, matches_backwards
from replicate.audit.selection import KeyValue, Selection
from replicate.journal.chain import Chain
from replicate.model.transaction import Catalogue
from replicate.model.vector import U64_MAX


class Stretch(Struct, frozen=True):
    """Transactions `first_seqno` to `last_seqno`; `opened` gives a chain that holds them, for as long as it is open."""

    first_seqno: int
    last_seqno: int
    opened: Callable[[], AbstractContextManager[Chain]]


class StretchMatches:
    """The answer to a query over stretches: as `query.Matches`."""

    def __init__(self, stretches: Sequence[Stretch], query: Query, where: str, sift: Sift | None = None) -> None:
        """`sift`: asked once, of the stretches that the numbers asked for do not leave out, which of them may hold
        what is asked for; none is opened besides.

        UsageError for numbers that they do not hold; NotFoundError or UsageError for a name; what opening and reading
        the last stretch raises."""
        query.check()
        self._stretches = stretches
        self._sift = sift
        self._holding: Sequence[Stretch] | None = None
        self._known: Catalogue | None = None
        oldest, newest = stretches[0].first_seqno, stretches[-1].last_seqno
        self.first_seqno = max(oldest, query.first_seqno or 0)
        self.last_seqno = newest if query.last_seqno is None else min(newest, query.last_seqno)
        if (query.first_seqno or 0) > newest or (query.last_seqno is not None and not oldest <= query.last_seqno):
            raise not_held(oldest, newest, where)
        self.selection: Selection = query.selection(self.known)
        self._check_time(query, where)
        if query.last_count is not None:
            self._begin_with_the_last(query.last_count)

    def _check_time(self, query: Query, where: str) -> None:
        if not query.first_csn and query.last_csn == U64_MAX:
            return
        with self._stretches[0].opened() as chain:
            first = csn_at(chain, chain.oldest_seqno())
        with self._stretches[-1].opened() as chain:
            ended = chain.scan_last()[1]
        if not is_in_order_of_time(self.known(), ended.chains):
            return
        last = ended.last_csn
        if query.last_csn < first or query.first_csn > last:
            raise not_told_of(first, last, where)

    def _begin_with_the_last(self, count: int) -> None:
        if self.selection.is_everything:
            self.first_seqno = max(self.first_seqno, self.last_seqno - count + 1)
            return
        for match in self.backwards():
            count -= 1
            if not count:
                self.first_seqno = match.seqno
                return

    def _asked_for(self) -> list[Stretch]:
        if self._holding is None:
            asked = self._within(self._stretches)
            self._holding = asked if self._sift is None else self._sift(self, asked)
        return self._within(self._holding)

    def _within(self, stretches: Sequence[Stretch]) -> list[Stretch]:
        first, last = self.first_seqno, self.last_seqno
        return [one for one in stretches if one.last_seqno >= first and one.first_seqno <= last]

    def _bounds(self, one: Stretch) -> tuple[int, int]:
        return max(one.first_seqno, self.first_seqno), min(one.last_seqno, self.last_seqno)

    def __iter__(self) -> Iterator[Match]:
        """In order. JournalDamagedError and its kin."""
        for one in self._asked_for():
            with one.opened() as chain:
                yield from Matches(chain, *self._bounds(one), self.selection)

    def frames(self) -> Iterator[Frames | Match]:
        """The same, sifted and not decoded (read.py)."""
        for one in self._asked_for():
            first, last = self._bounds(one)
            with one.opened() as chain, closing(StretchReader(chain, first, self.selection)) as reader:
                yield from reader.frames(last)

    def backwards(self) -> Iterator[Match]:
        """The same, the newest first."""
        for one in reversed(self._asked_for()):
            with one.opened() as chain:
                yield from matches_backwards(chain, *self._bounds(one), self.selection)

    def of_row(self, key: tuple[KeyValue, ...], columns: tuple[str, ...], last_seqno: int) -> StretchMatches:
        """The same up to `last_seqno`, and of it what changes that row."""
        if self._sift is not None:
            self._asked_for()  # of the row under all its keys
        made = copy(self)
        made.last_seqno, made.selection = last_seqno, replace(self.selection, key=key, columns=columns)
        return made

    def known(self) -> Catalogue:
        """What is in force at the end of the last stretch, which is opened for it once."""
        if self._known is None:
            with self._stretches[-1].opened() as chain:
                self._known = known_at_end(chain)
        return self._known


Sift = Callable[[StretchMatches, Sequence[Stretch]], Sequence[Stretch]]
"""Which stretches may hold what is asked for: told the question, with its bounds, and those that there are."""
