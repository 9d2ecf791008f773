"""A street to measure on: instances and daemons as an operator makes them, in a directory, and what they cost.

Guarantees: daemons are real processes, started by the command `replicate`, talking TCP over loopback; `Bench.close`
leaves no process and no shared memory behind. Figures of a process are the kernel's own (/proc).
Leaves to others: what is measured.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from msgspec import Struct

from replicate.errors import InternalError, NotFoundError, TryAgainError
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool
from replicate.region.sqlite.create import plain_connection, versions

ROOT: Final = Path(__file__).resolve().parents[2]
"""What is on the path of the daemons: the checkout, or the place that we are installed in."""
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Cost(Struct, frozen=True):
    """What a process has used so far. `anonymous_bytes`: resident, without files and the mapped pools."""

    cpu_s: float
    anonymous_bytes: int


def cost_of(pid: int) -> Cost:
    """What /proc says of a process, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            resident = int(line.split()[1]) * 1024
    return Cost((int(fields[11]) + int(fields[12])) * _TICK_S, resident)


class Bench:
    """One primary and any number of secondaries below `directory`. `code`: the checkout whose daemons are run.

    It sets REPLICATE_SHM_DIR for this process until `close`: one at a time.
    """

    def __init__(self, directory: Path, *, settings: str = "", secondary_settings: str = "") -> None:
        """`settings`, `secondary_settings`: text of replicate.toml of the primary and of the secondaries."""
        self.directory = directory
        self.primary = directory / "primary"
        self.code = ROOT
        self.paths: list[Path] = []
        """What commands and daemons find besides."""
        self._settings = settings
        self._secondary_settings = secondary_settings
        self._memory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="replicate-bench-")
        self._shm_before = os.environ.get("REPLICATE_SHM_DIR")
        os.environ["REPLICATE_SHM_DIR"] = self._memory.name  # for the writer in this process, and for the daemons
        self._network = ""

    @property
    def shared_memory(self) -> Path:
        """Where the pools are."""
        return Path(self._memory.name)

    def run(self, *arguments: str | Path) -> str:
        """Run `replicate` with these arguments; its output. InternalError with its words when it fails."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "replicate.cli.main", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self.code, *self.paths)))},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise InternalError(f"replicate {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")
        return done.stdout

    def make_primary(self, database: Path) -> None:
        """The primary instance with one region."""
        self.run("instance", "create", self.primary, "--role", "primary", "--name", "primary")
        (self.primary / "replicate.toml").write_text(self._settings)
        self.run("-i", self.primary, "region", "add", database, "--name", "main")
        self._network = json.loads(self.run("-i", self.primary, "--json", "instance", "show"))["network"]

    def add_secondary(self, name: str) -> Path:
        """A secondary that is seeded at where the primary stands now; all of its daemons are stopped again."""
        instance = self.directory / name
        self.run("instance", "create", instance, "--role", "secondary", "--name", name, "--network", self._network)
        (instance / "replicate.toml").write_text(self._secondary_settings)
        self.start_receiver(instance)
        self.run("-i", self.primary, "source", "start", "--peer", name)
        self.run("-i", instance, "seed", "--from", self.primary)
        self.run("-i", instance, "update", "start")
        self.run("-i", self.primary, "source", "stop", "--peer", name)
        self.run("-i", instance, "receiver", "stop")
        self.run("-i", instance, "update", "stop")
        return instance

    def start_receiver(self, instance: Path) -> None:
        """Start it on a free port, and tell the primary which."""
        alone = "--no-update"  # a checkout of an earlier release (--against) does not know it, and starts no other
        given = [alone] if alone in self.run("receiver", "start", "--help") else []
        self.run("-i", instance, "receiver", "start", *given, "--listen", "127.0.0.1:0")
        port = self.status_file(instance, "receiver")["facts"]["listen"].rpartition(":")[2]
        known = self.run("-i", self.primary, "peer", "list")
        if instance.name in known.split():
            self.move_peer(instance.name, int(port))
        else:
            self.run("-i", self.primary, "peer", "add", instance.name, f"127.0.0.1:{port}")

    def move_peer(self, name: str, port: int) -> None:
        """A receiver that was started again listens elsewhere."""
        Instance.open(self.primary).register_peer(name, "127.0.0.1", port, replace_address=True)

    def status_file(self, instance: Path, daemon: str) -> dict[str, Any]:
        """What a daemon says of itself."""
        found: dict[str, Any] = json.loads((instance / "run" / f"{daemon}.status.json").read_text())
        return found

    def pid(self, instance: Path, daemon: str) -> int:
        """The process of a daemon that runs."""
        return int(self.status_file(instance, daemon)["pid"])

    def cost(self, instance: Path, daemon: str, pid: int) -> Cost:
        """What that daemon, started as `pid`, has used so far; InternalError with its last words when it has ended."""
        try:
            return cost_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            said = self.status_file(instance, daemon)
            raise InternalError(f"{daemon} of {instance.name} has ended: {said.get('error') or said['text']}") from None

    def complaints(self) -> str:
        """What the daemons have logged as warnings and errors: why a benchmark failed."""
        lines = []
        for file in sorted(self.directory.glob("*/log/*.log")):
            for line in file.read_text().splitlines():
                if json.loads(line).get("level") in ("warning", "error", "critical"):
                    lines.append(f"{file.parent.parent.name}/{file.name}: {line}")
        return "\n".join(lines)

    def close(self) -> None:
        """End every daemon that still runs."""
        for file in self.directory.glob("*/run/*.status.json"):
            pid = json.loads(file.read_text()).get("pid")
            try:
                if isinstance(pid, int) and b"replicate" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass
        self._memory.cleanup()
        if self._shm_before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = self._shm_before


def attach(instance: Path) -> ReceivePool:
    """The receive pool of a Receiver Server that has just been started."""
    uuid = Instance.open(instance).content.uuid
    while True:
        try:
            return ReceivePool.attach(uuid)
        except (NotFoundError, TryAgainError):
            time.sleep(0.01)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "system": platform.release(),
        "python": platform.python_version(),
        # How it was built is worth a fifth (bench_catch_up), and not written in it everywhere: but who built it is.
        "interpreter": f"{os.path.realpath(sys.executable)}, {platform.python_compiler()}",
        **versions(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def make_database(path: Path, rows: int, value_bytes: int) -> None:
    """The table that is written to, with `rows` rows of `value_bytes` each."""
    connection = plain_connection(path)
    connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
    with connection:
        connection.executemany(
            "INSERT INTO item VALUES (?, ?)", ((number, value(number, 0, value_bytes)) for number in range(1, rows + 1))
        )
    connection.close()


def value(number: int, version: int, size: int) -> str:
    """A text of `size` characters that differs from row to row and from version to version."""
    return f"{number:012d}.{version:06d}.".ljust(size, "v")[:size]


def wait_for(reached: Callable[[], bool], what: str, *, timeout_s: float = 900.0, look_s: float = 0.002) -> float:
    """The time (perf_counter) at which `reached()` was first true; TryAgainError after `timeout_s`."""
    until = time.perf_counter() + timeout_s
    while not reached():
        if time.perf_counter() > until:
            raise TryAgainError(f"not within {timeout_s:g} s: {what}")
        time.sleep(look_s)
    return time.perf_counter()
