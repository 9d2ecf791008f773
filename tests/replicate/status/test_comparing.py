"""When a compare is due, and for whom; what is said of the last one."""

from __future__ import annotations

from typing import Any

import pytest

from replicate.status.comparing import DAY_S, ComparedReport, RepairedReport, ago, compared_findings

EQUAL = ComparedReport("east", 120, 3 * 3600.0, True)
OLD = ComparedReport("east", 120, 16 * DAY_S, True)
DIFFERENT = ComparedReport("east", 120, 60.0, False, tuple(f"main.t{number}" for number in range(7)))
THIRD = ComparedReport("third", 130, 5.0, True)


def found(
    role: str,
    *compared: ComparedReport,
    peers: tuple[str, ...] = (),
    source: str = "",
    filled_days: float = 100,
    warn_days: int = 15,
) -> list[tuple[str, str]]:
    made = compared_findings(
        role, compared, peers=peers, source=source, filled_s=filled_days * DAY_S, warn_days=warn_days
    )
    return [(finding.code, finding.text) for finding in made]


def codes(*words: object, **more: object) -> list[str]:
    return [code for code, _ in found(*words, **more)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("filled_days", "warn_days", "expected"),
    [(0, 15, []), (14.9, 15, []), (15.1, 15, ["COMPARE_DUE"]), (3000, 0, []), (1.1, 1, ["COMPARE_DUE"])],
)
def test_a_secondary_that_was_never_compared_has_some_days(
    filled_days: float, warn_days: int, expected: list[str]
) -> None:
    assert codes("secondary", filled_days=filled_days, warn_days=warn_days) == expected


def test_a_primary_asks_for_nothing() -> None:
    assert codes("primary", peers=("west",)) == []
    assert codes("primary", OLD, peers=("east",)) == ["COMPARED"]


def test_its_age_is_told_while_it_is_young_and_warned_of_when_it_is_old() -> None:
    assert found("secondary", EQUAL) == [("COMPARED", "east was equal at transaction 120, 3 h ago")]
    ((code, text),) = found("secondary", OLD)
    assert (code, "transaction 120, was 16 days ago" in text) == ("COMPARE_DUE", True)
    assert codes("secondary", OLD, warn_days=17) == ["COMPARED"]
    assert codes("secondary", OLD, warn_days=0) == ["COMPARED"]


def test_the_newest_compare_with_a_supplier_counts_and_one_with_a_peer_of_its_own_does_not() -> None:
    assert codes("secondary", OLD, THIRD) == ["COMPARED"]
    assert codes("secondary", OLD, THIRD, peers=("third",)) == ["COMPARE_DUE", "COMPARED"]
    assert codes("secondary", THIRD, peers=("third",)) == ["COMPARE_DUE", "COMPARED"]


def test_a_difference_is_an_error_on_either_side_however_old() -> None:
    for role in ("primary", "secondary"):
        ((code, text),) = found(role, DIFFERENT)
        assert code == "COMPARED_DIFFERENT"
        assert text.endswith("main.t0, main.t1, main.t2, main.t3, main.t4 and 2 more")
    assert codes("secondary", DIFFERENT, THIRD) == ["COMPARED_DIFFERENT", "COMPARED"]


DEFAULTS: dict[str, Any] = {"peers": (), "source": "", "filled_s": 16 * DAY_S, "warn_days": 15}


def do_of(role: str, *compared: ComparedReport, **more: Any) -> str:
    made = compared_findings(role, compared, **{**DEFAULTS, **more})
    (one,) = made
    return one.do


CARRIED = "--json digest >FILE, carry it here, and replicate -i INSTANCE compare --with-digest FILE"


def test_what_to_do_names_the_instance_to_compare_with() -> None:
    local = "replicate -i INSTANCE compare --with"
    assert do_of("secondary", source="east", here={"east"}) == f"{local} east"
    assert do_of("secondary", source="east") == f"there: replicate -i east {CARRIED}"
    unknown = f"{local} PRIMARY; where that is on another host, there: replicate -i PRIMARY {CARRIED}"
    assert do_of("secondary") == unknown
    assert do_of("secondary", EQUAL) == "nothing; due again in 14 days"


@pytest.mark.parametrize(
    ("role", "peers", "filled"),
    [("secondary", (), "INSTANCE"), ("primary", ("east",), "east"), ("secondary", ("east",), "east")],
)
def test_the_one_that_is_filled_again_is_the_one_that_receives(role: str, peers: tuple[str, ...], filled: str) -> None:
    do = do_of(role, DIFFERENT, peers=peers, here={"east"}, filled_s=0)
    assert f": replicate -i {filled} update stop, then replicate -i {filled} seed --restart; then" in do
    assert do.endswith("compare again: replicate -i INSTANCE compare --with east")


def test_suppliers_that_differ_are_not_told_to_seed_what_is_no_secondary() -> None:
    do = do_of("supplier", DIFFERENT, peers=("east",), here={"east"}, filled_s=0)
    assert "replicate help suppliers" in do
    assert "seed" not in do
    assert do.endswith("compare again: replicate -i INSTANCE compare --with east")


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(-1, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (2 * DAY_S, "2 days")],
)
def test_durations(duration_s: float, text: str) -> None:
    assert ago(duration_s) == text


def test_a_repair_is_told() -> None:
    repaired = RepairedReport("east", 12, 3, 3 * 3600.0)
    found = list(compared_findings("secondary", (), peers=(), source="", filled_s=0, warn_days=15, repaired=repaired))
    assert [(one.code, one.severity) for one in found] == [("ROWS_REPAIRED", "info")]
    assert "3 rows were repaired at transaction 12, 3 h ago, as they are in east" in found[0].text
