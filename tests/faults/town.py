"""Two instances and all of their processes, forked from this one: a new daemon or client serves after milliseconds.

Guarantees: this process itself never opens an instance, so what it forks is clean; `close` leaves no process and no
shared memory; a process that ends otherwise than by our kill or its failpoint is noted in `strange`.
Leaves to others: which process is to die when (patrol_rounds.py).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import re
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from receiver_server.process import serve as serve_receiver
from replicate.admin.regions import add_region
from replicate.daemon.daemon import run_daemon
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import SERVING
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.system import failpoint
from replicate.transfer.seed.direct import seed
from replicate.transfer.seed.request import seed_over_connection
from source_server.process import serve as serve_source
from tests.faults.client import SCHEMA, SIDE_SCHEMA, Record, run
from tests.faults.shares import WHOLE, subscribe
from tests.harness import forking
from tests.harness.ports import free_port
from tests.harness.regions import make_database
from tests.harness.waiting import wait_until
from update_process.process import serve as serve_update

SETTINGS: Final = """
[journal]
durability = "{durability}"
pool_bytes = 1048576
segment_bytes = 1048576
cap_bytes = 2097152
reserve_bytes = 1048576
[source]
heartbeat_period_s = {heartbeat_s}
dead_after_s = {dead_s}
hard_tries = 1000
hard_period_s = 0.05
soft_period_s = 0.2
connect_timeout_s = 2.0
[receiver]
pool_bytes = 4194304
heartbeat_period_s = {heartbeat_s}
dead_after_s = {dead_s}
listen = "127.0.0.1:{port}"
"""
DAEMONS: Final = ("source", "receiver", "update")
SHM: Final = "REPLICATE_FAULTS_SHM"
"""Where the long campaign has shared memory made, so that nothing of it is left behind."""


@dataclass
class Child:
    """One forked process."""

    role: str
    pid: int
    status: int | None = None
    """As of waitpid; None while it lives."""

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if not self.poll():
            os.kill(self.pid, signal.SIGKILL)
            self.wait(120)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within that time."""
        deadline = time.monotonic() + timeout_s
        while not self.poll():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def fork(
    role: str,
    call: Callable[[], Any],
    errors: Path,
    *,
    arm: str = "",
    seed: object = 0,
    clock: mmap.mmap | None = None,
) -> Child:
    """Run `call` in a child; what it raises goes into the file `errors`, with exit code 70 (ours: the error's own).

    `seed`: of its `random`, which the product's waits between two tries take. `clock`: see Town."""

    def live() -> int:
        try:
            random.seed(f"{seed} {role}")
            quiet = os.open(errors.with_name("output.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            if clock is not None:
                _bend_clock(clock)
            if arm:
                failpoint.arm(arm)
            call()
        except BaseException as error:
            with contextlib.suppress(BaseException), open(errors, "a", encoding="utf-8") as file:
                file.write(f"== {role} (armed: {arm or 'no'})\n{traceback.format_exc()}\n")
            return getattr(error, "own_exit_code", error.exit_code) if isinstance(error, ReplicateError) else 70
        return 0

    made: list[Child] = []
    forking.fork(live, lambda pid: made.append(Child(role, pid)))
    return made[0]


def _bend_clock(offset: mmap.mmap) -> None:
    """Have Python's wall clock differ from the machine's by what stands in `offset`, now and whenever that changes."""
    real_ns = time.time_ns

    def bent_ns() -> int:
        return max(0, real_ns() + int.from_bytes(offset[:8], "little", signed=True))

    time.time_ns = bent_ns
    time.time = lambda: bent_ns() / 1e9


class Town:
    """A primary and a secondary below `directory`; what clients write down goes to `told`."""

    def __init__(
        self,
        directory: Path,
        durability: str,
        *,
        told: Path | None = None,
        primary: Path | None = None,
        secondary: Path | None = None,
        seed: int = 0,
        heartbeat_s: float = 0.5,
        dead_s: float = 3.0,
        through: Callable[[int, Path], int] | None = None,
        share: str = WHOLE,
    ) -> None:
        """`told`, `primary`, `secondary`: elsewhere than below `directory`, on another file system. What clients write
        depends on `seed` alone. `through`: gets the receiver's port and the file for errors, gives the one that the
        source is to connect to. `share`: what the secondary gets (shares.py)."""
        self.directory = directory
        self.told = told or directory / "told"
        self.told.mkdir(parents=True, exist_ok=True)
        self.errors = self.told / "errors.txt"
        self.primary, self.secondary = primary or directory / "primary", secondary or directory / "secondary"
        self._memory = tempfile.TemporaryDirectory(dir=os.environ.get(SHM, "/dev/shm"), prefix="replicate-test-")
        self._before = os.environ.get("REPLICATE_SHM_DIR")
        os.environ["REPLICATE_SHM_DIR"] = self._memory.name
        self.children: dict[str, Child] = {}
        self.strange: list[str] = []
        self.clients = 0
        self._forked = 0
        self.port = free_port()
        self.seed = seed
        self._settings = SETTINGS.format(durability=durability, port=self.port, heartbeat_s=heartbeat_s, dead_s=dead_s)
        self._peer_port = through(self.port, self.errors) if through is not None else self.port
        self.share = share
        self.clock: mmap.mmap | None = None
        """Eight bytes: nanoseconds by which the wall clock of what is forked from now on is wrong."""
        self.do("build", self._build)

    def _build(self) -> None:
        primary = Instance.create(self.primary, role="primary", name="primary")
        secondary = Instance.create(self.secondary, role="secondary", name="secondary", network=primary.content.network)
        for path in (self.primary, self.secondary):
            (path / "replicate.toml").write_text(self._settings)
        primary, secondary = Instance.open(self.primary), Instance.open(self.secondary)
        add_region(primary, make_database(self.directory / "app.db", SCHEMA), name="main")
        add_region(primary, make_database(self.directory / "side.db", SIDE_SCHEMA), name="side")
        primary.register_peer("secondary", "127.0.0.1", self._peer_port)
        primary.reload()
        subscribe(primary, secondary, self.share)
        seed(primary, secondary)

    # Processes.

    def do(self, what: str, call: Callable[[], Any], timeout_s: float = 180) -> None:
        """Run `call` in a process of its own; AssertionError with what it raised."""
        child = fork(what, call, self.errors)
        assert child.wait(timeout_s), f"{what} does not end"
        assert child.status == 0, f"{what}: {child.status}\n{self.errors.read_text()[-6000:]}"

    def start(self, role: str, arm: str = "", before: Callable[[], object] = lambda: None) -> Child:
        """Start a daemon, armed or not. `before` is called in it first."""
        calls: dict[str, Callable[[], Any]] = {
            "source": lambda: run_daemon(
                "source-secondary", self.primary, lambda context: serve_source(context, "secondary")
            ),
            "receiver": lambda: run_daemon("receiver", self.secondary, serve_receiver),
            "update": lambda: run_daemon("update", self.secondary, serve_update),
        }

        def call() -> None:
            before()
            calls[role]()

        child = self.children[role] = fork(role, call, self.errors, arm=arm, seed=self._next_seed(), clock=self.clock)
        return child

    def _next_seed(self) -> str:
        self._forked += 1
        return f"{self.seed} {self._forked}"

    def run(self, role: str, call: Callable[[], Any]) -> Child:
        """A process that goes on beside the others."""
        child = self.children[role] = fork(role, call, self.errors, seed=self._next_seed(), clock=self.clock)
        return child

    def start_daemons(self) -> None:
        """Those that do not run."""
        for role in DAEMONS:
            if role not in self.children:
                self.start(role)

    def start_daemons_but(self, left_out: str) -> None:
        """Those that do not run, but for one."""
        for role in DAEMONS:
            if role != left_out and role not in self.children:
                self.start(role)

    def client(
        self,
        mode: str = "mixed",
        arm: str = "",
        count: int = 0,
        pause_s: float = 0.001,
        before: Callable[[], object] = lambda: None,
        attached: bool = False,
    ) -> Child:
        """A new client, with numbers of its own. `before` is called in it first. `attached`: it has both regions."""
        self.clients += 1
        while attached and self.clients % 3 == 0:
            self.clients += 1
        number = self.clients
        path = self.told / f"client-{number}.jsonl"

        def call() -> None:
            before()
            run(self.primary, Record(path), number, mode, self.seed * 10_007 + number, count, pause_s)

        child = fork(
            f"client-{number}",
            call,
            self.errors,
            arm=arm,
            seed=self._next_seed(),
            clock=self.clock,
        )
        self.children[child.role] = child
        return child

    def seeder(self, arm: str = "", before: Callable[[], object] = lambda: None, source_wait_s: float = 20.0) -> Child:
        """`replicate seed --restart` of the secondary, through the connection. `before` is called in it first."""

        def call() -> None:
            before()
            seed_over_connection(
                Instance.open(self.secondary), None, restart=True, told=lambda *_: None, source_wait_s=source_wait_s
            )

        child = self.children["seed"] = fork("seed", call, self.errors, arm=arm)
        return child

    def reap(self) -> list[str]:
        """Forget those that have ended; an end that was neither a kill nor in good order is strange."""
        ended = []
        for role, child in list(self.children.items()):
            if child.poll():
                ended.append(role)
                del self.children[role]
                # A seed ends by an error when a server that it needs dies; that it can be ended is what counts.
                if child.status not in (0, -signal.SIGKILL) and role != "seed":
                    self.strange.append(f"{role}: exit code {child.status}")
        return ended

    def kill(self, role: str) -> None:
        """SIGKILL one; nothing if it does not run."""
        if role in self.children:
            self.children[role].kill()
            self.reap()

    def kill_all(self) -> None:
        """All at once: first the signals, then the waiting."""
        for child in self.children.values():
            if not child.poll():
                os.kill(child.pid, signal.SIGKILL)
        for child in self.children.values():
            child.wait(120)
        self.reap()

    def interrupt(self, number: int, *roles: str) -> None:
        """Send a signal to each of these that runs."""
        for role in roles:
            if role in self.children and not self.children[role].poll():
                os.kill(self.children[role].pid, number)

    def stop_clients(self) -> None:
        """SIGKILL all clients."""
        for role in [role for role in self.children if role.startswith("client-")]:
            self.kill(role)

    def reboot(self, part: str = "") -> None:
        """What a reboot does to shared memory (`part`: to pools with that in their name). Nobody may run there."""
        for path in Path(self._memory.name).iterdir():
            if part in path.name:
                path.unlink()

    # Looking.

    def side(self, role: str) -> tuple[Path, str]:
        """The instance of a daemon, and its name there."""
        return (self.primary, "source-secondary") if role == "source" else (self.secondary, role)

    def log(self, role: str) -> list[dict[str, Any]]:
        """What a daemon has logged, oldest first; a line that is being written is left out."""
        instance, name = self.side(role)
        path = instance / "log" / f"{name}.log"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def facts(self, role: str) -> dict[str, Any]:
        """What a daemon's status file says; empty before there is one."""
        instance, name = self.side(role)
        path = instance / "run" / f"{name}.status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return {**found, **found.get("facts", {})}

    def told_ok(self) -> int:
        """How many commits have been acknowledged to clients so far."""
        return sum(path.read_bytes().count(b'"result": "ok"') for path in self.told.glob("client-*.jsonl"))

    def last_told_seqno(self) -> int:
        """The highest number that a client was told."""
        text = b"".join(path.read_bytes() for path in self.told.glob("client-*.jsonl"))
        return max(map(int, re.findall(rb'"seqno": (\d+)', text)), default=0)

    def wait_acknowledged(self, more: int, timeout_s: float = 120.0) -> None:
        """Until clients were told of that many further commits."""
        before = self.told_ok()
        wait_until(lambda: self.told_ok() >= before + more, timeout_s=timeout_s, what=f"{more} further commits")

    def wait_serving(self) -> None:
        """Until the receiver listens."""

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listens, timeout_s=120, what="the receiver listens")

    def wait_ready(self, role: str, *, or_ended: bool = False) -> None:
        """Until the daemon that runs now says that it serves, or (`or_ended`) has ended."""

        def serves() -> bool:
            if or_ended and self.children[role].poll():
                return True
            told = DaemonFiles(*self.side(role)).read_status()
            return told is not None and told.pid == self.children[role].pid and told.state == SERVING

        wait_until(serves, timeout_s=120, what=f"{role} serves")

    def close(self) -> None:
        """Kill everything, and take the shared memory away."""
        self.kill_all()
        self._memory.cleanup()
        if self._before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = self._before
