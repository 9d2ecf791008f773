"""What an idle region says of itself: true of the region as it was then, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicate.region.sqlite.bookkeeping import HELD_AT, HELD_BELOW, read_state, write_state
from replicate.region.sqlite.idle_region import forget_held, may_lack_from, write_held
from replicate.region.sqlite.open import open_region
from tests.harness.regions import make_region

STEP = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 9)),
    st.tuples(st.just("note"), st.integers(0, 9)),
    st.tuples(st.just("journal put back"), st.integers(0, 12)),
    st.tuples(st.just("older file"), st.integers(1, 9)),
)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[apsw.Connection]:
    make_region(tmp_path / "main.db", "CREATE TABLE t (a)")
    made = open_region(tmp_path / "main.db", applier=True)
    yield made
    made.close()


def stand_at(region: apsw.Connection, seqno: int) -> None:
    """As if that were the last transaction that it holds."""
    region.execute("DELETE FROM _replicate_scr; DELETE FROM _replicate_ring")
    region.execute("INSERT INTO _replicate_scr VALUES (1, 0, 1, 0, 0, ?)", (seqno,))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, max_size=12))
def test_it_never_says_too_much(region: apsw.Connection, steps: list[tuple[str, int]]) -> None:
    """`journal`: its last number; `commits`: those in the region; `held`: up to here it lacks nothing."""
    region.execute("DELETE FROM _replicate_state WHERE key IN (?, ?)", (HELD_BELOW, HELD_AT))
    journal, held, commits = 1, 1, [1]
    stand_at(region, 1)
    for what, number in steps:
        if what == "commit":
            journal += number
            held = journal  # what it lacked is rolled forward first
            commits.append(journal)
            stand_at(region, journal)
        elif what == "note" and held == journal:
            journal += number  # in other regions
            held = journal
            write_held(region, held + 1)
        elif what == "journal put back" and commits[-1] <= number < journal:
            journal, held = number, min(held, number)
            forget_held(region, journal)
        elif what == "older file" and number < len(commits):
            held = commits[-number] - 1
            del commits[-number:]
            stand_at(region, commits[-1])
        assert commits[-1] + 1 <= may_lack_from(region) <= held + 1, (what, number)


def test_what_is_noted_counts_until_it_changes(region: apsw.Connection) -> None:
    stand_at(region, 5)
    assert may_lack_from(region) == 6
    write_held(region, 90)
    assert may_lack_from(region) == 90
    stand_at(region, 4)
    assert may_lack_from(region) == 5
    stand_at(region, 5)
    assert may_lack_from(region) == 90


def test_a_note_of_an_earlier_release_does_not_count(region: apsw.Connection) -> None:
    stand_at(region, 5)
    write_state(region, HELD_BELOW, 90)
    assert may_lack_from(region) == 6


def test_only_what_lies_beyond_the_journal_is_forgotten(region: apsw.Connection) -> None:
    stand_at(region, 5)
    write_held(region, 90)
    forget_held(region, 89)
    assert read_state(region, HELD_BELOW) == 90
    forget_held(region, 40)
    assert (read_state(region, HELD_BELOW), may_lack_from(region)) == (41, 41)
