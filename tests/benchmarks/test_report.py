"""Tables of benchmarks: each benchmark has its row, ratios stand first, and no line is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.bench_catch_up import in_turn
from tests.benchmarks.report import ROWS, line, table, taken_on
from tests.benchmarks.street_bench import machine

CPU = {"source": 0.6, "receiver": 0.3, "update": 2.0}


def row_of(benchmark: str, figure: dict[str, Any], settings: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """The cells of the row of a line with this figure."""
    one = line(benchmark, unit="rows/s", figure=figure, settings=settings or {}, facts=machine(), **more)
    assert taken_on(one).endswith(f"commit {one['commit']}")
    return table([one]).splitlines()[2].strip("| ").split(" | ")


def test_each_benchmark_has_a_row() -> None:
    there = {file.stem.removeprefix("bench_") for file in Path(__file__).parent.glob("bench_*.py")}
    assert set(ROWS) == there


def test_a_line_that_no_table_knows_is_refused() -> None:
    with pytest.raises(KeyError):
        row_of("unheard_of", {})


def test_catch_up_beside_peers_and_another_checkout() -> None:
    figure = {
        "here": {"from_first": 300_000, "from_start": 200_000, "cpu_us": CPU},
        "there": {"from_first": 150_000, "from_start": 100_000, "cpu_us": CPU},
    }
    beside = {"gtm": {"from_first": 400_000}, "ratio_to_gtm": 0.75}
    what, ratio, text, name = row_of("catch_up", figure, kind="update", **beside)
    assert (what, name) == ("catch-up, update", "`bench_catch_up`")
    assert ratio == "0.75 × GT.M (400,000), 2.00 × there"
    assert text == "300,000 rows/s; CPU µs 0.6 + 0.3 + 2.0"


def test_a_backlog_that_was_level_at_the_first_look_has_the_rate_with_its_start() -> None:
    figure = {"here": {"from_first": 0, "from_start": 200_000, "cpu_us": CPU}}
    assert row_of("catch_up", figure, kind="one")[1:3] == ["–", "200,000 rows/s; CPU µs 0.6 + 0.3 + 2.0"]


def test_what_bounds_an_update_process_stands_beside_its_figure() -> None:
    here = {"from_first": 300_000, "from_start": 200_000, "cpu_us": CPU, "stamps": {"bound_per_s": 340_000}}
    text = row_of("catch_up", {"here": here}, kind="update")[2]
    assert text.endswith("; at most 340,000 if commits took no time")


def test_what_others_notice_of_the_patrol() -> None:
    figure = {"without": 1.5, "with": 1.52, "ratio": 0.987}
    assert row_of("patrol", figure, what="noticed: commit")[:3] == [
        "patrol, noticed: commit",
        "0.987 × without",
        "1.52 ms",
    ]
    figure = {"without": 80_000.0, "with": 79_000.0, "ratio": 0.988}
    assert row_of("patrol", figure, what="noticed: backlog")[2] == "79,000.0 transactions/s"


def test_suppliers_beside_a_secondary_and_a_peer() -> None:
    more = {"case": "one table", "ratio_to_secondary": {"from_first": 0.2, "from_start": 0.25}}
    figure = {"from_first": 100_000.0, "from_start": 90_000.0}
    beside = {"postgresql": {"from_start": 40_000.0}, "ratio_to_postgresql": 2.5}
    what, ratio, text, _ = row_of("suppliers", figure, **more, **beside)
    assert (what, text) == ("suppliers: one table", "100,000 transactions/s")
    both = "0.20 × a secondary, 0.25 × a secondary from the start"
    assert ratio == f"{both}, 2.50 × PostgreSQL with pglogical (40,000)"
    assert row_of("suppliers", figure, **more)[1] == both
    two_regions = row_of("suppliers", figure, **more, ratio_to_one_region={"update_cpu_us": 1.25})[1]
    assert two_regions == f"{both}, 1.25 × one region in CPU of the Update Process"
    one_batch = row_of("suppliers", {**figure, "from_first": 0.0}, case="x", ratio_to_secondary={"from_start": 0.25})
    assert one_batch[1:3] == ["0.25 × a secondary from the start", "90,000 transactions/s"]


def test_commit_beside_plain_sqlite_the_peer_the_floor_and_another_checkout() -> None:
    figure = {"here": 600, "apsw": 1000, "gtm": 500, "floor: plain": 1200, "floor: door": 750, "before: x": 400}
    ratio = {"apsw": 0.6, "gtm": 1.2, "floor: plain": 0.5, "floor: door": 0.8, "before: x": 1.5}
    facts = {"case": "row", "policy": "durable", "against": "synchronous = FULL", "cpu_us": {"here": 98.0}}
    what, text, ours, _ = row_of("commit", figure, ratio=ratio, writers=4, **facts)
    assert what == "commit, row, durable, 4 writers"
    assert text == (
        "0.60 × plain SQLite, synchronous = FULL (1,000), 1.20 × GT.M (500), 0.80 × the floor (750), "
        "1.50 × before: x (400)"
    )
    assert ours == "600 rows/s; CPU µs 98.0"


def test_scaling_of_a_journal_and_of_widths() -> None:
    short = dict.fromkeys(("recover", "start", "resync", "status"), 0.2)
    what, ratio, text, _ = row_of("scaling", {"1000": short, "2000000": {**short, "status": 0.3}}, part="journal")
    assert (what, ratio) == ("journal of 2,000,000 transactions", "status 1.50 × a journal of 1,000")
    assert text == "recover 0.2 s, start 0.2 s, resync 0.2 s, status 0.3 s"
    widths = {"10": {"rows_per_s": 400_000}, "1048576": {"rows_per_s": 145}}
    assert row_of("scaling", widths, part="width")[:3] == ["by width", "–", "10: 400,000; 1048576: 145 rows/s"]


def test_wire_beside_bare_bytes() -> None:
    figure = {"none": {"transactions_per_s": 2e6}, "ratio": {"none": 0.11}, "bare_mb_per_s": 3600}
    what, ratio, text, _ = row_of("wire", figure)
    assert (what, ratio) == ("wire, nobody applying", "0.110 (none) × bare bytes (3,600 MB/s)")
    assert text == "none: 2,000,000 transactions/s"


def test_nobody_is_always_the_first_of_a_round() -> None:
    codes = [Path("a"), Path("b")]
    assert [in_turn(codes, place).name for place in range(6)] == ["a", "b", "b", "a", "a", "b"]
    assert [in_turn(codes[:1], place).name for place in range(2)] == ["a", "a"]


def test_how_soon_something_is_seen_is_the_worst_of_its_times() -> None:
    figure = {
        "cut, own": {"median": 0.5, "worst": 1.2, "times": 10},
        "role, own": {"median": 1, "worst": 1, "times": 1},
    }
    assert row_of("seeing", figure)[:3] == ["seen on the page", "–", "cut, own: 1.2 s at most, role, own: 1 s at most"]
