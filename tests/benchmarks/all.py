"""Every benchmark, beside its peers, in one go; prints a table in the end.

Run: python -m tests.benchmarks.all [--quick] [--minutes N] [--only NAME …] [--install] [--json FILE]
     [--own-memory GIB]

`--quick` takes smaller backlogs and is meant to end within fifteen minutes on an idle machine of two cores; without it
everything has its full size. Each benchmark takes its turns with its peers five times by itself, and prints a JSON line
with the medians; here they run one after the other, the most important first. What would begin after `--minutes` is not
begun, and said in the end; so is a peer that is not installed (`--install` fetches PostgreSQL, GT.M and, for the floor
in C, a compiler with SQLite's header from Debian, as root) and a benchmark that fails. The exit code is 1 then.

Guarantees: a figure in the table is one of this run. Leaves to others: how anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks import floor_commit, peer_gtm, peer_pglogical, peer_postgresql
from tests.benchmarks.own_memory import own_memory
from tests.benchmarks.report import Line, table, taken_on
from tests.benchmarks.street_bench import ROOT

PACKAGES: Final = {
    "postgresql": ("postgresql-15", "postgresql-15-pglogical"),
    "gtm": (peer_gtm.PACKAGE,),
    "floor": ("gcc", "libc6-dev", floor_commit.PACKAGE),
}
ROUNDS: Final = "5"
QUICKLY: Final = "--quick (by width, tables and secondaries: one round), "


@dataclass(frozen=True)
class Step:
    """One run of one benchmark. `peers`: those that it can measure beside ours."""

    name: str
    module: str
    words: tuple[str, ...]
    quick: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


def _catch_up(kind: str, *peers: str) -> Step:
    words = ("--kind", kind, "--rounds", ROUNDS, *(("--stamps",) if kind == "update" else ()))
    return Step(f"catch-up {kind}", "bench_catch_up", words, ("--transactions", "200000"), peers)


def _commit(case: str, policy: str) -> Step:
    words = ("--case", case, "--policy", policy, "--rounds", ROUNDS)
    peers = ("gtm", "floor") if (case, policy) == ("row", "durable") else ("floor",) if case == "row" else ()
    return Step(f"commit {case} {policy}", "bench_commit", words, peers=peers)


STEPS: Final = (
    _catch_up("insert", "postgresql", "gtm"),
    Step("latency", "bench_latency", ("--rounds", ROUNDS), ("--commits", "100"), ("postgresql", "gtm")),
    _commit("row", "interval"),
    _commit("row", "durable"),
    _catch_up("update", "gtm", "floor", "postgresql"),
    _commit("insert", "interval"),
    _commit("update", "interval"),
    _catch_up("one", "postgresql"),
    _catch_up("ten", "gtm"),
    Step("steady", "bench_steady", (), ("--seconds", "20")),
    Step("journal", "bench_scaling", ("--part", "journal", "--rounds", ROUNDS), ("--transactions", "2000000")),
    Step("wire", "bench_wire", ("--rounds", ROUNDS), ("--transactions", "200000")),
    Step("filter", "bench_filter", ("--rounds", ROUNDS), ("--transactions", "50000")),
    Step("packets", "bench_packets", ("--rounds", ROUNDS), ("--transactions", "50000")),
    Step("partitions", "bench_partitions", ("--rounds", ROUNDS), ("--transactions", "50000")),
    Step("suppliers", "bench_suppliers", ("--rounds", ROUNDS), ("--transactions", "50000"), ("postgresql",)),
    Step("hub", "bench_hub", ("--rounds", ROUNDS), ("--transactions", "50000")),
    Step("seeing", "bench_seeing", (), ("--rounds", "2")),
    Step("patrol", "bench_patrol", ("--rounds", ROUNDS), ("--rows", "200000")),
    Step("audit", "bench_audit", ("--rounds", ROUNDS), ("--transactions", "100000")),
    _commit("row", "off"),
    _catch_up("mixed", "gtm"),
    Step("secondary down", "bench_steady", ("--down", "1000000", "--seconds", "20"), ("--down", "200000")),
    Step("width", "bench_scaling", ("--part", "width"), ("--backlog", "30000", "--rounds", "1")),
    Step("tables", "bench_scaling", ("--part", "tables"), ("--backlog", "30000", "--rounds", "1")),
    Step("secondaries", "bench_scaling", ("--part", "secondaries"), ("--backlog", "100000", "--rounds", "1")),
)


def installed() -> dict[str, bool]:
    """Which peers are there."""
    try:
        peer_gtm.distribution()
    except FileNotFoundError:
        gtm = False
    else:
        gtm = True
    try:
        with tempfile.TemporaryDirectory(prefix="bench-floor-") as directory:
            floor_commit.compiled(Path(directory))
    except RuntimeError:
        floor = False
    else:
        floor = True
    postgresql = all(path.exists() for path in (peer_postgresql.BIN / "initdb", peer_pglogical.LIBRARY))
    return {"postgresql": postgresql, "gtm": gtm, "floor": floor}


def install() -> None:
    """Fetch the peers that are missing."""
    missing = [package for peer, there in installed().items() if not there for package in PACKAGES[peer]]
    if missing:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", *words], check=True, env=environment, stdout=sys.stderr)


def run(step: Step, *, quick: bool, peers: list[str], timeout_s: float) -> tuple[list[Line], str]:
    """The lines that a benchmark prints, and why it failed ("": it has not)."""
    words = [*step.words, *(step.quick if quick else ())]
    beside = [peer for peer in step.peers if peer in peers]
    if quick and step.name == "catch-up update":
        beside = [peer for peer in beside if peer != "postgresql" or "gtm" not in beside]  # a random order: slowly
    if beside:
        words += ["--peers", *beside]
    command = [sys.executable, "-m", f"tests.benchmarks.{step.module}", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        why = f"exit code {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.terminate()  # it stops its daemons, and its peers
        output, _ = process.communicate()
        why = f"not done within {timeout_s:.0f} s"
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")], why


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller backlogs")
    parser.add_argument("--minutes", type=float, help="begin nothing after that [15 with --quick, else 180]")
    parser.add_argument("--only", nargs="*", choices=[step.name for step in STEPS], help="these only")
    parser.add_argument("--install", action="store_true", help="install the peers that are missing, with apt-get")
    parser.add_argument("--own-memory", type=float, default=0.0, metavar="GIB", help="all the time: see own_memory.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON lines there, too")
    arguments = parser.parse_args()
    if arguments.install:
        install()
    there = installed()
    peers = [peer for peer, is_there in there.items() if is_there]
    failed = [f"peer {peer}: not installed ({' '.join(PACKAGES[peer])})" for peer in there if peer not in peers]
    begun = time.monotonic()
    until = begun + 60 * (arguments.minutes or (15 if arguments.quick else 180))
    lines: list[Line] = []
    with own_memory(arguments.own_memory):
        for step in STEPS:
            if arguments.only and step.name not in arguments.only:
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                failed.append(f"{step.name}: not begun, the time was over")
                continue
            print(f"{time.monotonic() - begun:6.0f} s  {step.name}", file=sys.stderr, flush=True)
            found, why = run(step, quick=arguments.quick, peers=peers, timeout_s=left_s + 60)
            lines += found
            failed += [f"{step.name}: {why}"] if why else []
            for line in found:
                print(json.dumps(line), flush=True)
                if arguments.json is not None:
                    with arguments.json.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    print()
    print(table(lines))
    if lines:
        print(
            f"\n{taken_on(lines[0])}; {QUICKLY if arguments.quick else ''}"
            f"{f'{arguments.own_memory:g} GiB held, ' if arguments.own_memory else ''}medians of {ROUNDS} rounds."
        )
    for one in failed:
        print(f"missing: {one}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
