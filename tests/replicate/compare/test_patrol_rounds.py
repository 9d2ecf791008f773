"""The patrol's way: every range once, whatever comes and goes meanwhile; and its pace."""

from __future__ import annotations

import random

import pytest

from replicate.compare.patrol_rounds import Place, is_within, pause_s


def way(dice: random.Random, *, changes: bool) -> tuple[list[tuple[str, str, int]], set[tuple[str, str]]]:
    """The ranges of a round over regions whose tables have some ranges each; and what was there all the time."""
    there = {region: {"": 1, **{f"t{n}": dice.randrange(1, 4) for n in range(4)}} for region in ("a", "b", "c")}
    always = {(region, table) for region, tables in there.items() for table in tables}
    seen = []
    place: Place | None = Place(5)
    while place is not None:
        if changes and dice.random() < 0.3:
            region, table = dice.choice(sorted(there)), f"t{dice.randrange(6)}"
            if there[region].pop(table, None) is None:
                there[region][table] = dice.randrange(1, 4)
            always.discard((region, table))
        at = place.among(sorted(there), are_regions=True)
        if at is None:
            break
        here = at.among(sorted(there[at.region]), are_regions=False)
        if here is None:
            place = at.past_region(sorted(there))
            continue
        number = 0 if here.after is None else int(here.after[0])
        seen.append((here.region, here.table, number))
        is_last = number + 1 >= there[here.region][here.table]
        place = here.ended_at(None if is_last else (number + 1,), sorted(there[here.region]), sorted(there))
        assert place is None or (place.told, place.round_wall_ns) == (len(seen), 5)
    return seen, always


@pytest.mark.parametrize("seed", range(200))
def test_each_range_once_and_in_order(seed: int) -> None:
    seen, always = way(random.Random(seed), changes=False)
    assert seen == sorted(set(seen))
    assert {(region, table) for region, table, _ in seen} == always


@pytest.mark.parametrize("seed", range(200))
def test_what_is_there_all_the_time_is_visited_while_others_come_and_go(seed: int) -> None:
    seen, always = way(random.Random(seed), changes=True)
    assert seen == sorted(set(seen))
    assert {(region, table) for region, table, _ in seen} >= always


def test_no_region_is_the_end_of_a_round() -> None:
    assert Place(5).among((), are_regions=True) is None
    assert Place(5, 3, "b", "t").among(("a",), are_regions=True) is None


@pytest.mark.parametrize(
    ("busy_s", "size", "percent", "mb_per_s", "expected"),
    [
        (0.01, 0, 1.0, 8.0, 0.99),  # a hundredth of a core
        (0.01, 0, 100.0, 8.0, 0.0),
        (0.001, 8_000_000, 100.0, 8.0, 0.999),  # a second for what may be read in one
        (0.0, 0, 1.0, 8.0, 0.0),
    ],
)
def test_it_rests(busy_s: float, size: int, percent: float, mb_per_s: float, expected: float) -> None:
    found = pause_s(busy_s=busy_s, size=size, percent=percent, mb_per_s=mb_per_s)
    assert found == pytest.approx(expected)


def test_its_hours() -> None:
    assert all(is_within(None, hour) for hour in range(24))
    assert [hour for hour in range(24) if is_within((22, 3), hour)] == [0, 1, 2, 22, 23]
    assert [hour for hour in range(24) if is_within((1, 3), hour)] == [1, 2]
    assert [hour for hour in range(24) if is_within((20, 24), hour)] == [20, 21, 22, 23]
