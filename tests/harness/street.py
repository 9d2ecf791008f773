"""The whole street for system tests: a primary and a secondary instance, three daemons as real processes, writers.

Guarantees: `Street.close` leaves no process and no shared memory behind; everything goes through the `replicate`
command, as an operator would, but for the assertions, which look at databases and status files.
Leaves to others: what a test breaks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import replicate
from replicate.daemon.lock_file import LockFile
from tests.harness import command_line, fork_server
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, balance INTEGER, note TEXT, photo BLOB);
CREATE INDEX account_owner ON account(owner);
CREATE TABLE entry (number INTEGER PRIMARY KEY AUTOINCREMENT, account INTEGER REFERENCES account(id), amount REAL);
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE loose (a, b);
CREATE TABLE audit (what TEXT, at INTEGER);
CREATE TRIGGER account_audit AFTER UPDATE ON account
BEGIN INSERT INTO audit VALUES ('account ' || new.id, new.balance); END;
INSERT INTO account VALUES (1, 'before', 10, NULL, x'00ff');
"""

QUICK = """
[journal]
pool_bytes = 1048576
segment_bytes = 1048576
[source]
hard_period_s = 0.1
soft_period_s = 0.2
heartbeat_period_s = 0.5
[receiver]
pool_bytes = 4194304
"""
"""Settings of tests that cut and connect: small pools, and tries that come soon."""

WRITER = """
import random, sys, time
import replicate
instance, writer, count, seed, pause_s = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
dice = random.Random(seed)
connection = replicate.connect(instance, timeout=60)
print("ready", flush=True)
done = 0
while count == 0 or done < count:
    done += 1
    with connection:
        account = connection.execute(
            "INSERT INTO account(owner, balance, note, photo) VALUES (?, ?, ?, ?)",
            (f"writer {writer}", done, None if done % 3 else "x" * dice.randrange(200), dice.randbytes(done % 50)),
        ).lastrowid
        connection.execute("INSERT INTO entry(account, amount) VALUES (?, ?)", (account, done / 7))
        if done % 2:
            connection.execute("UPDATE account SET balance = balance + 1 WHERE id = ?", (account,))
        if done % 5 == 0:
            connection.execute("INSERT INTO loose VALUES (?, ?)", (writer, done))
            connection.execute("DELETE FROM entry WHERE number % 11 = 3")
        connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (f"w{writer}", done))
    if pause_s:
        time.sleep(pause_s)
    if done % 7 == 0:
        connection.execute("INSERT INTO loose VALUES ('rolled', 'back')")
        connection.rollback()
    if count == 0 and done % 50 == 0:
        print(connection.last_seqno, flush=True)
print("last", connection.last_seqno, flush=True)
connection.close()
"""

DAEMONS = ("source-secondary", "update", "receiver")
MANY = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
SEED = "import sys; from replicate.cli.main import main; main(['-i', sys.argv[1], 'seed', *sys.argv[2:]])"
WRITE = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
for statement in sys.argv[2:]:
    connection.execute(statement)
connection.commit()
print(connection.last_seqno)
"""

PROCESS_WORDS = frozenset({"run", "replay", "bench"})
"""Commands that become a daemon, or are as long-lived."""


class Street:
    """Two instances on this machine. `settings`: lines of replicate.toml for both."""

    calls_here = True
    """Commands and transactions of `write` run in this process. False: each is a process, for a test that holds
    connections of the standard library's SQLite meanwhile (two SQLite libraries on one file lose locks), or to which
    it matters how full the disk is (conftest.py has all commands in this process believe that there is room)."""

    def __init__(self, directory: Path, *, settings: str = "", schema: str = SCHEMA) -> None:
        self.directory = directory
        self.primary = directory / "primary"
        self.secondary = directory / "secondary"
        self.database = directory / "app.db"
        # Shared memory of our own, so that nothing is left in the machine's when a test is cut short.
        self._memory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="replicate-test-")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "REPLICATE_SHM_DIR": self._memory.name,
            "COLUMNS": "1000",  # what a command says, in one line
        }
        self._usual = self._of_process()
        self.others: list[Path] = []
        """Further instances of a test, ended with the street."""
        self._processes: list[subprocess.Popen[str]] = []
        self._settings = settings
        make_database(self.database, schema)

    # Commands.

    def run(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `replicate` with these arguments; AssertionError with its words when it fails and `check` is set."""
        words = [str(word) for word in arguments]
        if self._is_here() and PROCESS_WORDS.isdisjoint(words):
            done = command_line.call(words, self.environment)
        else:
            done = self.process(*words)
        if check and done.returncode:
            raise AssertionError(f"replicate {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def process(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same as a process of its own, whatever its exit code is."""
        command = [sys.executable, "-m", "replicate.cli.main", *words]
        return fork_server.run(command, env=self.environment, timeout=280)

    def _is_here(self) -> bool:
        """Whether something may be done in this process: not what a failpoint may kill or another module path change,
        and not what another thread may do beside us."""
        is_usual = self._of_process() == self._usual
        return self.calls_here and is_usual and threading.current_thread() is threading.main_thread()

    def _of_process(self) -> tuple[str, ...]:
        """What only a new process reads from the environment."""
        return tuple(self.environment.get(name, "") for name in ("PYTHONPATH", "REPLICATE_FAILPOINT"))

    def on(self, instance: Path, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The same with -i INSTANCE."""
        return self.run("-i", instance, *arguments, check=check)

    # Building.

    def build(self) -> Street:
        """Create both instances, add the region; nothing is started or seeded yet."""
        self.run("instance", "create", self.primary, "--role", "primary", "--name", "primary")
        self._set(self.primary)
        self.on(self.primary, "region", "add", self.database)
        network = json.loads(self.on(self.primary, "--json", "instance", "show").stdout)["network"]
        self.run(
            "instance", "create", self.secondary, "--role", "secondary", "--name", "secondary", "--network", network
        )
        self._set(self.secondary)
        return self

    def _set(self, instance: Path) -> None:
        if self._settings:
            (instance / "replicate.toml").write_text(textwrap.dedent(self._settings))

    def start(self) -> Street:
        """Receiver, peer, source, seed, update: the whole street."""
        self.start_receiver()
        self.on(self.primary, "peer", "add", "secondary", f"127.0.0.1:{self.port()}")
        self.start_source()
        self.on(self.secondary, "seed", "--from", self.primary)
        self.start_update()
        return self

    def start_receiver(self, listen: str = "") -> None:
        """Where it may listen again after a stop: nobody is given that port meanwhile."""
        self.on(self.secondary, "receiver", "start", "--no-update", "--listen", listen or f"127.0.0.1:{free_port()}")

    def start_source(self) -> None:
        self.on(self.primary, "source", "start", "--peer", "secondary")

    def start_update(self) -> None:
        self.on(self.secondary, "update", "start")

    def port(self) -> int:
        """Where the receiver listens. (It writes that down an instant after it serves.)"""
        wait_until(lambda: "listen" in self.daemon(self.secondary, "receiver")["facts"], what="its status says where")
        return int(self.daemon(self.secondary, "receiver")["facts"]["listen"].rpartition(":")[2])

    # Looking.

    def daemon(self, instance: Path, name: str) -> dict[str, Any]:
        """A daemon's status file."""
        found: dict[str, Any] = json.loads((instance / "run" / f"{name}.status.json").read_text())
        return found

    def follows(self, instance: Path, last: int, timeout_s: float = 120) -> None:
        """It has transaction `last` of the primary's history. Before its stream has begun its number says nothing: it
        may be as high in a history of its own, which is to be taken back first."""

        def has_begun() -> object:
            return self.daemon(instance, "receiver")["facts"].get("is_streaming")

        wait_until(has_begun, timeout_s=timeout_s, what=f"the stream to {instance.name} has begun")
        self.on(instance, "wait", "--seqno", str(last), "--timeout", str(timeout_s))

    def log(self, instance: Path, name: str) -> list[dict[str, Any]]:
        """A daemon's log, parsed; without a line that is being written."""
        return [json.loads(line) for line in (instance / "log" / f"{name}.log").read_bytes().split(b"\n")[:-1]]

    def status(self, instance: Path) -> dict[str, Any]:
        """`replicate status --json`."""
        found: dict[str, Any] = json.loads(self.on(instance, "--json", "status", check=False).stdout)
        return found

    def last_seqno(self, instance: Path) -> int:
        """The last transaction in an instance's databases."""
        return int(self.on(instance, "wait", "--seqno", "0").stdout.split()[-1].rstrip("."))

    def pid(self, instance: Path, name: str) -> int:
        return int(self.daemon(instance, name)["pid"])

    # Breaking.

    def kill(self, instance: Path, name: str, number: int = signal.SIGKILL) -> None:
        """Send a daemon a signal; after SIGKILL wait until it is gone, after SIGSTOP until it stands still."""
        pid = self.pid(instance, name)
        with contextlib.suppress(*([ProcessLookupError] if number == signal.SIGKILL else [])):  # it may just have ended
            os.kill(pid, number)
        if number == signal.SIGKILL:
            # The first thread may be gone before the others, and with them lock and sockets, are.
            lock = LockFile(instance, name)
            wait_until(lambda: not is_alive(pid) and lock.probe() is None, what=f"{name} is gone")
        if number == signal.SIGSTOP:
            wait_until(lambda: state_of(pid) == "T", what=f"{name} stands still")

    def kill_each(self, names: Sequence[str] = DAEMONS, after_each: Callable[[], object] = lambda: None) -> None:
        """Kill daemons, one after the other, each while transactions arrive, and start each again."""
        listen = f"127.0.0.1:{self.port()}"
        starts = {"update": self.start_update, "receiver": lambda: self.start_receiver(listen)}
        for name in names:
            before = self.last_seqno(self.secondary)
            wait_until(lambda before=before: self.last_seqno(self.secondary) > before, what="transactions arrive")  # type: ignore[misc]
            self.kill(self.primary if name not in starts else self.secondary, name)
            starts.get(name, self.start_source)()
            after_each()

    def seed_killed(self, failpoint: str, *words: str) -> None:
        """`seed` on the secondary, which dies at a failpoint."""
        command = self.python(SEED, str(self.secondary), *words, REPLICATE_FAILPOINT=failpoint)
        command.communicate(timeout=120)
        assert command.returncode != 0

    # Writing.

    def writer(self, number: int, count: int = 0, seed: int = 1, pause_s: float = 0.0) -> subprocess.Popen[str]:
        """A writing process; 0 transactions: until it is killed. Returns once it is connected.

        `pause_s`: between two transactions, so that what goes on beside it gets a processor."""
        process = self.python(WRITER, str(self.primary), str(number), str(count), str(seed), str(pause_s))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
        return process

    def python(self, program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A Python process of the test's own."""
        process = fork_server.popen(
            [sys.executable, "-c", program, *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def finish(self, processes: Sequence[subprocess.Popen[str]], timeout_s: float = 120) -> None:
        """Wait until writers have ended well."""
        for process in processes:
            output, errors = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, output + errors

    # Proving.

    def write(self, *statements: str) -> int:
        """Run statements on the primary in one transaction; its seqno."""
        if self._is_here():
            with command_line.in_environment(self.environment):
                connection = replicate.connect(self.primary, timeout=60)
                try:
                    for statement in statements:
                        connection.execute(statement)
                    connection.commit()
                    seqno = connection.last_seqno
                finally:
                    connection.close()
            assert seqno is not None
            return seqno
        process = self.python(WRITE, str(self.primary), *statements)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return int(output)

    def prove_equal(self, timeout_s: float = 120) -> int:
        """Wait until the secondary has all that the primary has, and compare row by row, twice and differently."""
        last_seqno = self.write("UPDATE setting SET value = value WHERE 0", "INSERT INTO audit VALUES ('proof', 1)")
        self.on(self.secondary, "wait", "--seqno", str(last_seqno), "--timeout", str(timeout_s))
        self.on(self.secondary, "compare", "--with", self.primary)
        assert_same_databases(self.database, self.secondary / "regions" / "main.db")
        return last_seqno

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for instance in (self.primary, self.secondary, *self.others):
            for file in (instance / "run").glob("*.status.json"):
                pid = json.loads(file.read_text()).get("pid")
                if isinstance(pid, int) and is_replicate(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    wait_until(lambda pid=pid: not is_alive(pid), what="a daemon is gone")
        self._memory.cleanup()


def make_database(path: Path, script: str) -> None:
    """A plain SQLite database."""
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()


def is_alive(pid: int) -> bool:
    """True while the process exists and is no zombie."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """The letter that the kernel has for what a process does; "" for none that exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_replicate(pid: int) -> bool:
    """True for a living process of ours."""
    try:
        return b"replicate" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_same_databases(one: Path, other: Path) -> None:
    """Every user table of both, row by row, typed and with rowids, read through the standard library in a process of
    its own (this one may hold connections of the other SQLite library)."""
    program = """
import sqlite3, sys
def rows(path):
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    made = {}
    tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for name, sql in tables:
        if name.startswith("_replicate_"):
            continue
        columns = [r[1] for r in connection.execute(f'PRAGMA table_xinfo("{name}")')]
        parts = ", ".join(f'typeof("{c}"), "{c}"' for c in columns)
        rowid = "" if sql and "WITHOUT ROWID" in sql.upper() else "rowid, "
        made[name] = sorted(connection.execute(f'SELECT {rowid}{parts} FROM "{name}"').fetchall(), key=repr)
    return made
one, other = rows(sys.argv[1]), rows(sys.argv[2])
assert one.keys() == other.keys(), (one.keys(), other.keys())
for name in one:
    left, right = one[name], other[name]
    assert left == right, (name, [r for r in left if r not in right][:3], [r for r in right if r not in left][:3])
print(sum(map(len, one.values())))
"""
    command = [sys.executable, "-c", program, str(one), str(other)]
    done = fork_server.run(command, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
