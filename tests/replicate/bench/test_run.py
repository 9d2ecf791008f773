"""`replicate bench`: each figure is there, and measured; nothing is left; the backlog is the same each time."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.bench.catch_up import KINDS, rate, statements
from replicate.bench.latency import spread
from replicate.bench.run import BenchFigure, Result, run_bench
from replicate.bench.street import cost_of, wait_for
from replicate.cli.root import root
from replicate.errors import TryAgainError


def processes_with(text: str) -> list[str]:
    """Command lines of processes that have it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and file.parent.name != str(os.getpid()):
            found.append(line)
    return found


@pytest.mark.slow
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "/dev/shm/of-the-caller")
    told: list[str] = []
    for _ in range(5):  # 0: half of the backlog was applied before anybody looked, as on a busy machine
        found = run_bench(tmp_path, seconds=1.0, told=told.append)
        figures = {one.what: one.figure for one in found.figures}
        if figures["catch_up"] > 0:
            break
    assert set(figures) == {
        "commit.interval", "commit.interval.ratio", "commit.durable", "commit.durable.ratio", "catch_up",
        "catch_up.cpu", "latency.median", "latency.p99", "commit.latency.median",
    }  # fmt: skip
    assert all(figure > 0 for what, figure in figures.items() if not what.startswith("latency."))
    assert figures["latency.p99"] >= figures["latency.median"]
    assert told
    assert os.environ["REPLICATE_SHM_DIR"] == "/dev/shm/of-the-caller"
    assert not list(tmp_path.iterdir())
    assert not processes_with(str(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_statements_are_the_same_each_time_and_as_many_as_asked(kind: str) -> None:
    once, again = list(statements(kind, 100)), list(statements(kind, 100))
    assert once == again
    assert len(once) == 100


@pytest.mark.parametrize(
    ("left", "backlog", "found"),
    [
        (1000, 1000, 500.0),
        (501, 1000, 250.5),
        (500, 1000, 0.0),  # half of it was done before anybody looked
        (0, 1000, 0.0),
        (1, 1, 0.0),
        (100, 100, 0.0),
        (101, 101, 50.5),
    ],
)
def test_a_rate_is_of_what_was_seen(left: int, backlog: int, found: float) -> None:
    assert rate(left, 2.0, backlog) == found


def test_mixed_touches_rows_that_are_there_only() -> None:
    here: set[int] = set()
    for sql, parameters in statements("mixed", 1000):
        match sql.split()[0]:
            case "INSERT":
                here.add(parameters[0])
            case "UPDATE":
                assert parameters[1] in here
            case _:
                here.remove(parameters[0])
    assert here


def test_spread() -> None:
    assert spread([float(number) for number in range(100)]) == {"median": 50.0, "p90": 90.0, "p99": 99.0, "worst": 99.0}


def test_waiting_ends() -> None:
    with pytest.raises(TryAgainError, match="not within 0 s: never"):
        wait_for(lambda: False, "never", timeout_s=0)
    begun = time.perf_counter()
    assert wait_for(lambda: True, "now") >= begun


def test_the_cost_of_a_process() -> None:
    cost = cost_of(os.getpid())
    assert cost.cpu_s > 0
    assert cost.anonymous_bytes > 1 << 20


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    facts = {
        "processor": "a processor", "cores": 2, "load_before": 0.5, "sqlite": "3.0", "python": "3.11.2",
        "interpreter": "/usr/bin/python3.11, GCC 12.2.0",
    }  # fmt: skip
    figure = BenchFigure("catch_up", 450_000, "transactions/s", "beside it")
    found = Result("host", "1.2", [figure], {"seconds": 7.0}, facts, 9.5)
    asked: list[tuple[Path, float]] = []

    def run(directory: Path, *, seconds: float, told: object) -> Result:
        asked.append((directory, seconds))
        return found

    monkeypatch.setattr("replicate.bench.run.run_bench", run)
    before = signal.getsignal(signal.SIGTERM)
    words = ["--json"] if as_json else []
    result = CliRunner().invoke(root, [*words, "bench", "--directory", str(tmp_path), "--seconds", "7"])
    assert result.exit_code == 0
    assert asked == [(tmp_path, 7.0)]
    assert signal.getsignal(signal.SIGTERM) is before
    if as_json:
        (line,) = result.stdout.splitlines()
        assert json.loads(line)["figures"] == [
            {"what": "catch_up", "figure": 450_000, "unit": "transactions/s", "beside": "beside it"}
        ]
    else:
        assert "catch_up  450,000  transactions/s  beside it" in result.stdout
        assert "a processor, 2 cores, load 0.5 before; 9.5 s" in result.stdout
        assert "Python 3.11.2 (/usr/bin/python3.11, GCC 12.2.0)" in result.stdout
