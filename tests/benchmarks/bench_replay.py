"""What a replay costs against the Update Process: the same backlog, one by one and as its net change, in one run.

    python -m tests.benchmarks.bench_replay [--changes 5000000] [--keys 500000] [--cores 2] [--rounds 3] [--no-spark]
    python -m tests.benchmarks.bench_replay --table 1 5 20

A primary's journal of updates of rows of 100 bytes, in random order, `--per-commit` to a transaction, is written
through `replicate.connect()`. From it, in turns and `--rounds` times each: the net change found by Spark in the archive
(staged, and read back row by row), the same folded in this process, reading raw segments by Spark, and the net change
applied in bulk from the stage (rolled back again). Then once each, committed, from fresh secondaries: one by one by the
Update Process's own applier, and replays by either engine; their databases are compared.

Prints one JSON line. Of each: seconds, and CPU seconds of this process and all below it (Java, Spark's Python): that is
what to compare on a machine that others use too. `cold` is the first round in a new session, with nothing compiled;
`warm` the median of the others. `--cores` binds everything to so many processors; `--master` is `local[CORES]` unless
given. `--table` runs each size (in millions of changes, a tenth as many keys) with one and with two cores, and draws
the table, whose further rows are computed from the largest run: `spark_s`. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.record import FrameBatch, decode_batch
from replicate.transfer.seed.direct import seed
from tests.benchmarks import report
from tests.benchmarks.street_bench import ROOT, machine
from tests.harness.differential import read, same
from tests.harness.instances import with_settings
from tests.harness.pair import Pair, work_all
from update_process.replay.apply import NetApply, NetSource
from update_process.replay.backlog import Journals
from update_process.replay.command import apply_session, no_collector, replay
from update_process.replay.net import NetChange
from update_process.replay.run import WINDOW_BYTES

SCHEMA: Final = "CREATE TABLE row (id INTEGER PRIMARY KEY, counter INTEGER, text TEXT)"
SETTINGS: Final = '[journal]\ndurability = "off"\ncap_bytes = 1099511627776\n'
UPDATE: Final = "UPDATE row SET counter = counter + 1 WHERE id IN (SELECT value FROM json_each(?))"
TEXT: Final = "x" * 100
MILLION: Final = 1_000_000
PAPER_CORES: Final = (8, 64)
_seen: dict[tuple[str, str], int] = {}
"""Ticks of every process by its number and start."""


@dataclass
class Figures:
    """Seconds and CPU seconds of everything, by name, a pair for each round."""

    rounds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def measure(self, name: str, way: Callable[[], Any]) -> Any:
        """Do it once more."""
        began_s, before_s = time.perf_counter(), tree_cpu_s()
        done = way()
        took = (time.perf_counter() - began_s, tree_cpu_s() - before_s)
        self.rounds.setdefault(name, []).append(took)
        print(f"{name:<28} {took[0]:8.2f} s {took[1]:8.2f} s CPU", file=sys.stderr, flush=True)
        return done

    def middle(self) -> dict[str, dict[str, float]]:
        """Of each: `cold` (the first), and `warm` (the median of the others, if there are any), with their CPU time."""
        made = {}
        for name, rounds in self.rounds.items():
            later = rounds[1:] or rounds
            warm_s, warm_cpu_s = (statistics.median(column) for column in zip(*later, strict=True))
            made[name] = {
                "cold_s": round(rounds[0][0], 2),
                "cold_cpu_s": round(rounds[0][1], 2),
                "warm_s": round(warm_s, 2),
                "warm_cpu_s": round(warm_cpu_s, 2),
            }
        return made


def tree_cpu_s() -> float:
    """CPU seconds so far of this process and of all below it that were there at some call; of one that has ended, as
    far as the call before. (What a parent counts of its children leaves out those that nobody waited for.)"""
    below: dict[int, list[int]] = {}
    ticks: dict[int, tuple[tuple[str, str], int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = ((name, fields[19]), int(fields[11]) + int(fields[12]))  # a number may be taken again
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        _seen.update([ticks[pid]] if pid in ticks else [])
        waiting.extend(below.get(pid, []))
    return sum(_seen.values()) / os.sysconf("SC_CLK_TCK")


@dataclass
class Backlog:
    """A primary with a backlog of `changes` after transaction `base`, and secondaries in front of it."""

    pair: Pair
    others: list[Instance]
    changes: int
    base: int
    last: int

    @classmethod
    def write(cls, directory: Path, changes: int, keys: int, per_commit: int) -> Backlog:
        """Write it; a segment after it seals what is before."""
        pair = Pair.create(directory, SCHEMA)
        others = []
        for name in ("local", "spark"):
            others.append(
                Instance.create(directory / name, role="secondary", name=name, network=pair.primary.content.network)
            )
            pair.primary.register_peer(name, "127.0.0.1", 7430)
        every = (pair.primary, pair.secondary, *others)
        pair.primary, pair.secondary, *others = (with_settings(one, SETTINGS) for one in every)
        with pair.connect() as connection:
            connection.executemany("INSERT INTO row VALUES (?, ?, ?)", ((number, 0, TEXT) for number in range(keys)))
        connection.close()
        pair.seed()
        for other in others:
            seed(pair.primary, other)
            other.reload()
        base = pair.last_seqno(pair.secondary)
        dice = random.Random(1)
        connection = pair.connect()
        for _ in range(changes // per_commit):
            connection.execute(UPDATE, (json.dumps(dice.sample(range(keys), per_commit)),))
            connection.commit()
        last = pair.last_seqno()
        connection.executemany("INSERT INTO row VALUES (?, 0, ?)", ((-n, TEXT * 10) for n in range(1, 1500)))
        connection.commit()
        connection.close()
        return cls(pair, others, changes, base, last)

    def one_by_one(self) -> None:
        """The Update Process's own way, from a receive pool that is filled again and again."""
        with self.pair.receive_pool(64 * 1024 * 1024) as pool, self.pair.applier(pool) as applier, no_collector():
            while self.pair.deliver(pool, record_bytes=1024 * 1024, upto=self.last) < self.last:
                work_all(applier)
            work_all(applier)

    def fold(self) -> NetChange:
        """The net change as the local engine finds it, verification of frames and decoding included."""
        journals = Journals([self.pair.primary.path], self.pair.primary.content.network)
        with apply_session(self.pair.secondary) as session, no_collector():
            tables = dict(next(iter(session.rows.values())).definitions)
            net = NetChange(lambda table_id: tables[table_id])
            for piece in journals.read(self.base + 1, self.last, max_bytes=WINDOW_BYTES):
                assert isinstance(piece, FrameBatch)
                net.fold(decode_batch(piece.data, tuples=True)[2::3])
        return net

    def apply_and_roll_back(self, net: NetSource, figures: Figures) -> int:
        """Apply a net change in bulk, which is measured, and take it back. Rows written."""
        with apply_session(self.others[1]) as session, no_collector():
            tables = dict(next(iter(session.rows.values())).definitions)
            session.begin()
            apply = NetApply(session, tables.__getitem__, seqno=self.last, verify=False, told=lambda *_: None)
            done = figures.measure("apply", lambda: apply.apply(net))
            session.rollback()
        return int(done.deleted + done.updated + done.inserted)


def with_spark(backlog: Backlog, spark: Any, directory: Path, figures: Figures, rounds: int) -> int:
    """What Spark does, in one session, in turns with this process's own fold. Rows of the net change."""
    from update_process.replay.archive.archive import Archive
    from update_process.replay.spark.net import SparkEngine
    from update_process.replay.spark.source import NAME

    pair = backlog.pair
    uri = (directory / "archive").as_uri()
    figures.measure("archive", lambda: Archive(spark, uri).add(Chain(pair.primary.journal_directory)))
    raw = spark.read.format(NAME).option("path", str(pair.primary.journal_directory))
    raw = raw.option("first", backlog.base + 1).option("last", backlog.last)
    raw = raw.option("columns", "seqno,place,table_id,op,key,before,after").load()
    stage = directory / "stage"
    written = 0
    for _ in range(rounds + 1):
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        journals = Journals([uri], pair.primary.content.network, stage=stage)
        net: Any = SparkEngine(spark, journals, stage)(lambda table_id: _nothing(table_id), backlog.base + 1)
        net.until(backlog.last)
        figures.measure("net_spark", net.table_ids)
        figures.measure("read_back", lambda: sum(1 for _ in net.rows()))  # noqa: B023 (called at once)
        figures.measure("net_local", backlog.fold)
        figures.measure("read_raw", lambda: raw.selectExpr("max(length(after))").collect())
        written = backlog.apply_and_roll_back(net, figures)
    names = [uri, pair.primary.path]
    other = backlog.others[1]
    figures.measure(
        "replay_spark", lambda: replay(other, names, last_seqno=backlog.last, spark=lambda: nullcontext(spark))
    )
    return written


def _nothing(table_id: int) -> Any:
    raise AssertionError(f"nobody asks for table {table_id}")


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Everything, once; the line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.cores])
    master = chosen.master or f"local[{chosen.cores}]"
    facts = machine()
    figures = Figures()
    keys = chosen.keys or max(chosen.per_commit, chosen.changes // 10)
    with tempfile.TemporaryDirectory(prefix="replicate-bench-", dir=chosen.directory) as name:
        directory = Path(name)
        os.environ["REPLICATE_SHM_DIR"] = f"{directory}/shm"
        backlog = figures.measure("write", lambda: Backlog.write(directory, chosen.changes, keys, chosen.per_commit))
        written = 0
        if chosen.spark:
            from update_process.replay.spark.session import session

            with session(master) as spark:
                written = with_spark(backlog, spark, directory, figures, chosen.rounds)
        else:
            for _ in range(chosen.rounds + 1):
                net = figures.measure("net_local", backlog.fold)
                written = backlog.apply_and_roll_back(net, figures)
        figures.measure("one_by_one", backlog.one_by_one)
        paths = [backlog.pair.primary.path]
        figures.measure("replay_local", lambda: replay(backlog.others[0], paths, last_seqno=backlog.last))
        first = read(backlog.pair.secondary.region("main").path)
        for instance in backlog.others[: 2 if chosen.spark else 1]:
            same(first, read(instance.region("main").path), "one by one", instance.name)
    middle = figures.middle()
    return report.line(
        "replay",
        unit=report.IN_THE_NAMES,
        figure=middle,
        settings={
            "per_commit": chosen.per_commit,
            "master": master if chosen.spark else None,
            "rounds": chosen.rounds,
        },
        facts=facts,
        changes=chosen.changes,
        keys=keys,
        cores_used=chosen.cores,
        **ratios(middle, chosen.changes, written),
    )


def ratios(middle: dict[str, dict[str, float]], changes: int, written: int) -> dict[str, float]:
    """What the goals speak of, warm; by CPU time, too, where only one process works."""
    made = {
        "apply_rows_per_s": int(written / max(middle["apply"]["warm_s"], 0.01)),
        "apply_rows_per_cpu_s": int(written / max(middle["apply"]["warm_cpu_s"], 0.01)),
        "local_to_one_by_one": round(middle["replay_local"]["warm_s"] / middle["one_by_one"]["warm_s"], 2),
    }
    if "net_spark" in middle:
        made |= {
            "raw_changes_per_s": int(changes / max(middle["read_raw"]["warm_s"], 0.01)),
            "raw_changes_per_cpu_s": int(changes / max(middle["read_raw"]["warm_cpu_s"], 0.01)),
            "net_spark_to_one_by_one": round(middle["net_spark"]["warm_s"] / middle["one_by_one"]["warm_s"], 2),
            "net_spark_to_net_local": round(middle["net_spark"]["warm_s"] / middle["net_local"]["warm_s"], 2),
        }
    return made


def spark_s(changes: int, cores: int, line: dict[str, Any]) -> float:
    """A replay by Spark on so many cores, computed from a measured run: what its net change takes in all cores' time is
    divided by the cores, what this process does besides (verify, copy, apply) is not, and a new session is cold."""
    figure, share = line["figure"], changes / line["changes"]
    net, whole = figure["net_spark"], figure["replay_spark"]
    here = max(0.0, whole["warm_cpu_s"] - net["warm_cpu_s"])
    start = max(0.0, net["cold_cpu_s"] - net["warm_cpu_s"])
    return float((start + share * net["warm_cpu_s"]) / cores + share * here)


def table(chosen: argparse.Namespace) -> None:
    """Run every size with one and two cores, and draw the table: CPU seconds, and for Spark on paper seconds."""
    lines = []
    for millions in chosen.table:
        for cores in (1, 2):
            words = [sys.executable, "-m", "tests.benchmarks.bench_replay", "--changes", str(int(millions * MILLION))]
            words += ["--cores", str(cores), "--rounds", str(chosen.rounds), "--directory", chosen.directory]
            done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            print(done.stdout.strip(), flush=True)
            lines.append(json.loads(done.stdout))
    print("\n| changes | cores | one by one | replay, local | net by Spark, warm | replay by Spark, warm |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        figure = line["figure"]
        cells = [f"{figure[n]['warm_s']:.1f} s" for n in ("one_by_one", "replay_local", "net_spark", "replay_spark")]
        print(f"| {line['changes'] / MILLION:g} M | {line['cores_used']} | {' | '.join(cells)} |")
    largest = lines[-1]
    for millions in chosen.table:
        for cores in PAPER_CORES:
            paper = spark_s(int(millions * MILLION), cores, largest)
            print(f"| {millions:g} M | {cores}, on paper | | | | {paper:.1f} s, cold |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=5 * MILLION)
    parser.add_argument("--keys", type=int, default=0, help="rows that are changed [a tenth of the changes]")
    parser.add_argument("--per-commit", type=int, default=100)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--master", help="a Spark master [local[CORES]]")
    parser.add_argument("--rounds", type=int, default=3, help="warm rounds of what is repeated")
    parser.add_argument("--no-spark", dest="spark", action="store_false")
    parser.add_argument("--directory", default="/dev/shm", help="for everything; 5 million changes take 2.5 GiB")
    parser.add_argument("--table", type=float, nargs="+", metavar="MILLIONS")
    chosen = parser.parse_args()
    if chosen.table:
        table(chosen)
    else:
        print(json.dumps(measure(chosen)), flush=True)


if __name__ == "__main__":
    main()
