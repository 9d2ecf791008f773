"""What `status` says of a site's own indexes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.compare.index_found import IndexDamage, IndexesFound, IndexRound, OrphanRows
from replicate.status.indexes import index_findings, indexes_report

NOW = 10**19
HOUR_NS = 3600 * 10**9
WHOLE = IndexRound(NOW - 6 * HOUR_NS, 1200, (), "", NOW - HOUR_NS)
HERE = IndexRound(NOW - HOUR_NS, 3, (), "main.t")
ONE = IndexDamage("main", "t", "i", "lacks the entry of the row", "7", NOW - 2 * HOUR_NS)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (IndexesFound(HERE, WHOLE), "all 1200 entries verified within 6 h; now at main.t"),
        (IndexesFound(IndexRound(), WHOLE), "all 1200 entries verified within 6 h"),
        (IndexesFound(HERE), "no whole round yet; now at main.t"),
        (
            IndexesFound(IndexRound(), replace(WHOLE, left_out=("main.t.i: a reason", "main.u: another"))),
            "1200 entries verified within 6 h; 2 left out (main.t.i: a reason)",
        ),
        (IndexesFound(IndexRound(), WHOLE, (ONE,)), "all 1200 entries looked at within 6 h; 1 damaged"),
    ],
)
def test_how_much_is_verified(found: IndexesFound, line: str) -> None:
    report = indexes_report(found, NOW)
    assert report is not None
    assert report.line == line


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert indexes_report(IndexesFound(), NOW) is None


def test_what_is_damaged_is_named_with_what_mends_it() -> None:
    found = IndexesFound(
        damaged=(ONE, replace(ONE, index="", what="has STORED generated columns (s) that do not follow"))
    )
    index, column = index_findings(found, NOW, role="primary")
    assert (index.code, index.severity, index.subject) == ("INDEX_DAMAGED", "error", "main.t")
    assert index.text == "index i of main.t lacks the entry of the row 7; found 2 h ago"
    assert "replicate -i INSTANCE region reindex main" in index.do
    assert "works its generated columns out again" in column.do
    _, column = index_findings(found, NOW, role="secondary")
    assert "seed --region main --restart" in column.do


def test_rows_whose_parent_is_gone_are_one_finding_for_each_foreign_key() -> None:
    one = OrphanRows("main", "child", "parent", "7", 1, NOW - 2 * HOUR_NS)
    found = IndexesFound(orphans=(one, replace(one, parent="other", count=12)))
    single, many = index_findings(found, NOW, role="supplier")
    assert (single.code, single.severity, single.subject) == ("ORPHAN_ROWS", "info", "main.child")
    assert single.text == "row 7 of main.child names a row of parent that is not there; found 2 h ago"
    assert single.do == "replicate -i INSTANCE conflict list --orphans shows all of them"
    assert many.text.startswith("row 7 of main.child (and 11 more, at least) names a row of other")
    assert many.brief == "rows of main.child (12, at least) name a row of other that is not there; found 2 h ago"
