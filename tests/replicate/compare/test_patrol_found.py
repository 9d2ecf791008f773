"""What the patrol has found: rounds, what was passed over, what differs and when that is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.compare.patrol_found import (
    Outcome,
    Patrolled,
    RangeVerdict,
    forget_patrolled,
    key_text,
    look_at_patrolled,
    note_patrolled,
    patrolled_path,
    settle_patrolled,
    taken,
)
from replicate.region.sqlite.range_digest import packed_key
from replicate.wire.message import Check

EQUAL = RangeVerdict(Outcome.EQUAL)
PASSED = RangeVerdict(Outcome.PASSED, "the schema was changed meanwhile")
DIFFERENT = RangeVerdict(Outcome.DIFFERENT, "", 9, b"h" * 16)


def check(number: int, *, round_wall_ns: int = 100, is_last: bool = False, table: str = "t") -> Check:
    after = packed_key((number * 10,))
    return Check(
        round_wall_ns, number, is_last, 7, "main", table, after, packed_key((number * 10 + 10,)), 10, b"s" * 16
    )


def told(known: Patrolled, *heard: tuple[Check, RangeVerdict], wall_ns: int = 500) -> Patrolled:
    for one, verdict in heard:
        known = taken(known, "east", one, verdict, wall_ns)
    return known


def test_a_whole_round() -> None:
    found = told(Patrolled(), (check(1), EQUAL), (check(2), EQUAL))
    assert (found.here.told, found.here.rows, found.here.at, found.whole.ended_wall_ns) == (2, 20, "main.t", 0)
    found = told(found, (check(3, is_last=True), EQUAL))
    assert (found.whole.began_wall_ns, found.whole.rows, found.whole.passed, found.whole.ended_wall_ns) == (
        100, 30, 0, 500,
    )  # fmt: skip
    assert (found.here.told, found.source, found.different) == (0, "east", ())


def test_rows_of_the_schema_and_of_counters_are_none() -> None:
    found = told(Patrolled(), (check(1, table=""), EQUAL), (check(2, table="sqlite_sequence"), EQUAL))
    assert (found.here.told, found.here.rows) == (2, 0)


def test_what_was_lost_or_passed_over_is_counted_and_what_comes_twice_counts_once() -> None:
    found = told(Patrolled(), (check(1), EQUAL), (check(4), EQUAL), (check(4), EQUAL), (check(5), PASSED))
    assert (found.here.told, found.here.rows, found.here.passed) == (5, 20, 3)
    assert found.here.why == "the schema was changed meanwhile"
    assert told(found, (check(9, is_last=True), EQUAL)).whole.passed == 6


def test_what_a_source_that_was_killed_tells_again_makes_no_other_round_of_a_whole_one() -> None:
    whole = told(Patrolled(), (check(1), EQUAL), (check(2), EQUAL), (check(3, is_last=True), EQUAL))
    again = told(whole, (check(2), EQUAL), (check(3, is_last=True), EQUAL), wall_ns=900)
    assert again == whole
    worse = told(whole, (check(2), PASSED), (check(3, is_last=True), DIFFERENT), wall_ns=900)
    assert (worse.whole.rows, worse.whole.passed, worse.whole.ended_wall_ns) == (30, 1, 500)
    assert [one.after for one in worse.different] == ["30"]
    assert told(worse, (check(1, round_wall_ns=1000, is_last=True), EQUAL)).different == ()


def test_what_is_told_again_with_other_borders_and_passed_over_counts() -> None:
    found = told(Patrolled(), (check(1), EQUAL), (check(2), EQUAL), (check(2), PASSED), (check(3, is_last=True), EQUAL))
    assert (found.whole.rows, found.whole.passed) == (30, 1)


def test_a_round_that_was_given_up_is_forgotten() -> None:
    found = told(Patrolled(), (check(1), EQUAL), (check(1, round_wall_ns=200), EQUAL))
    assert (found.here.began_wall_ns, found.here.told, found.whole.ended_wall_ns) == (200, 1, 0)


def test_what_differs_stays_until_it_is_found_equal() -> None:
    found = told(Patrolled(), (check(1), DIFFERENT), (check(2), DIFFERENT))
    (one, _) = found.different
    assert (one.name, one.keys, one.seqno, one.rows, one.source_rows) == ("main.t", "after 10 up to 20", 7, 9, 10)
    assert str(one) == "main.t differs at transaction 7: after 10 up to 20"
    found = told(found, (check(1, round_wall_ns=200), PASSED), (check(2, round_wall_ns=200), EQUAL))
    assert [other.after for other in found.different] == ["10"]
    found = told(found, (check(1, round_wall_ns=200), DIFFERENT))
    assert len(found.different) == 1


def test_keys_that_begin_alike_are_two_ranges() -> None:
    """One that is found equal ends nothing of the other; shown is how they begin."""
    long = [replace(check(n), after=packed_key(("k" * 300 + str(n),)), upto=b"") for n in (1, 2)]
    found = told(Patrolled(), (long[0], DIFFERENT), (long[1], EQUAL))
    (one,) = found.different
    assert one.after.endswith("1'")
    assert len(one.keys) < 80


def test_a_whole_round_that_has_not_found_it_again_ends_it() -> None:
    """Its range has other borders by now."""
    found = told(Patrolled(), (check(1), DIFFERENT), wall_ns=150)
    with_a_gap = told(found, (check(5, round_wall_ns=200, is_last=True), EQUAL))
    assert len(with_a_gap.different) == 1
    again = told(
        found, (check(1, table="u", round_wall_ns=200), EQUAL), (check(2, round_wall_ns=200, is_last=True), EQUAL)
    )
    assert again.different == ()


def test_it_is_kept_settled_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "consumers").mkdir()
    found = told(Patrolled(), (check(1, is_last=True), EQUAL), (check(1, round_wall_ns=200), DIFFERENT))
    note_patrolled(tmp_path, found)
    assert look_at_patrolled(tmp_path) == found
    settle_patrolled(tmp_path)
    assert look_at_patrolled(tmp_path) == replace(found, different=())
    forget_patrolled(tmp_path)
    assert look_at_patrolled(tmp_path) == Patrolled()
    settle_patrolled(tmp_path)
    assert not patrolled_path(tmp_path).exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("format", 2),
        ("here", []),
        ("here", {"told": 1}),
        ("different", [{}]),
        ("whole", {"rows": -1}),
    ],
)
def test_what_makes_no_sense_is_nothing(tmp_path: Path, where: str, value: object) -> None:
    (tmp_path / "consumers").mkdir()
    note_patrolled(tmp_path, told(Patrolled(), (check(1), DIFFERENT)))
    facts = json.loads(patrolled_path(tmp_path).read_text())
    facts[where] = {**facts[where], **value} if where == "whole" and isinstance(value, dict) else value
    patrolled_path(tmp_path).write_text(json.dumps(facts))
    assert look_at_patrolled(tmp_path) == Patrolled()
    patrolled_path(tmp_path).write_text("[" * 5000)
    assert look_at_patrolled(tmp_path) == Patrolled()


def test_a_key_for_people() -> None:
    assert key_text(packed_key(("a", 1, b"\x00\xff", 0.5))) == "'a', 1, x'00ff', 0.5"
    assert key_text(b"") == ""
    assert key_text(b"\xc1") == "c1"
