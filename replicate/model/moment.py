"""Moments: the wall time that a csn bears, and times as an operator reads and writes them.

Guarantees: every time that is told is UTC and says so; what `readable` and `iso` give, `parse_moment` takes; a text
that is no time is refused with one that is. Leaves to others: who asks, and what happened then.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from replicate.errors import UsageError
from replicate.model.vector import U64_MAX

CSN_COUNTER_BITS: Final = 12
"""A csn is microseconds of wall time, shifted by this: 4096 changes a microsecond before it runs ahead of the
clock."""
CSN_CAP: Final = 4_102_444_800_000_000 << CSN_COUNTER_BITS
"""No transaction bears this or more: 2100-01-01. A csn beyond the 64 bits, in 2112, could follow no other."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RELATIVE: Final = re.compile(r"-?([0-9]{1,6})(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def wall_us(csn: int) -> int:
    """The wall time of a csn: microseconds since 1970."""
    return csn >> CSN_COUNTER_BITS


def wall_ns(csn: int) -> int:
    """The same in nanoseconds, as clocks are read."""
    return wall_us(csn) * 1000


def first_csn(us: int) -> int:
    """The lowest csn of that microsecond."""
    return min(U64_MAX, max(0, us << CSN_COUNTER_BITS))


def last_csn(us: int) -> int:
    """The highest csn of that microsecond."""
    return min(U64_MAX, max(0, (us + 1 << CSN_COUNTER_BITS) - 1))


def is_ahead(csn: int, now_us: int, most_us: int) -> bool:
    """Whether a transaction that came from elsewhere is from further in the future than `most_us`, or at the cap."""
    return csn >= CSN_CAP or wall_us(csn) > now_us + most_us


def iso(csn: int) -> str:
    """The wall time of a csn, in ISO 8601: 2030-01-31T12:00:00.000000Z."""
    return f"{_naive(csn).isoformat(timespec='microseconds')}Z"


def readable(csn: int) -> str:
    """The same for people: 2030-01-31 12:00:00.000000 UTC."""
    return f"{_naive(csn).isoformat(' ', timespec='microseconds')} UTC"


def stamp_us(text: str) -> int | None:
    """The moment that a program has noted, in microseconds since 1970: ISO 8601 with an offset or Z. None for a text
    that is none, or does not say of which zone it is."""
    try:
        made = datetime.fromisoformat(text)
        return None if made.tzinfo is None else (made - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def shown_us(us: int, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """A moment in UTC, for a table that says so: 2030-01-31 12:00:00."""
    return (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(" ", timespec=timespec)


def iso_us(us: int) -> str:
    """A moment for programs: 2030-01-31T12:00:00.000000Z."""
    return f"{(_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _naive(csn: int) -> datetime:
    return (_EPOCH + timedelta(microseconds=wall_us(csn))).replace(tzinfo=None)


def parse_moment(text: str, now_us: int, *, where: str = "") -> int:
    """The moment that an operator has written, in microseconds since 1970: a time as ISO 8601 writes it, with an offset
    or in UTC, a date (its midnight in UTC), or how long before `now_us` it was, such as -15m or 2h. UsageError,
    about `where`."""
    wanted = text.strip()
    if (found := _RELATIVE.fullmatch(wanted)) is not None:
        return now_us - int(found[1]) * _SECONDS[found[2]] * 1_000_000
    try:
        made = datetime.fromisoformat(wanted.removesuffix(" UTC"))
        us = (made.replace(tzinfo=made.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is no time",
            where=where,
            do="Give one such as 2030-01-31T12:00:00Z, '2030-01-31 12:00' (UTC), 2030-01-31 (its midnight in UTC), or "
            "how long ago: -90s, -15m, -2h, -7d",
        ) from None
    return us
