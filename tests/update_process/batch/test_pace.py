"""What is foretold of a batch from the one before."""

from __future__ import annotations

import contextlib
import random
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.pair import Pair, run, work_all
from update_process import applier as applying
from update_process.batch.pace import BY_PAGE_MAX, Pace

ANY = st.builds(
    Pace, st.integers(1, 10**7), st.floats(0, 1000), st.integers(0, 10**8), st.integers(0, 10**9)
)  # pages may be fewer than were read: of a file that has shrunk


@given(ANY, st.integers(0, 10**7))
def test_never_more_than_each_change_took_and_never_less_than_a_quarter(pace: Pace, changes: int) -> None:
    each = pace.seconds * changes / pace.changes
    found = pace.seconds_for(changes)
    assert found <= each * (1 + 1e-9)
    assert found >= each * (1 - BY_PAGE_MAX) * (1 - 1e-9)


@given(ANY, st.integers(0, 10**7), st.integers(0, 10**6))
def test_more_changes_take_longer(pace: Pace, changes: int, more: int) -> None:
    assert pace.seconds_for(changes + more) >= pace.seconds_for(changes) * (1 - 1e-9)


def test_fewer_changes_and_what_reads_no_pages_take_their_share() -> None:
    assert Pace(1000, 2.0, 900, 5000).seconds_for(500) == 1.0
    assert Pace(1000, 2.0).seconds_for(4000) == 8.0


def test_pages_are_shared_by_chance() -> None:
    """Beside the distinct pages that really random changes touch."""
    dice, pages = random.Random(1), 3000
    touched = [len({dice.randrange(pages) for _ in range(count)}) for count in (1800, 20_000)]
    pace = Pace(1800, 1.0, touched[0], pages)
    by_page = min(touched[0] / 1800, BY_PAGE_MAX)
    meant = by_page * touched[1] / touched[0] + (1 - by_page) * 20_000 / 1800
    assert pace.seconds_for(20_000) == pytest.approx(meant, rel=0.03)


def test_rows_one_after_the_other_share_nothing_more_in_a_longer_batch() -> None:
    assert Pace(10_000, 1.0, 300, 30_000).seconds_for(100_000) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(("counted_min", "is_counted"), [(60, True), (61, False)])
def test_the_applier_counts_pages_of_batches_that_are_worth_it(
    filled: Pair, small_windows: None, monkeypatch: pytest.MonkeyPatch, counted_min: int, is_counted: bool
) -> None:
    monkeypatch.setattr(applying, "COUNTED_MIN", counted_min)
    run(filled, *(f"UPDATE account SET note = zeroblob(900) WHERE id = {number}" for number in range(1, 61)))
    with filled.receive_pool() as pool:
        filled.deliver(pool)
        with filled.applier(pool) as applier:
            assert work_all(applier).transactions == 60
            pace = applier._pace
    assert pace.changes == 60
    with contextlib.closing(sqlite3.connect(filled.secondary.region("main").path)) as region:
        (pages,) = region.execute("PRAGMA page_count").fetchone()
    assert pace.pages == (pages if is_counted else 0)
    assert (0 < pace.pages_read <= pages) is is_counted
