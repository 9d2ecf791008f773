"""status/report.py: what a finding says of a daemon that does not say anything itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.status.report import findings
from tests.replicate.status.test_collect import JOURNAL, RECEIVING, REGION, RUNS


@pytest.mark.parametrize(
    ("says", "expected"), [("", "no source is connected"), ("waits", "no source is connected (waits)")]
)
def test_who_is_not_connected_says_why_if_it_does(says: str, expected: str) -> None:
    receiving = replace(RECEIVING, receiver=replace(RUNS, name="receiver", text=says), is_connected=False)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), receiving)
    assert (found.code, found.text) == ("NO_SOURCE", expected)
