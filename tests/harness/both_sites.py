"""A street whose two sites can each be primary, and writers that go where the primary is.

Guarantees: a writer says each number that it has committed; all that it has said must be there in the end, once each
and without a gap. Leaves to others: what becomes of the roles meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
from pathlib import Path

from replicate.daemon.lock_file import LockFile
from tests.harness.ports import free_port
from tests.harness.street import SCHEMA, Street, assert_same_databases

KEPT = SCHEMA + "CREATE TABLE kept (writer TEXT, number INTEGER, PRIMARY KEY (writer, number)) WITHOUT ROWID;"
"""No row of a writer's has a key that both sites could give."""

ROVER = """
import sys, time
import replicate
from replicate.dbapi import OperationalError
names, writer, committed = sys.argv[1:3], sys.argv[3], 0
place, connection = names[0], None
print("ready", flush=True)
while True:
    try:
        connection = connection or replicate.connect(place, timeout=60)
        with connection:
            connection.execute("INSERT INTO kept VALUES (?, ?)", (f"rover {writer}", committed + 1))
        committed += 1
        print(committed, flush=True)
        time.sleep(0.002)
    except OperationalError as error:
        if "takes them again" in str(error):
            continue  # the site that was to give its role was killed, or has kept it
        if "NOT_PRIMARY" not in str(error):
            raise
        connection.close()
        connection = None
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
        self.follows(self.secondary, last)
        self.on(self.secondary, "compare", "--with", self.primary)
        assert_same_databases(self.path_of(self.primary), self.path_of(self.secondary))

    def rover(self, number: int, *places: Path) -> subprocess.Popen[str]:
        """A writer that begins on the first of two places: on the primary, unless told."""
        one, other = places or (self.primary, self.secondary)
        process = self.python(ROVER, str(one), str(other), str(number))
        assert process.stdout is not None
        # Nobody reads it before the end: a writer of some 30 s would wait for room for its numbers.
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert process.stdout.readline() == "ready\n"
        return process

    def ended(self, rovers: list[subprocess.Popen[str]], first: int = 0) -> dict[str, int]:
        """End them; how much each has committed, by its own word. They are numbered from `first` on."""
        found = {}
        for number, process in enumerate(rovers, first):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            process.send_signal(signal.SIGKILL)
            output, _ = process.communicate()
            words = output.split("\n")
            found[f"rover {number}"] = int(words[-2]) if len(words) > 1 and words[-2] else 0
        return found

    def listens_at(self, instance: Path) -> str:
        """Where the Receiver Server of a site listens, and its peer knows it."""
        return self.listen if instance.name == "primary" else self.first_listen

    def all_start(self, *options: str) -> None:
        """Every daemon that does not run is started, as a host does that comes up. `options`: of the receivers."""
        for instance, other in ((self.secondary, self.primary), (self.primary, self.secondary)):
            for name in ("receiver", "update", f"source-{other.name}"):
                if LockFile(instance, name).probe() is None:
                    kind, _, peer = name.partition("-")
                    words = (
                        ["--listen", self.listens_at(instance), "--no-update", *options] if kind == "receiver" else []
                    )
                    words += ["--peer", peer] if peer else []
                    self.on(instance, kind, "start", *words)

    def host_is_lost(self, instance: Path) -> None:
        """All daemons of a site are killed at once."""
        other = self.primary if instance == self.secondary else self.secondary
        for name in (f"source-{other.name}", "receiver", "update"):
            if LockFile(instance, name).probe() is not None:
                self.kill(instance, name)

    def switch(self, *arguments: str, on: Path | None = None) -> dict[str, object]:
        said: dict[str, object] = json.loads(self.on(on or self.primary, "--json", "switchover", *arguments).stdout)
        return said


def numbers_of(both: Both, name: str) -> list[int]:
    """What a rover has written, as the primary of now has it."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "rows = connection.execute('SELECT number FROM kept WHERE writer = ? ORDER BY number', (sys.argv[2],))\n"
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
