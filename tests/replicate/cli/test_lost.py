"""`replicate lost apply`: however much is in a file, what it prints can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.cli import lost
from replicate.cli.lost import CONFLICTS_SHOWN, ranges
from replicate.lost.apply import LostApplied, LostConflict


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([7], "7"), ([1, 2], "1 to 2"), ([3, 5, 6, 7, 9], "3, 5 to 7, 9"), ([4, 3], "3 to 4")],
)
def test_numbers_are_told_as_ranges(numbers: list[int], expected: str) -> None:
    assert ranges(numbers) == expected


@given(st.sets(st.integers(1, 200)))
def test_ranges_leave_none_out(numbers: set[int]) -> None:
    told = [part.split(" to ") for part in ranges(numbers).split(", ") if part]
    assert {n for part in told for n in range(int(part[0]), int(part[-1]) + 1)} == numbers


def test_of_many_conflicts_the_first_are_told_and_the_rest_counted() -> None:
    """5,288 of them were a screen each, and a line of 40 KB with their numbers."""
    count = 5288
    conflicts = [LostConflict(n, "main", "t", "INSERT", "table", "there is no table main.t here") for n in range(count)]
    done = LostApplied(Path("/lost.jsonl"), True, skipped=list(range(1, count + 1)), conflicts=conflicts)
    told = lost._told(done, "primary")
    assert told[0] == f"{count} would be skipped: 1 to {count}"
    assert sum(line.startswith("conflict at ") for line in told) == CONFLICTS_SHOWN
    more = f"{count - CONFLICTS_SHOWN} more conflicts: replicate --json -i primary lost apply /lost.jsonl --dry-run has"
    assert told[-2].startswith(more), "what is to be typed changes nothing either"
    assert len("\n".join(told)) < 4096


def tried(**found: Any) -> list[str]:
    return lost._told(LostApplied(Path("/lost.jsonl"), True, **found), "primary")


def test_a_dry_run_says_what_would_be_and_nothing_else() -> None:
    """Those after the first conflict "would be applied", while the command stops there; "are not applied again"."""
    conflict = LostConflict(4, "main", "t", "INSERT", "table", "there is no table main.t here")
    found = {"applied": [1, 2, 5, 7], "skipped": [4, 6], "in_history": [3], "before": 1, "left": 4, "stopped_at": 4}
    assert tried(**found, conflicts=[conflict]) == [
        "2 would be applied: 1 to 2",
        "it would stop at 4, and 4 would wait",
        "with --on-conflict skip 2 more would be applied: 5, 7",
        "with --on-conflict skip 2 more would be skipped: 4, 6",
        "1 is in this history already, and would not be applied again: 3",
        "1 had been settled before",
        "conflict at 4: table: INSERT main.t: there is no table main.t here",
        "nothing was changed",
    ]
    assert tried(applied=[1], overwritten=[2]) == [
        "1 would be applied: 1",
        "1 would be overwritten: 2",
        "nothing was changed",
    ]
    assert tried() == ["there is nothing to apply", "nothing was changed"]
