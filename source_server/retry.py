"""When to try to connect again: GT.M's hard tries, then soft ones for ever.

Hard tries come quickly and catch a receiver that has just been restarted; soft ones wait for one that is down. Soft
waits are jittered, so that many sources do not knock in step after a network outage.

Guarantees: `next_attempt` never gives up and never gives a wait of 0, so a refusing peer is not hammered; the hard
tries are only available again after a connection on which the stream was agreed upon.
Leaves to others: clocks, sockets, randomness (the caller gives the jitter). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

JITTER: Final = 0.25
"""A soft wait is drawn from (1 - JITTER) to (1 + JITTER) of its period."""


class Tries(Enum):
    """Which kind of attempt."""

    HARD = "hard"
    SOFT = "soft"


class Attempt(Struct, frozen=True):
    """Wait `wait_s` seconds, then connect. `number` counts from 1 within its kind."""

    tries: Tries
    number: int
    wait_s: float


class Retry:
    """The attempts of one Source Server."""

    def __init__(self, hard_tries: int, hard_period_s: float, soft_period_s: float) -> None:
        """`hard_tries` may be 0."""
        self.hard_tries = max(0, hard_tries)
        self.hard_period_s = max(hard_period_s, 0.001)
        self.soft_period_s = max(soft_period_s, 0.001)
        self.attempts = 0
        """Since the stream last ran."""
        self._soft = 0

    def next_attempt(self, jitter: float) -> Attempt:
        """After an attempt failed or a connection ended: when to try next. `jitter`: any number from 0 to 1."""
        self.attempts += 1
        if self._soft == 0 and self.attempts <= self.hard_tries:
            return Attempt(Tries.HARD, self.attempts, self.hard_period_s)
        self._soft += 1
        wait_s = self.soft_period_s * (1 - JITTER + 2 * JITTER * min(max(jitter, 0.0), 1.0))
        return Attempt(Tries.SOFT, self._soft, wait_s)

    def refused(self) -> None:
        """The peer, or we, refused by name: trying quickly will not help, so go on with soft tries."""
        self.attempts = max(self.attempts, self.hard_tries)

    def streaming(self) -> None:
        """The stream runs: the next loss begins with hard tries again."""
        self.attempts = 0
        self._soft = 0
