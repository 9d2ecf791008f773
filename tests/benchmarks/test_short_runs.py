"""Benchmarks as short as they can be: each runs to its end, prints what its head promises, and leaves no file behind.

What they print of so few transactions is no measurement, and is not looked at beyond that it was measured. Not here are
bench_wire, which needs many to measure anything, bench_scaling, which takes minutes, and the peers, which are packages
of their own; tests/benchmarks/all.py runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.report import table
from tests.harness.checkout import ROOT, commit_of, name_of

pytestmark = pytest.mark.slow

DAEMONS = {"source", "receiver", "update"}
ALWAYS = {"benchmark", "unit", "figure", "settings", "commit", "machine", "processor", "cores", "load_before"}


def printed(directory: Path, name: str, *arguments: str) -> list[str]:
    """The lines that the benchmark prints, and that it has removed what it made."""
    command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", "--directory", str(directory), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert not list(directory.iterdir())
    return done.stdout.splitlines()


def lines_of(directory: Path, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Its JSON lines, each with what a line always has; and that a table can be drawn of them."""
    lines = [json.loads(line) for line in printed(directory, name, *arguments)]
    for line in lines:
        assert set(line) >= ALWAYS
        assert (line["benchmark"], line["commit"]) == (name, commit_of(ROOT))
    head, _, *rows = table(lines).splitlines()
    assert head == "| what | ratio | figure | benchmark |"
    assert [row.rpartition(" | ")[2] for row in rows] == [f"`bench_{name}` |"] * len(lines)
    return lines


def test_catch_up_beside_its_floor(tmp_path: Path) -> None:
    arguments = ("--kind", "update", "--transactions", "3000", "--rounds", "2", "--peers", "floor", "--stamps")
    (line,) = lines_of(tmp_path, "catch_up", *arguments)
    assert (line["kind"], line["settings"]["count"]) == ("update", 3000)
    figure = line["figure"][name_of(ROOT)]
    assert len(figure["all_from_first"]) == len(line["floor"]["all"]) == 2
    assert figure["from_start"] > 0
    assert line["floor"]["from_first"] > 0
    assert set(figure["cpu_us"]) == set(figure["memory_mib"]) == DAEMONS
    assert min(figure["memory_mib"].values()) > 0
    assert set(figure["stamps"]) == {"make_us", "make_cpu_us", "read_cpu_us", "commit_us", "batches", "bound_per_s"}
    assert min(figure["stamps"].values()) > 0


def test_commit_of_single_rows(tmp_path: Path) -> None:
    arguments = ("--case", "row", "--policy", "durable", "--writers", "2", "--transactions", "20", "--rounds", "2")
    (line,) = lines_of(tmp_path, "commit", *arguments)
    assert (line["case"], line["policy"], line["writers"]) == ("row", "durable", 2)
    ways = {name_of(ROOT), "apsw", "sqlite3"}
    assert set(line["figure"]) == set(line["cpu_us"]) == ways
    assert min(*line["figure"].values(), *line["cpu_us"].values(), *line["ratio"].values()) > 0


@pytest.mark.parametrize("case", ["insert", pytest.param("update", marks=pytest.mark.long)])
def test_commit_of_many_rows(tmp_path: Path, case: str) -> None:
    (line,) = lines_of(tmp_path, "commit", "--case", case, "--policy", "interval", "--rows", "500", "--rounds", "1")
    assert (line["case"], line["settings"]["rows_a_round"]) == (case, 500)
    assert min(line["figure"].values()) > 0


def test_latency(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "latency", "--commits", "20", "--pause", "0.005", "--rounds", "1")
    figure = line["figure"][name_of(ROOT)]
    assert figure["commit"]["median"] > 0
    assert figure["visible"]["median"] <= figure["visible"]["p99"] <= figure["visible"]["worst"]
    assert line["fdatasync"]["median"] > 0


def test_steady_state_after_a_secondary_that_was_down(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "steady", "--seconds", "1", "--writers", "1", "--down", "500")
    figure = line["figure"]
    assert figure["committed_per_s"] > 0
    assert figure["backlog_most"] >= max(figure["backlog_first_third"], figure["backlog_last_third"])
    assert set(figure["cpu_us"]) == set(figure["memory_mib"]) == DAEMONS


def test_large_transactions(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "large", "--rows", "5000", "--kind", "insert", "update")
    assert [line["kind"] for line in lines] == ["insert", "update"]
    for line in lines:
        assert set(line["figure"]["memory_mib"]) == {"writer", *DAEMONS}
        assert line["figure"]["applied_s"] > 0
        assert line["figure"]["looks"] > 0


def test_replay_without_spark(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "replay", "--changes", "2000", "--keys", "200", "--rounds", "1", "--no-spark")
    assert {"write", "net_local", "apply", "one_by_one", "replay_local"} <= set(line["figure"])
    assert line["local_to_one_by_one"] > 0


def test_filter(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "filter", "--transactions", "6000", "--rounds", "1")
    assert [line["what"] for line in lines][:2] == ["cat", "program, same"]
    assert all(line["figure"]["per_s"] > 0 for line in lines)


def test_packets(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "packets", "--transactions", "2000", "--rounds", "1")
    assert min(line["figure"].values()) > 0
    assert set(line["ratio"]) == {"import_to_replay", "import_to_line", "export_to_line"}


@pytest.mark.long  # five whole streets, one after another
def test_suppliers(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "suppliers", "--transactions", "3000", "--rounds", "1")
    assert [line["case"] for line in lines] == ["secondary", "one writes", "both write", "one table", "same rows"]
    assert all(line["figure"]["from_start"] > 0 for line in lines)


@pytest.mark.long  # four of them
def test_suppliers_with_two_regions(tmp_path: Path) -> None:
    more = ("--cases", "one writes", "one table", "--two-regions")
    lines = lines_of(tmp_path, "suppliers", "--transactions", "1000", "--rounds", "1", *more)
    assert [line["case"] for line in lines[1:]] == [
        "one writes", "one writes, two regions", "one table", "one table, two regions",
    ]  # fmt: skip
    assert [sorted(line.get("ratio_to_one_region", {}))[-1:] for line in lines[1:]] == [[], ["update_cpu_us"]] * 2


@pytest.mark.long
def test_hub(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "hub", "--transactions", "3000", "--rounds", "1")
    figure = line["figure"][name_of(ROOT)]
    assert figure["count"] > 0
    assert min(figure["backlog_per_s"], figure["visible"]["median"]) > 0


@pytest.mark.long
def test_partitions(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "partitions", "--transactions", "2000", "--rounds", "1", "--wanted", "half", "nothing")
    assert [one["wanted"] for one in lines] == ["whole", "half", "nothing"]
    sizes = [one["figure"]["bytes"] for one in lines]
    assert sizes[0] > sizes[1] > sizes[2] == 66


def test_patrol(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "patrol", "--rows", "5000", "--rounds", "1", "--commits", "20")
    assert [line["what"] for line in lines] == [
        "digest of the table",
        "patrol on the source",
        "patrol on the secondary",
        "noticed: backlog",
        "noticed: commit",
        "noticed: visible",
    ]
    assert all(line["figure"]["rows_per_cpu_s"] > 0 for line in lines[:3])
    assert all(min(line["figure"].values()) > 0 for line in lines[3:])


def test_audit(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "audit", "--transactions", "2000", "--rounds", "1")
    assert len({line["what"] for line in lines}) == len(lines) > 5
    assert all(line["figure"]["per_s"] > 0 and line["figure"]["cpu_us"] > 0 for line in lines)


@pytest.mark.long
def test_a_table_in_place_of_lines(tmp_path: Path) -> None:
    head, _, row = printed(tmp_path, "latency", "--commits", "5", "--pause", "0.005", "--rounds", "1", "--table")
    assert head == "| what | ratio | figure | benchmark |"
    assert row.startswith("| latency | – | ")
    assert row.endswith(" | `bench_latency` |")


@pytest.mark.long
def test_how_soon_something_is_seen(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "seeing", "--rounds", "1")
    wanted = {f"{what}, {page}" for what in ("killed", "cut", "role") for page in line["settings"]["pages"]}
    assert line["figure"].keys() == wanted
    assert all(found["times"] == 1 for found in line["figure"].values())
