"""How far another host's clock is ahead of ours, by what that one says of its time with each heartbeat; and from when
on a supplier whose own clock is ahead of all others may write nothing.

What was on its way for long makes the other clock seem behind, never ahead: so of the last few words the one counts
by which it is ahead most.

Guarantees: nothing is said by less than LEAST words; a difference below SKEW_S, which a busy line makes, is none. A
clock of ours that is set shows with the next look, as other clocks are tied to the monotonic one.
Leaves to others: clocks, who says it. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from replicate.model.moment import first_csn

WORDS: Final = 8
LEAST: Final = 3
SKEW_S: Final = 2.0
HEARD_NS: Final = 60 * 1_000_000_000
"""So long the other hosts' clocks are believed after their last word."""
CLOCKS: Final = "clocks"
"""The fact of a Receiver Server: `ahead_s` by the source's name, where there is something to say."""


class PeerClock:
    """Of one connection."""

    def __init__(self) -> None:
        self._beyond_ns: deque[int] = deque(maxlen=WORDS)

    def heard(self, peer_wall_ns: int, now_ns: int) -> None:
        """It has said its time; our monotonic clock when that came. 0: it has said none."""
        if peer_wall_ns:
            self._beyond_ns.append(peer_wall_ns - now_ns)

    @property
    def beyond_ns(self) -> int | None:
        """Its wall time less our monotonic one, at least; None: nobody knows yet."""
        return max(self._beyond_ns) if len(self._beyond_ns) >= LEAST else None

    def ahead_s(self, own_wall_ns: int, now_ns: int) -> int:
        """Whole seconds by which it is ahead of our wall clock, below 0 behind; 0: by less than SKEW_S, or nobody
        knows."""
        if (beyond_ns := self.beyond_ns) is None:
            return 0
        ahead_s = (beyond_ns + now_ns - own_wall_ns) / 1e9
        return round(ahead_s) if abs(ahead_s) >= SKEW_S else 0


def latest_beyond_ns(clocks: Iterable[PeerClock]) -> int | None:
    """`beyond_ns` of the one that is ahead most, 0 at least; None: nobody's clock is known. (A host without a battery
    may say 1970, which is before our machine was started.)"""
    known = [one.beyond_ns for one in clocks if one.beyond_ns is not None]
    return max(0, *known) if known else None


def csn_end(beyond_ns: int, heard_ns: int, own_wall_ns: int, now_ns: int, most_s: float) -> int:
    """From which csn on a supplier may write nothing, as its clock is more than `most_s` ahead of the latest of the
    others'; 0: it is not, or nobody was heard of late. `beyond_ns`: of the latest; `heard_ns`: when, by our monotonic
    clock; 0: never."""
    if not heard_ns or now_ns - heard_ns > HEARD_NS:
        return 0
    most_ns = beyond_ns + now_ns + int(most_s * 1e9)
    return first_csn(most_ns // 1000) if own_wall_ns > most_ns else 0
