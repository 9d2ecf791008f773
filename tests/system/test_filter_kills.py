"""Whatever is killed, a filter on either side makes of each transaction what it makes of it, once.

Real processes: writers, both servers, the Update Process and both filters, each of them killed at random moments.
"""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from os import kill
from pathlib import Path

import pytest

from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SETTINGS = f"""{QUICK}
filter = "tests.harness.filters:numbered"
[update]
batch_transactions = 50
"""
SOURCE_SETTINGS = QUICK.replace("[source]", '[source]\nfilter = "tests.harness.filters:loud_and_without_entries"')

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, balance INTEGER);
CREATE TABLE entry (number INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE audit (what TEXT, at INTEGER);
"""

WRITER = """
import random, sys, time, replicate
dice = random.Random(int(sys.argv[2]))
connection = replicate.connect(sys.argv[1], timeout=60)
print("ready", flush=True)
while True:
    with connection:
        kind = dice.random()
        if kind < 0.5:
            connection.execute("INSERT INTO account (owner, balance) VALUES (?, 0)", (f"owner {dice.random()}",))
        elif kind < 0.7:
            connection.execute("UPDATE account SET balance = balance + 1 WHERE id % 7 = ?", (dice.randrange(7),))
        elif kind < 0.8:
            connection.execute("DELETE FROM account WHERE id % 13 = ?", (dice.randrange(13),))
        elif kind < 0.99:
            connection.execute("INSERT INTO entry (data) VALUES (zeroblob(?))", (dice.randrange(3000),))
        else:  # larger than a frame
            many = [(f"many {n} " + "x" * 3000,) for n in range(400)]
            connection.executemany("INSERT INTO account (owner, balance) VALUES (?, 9)", many)
    time.sleep(0.004)
"""

KILLED = ("source", "receiver", "update", "filter of the source", "filter of the receiver", "everything")


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=SETTINGS, schema=SCHEMA)
    try:
        made.build()
        (made.primary / "replicate.toml").write_text(SOURCE_SETTINGS)
        yield made.start()
    finally:
        made.close()


def filter_of(street: Street, instance: Path, name: str) -> int | None:
    """The child of a server that filters."""
    with suppress(OSError):
        for task in Path(f"/proc/{street.pid(instance, name)}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                return pid
    return None


def strike(street: Street, what: str) -> None:
    """Kill that, and start what does not come back by itself."""
    if what.startswith("filter of"):
        instance, name = (
            (street.primary, "source-secondary") if what.endswith("source") else (street.secondary, "receiver")
        )
        pid = filter_of(street, instance, name)
        if pid is not None:
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        return
    listen = f"127.0.0.1:{street.port()}"
    is_all = what == "everything"
    if is_all or what == "source":
        street.kill(street.primary, "source-secondary")
    if is_all or what == "receiver":
        street.kill(street.secondary, "receiver")
        street.start_receiver(listen)
    if is_all or what == "update":
        street.kill(street.secondary, "update")
        street.start_update()
    if is_all or what == "source":
        street.start_source()


def rows(path: Path) -> list[tuple[int, str, int]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT id, owner, balance FROM account ORDER BY id").fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_both_filters_and_both_servers_killed_at_any_moment(street: Street, seed: int) -> None:
    dice = random.Random(seed)
    writers = [street.python(WRITER, str(street.primary), str(seed * 10 + number)) for number in range(2)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    struck = [*KILLED, *dice.choices(KILLED, k=4)]
    dice.shuffle(struck)
    seen = 0
    for what in struck:
        strike(street, what)
        # So that each of them strikes a stream that runs, and not the start of the one before it.
        wait_until(
            lambda seen=seen: street.last_seqno(street.secondary) > seen + 20,  # type: ignore[misc]
            what=f"the stream goes on after {what}",
        )
        seen = street.last_seqno(street.secondary)
    for writer in writers:
        writer.kill()
        writer.wait()
    last = street.write("INSERT INTO audit VALUES ('proof', 1)")
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "120")
    made = [(key, f"{owner.upper()}!", balance) for key, owner, balance in rows(street.database)]
    assert len(made) > 50
    assert rows(street.secondary / "regions" / "main.db") == made
    failures = [
        entry["event"] for entry in street.log(street.primary, "source-secondary") if "filter" in entry["event"]
    ]
    assert failures, "no filter was killed while it ran"
    assert not street.on(street.secondary, "journal", "verify").stderr
