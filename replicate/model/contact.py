"""What one side still knows of the other, by when it last heard from it: one decision for status, metrics, logs.

Guarantees: what the other side has not confirmed within a heartbeat and a grace is not called known, however level it
looked before. Ages come from the clock that nobody can set; the wall clock counts only for what was heard before this
boot of the machine.
Leaves to others: clocks, sockets and files; who prints. Pure.

`told` is the last word of the other side's clock and position (a heartbeat); `heard` the last bytes of any kind. On a
slow line they differ: bytes of one long batch come, and the heartbeat waits for its end. Then nothing is silent, and
yet lag and backlog are not known.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

GRACE_LEAST_S: Final = 5.0
"""A daemon tells its status once a second, and the file is written at most once a second: two. The rest is for a
machine with several processes for each of its cores, or a disk that stalls, where a turn of a loop comes some seconds
late (with seven test suites at once on two cores, heartbeats of a second were seen 2.7 s old)."""
GRACE_PART: Final = 1 / 3
"""And of a long period: an operator that has set minutes does not want to know of seconds."""
PERIOD_S_MAX: Final = 3600.0
"""A peer that announces a longer heartbeat is not believed; no setting allows one."""


def patience_s(period_s: float) -> float:
    """How long nothing may come while all is well: one heartbeat, and a grace."""
    period_s = min(period_s, PERIOD_S_MAX)
    return period_s + max(GRACE_LEAST_S, period_s * GRACE_PART)


class Moment(Struct, frozen=True):
    """A moment by both clocks (nanoseconds), and the boot of the machine that the first one counts from."""

    monotonic_ns: int
    wall_ns: int
    boot: int

    def age_s(self, then: Moment) -> float:
        """Seconds from `then` until this moment; 0.0 where that is still to come. Of another boot the wall clocks tell,
        and the machine has run at least since its start: that is the least."""
        if then.boot == self.boot:
            return max(0, self.monotonic_ns - then.monotonic_ns) / 1e9
        return max(0, self.wall_ns - then.wall_ns, self.monotonic_ns) / 1e9


class Known(Struct, frozen=True):
    """What is known now of how far a secondary is behind its source. What is None is not known.

    `lag_s` and `backlog` are exact, or None. The others never say more than the truth: `backlog_at_least` counts what
    the source has told of and is not applied; `lag_at_least_s` is the age of the oldest of these, or of the last bytes
    that came, if those are older: whatever was written since, this copy has none of it. (Not of the last heartbeat:
    transactions that came after it may be as young as those bytes.)
    """

    is_known: bool
    is_silent: bool
    lag_s: float | None
    lag_at_least_s: float | None
    backlog: int | None
    backlog_at_least: int | None


def known(
    *,
    is_connected: bool,
    told_s: float | None,
    heard_s: float | None,
    period_s: float,
    backlog: int | None,
    lag_s: float | None,
    is_streaming: bool = True,
) -> Known:
    """The decision. Ages are seconds, None for never; `period_s` is the other side's heartbeat. `is_streaming` False:
    no stream has begun on the connection, so whatever was written since the last word is not on its way either.

    `backlog` and `lag_s`: as they stand by the last word that came. None: no word has come that says so.
    """
    limit_s = patience_s(period_s)
    is_known = is_connected and is_streaming and told_s is not None and told_s <= limit_s
    is_silent = is_connected and heard_s is not None and heard_s > limit_s
    silent_s = told_s if heard_s is None or told_s is None else min(heard_s, told_s)
    least = [age for age in (lag_s, None if is_known else silent_s) if age is not None]
    if not is_known and told_s is None and not lag_s:
        least = []  # that nothing is behind was never said
    return Known(
        is_known=is_known,
        is_silent=is_silent,
        lag_s=lag_s if is_known else None,
        lag_at_least_s=max(least, default=None),
        backlog=backlog if is_known else None,
        backlog_at_least=backlog,
    )


def not_told(told_s: float | None) -> str:
    """Why a daemon of the secondary is not ready though it is connected."""
    if told_s is None:
        return "the source has not said yet where it stands"
    return f"the source has not said for {told_s:.0f} s where it stands: lag and backlog are not known"
