"""What a replay costs against the Update Process: the same backlog, one by one and as its net change.

The net change is measured alone, too: found by Spark in an archive, and folded in this process.

    python -m tests.benchmarks.bench_replay [--changes 200000] [--keys 20000] [--spark [--rounds 2]]

Guarantees: every way starts from a fresh secondary of the same primary; all of them are compared afterwards.
Refuses to know: limits; it prints, and nobody fails.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.record import FrameBatch, decode_batch
from replicate.seed.direct import seed
from tests.harness.differential import read, same
from tests.harness.pair import Pair, work_all
from update_process.replay.archive import Archive
from update_process.replay.command import apply_session, no_collector, replay
from update_process.replay.journals import Journals
from update_process.replay.net import NetChange
from update_process.replay.run import Summary
from update_process.replay.source import NAME
from update_process.replay.spark_net import SparkEngine
from update_process.replay.spark_session import session

SCHEMA = "CREATE TABLE row (id INTEGER PRIMARY KEY, counter INTEGER, text TEXT)"
PER_COMMIT = 10


def write(pair: Pair, changes: int, keys: int) -> None:
    """Updates of random rows, ten to a transaction."""
    dice = random.Random(1)
    connection = pair.connect()
    for _ in range(changes // PER_COMMIT):
        for _ in range(PER_COMMIT):
            connection.execute("UPDATE row SET counter = counter + 1 WHERE id = ?", (dice.randrange(keys),))
        connection.commit()
    connection.close()


def one_by_one(pair: Pair, last: int) -> None:
    """The Update Process's own way, from a receive pool that is filled again and again."""
    with pair.receive_pool(64 * 1024 * 1024) as pool, pair.applier(pool) as applier:
        while pair.deliver(pool, record_bytes=1024 * 1024, upto=last) < last:
            work_all(applier)
        work_all(applier)


@contextmanager
def fresh(directory: Path, changes: int, keys: int) -> Iterator[tuple[Pair, list[Instance]]]:
    """A primary with a backlog, and three secondaries in front of it."""
    pair = Pair.create(directory, SCHEMA)
    network = pair.primary.content.network
    others = []
    for name in ("local", "spark"):
        others.append(Instance.create(directory / name, role="secondary", name=name, network=network))
        pair.primary.register_peer(name, "127.0.0.1", 7430)
    for instance in (pair.primary, pair.secondary, *others):
        (instance.path / "replicate.toml").write_text('[journal]\ndurability = "off"\ncap_bytes = 68719476736\n')
        instance.reload()
    with pair.connect() as connection:
        rows = ((number, 0, "x" * 80) for number in range(keys))
        connection.executemany("INSERT INTO row VALUES (?, ?, ?)", rows)
    connection.close()
    pair.seed()
    for other in others:
        seed(pair.primary, other)
        other.reload()
    write(pair, changes, keys)
    yield pair, others


def measure(name: str, count: int, way: Callable[[], Any]) -> float:
    """Print one line: time, CPU of this process and its children, rate. The time in seconds."""
    began_s, before = time.perf_counter(), _cpu_s()
    done = way()
    took_s = time.perf_counter() - began_s
    more = f"  {done.pieces} pieces, {done.keys} rows touched" if isinstance(done, Summary) else ""
    print(
        f"{name:<34} {took_s:8.2f} s  {_cpu_s() - before:8.2f} s CPU here  {count / took_s:10.0f} changes/s{more}",
        flush=True,
    )
    return took_s


def _cpu_s() -> float:
    """Of this process alone: the JVM is another one."""
    return time.process_time()


def net_by_fold(pair: Pair, first: int, last: int) -> int:
    """The net change as the local engine finds it, verification and decoding included; its rows."""
    journals = Journals([pair.primary.path], pair.primary.content.network)
    with apply_session(pair.secondary) as session, no_collector():
        tables = next(iter(session.rows.values())).definitions
        net = NetChange(lambda table_id: tables[table_id])
        for piece in journals.read(first, last):
            assert isinstance(piece, FrameBatch)
            net.fold(decode_batch(piece.data)[2::3])
    return net.key_count


def net_by_spark(spark: Any, journals: Journals, stage: Path, first: int, last: int) -> int:
    """The net change as Spark stages it; how many rows."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    net = SparkEngine(spark, journals, stage)(_nothing, first)
    net.until(last)
    return sum(1 for _ in net.rows())


def _nothing(table_id: int) -> Any:
    raise AssertionError(f"nobody asks for table {table_id}")


def by_spark(pair: Pair, local: Instance, other: Instance, changes: int, directory: Path, rounds: int) -> None:
    """What Spark does, in one session: the archive, raw reading, the net change alone, and a whole replay."""
    base, last = pair.last_seqno(local), pair.last_seqno()
    with session("local[2]") as spark:
        uri = (directory / "archive").as_uri()
        with pair.connect() as connection:
            connection.executemany("INSERT INTO row VALUES (?, 0, ?)", ((-n, "x" * 1000) for n in range(1, 1500)))
        connection.close()  # a segment of its own, so that what is before it is sealed
        measure("archive", changes, lambda: Archive(spark, uri).add(Chain(pair.primary.journal_directory)))
        raw = spark.read.format(NAME).option("path", str(pair.primary.journal_directory)).option("last", last)
        for _ in range(rounds):
            measure("reading raw segments", changes, lambda: raw.load().selectExpr("max(length(after))").collect())
        network = pair.primary.content.network
        journals = Journals([uri, pair.primary.path], network, stage=directory)
        for _ in range(rounds):
            measure(
                "net change: Spark, archive",
                changes,
                lambda: net_by_spark(spark, journals, directory / "s", base + 1, last),
            )
            measure("net change: in this process", changes, lambda: net_by_fold(pair, base + 1, last))
        names = [uri, pair.primary.path]
        measure(
            "replay: Spark, archive",
            changes,
            lambda: replay(other, names, last_seqno=last, spark=lambda: nullcontext(spark)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--spark", action="store_true", help="with Spark, too (its session's start is not counted)")
    parser.add_argument("--rounds", type=int, default=2, help="how often what can be repeated is")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replicate-bench-", dir="/dev/shm") as directory:
        os.environ["REPLICATE_SHM_DIR"] = f"{directory}/shm"
        with fresh(Path(directory), chosen.changes, chosen.keys) as (pair, (local, spark)):
            last, paths = pair.last_seqno(), [pair.primary.path]
            if chosen.spark:
                by_spark(pair, local, spark, chosen.changes, Path(directory), chosen.rounds)
            measure("one by one", chosen.changes, lambda: one_by_one(pair, last))
            measure("replay: in this process", chosen.changes, lambda: replay(local, paths, last_seqno=last))
            for instance in (local, *([spark] if chosen.spark else [])):
                one, other = read(pair.secondary.region("main").path), read(instance.region("main").path)
                same(one, other, pair.secondary.name, instance.name)


if __name__ == "__main__":
    main()
