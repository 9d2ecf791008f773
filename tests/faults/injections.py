"""Faults that are no kills, injected into a running town one by one; after each all converges and is judged.

    python -m tests.faults.injections [--seed N] [--seconds S] [--names NAME,…] [--short]

Each injection is a function in inject_*.py, registered with the numbers of the catalogue's faults that it injects. In
the long form each has a town of its own, in an order of the seed, again and again until the time is over.
Guarantees: an injection that could not be made is left out by name, or fails; it never counts.
Leaves to others: what the faults are.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from replicate.door.wait import wait_for_seqno
from replicate.instance.instance import Instance
from replicate.region.sqlite.bookkeeping import region_seqno
from replicate.region.sqlite.open import open_region
from tests.faults.bad_line import BadLine
from tests.faults.oracle import ZERO, read_told
from tests.faults.part import parser, run_part
from tests.faults.report import merge
from tests.faults.settling import count_told, settle
from tests.faults.small_disk import SmallDisk
from tests.faults.town import DAEMONS, Town
from tests.harness.machine_tools import can_trace
from tests.harness.waiting import wait_until

HEARTBEAT_S: Final = 0.4
DEAD_S: Final = 1.5
NOTICED_WITHIN_S: Final = DEAD_S + 2 * HEARTBEAT_S + 60.0
"""A dead peer is noticed within `dead_after_s` and two periods; the rest is a busy machine's."""
TRIES: Final = 5
PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
INJECTION_ZERO: Final = (*ZERO, "faults not survived", "noticed too late", "parts that failed")
LEAST: Final = ("injections", "acknowledged", "digests compared")


class GivenUpError(AssertionError):
    """A connection has ended that should have lived."""


@dataclass
class Place:
    """Where a fault is injected: a town that runs, and the line before its receiver."""

    town: Town
    line: BadLine
    dice: random.Random
    figures: Counter[str] = field(default_factory=Counter)
    small: SmallDisk | None = None
    """The file system of one site, where the injection wants that."""

    def begin(self) -> None:
        """Everything runs, and streams."""
        self.town.start_daemons()
        if not any(role.startswith("client-") for role in self.town.children):
            self.town.client(pause_s=0.005)
        self.town.wait_acknowledged(5)
        self.wait_streaming()

    def lines(self, role: str, event: str) -> list[dict[str, Any]]:
        """What a daemon has logged with that in its event."""
        return [line for line in self.town.log(role) if event in line["event"]]

    def ends(self, role: str) -> list[str]:
        """The errors with which a daemon's streams have ended."""
        errors = [str(line.get("error", "")) for line in self.lines(role, "connection closed")]
        return [error for error in errors if "is a second source" not in error]

    def seed_again(self) -> None:
        """The secondary's regions come from the primary, and it follows."""
        seeder = self.town.seeder()
        assert seeder.wait(120), "the seed does not end"
        assert seeder.status == 0, self.town.errors.read_text()[-2000:]
        self.town.reap()
        with self.recovered("seeded again"):
            self.town.start("update")

    @contextlib.contextmanager
    def noticed(self, kind: str, *roles: str, limit_s: float = NOTICED_WITHIN_S) -> Iterator[None]:
        """What is done in the block is noticed by each of these daemons: its connection ends. How long that takes."""
        before = {role: len(self.ends(role)) for role in roles}
        began_s = time.monotonic()
        yield
        for role in roles:
            try:
                wait_until(
                    lambda role=role: len(self.ends(role)) > before[role],  # type: ignore[misc]
                    timeout_s=limit_s + 20,
                    what=f"{role} notices: {kind}",
                )
            except AssertionError:
                self.figures["noticed too late"] += 1
                raise
            took_s = time.monotonic() - began_s
            name = f"noticed ms, most: {kind}"
            self.figures[name] = max(self.figures[name], int(1000 * took_s))
            self.figures["noticed too late"] += took_s > limit_s

    @contextlib.contextmanager
    def lives(self) -> Iterator[None]:
        """No connection is given up in the block. GivenUpError: one was, or the machine has stood still for longer than
        a silent peer is given; so the whole injection is tried again, and what is a fault of ours fails each time."""

        def ends() -> int:
            return len(self.ends("source")) + len(self.ends("receiver"))

        before = ends()
        try:
            yield
        except AssertionError as error:
            if ends() != before:
                raise GivenUpError(f"a connection was given up, and then: {error}") from error
            raise
        if ends() != before:
            raise GivenUpError("a connection was given up")

    @contextlib.contextmanager
    def recovered(self, kind: str) -> Iterator[None]:
        """What is done in the block ends the fault; how long until a commit of then is applied on the secondary."""
        began_s = time.monotonic()
        yield
        self.reach(self.goal())
        name = f"recovered ms, most: {kind}"
        self.figures[name] = max(self.figures[name], int(1000 * (time.monotonic() - began_s)))

    def goal(self) -> int:
        """The number of a commit that is made from now on."""
        self.town.wait_acknowledged(3)
        return self.town.last_told_seqno()

    def reach(self, seqno: int) -> int:
        """Wait until the secondary's databases hold that; the last that they hold then."""
        out = self.town.told / "position"
        secondary = self.town.secondary
        self.town.do(
            f"wait for {seqno}",
            lambda: out.write_text(str(wait_for_seqno(Instance.open(secondary), seqno, timeout_s=100))),
        )
        return int(out.read_text())

    def held(self) -> int:
        """The last transaction that is committed in the secondary's region, read without any lock of ours."""
        out, path = self.town.told / "held", self.town.secondary / "regions" / "main.db"

        def read() -> None:
            connection = open_region(path, readonly=True)
            out.write_text(str(region_seqno(connection)))
            connection.close(True)

        self.town.do("held", read)
        return int(out.read_text())

    def applied(self) -> int:
        """What the source says that its peer has applied; it writes that down once a second."""
        return int(self.town.facts("source").get("last_applied_seqno", 0))

    def wait_streaming(self, timeout_s: float = 120.0) -> None:
        wait_until(lambda: self.town.facts("source").get("state") == "sending", timeout_s=timeout_s, what="it streams")

    def pid(self, role: str) -> int:
        return self.town.children[role].pid

    def freeze(self, *roles: str) -> None:
        self.town.interrupt(signal.SIGSTOP, *roles)

    def thaw(self, *roles: str) -> None:
        self.town.interrupt(signal.SIGCONT, *roles)


Call = Callable[[Place], None]


@dataclass(frozen=True, slots=True)
class Injection:
    """`short`: it is in the short form, too. `needs`: strace, or as root memory-cgroup, tun, mount. `disk`: the site
    that has a small file system of its own, and of which kind."""

    call: Call
    faults: tuple[int, ...]
    short: bool
    needs: str
    disk: tuple[str, str] | None


INJECTIONS: Final[dict[str, Injection]] = {}


def injection(
    *faults: int, short: bool = False, needs: str = "", disk: tuple[str, str] | None = None
) -> Callable[[Call], Call]:
    """Registers a function under its name."""

    def register(call: Call) -> Call:
        INJECTIONS[call.__name__] = Injection(call, faults, short, needs, disk)
        return call

    return register


def hindrance(one: Injection) -> str:
    """Why this machine cannot make it; "" when it can."""
    if one.needs == "strace" and not can_trace():
        return "no strace"
    if one.needs and one.needs != "strace" and os.geteuid() != 0:
        return "not root"
    if one.needs == "memory-cgroup" and not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.W_OK):
        return "no memory cgroups"
    if one.needs == "tun" and not (os.path.exists("/dev/net/tun") and shutil.which("ip", path=PATH)):
        return "no TUN device, or no command ip"
    if one.disk is not None and one.disk[1] == "ext4" and not (
        os.path.exists("/dev/loop-control") and shutil.which("mkfs.ext4", path=PATH)
    ):  # fmt: skip
        return "no loop devices, or no mkfs.ext4"
    return ""


@contextlib.contextmanager
def make_place(
    seed: int, durability: str = "durable", *, dead_s: float = DEAD_S, disk: tuple[str, str] | None = None
) -> Iterator[Place]:
    """A town whose source connects through a bad line; nothing runs yet. `disk`: as of an Injection."""
    with (
        tempfile.TemporaryDirectory(prefix="replicate-injected-", ignore_cleanup_errors=True) as directory,
        SmallDisk.mounted(Path(directory), disk) as (small, sites),
    ):
        lines: list[BadLine] = []

        def through(port: int, errors: Path) -> int:
            lines.append(BadLine(port, errors, seed))
            return lines[0].port

        town = Town(Path(directory), durability, seed=seed, heartbeat_s=HEARTBEAT_S, dead_s=dead_s, through=through,
                    **sites)  # fmt: skip
        try:
            yield Place(town, lines[0], random.Random(seed), small=small)
        finally:
            for role in list(town.children):
                town.interrupt(signal.SIGCONT, role)
            town.close()
            lines[0].close()


def inject(name: str, place: Place) -> None:
    """One of them, and the judgement; AssertionError when the fault is not survived."""
    one = INJECTIONS[name]
    place.begin()
    for left in reversed(range(TRIES)):
        try:
            one.call(place)
            break
        except GivenUpError:
            if not left:
                raise
            place.wait_streaming()
    for role in DAEMONS:
        place.thaw(role)
    place.line.tell("heal")
    strange: list[str] = []
    settle(place.town, place.figures, strange=strange)
    if strange:
        print(f"{name}: {strange}\n{place.town.errors.read_text()[-3000:]}", flush=True)
    for fault in one.faults:
        place.figures[f"fault {fault}"] += 1


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    names = options.names.split(",") if options.names else [
        name for name, one in INJECTIONS.items() if one.short or not options.short
    ]  # fmt: skip
    for name in names:
        if reason := hindrance(INJECTIONS[name]):
            print(f"left out: {name} ({reason})", flush=True)
    names = [name for name in names if not hindrance(INJECTIONS[name])]
    figures["injections there are"] += len(names)
    dice = random.Random(options.seed)
    number = 0
    while True:
        for name in dice.sample(names, len(names)):
            number += 1
            figures["injections made at least once"] += number <= len(names)
            make_and_inject(name, options.seed * 10_007 + number, figures)
            if time.monotonic() > options.deadline_s:
                return
        if math.isinf(options.deadline_s):
            return


def make_and_inject(name: str, seed: int, figures: Counter[str]) -> None:
    """One injection in a town of its own; its figures are added, whatever comes."""
    began_s = time.monotonic()
    with make_place(seed, disk=INJECTIONS[name].disk) as place:
        try:
            inject(name, place)
            figures["injections"] += 1
            print(f"{name:<40} well  {time.monotonic() - began_s:5.1f} s", flush=True)
        except Exception:
            figures["faults not survived"] += 1
            text = place.town.errors.read_text()[-3000:] if place.town.errors.exists() else ""
            print(f"{name:<40} NOT SURVIVED (seed {seed})\n{traceback.format_exc()}\n{text}", flush=True)
        finally:
            count_told(read_told(place.town.told), place.figures)
            merge(figures, place.figures)


def load() -> None:
    """Have all of them registered."""
    from tests.faults import (  # noqa: F401
        inject_clock,
        inject_data,
        inject_disk,
        inject_full,
        inject_network,
        inject_process,
    )  # fmt: skip


def main() -> int:
    from tests.faults import injections

    injections.load()
    made = parser("tests.faults.injections")
    made.add_argument("--names", default="")
    made.add_argument("--short", action="store_true")
    return run_part(made.parse_args(), injections.work, INJECTION_ZERO, least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
