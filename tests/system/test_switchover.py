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
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.system.processes import is_ending
from tests.harness.both_sites import KEPT, Both, kept_once, numbers_of
from tests.harness.fork_server import popen
from tests.harness.street import QUICK, state_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

WRITERS_WAIT_S = 2.0
"""At most, on one machine, with no backlog: once at least of several changes, on a machine that is busy otherwise."""


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=QUICK, schema=KEPT).build()
    try:
        assert isinstance(made, Both)
        yield made.start()
    finally:
        made.close()


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
    again = both.on(both.primary, "promote").stdout
    assert "secondary gave it the role in a switchover, and nothing is missing; nothing was changed" in again
    before = [len(numbers_of(both, f"rover {number}")) for number in range(2)]
    for number in range(2):
        wait_until(lambda number=number: len(numbers_of(both, f"rover {number}")) > before[number], what="they go on")
    committed = both.ended(rovers)
    both.equal()
    kept_once(both, committed)
    told = both.on(both.primary, "statistics", both.primary, both.secondary).stdout
    for name, roles in (("primary", ("secondary", "primary")), ("secondary", ("primary", "secondary"))):
        for role, was in (roles, roles[::-1]):
            assert f"role changed: {name} is {role}, it was {was}" in told, "by daemons that were not started again"
    assert "0 not acknowledged" in both.on(both.secondary, "source", "stop").stdout, "nothing waits for the primary"


def test_back_and_forth_under_load_with_kills(both: Both) -> None:
    dice, waited_s = random.Random(7), []
    rovers = [both.rover(number) for number in range(2)]
    for turn in range(10):
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
        waited_s.append(both.switch("--to", both.secondary.name)["waited_s"])
        both.exchange()
    assert min(waited_s) < WRITERS_WAIT_S, waited_s
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
        words += ["--listen", both.listens_at(instance)]
    both.run("-i", instance, *words)
    both.environment.pop("REPLICATE_FAILPOINT", None)
    if usual and not failpoint:
        both.environment["REPLICATE_FAILPOINT"] = usual


GIVER = ["before_check", "closed", "proved", "given", "before_tell"]
TAKER = ["checked", "before_proof", "before_take", "taken"]
IN_CHANGE = ["role.region_turned", "role.pool_retired", "role.changed"]


@pytest.mark.turns(3)
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


@pytest.mark.turns(6)
@pytest.mark.parametrize("victim", ["the other site", "the command"])
@pytest.mark.parametrize(
    ("side", "failpoint"), [*(("giver", name) for name in GIVER), *(("taker", name) for name in TAKER)]
)
def test_killed_while_the_other_stands_at_a_step_the_command_given_again_finishes(
    both: Both, side: str, failpoint: str, victim: str
) -> None:
    """One side stands still there; the whole other site is lost meanwhile, or the command is killed."""
    giver, taker = both.primary, both.secondary
    instance, name = (giver, "source-secondary") if side == "giver" else (taker, "receiver")
    both.on(instance, name.partition("-")[0], "stop")
    again(both, instance, name, f"handover.{failpoint}:1:stop")
    wait_until(lambda: both.daemon(giver, "source-secondary")["facts"].get("state") == "sending", what="it streams")
    rovers = [both.rover(0)]
    pid = both.pid(instance, name)
    words = [sys.executable, "-m", "replicate.cli.main", "-i", str(giver), "switchover", "--to", "secondary"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    begun: list[subprocess.Popen[Any]] = []

    def stands() -> bool:
        """It may not come so far in the time that it has: then it is told to again."""
        if not begun or begun[-1].poll() is not None:
            begun.append(popen([*words, "--timeout", "20"], env=both.environment, **quiet))
        return state_of(pid) == "T"

    wait_until(stands, what="it stands there")
    if victim == "the command":
        begun[-1].kill()
    else:
        both.host_is_lost(taker if side == "giver" else giver)
    os.kill(pid, signal.SIGCONT)
    begun[-1].wait(120)
    assert [both.role(giver), both.role(taker)] != ["primary", "primary"]
    both.all_start()

    def finished() -> bool:
        done = both.process("-i", str(giver), "switchover", "--to", "secondary", "--timeout", "20")
        assert done.returncode in (0, 1, 69, 75), done.stdout + done.stderr
        return done.returncode == 0

    wait_until(finished, what="the same command finishes", timeout_s=120)
    assert [both.role(giver), both.role(taker)] == ["secondary", "primary"]
    both.exchange()
    committed = both.ended(rovers)
    both.equal()
    kept_once(both, committed)
