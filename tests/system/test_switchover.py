"""A switchover with real processes: from either site, under load, back and forth, and each side killed at each step.

Guarantees: writers hold connections over the change, go on at the new primary, and everything that was committed is
there afterwards, once, on both sites.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.system.processes import is_ending
from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street, assert_same_databases
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

SETTINGS = QUICK

ROVER = """
import sys, time
import replicate
from replicate.dbapi import OperationalError
names, writer, committed, told = sys.argv[1:3], sys.argv[3], 0, 0
place, connection = names[0], None
print("ready", flush=True)
while True:
    try:
        connection = connection or replicate.connect(place, timeout=60)
        with connection:
            connection.execute("INSERT INTO audit VALUES (?, ?)", (f"rover {writer}", committed + 1))
        committed += 1
        print(committed, flush=True)
        time.sleep(0.002)
    except OperationalError as error:
        if "takes them again" in str(error):
            continue  # the site that was to give its role was killed, or has kept it
        if "NOT_PRIMARY" not in str(error):
            raise
        told += 1
        connection.close()
        connection, before = None, place
        place = names[1 - names.index(place)]
        if f"Write on {place.rpartition('/')[2]}" not in str(error):
            time.sleep(0.02)  # it is not secondary any more, or not primary yet
"""
"""A writer that goes where the error sends it, and says each number that it has committed."""


class Both(Street):
    """A street whose two sites can each be primary: all six daemons run."""

    def start(self) -> Both:
        super().start()
        self.first_listen = f"127.0.0.1:{self.port()}"
        self.listen = f"127.0.0.1:{free_port()}"
        self.on(self.secondary, "peer", "add", "primary", self.listen)
        self.on(self.primary, "receiver", "start", "--listen", self.listen)
        self.on(self.secondary, "source", "start", "--passive", "--peer", "primary")
        return self

    def exchange(self) -> None:
        """Who was primary is secondary from here on."""
        self.primary, self.secondary = self.secondary, self.primary

    def role(self, instance: Path) -> str:
        return str(json.loads((instance / "instance.json").read_text())["role"])

    def path_of(self, instance: Path) -> Path:
        return self.database if instance.name == "primary" else instance / "regions" / "main.db"

    def equal(self) -> None:
        """All daemons follow: what is written on one site arrives on the other, and both are the same."""
        last = self.write("INSERT INTO audit VALUES ('proof', 1)")
        self.on(self.secondary, "wait", "--seqno", str(last), "--timeout", "120")
        self.on(self.secondary, "compare", "--with", self.primary)
        assert_same_databases(self.path_of(self.primary), self.path_of(self.secondary))

    def rover(self, number: int) -> subprocess.Popen[str]:
        process = self.python(ROVER, str(self.primary), str(self.secondary), str(number))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def ended(self, rovers: list[subprocess.Popen[str]]) -> dict[str, int]:
        """End them; how much each has committed, by its own word."""
        found = {}
        for number, process in enumerate(rovers):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            process.send_signal(signal.SIGKILL)
            output, _ = process.communicate()
            words = output.split("\n")
            found[f"rover {number}"] = int(words[-2]) if len(words) > 1 and words[-2] else 0
        return found

    def switch(self, *arguments: str, on: Path | None = None) -> dict[str, object]:
        said: dict[str, object] = json.loads(self.on(on or self.primary, "--json", "switchover", *arguments).stdout)
        return said


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=SETTINGS).build()
    try:
        assert isinstance(made, Both)
        yield made.start()
    finally:
        made.close()


def numbers_of(both: Both, name: str) -> list[int]:
    """What a rover has written, as the primary of now has it."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "rows = connection.execute('SELECT at FROM audit WHERE what = ? ORDER BY at', (sys.argv[2],))\n"
        "print(','.join(str(one) for one, in rows))"
    )
    process = both.python(program, str(both.path_of(both.primary)), name)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return [int(one) for one in output.strip().split(",") if one]


def kept_once(both: Both, committed: dict[str, int]) -> None:
    """What the rovers say that they have committed is there, once each, in one row without a gap."""
    for name, count in committed.items():
        numbers = numbers_of(both, name)
        assert numbers == list(range(1, len(numbers) + 1)), name
        assert len(numbers) in (count, count + 1), "the last one may have been killed before it could say so"


def test_from_either_site_with_writers_that_follow(both: Both) -> None:
    rovers = [both.rover(number) for number in range(2)]
    wait_until(lambda: not problems(both), what="both sites are ready")
    said = both.switch()
    assert (said["primary"], said["secondary"], said["problems"]) == ("secondary", "primary", [])
    assert said["chains"]
    both.exchange()
    wait_until(lambda: not problems(both), what="the stream runs the other way")
    told = both.on(both.secondary, "switchover").stdout  # the one that is secondary asks for it
    assert told.startswith("primary is primary, after transaction")
    both.exchange()
    wait_until(lambda: not problems(both), what="the stream runs as at first")
    assert both.on(both.primary, "switchover", "--to", "primary").stdout == "primary is primary already\n"
    assert both.switch("--to", "primary", on=both.secondary)["primary"] == "primary"  # given again, nothing happens
    before = [len(numbers_of(both, f"rover {number}")) for number in range(2)]
    for number in range(2):
        wait_until(lambda number=number: len(numbers_of(both, f"rover {number}")) > before[number], what="they go on")
    committed = both.ended(rovers)
    both.equal()
    kept_once(both, committed)


def test_back_and_forth_under_load_with_kills(both: Both) -> None:
    dice = random.Random(7)
    rovers = [both.rover(number) for number in range(2)]
    for turn in range(6):
        victim = dice.choice(["source", "receiver", "update"]) if turn % 2 else ""
        if victim:
            instance, name = {
                "source": (both.primary, f"source-{both.secondary.name}"),
                "receiver": (both.secondary, "receiver"),
                "update": (both.secondary, "update"),
            }[victim]
            both.kill(instance, name)
            again(both, instance, name)
        wait_until(lambda: not problems(both), what="both sites are ready again")
        both.switch("--to", both.secondary.name)
        both.exchange()
    committed = both.ended(rovers)
    both.equal()
    kept_once(both, committed)


def problems(both: Both) -> list[str]:
    done = both.on(both.primary, "--json", "switchover", "--dry-run", check=False)
    found = json.loads(done.stdout) if done.stdout else {"what": done.stderr}
    return list(found["problems"]) if "problems" in found else [found["what"]]


def again(both: Both, instance: Path, name: str, failpoint: str = "") -> None:
    """Start a daemon as it ran; one that died at a failpoint without it."""
    usual = both.environment.pop("REPLICATE_FAILPOINT", None)
    if failpoint:
        both.environment["REPLICATE_FAILPOINT"] = failpoint
    kind, _, peer = name.partition("-")
    words = [kind, "start", *(["--peer", peer] if peer else [])]
    if kind == "receiver":
        words += ["--listen", both.listen if instance.name == "primary" else both.first_listen]
    both.run("-i", instance, *words)
    both.environment.pop("REPLICATE_FAILPOINT", None)
    if usual and not failpoint:
        both.environment["REPLICATE_FAILPOINT"] = usual


GIVER = ["before_check", "closed", "proved", "given", "before_tell"]
TAKER = ["checked", "before_proof", "before_take", "taken"]
IN_CHANGE = ["role.region_turned", "role.pool_retired", "role.changed"]


@pytest.mark.parametrize(
    ("side", "failpoint"),
    [
        *(("giver", f"handover.{name}") for name in GIVER),
        *(("giver", name) for name in IN_CHANGE),
        *(("taker", f"handover.{name}") for name in TAKER),
        *(("taker", name) for name in IN_CHANGE),
    ],
)
def test_killed_at_a_step_the_command_given_again_finishes(both: Both, side: str, failpoint: str) -> None:
    giver, taker = both.primary, both.secondary
    instance, name = (giver, "source-secondary") if side == "giver" else (taker, "receiver")
    both.on(instance, name.partition("-")[0], "stop")
    again(both, instance, name, f"{failpoint}:1:kill")
    wait_until(lambda: both.daemon(giver, "source-secondary")["facts"].get("state") == "sending", what="it streams")
    rovers = [both.rover(0)]
    pid = both.pid(instance, name)

    def is_killed() -> bool:
        """It may not come so far in the time that it has: then it is told to again."""
        done = both.process("-i", str(giver), "switchover", "--to", "secondary", "--timeout", "6")
        assert done.returncode in (0, 69, 75), done.stdout + done.stderr
        return is_ending(pid)

    wait_until(is_killed, what="it is killed there")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="it is gone")
    assert [both.role(giver), both.role(taker)] != ["primary", "primary"]
    again(both, instance, name)

    def finished() -> bool:
        one = both.process("-i", str(giver), "switchover", "--to", "secondary", "--timeout", "20")
        return one.returncode == 0

    wait_until(finished, what="the same command finishes")
    assert [both.role(giver), both.role(taker)] == ["secondary", "primary"]
    both.exchange()
    committed = both.ended(rovers)
    both.equal()
    kept_once(both, committed)
