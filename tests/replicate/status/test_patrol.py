"""What `status` says of the patrol."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.compare.patrol_found import Different, Patrolled, Round
from replicate.status.patrol import patrol_findings, patrol_report

NOW = 10**19
HOUR_NS = 3600 * 10**9
WHOLE = Round(NOW - 6 * HOUR_NS, 900, 412_000_000, 0, "", "", NOW - HOUR_NS)
HERE = Round(NOW - HOUR_NS, 3, 30, 0, "", "main.account")
ONE = Different("main", "account", "10", "20", 7, NOW - 2 * HOUR_NS, 9, "a" * 32, 10, "b" * 32)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Patrolled("east", HERE, WHOLE), "all 412000000 rows verified within 6 h; now at main.account"),
        (Patrolled("east", Round(), WHOLE), "all 412000000 rows verified within 6 h"),
        (
            Patrolled("east", Round(), replace(WHOLE, passed=1, why="a reason")),
            "412000000 rows verified within 6 h; 1 range passed over (a reason)",
        ),
        (
            Patrolled("east", replace(HERE, passed=2, why="a reason")),
            "no whole round yet; 2 ranges passed over (a reason); now at main.account",
        ),
        (Patrolled("east", HERE), "no whole round yet; now at main.account"),
        (Patrolled("east", Round(), WHOLE, (ONE,)), "412000000 rows verified within 6 h; 1 range not the same"),
        (
            Patrolled("east", HERE, Round(), (ONE, ONE)),
            "no whole round yet; 2 ranges not the same; now at main.account",
        ),
    ],
)
def test_how_much_is_verified(found: Patrolled, line: str) -> None:
    report = patrol_report(found, NOW)
    assert report is not None
    assert report.line == line


def test_nothing_is_said_where_nothing_was_told() -> None:
    assert patrol_report(Patrolled(), NOW) is None


def test_what_differs_is_named_with_what_mends_it() -> None:
    found = Patrolled("east", HERE, WHOLE, (ONE, replace(ONE, table="", digest="")))
    rows, schema = patrol_findings(found, NOW, source="east", here=("east",))
    assert (rows.code, rows.severity, rows.subject) == ("DIVERGED_ROWS", "error", "main.account")
    assert rows.text == (
        "main.account differs at transaction 7: after 10 up to 20; 9 rows with digest aaaaaaaaaaaaaaaa here, 10 rows "
        "with digest bbbbbbbbbbbbbbbb in east; found 2 h ago"
    )
    assert "compare --with east --repair" in rows.do
    assert "nothing that can be read here" in schema.text
    assert schema.do.startswith("see what differs: replicate -i INSTANCE compare --with east; mend the schema")
    assert "seed --restart" in schema.do
    (far, far_schema) = patrol_findings(found, NOW, source="", here=())
    assert "replicate -i east --json digest >FILE" in far.do
    assert "seed --region main --restart" in far.do
    assert far_schema.do.startswith("mend the schema as it is there")
