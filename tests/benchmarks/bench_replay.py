"""What a replay costs against the Update Process: the same backlog, one by one and as its net change.

    python -m tests.benchmarks.bench_replay [--changes 200000] [--keys 20000] [--spark]

Guarantees: every way starts from a fresh secondary of the same primary, and is compared with it afterwards.
Refuses to know: limits; it prints, and nobody fails.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replicate.compare import compare
from replicate.instance import Instance
from replicate.seed import seed
from tests.harness.pair import Pair, work_all
from update_process.replay.command import replay, spark_engine
from update_process.replay.run import Summary

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


def one_by_one(pair: Pair) -> None:
    """The Update Process's own way, from a receive pool that is filled again and again."""
    with pair.receive_pool(64 * 1024 * 1024) as pool, pair.applier(pool) as applier:
        while pair.deliver(pool, record_bytes=1024 * 1024) < pair.last_seqno():
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


def measure(name: str, changes: int, way: Callable[[], Any]) -> None:
    """Print one line."""
    began_s = time.perf_counter()
    done = way()
    took_s = time.perf_counter() - began_s
    more = f"  {done.pieces} pieces, {done.keys} rows touched" if isinstance(done, Summary) else ""
    print(f"{name:<12} {took_s:8.2f} s  {changes / took_s:10.0f} changes/s{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--spark", action="store_true", help="with Spark, too (its session's start is counted apart)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="replicate-bench-", dir="/dev/shm") as directory:
        os.environ["REPLICATE_SHM_DIR"] = f"{directory}/shm"
        with fresh(Path(directory), chosen.changes, chosen.keys) as (pair, (local, spark)):
            last, paths = pair.last_seqno(), [pair.primary.path]
            measure("one by one", chosen.changes, lambda: one_by_one(pair))
            measure("local", chosen.changes, lambda: replay(local, paths, last_seqno=last))
            proven = [pair.secondary, local]
            if chosen.spark:
                began_s = time.perf_counter()
                with spark_engine(spark, paths, master="local[2]") as engine:
                    print(f"Spark's session: {time.perf_counter() - began_s:.1f} s")
                    measure("spark", chosen.changes, lambda: replay(spark, paths, last_seqno=last, engine=engine))
                proven.append(spark)
            for instance in proven:
                assert compare(pair.primary, instance, timeout_s=60).equal, instance.name


if __name__ == "__main__":
    main()
