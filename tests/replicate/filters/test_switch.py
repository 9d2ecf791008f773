"""A filter that is turned on and off, and what is told of it."""

from __future__ import annotations

import pytest

from replicate.errors import ConfigurationError, FilterError, FormatUnknownError
from replicate.filters.switch import FilterSwitch


def test_it_is_on_at_the_start_and_turned_by_orders() -> None:
    switch = FilterSwitch("source", "cat")
    assert (switch.is_on, switch.told) == (True, "cat")
    switch.identity = "cat 12"
    assert [switch.obey(wish) for wish in ("show", "on", "off", "off", "show")] == [False, False, True, False, False]
    assert (switch.is_on, switch.told) == (False, "off (cat 12)")
    assert switch.obey("on")
    assert switch.measured() == {"filter": "cat 12", "filter_error": ""}


def test_none_can_be_inserted_where_there_was_none() -> None:
    switch = FilterSwitch("receiver", "")
    for wish in ("on", "off"):
        with pytest.raises(ConfigurationError, match=r"none can be inserted.*receiver\.filter"):
            switch.obey(wish)
    assert switch.obey("show") is False
    assert switch.facts() == {"filter": None, "is_on": False, "identity": None, "error": None}
    assert switch.measured() == {}
    with pytest.raises(FormatUnknownError):
        switch.obey("sideways")


def test_what_it_has_failed_of_is_told_until_something_passes() -> None:
    switch = FilterSwitch("receiver", "cat")
    assert switch.failed(FilterError("a"))
    assert not switch.failed(FilterError("a"))
    assert switch.failed(FilterError("b"))
    assert switch.measured()["filter_error"] == "FILTER_FAILED: b"
    switch.passed()
    assert switch.measured()["filter_error"] == ""
    switch.failed(FilterError("a"))
    switch.obey("off")
    assert switch.error is None
