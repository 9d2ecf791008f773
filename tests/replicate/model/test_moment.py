"""Moments: what an operator writes, what a csn bears, and that one takes what the other gives."""

from __future__ import annotations

import pytest

from replicate.errors import UsageError
from replicate.model.moment import (
    CSN_CAP,
    CSN_COUNTER_BITS,
    first_csn,
    is_ahead,
    iso,
    last_csn,
    parse_moment,
    readable,
    wall_us,
)

NOW_US = 1_900_000_000_123_456  # 2030-03-17 17:46:40.123456 UTC


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2030-03-17T17:46:40.123456Z", NOW_US),
        ("2030-03-17 17:46:40.123456 UTC", NOW_US),
        ("2030-03-17T18:46:40.123456+01:00", NOW_US),
        ("2030-03-17 17:46:40", NOW_US - 123_456),
        ("2030-03-17T17:46", NOW_US - 40_123_456),
        ("2030-03-17", 1_899_936_000_000_000),
        (" -15m ", NOW_US - 15 * 60_000_000),
        ("2h", NOW_US - 7200_000_000),
        ("90s", NOW_US - 90_000_000),
        ("-1w", NOW_US - 7 * 86_400_000_000),
        ("1d", NOW_US - 86_400_000_000),
        ("1969-12-31", -86_400_000_000),
    ],
)
def test_what_is_a_time(text: str, us: int) -> None:
    assert parse_moment(text, NOW_US) == us


@pytest.mark.parametrize(
    "text", ["", "now", "15", "-15", "15 m", "m", "2030-13-01", "2030-02-30", "17:46", "-1.5h", "٣m"]
)
def test_what_is_none_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(UsageError, match="is no time") as found:
        parse_moment(text, NOW_US, where="--since")
    assert found.value.where == "--since"
    assert "2030-01-31T12:00:00Z" in found.value.do


def test_what_is_told_can_be_asked_for() -> None:
    csn = (NOW_US << CSN_COUNTER_BITS) + 77
    assert iso(csn) == "2030-03-17T17:46:40.123456Z"
    assert readable(csn) == "2030-03-17 17:46:40.123456 UTC"
    for text in (iso(csn), readable(csn)):
        us = parse_moment(text, 0)
        assert us == wall_us(csn)
        assert first_csn(us) <= csn <= last_csn(us)
        assert last_csn(us) + 1 == first_csn(us + 1)
    assert iso(0) == "1970-01-01T00:00:00.000000Z"
    assert first_csn(-1) == 0


def test_what_is_ahead() -> None:
    assert not is_ahead(last_csn(NOW_US + 5), NOW_US, 5)
    assert is_ahead(first_csn(NOW_US + 6), NOW_US, 5)
    assert not is_ahead(0, NOW_US, 5)
    assert not is_ahead(CSN_CAP - 1, wall_us(CSN_CAP), 5)
    assert is_ahead(CSN_CAP, wall_us(CSN_CAP), 1 << 60), "never, whatever is allowed"
    assert iso(CSN_CAP) == "2100-01-01T00:00:00.000000Z"
