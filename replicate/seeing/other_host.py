"""One instance of another host, looked at again and again by way of the page that `replicate web` serves there.

Guarantees: its picture is the one that the page there shows; it is asked for the times of curves that somebody wants
here, and for nothing else. While it is not reached the picture says since when, and why; what was before stays, and
nothing of now is shown. A clock that differs there does not make it older or younger.
Leaves to others: the connection (page_client.py), what is told (read_picture.py), when to look (instance_view.py).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Final

from msgspec.structs import replace

from replicate.errors import NotFoundError, ReplicateError
from replicate.logs.line import US
from replicate.model.moment import shown_us
from replicate.seeing.curve import NOT_KNOWN
from replicate.seeing.page_client import PageClient
from replicate.seeing.picture import COLUMNS, InstancePicture, unreadable
from replicate.seeing.picture_json import PAST_S, PAST_USUAL_S, RecordTable
from replicate.seeing.read_picture import ToldPage, read_tables, read_told

PERIOD_S: Final = 0.25
WANTED_S: Final = 10.0
"""A time of the curves that nobody has wanted for so long is not asked for any more."""


class ElsewhereView:
    """`look` from one thread; all else from any other, as with an InstanceView."""

    period_s = PERIOD_S

    def __init__(
        self,
        client: PageClient,
        *,
        past_s: float = PAST_USUAL_S,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of the instance that the client's address names. `past_s`: of the curves that are wanted first."""
        self.name = client.address.name
        self._client = client
        self._url = client.address.url
        self._wall_ns, self._monotonic = wall_ns, monotonic
        self._usual_s = page_past_s(past_s)
        self._lock = threading.Lock()
        """Never held while somebody is asked."""
        self._wanted: dict[int, float] = {}
        """When each was wanted last."""
        self._seen: dict[int, InstancePicture] = {}
        self._number = 0
        """Of the instance on its page."""
        self._error: ReplicateError | None = None
        self._tried_us = 0

    def look(self) -> None:
        """See what its page tells now."""
        for past_s in self._to_ask():
            try:
                page = read_told(self._client.get(f"/pictures?past={past_s}"))
                number = self._place_in(page)
            except ReplicateError as error:
                with self._lock:
                    self._error, self._tried_us = error, self._now_us()
                return
            found = page.pictures[number]
            seen = replace(found, path=f"{self._url}: {found.path}", seen_us=self._now_us() - page.ages_us[number])
            with self._lock:
                self._error, self._tried_us, self._number = None, self._now_us(), number
                self._seen[past_s] = seen

    def _now_us(self) -> int:
        return self._wall_ns() // 1000

    def _to_ask(self) -> list[int]:
        now_s = self._monotonic()
        with self._lock:
            self._wanted = {past_s: at_s for past_s, at_s in self._wanted.items() if now_s - at_s <= WANTED_S}
            asked = sorted(self._wanted) or [self._usual_s]
            newest = max(self._seen.items(), key=_when, default=None)
            # The newest one is kept, so that something is shown whatever is wanted next.
            self._seen = {
                past_s: one for past_s, one in self._seen.items() if past_s in asked or (past_s, one) == newest
            }
        return asked

    def _place_in(self, page: ToldPage) -> int:
        names = [one.name for one in page.pictures]
        if self.name not in names:
            raise NotFoundError(
                f"that page shows no instance {self.name}",
                where=self._url,
                do=f"It shows {', '.join(names) or 'none'}; there: replicate web -i {self.name}",
            )
        return names.index(self.name)

    def picture(self, *, past_s: float, columns: int = COLUMNS) -> InstancePicture:
        """As it was told at the last look, with so long a past; `columns` are as many as the page there has."""
        wanted_s = page_past_s(past_s)
        with self._lock:
            self._wanted[wanted_s] = self._monotonic()
            error, known = self._error, self._seen.get(wanted_s)
            if known is None and self._seen:  # its curves are there after the next look
                known = max(self._seen.items(), key=_when)[1]
                known = replace(known, curves=(), lanes=(), events=(), tally=(), from_us=0)
        if known is None:
            why = "not looked at yet" if error is None else str(error)
            return unreadable(self.name, self._url, why, now_us=self._tried_us or self._now_us(), past_s=past_s)
        shown = cut(known, past_s)
        return shown if error is None else _gone(shown, error)

    def records(self) -> tuple[RecordTable, ...]:
        """The tables of its page. Never raises."""
        try:
            return read_tables(self._client.get(f"/records?instance={self._number}"))
        except ReplicateError as error:
            return (RecordTable("none", "Not known now", "", why_not=str(error)),)


def names_on(client: PageClient) -> list[str]:
    """The instances that a page shows now. Raises what asking it raises."""
    return [one.name for one in read_told(client.get(f"/pictures?past={PAST_USUAL_S}")).pictures]


def page_past_s(past_s: float) -> int:
    """The shortest time of a page's curves that is as long."""
    return next((one for one in PAST_S if one >= past_s), PAST_S[-1])


def cut(picture: InstancePicture, past_s: float) -> InstancePicture:
    """The same, with so long a past."""
    from_us = picture.at_us - round(past_s * US)
    if from_us <= picture.from_us:
        return picture
    part = (picture.at_us - from_us) / max(1, picture.at_us - picture.from_us)
    events = tuple(one for one in picture.events if one.at_us >= from_us)
    tallied = {what for what, _ in picture.tally}
    return replace(
        picture,
        from_us=from_us,
        curves=tuple(replace(one, points=one.points[-ceil(part * len(one.points)) :]) for one in picture.curves),
        lanes=tuple(
            replace(lane, spans=tuple((max(from_us, a), b, what) for a, b, what in lane.spans if b > from_us))
            for lane in picture.lanes
        ),
        events=events,
        tally=tuple(Counter(one.what for one in events if one.what in tallied).items()),
    )


def _gone(picture: InstancePicture, error: ReplicateError) -> InstancePicture:
    """Of one that is not reached any more: nothing is known of now."""
    since = shown_us(picture.seen_us)
    return replace(
        picture,
        error=f"not reached since {since[11:]} UTC: {error}",
        mood="error",
        headline=str(error),
        rows=(),
        findings=(),
        notes=(),
        curves=tuple(replace(one, now=NOT_KNOWN) for one in picture.curves),
    )


def _when(known: tuple[int, InstancePicture]) -> int:
    return known[1].seen_us
