"""How far another host's clock is ahead of ours, by what that one says of its time with each heartbeat.

What was on its way for long makes the other clock seem behind, never ahead: so of the last few words the one counts
by which it is ahead most.

Guarantees: nothing is said by less than LEAST words; a difference below SKEW_S, which a busy line makes, is none.
Leaves to others: clocks, who says it. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WORDS: Final = 8
LEAST: Final = 3
SKEW_S: Final = 2.0
CLOCKS: Final = "clocks"
"""The fact of a Receiver Server: `ahead_s` by the source's name, where there is something to say."""


class PeerClock:
    """Of one connection."""

    def __init__(self) -> None:
        self._ahead_ns: deque[int] = deque(maxlen=WORDS)

    def heard(self, peer_wall_ns: int, own_wall_ns: int) -> None:
        """It has said its time; ours when that came. 0: it has said none."""
        if peer_wall_ns:
            self._ahead_ns.append(peer_wall_ns - own_wall_ns)

    @property
    def ahead_s(self) -> int:
        """Whole seconds by which it is ahead of ours, below 0 behind; 0: by less than SKEW_S, or nobody knows."""
        if len(self._ahead_ns) < LEAST:
            return 0
        ahead_s = max(self._ahead_ns) / 1e9
        return round(ahead_s) if abs(ahead_s) >= SKEW_S else 0
