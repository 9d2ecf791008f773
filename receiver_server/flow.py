"""When the source must pause and when it may go on: XOFF and XON, and how much may be on the way.

The receive pool never overwrites, so XOFF must come while there is room for everything that the source sends before it
hears of it. The source never has more than `window_bytes` of journal frames, and one batch more, unacknowledged, and
XOFF leaves before the acknowledgement of the batch that caused it. One batch is lost to padding at the pool's wrap.

    capacity = below XOFF | window | the batch beyond it | padding and record heads

Guarantees: from XOFF on, all that arrives fits the pool. XOFF and XON alternate; XON lies below XOFF, so that a pool
that hovers at one level does not flap. The levels of the settings hold where they leave that room; a small pool lowers
both.
Leaves to others: the pool itself (its fill is passed in), messages, time. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from replicate.errors import ConfigurationError
from replicate.limits import BATCH_BYTES_MAX, KIB, RECEIVE_POOL_BYTES_MIN

_HEADS_BYTES: Final = 64 * KIB
"""Control words and record heads, generously."""

assert 3 * BATCH_BYTES_MAX + _HEADS_BYTES < RECEIVE_POOL_BYTES_MIN  # window, one more, padding: something stays below


class FlowDecision(Enum):
    """What to tell the source."""

    NOTHING = 0
    XOFF = 1
    XON = 2


class Flow:
    """The decisions for one connection: what is lost with it has no effect on the next one. Starts open (XON)."""

    def __init__(self, capacity_bytes: int, xoff_percent: int, xon_percent: int) -> None:
        """`capacity_bytes`: of the receive pool. ConfigurationError for one too small, or levels out of order."""
        if capacity_bytes < RECEIVE_POOL_BYTES_MIN or not 0 < xon_percent < xoff_percent < 100:
            raise ConfigurationError(
                f"a receive pool of {capacity_bytes} bytes with XOFF at {xoff_percent} % and XON at {xon_percent} %",
                do=f"At least {RECEIVE_POOL_BYTES_MIN} bytes, and 0 < XON < XOFF < 100",
            )
        above = capacity_bytes * (100 - xoff_percent) // 100
        room = 2 * BATCH_BYTES_MAX + _HEADS_BYTES
        self.capacity_bytes = capacity_bytes
        self.window_bytes = max(BATCH_BYTES_MAX, above - room)
        self.xoff_bytes = min(capacity_bytes - above, capacity_bytes - self.window_bytes - room)
        self.xon_bytes = self.xoff_bytes * xon_percent // xoff_percent
        self.is_stopped = False

    def decide(self, fill_fraction: float) -> FlowDecision:
        """The pool is so full (0.0 to 1.0). XOFF above one level, XON below the other, in turn."""
        fill_bytes = fill_fraction * self.capacity_bytes
        if not self.is_stopped and fill_bytes > self.xoff_bytes:
            self.is_stopped = True
            return FlowDecision.XOFF
        if self.is_stopped and fill_bytes < self.xon_bytes:
            self.is_stopped = False
            return FlowDecision.XON
        return FlowDecision.NOTHING
