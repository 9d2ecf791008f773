"""Faults of disks that hang, fill up, or lie, and of what stands on them.

Guarantees: each puts back what it has changed. Leaves to others: how it is judged afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.faults.injections import DEAD_S, Place, injection
from tests.harness.waiting import wait_until

PADDING_BYTES: Final = 16_384


@injection(32, short=True, needs="strace")
def a_sync_that_hangs(place: Place) -> None:
    """Every sync of a daemon hangs for longer than a silent peer is given: heartbeats are answered all the same.

    Nothing waits for the source's (of how far its peer is), so the stream goes on; what waits for the Update Process's
    is alarmed about as lag, in seconds, which is all that there is: nobody calls a sync that hangs by its name."""
    town = place.town
    with place.lives():
        for role in ("source", "update"):
            with _hanging_syncs(place, role) as delayed:
                if role == "source":
                    place.reach(place.goal())
                else:
                    wait_until(lambda: (town.facts("source").get("lag_s") or 0.0) >= DEAD_S, what="the lag is told")
                wait_until(delayed, timeout_s=120, what=f"a sync of {role} that hangs")
            with place.recovered("hanging sync"):
                pass
            assert town.children[role].status is None


@contextlib.contextmanager
def _hanging_syncs(place: Place, role: str) -> Iterator[Callable[[], bool]]:
    """Each sync of a daemon hangs in the block. Given: what tells whether one has hung for all of its time."""
    said = place.town.told / f"hanging-{role}.txt"
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(said), "-p", str(place.pid(role)),
         "-e", "trace=fdatasync,fsync", "-e", f"inject=fdatasync,fsync:delay_enter={int(1.3e6 * DEAD_S)}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        traced = Path(f"/proc/{place.pid(role)}/status")
        wait_until(lambda: "TracerPid:\t0" not in traced.read_text(), timeout_s=120, what="it is traced")
        yield lambda: "(DELAYED)" in said.read_text()
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(120)


@injection(46, short=True)
def a_log_that_cannot_grow(place: Place) -> None:
    """As a full log disk: replication goes on, lines are missing, and how many is said once there is room again.

    The limit holds for every file of a process. So the log is first made longer than all that it replaces meanwhile."""
    sizes: dict[Path, int] = {}
    said: dict[str, int] = {}
    for role in ("source", "receiver"):
        instance, name = place.town.side(role)
        path = instance / "log" / f"{name}.log"
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps({"event": "padding", "level": "info", "x": "x" * PADDING_BYTES}).encode() + b"\n")
        sizes[path] = path.stat().st_size
        resource.prlimit(place.pid(role), resource.RLIMIT_FSIZE, (sizes[path], resource.RLIM_INFINITY))
        sizes[path] = path.stat().st_size  # what came in between is there
        said[role] = len(place.lines(role, "log lines lost"))
    for _ in range(3):
        made = place.line.tell("cut", False)
        wait_until(lambda made=made: place.line.tell("lines") > made, timeout_s=120, what="a new connection")  # type: ignore[misc]
    with place.recovered("log full"):
        pass
    assert {path: path.stat().st_size for path in sizes} == sizes, "a log has grown"
    for role in ("source", "receiver"):
        resource.prlimit(place.pid(role), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    place.line.tell("cut", False)  # something to log
    for role in ("source", "receiver"):
        wait_until(
            lambda role=role: len(place.lines(role, "log lines lost")) > said[role],  # type: ignore[misc]
            timeout_s=120,
            what=f"{role} says how many lines are lost",
        )
        assert place.lines(role, "log lines lost")[-1]["lost_lines"] >= 3


@injection(47)
def checkpoints_while_copies_are_made(place: Place) -> None:
    """Another client checkpoints both regions without end while the secondary is seeded again."""
    town = place.town
    paths = [
        str(town.directory / "app.db"),
        str(town.directory / "side.db"),
        *map(str, (town.secondary / "regions").glob("*.db")),
    ]
    program = (
        "import sqlite3, sys, time\n"
        "end = time.monotonic() + float(sys.argv[1])\n"
        "while time.monotonic() < end:\n"
        "    for path in sys.argv[2:]:\n"
        "        c = sqlite3.connect(path, timeout=0.2)\n"
        "        try:\n"
        "            c.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\n"
        "        except sqlite3.OperationalError:\n"
        "            pass\n"
        "        c.close()\n"
    )
    checkpointer = subprocess.Popen([sys.executable, "-c", program, "3", *paths])
    try:
        town.kill("update")
        place.seed_again()
    finally:
        checkpointer.kill()
        checkpointer.wait()


@injection(49)
def a_page_of_the_secondarys_region_that_is_damaged(place: Place) -> None:
    """Its first page, or our own table: the Update Process stops by name; a seed brings it back."""
    town = place.town
    town.kill("update")
    region = town.secondary / "regions" / "main.db"
    connection = sqlite3.connect(region)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    page_bytes, root = (
        connection.execute("PRAGMA page_size").fetchone()[0],
        connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name LIKE '\\_replicate\\_%scr%' ESCAPE '\\' AND type = 'table'"
        ).fetchone(),
    )
    connection.close()
    assert root is not None, "there is no table of checkpoint records"
    page = place.dice.choice([1, root[0]])
    with open(region, "r+b") as file:
        file.seek((page - 1) * page_bytes + (16 if page == 1 else 0))
        file.write(os.urandom(200))
    child = town.start("update")
    assert child.wait(120), "it goes on with a damaged page"
    assert child.status in (65, 74, 78), f"exit code {child.status}"
    town.reap()
    town.strange.clear()
    place.seed_again()
