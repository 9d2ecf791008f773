"""Suppliers a, b, c with their daemons: each has a table that it writes, and there may be tables that all write.

Guarantees: everything goes through the `replicate` command, as an operator would, but for what is looked at; where
lines lead over relays, each way of each line can be cut for itself. `close` leaves no process, thread or shared memory.
Leaves to others: what is broken, what the tables are.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from replicate.daemon.lock_file import LockFile
from replicate.instance.instance import Instance
from tests.harness.bad_network import BadNetwork
from tests.harness.ports import free_port
from tests.harness.street import Street, make_database
from tests.harness.waiting import wait_until

NAMES: Final = ("a", "b", "c")
STAR: Final[Mapping[str, Sequence[str]]] = {"a": ("b", "c"), "b": ("a",), "c": ("a",)}
"""Who sends to whom: b and c by way of a."""
MESH: Final[Mapping[str, Sequence[str]]] = {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
SETTINGS: Final = """
[journal]
pool_bytes = "1MiB"
[receiver]
pool_bytes = "12MiB"
heartbeat_period_s = 1
[source]
heartbeat_period_s = 1
hard_period_s = 0.2
soft_period_s = 0.5
[update]
tell_seen_s = 1
metrics_listen = "127.0.0.1:0"
"""
SCHEMA: Final = (
    "".join(f"CREATE TABLE t{name} (id INTEGER PRIMARY KEY, v);" for name in NAMES)
    + "CREATE TABLE shared (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n INTEGER, m INTEGER);"
)
WRITER: Final = """
import sys, time, replicate
path, table, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = replicate.connect(path, timeout=60)
print("ready", flush=True)
for number in range(stop):
    connection.execute(f"INSERT INTO {table} (v) VALUES (?)", (number,))
    connection.commit()
    if number % 7 == 0:
        connection.execute(f"UPDATE {table} SET v = v || '!' WHERE id % 5 = 0")
        connection.commit()
print("done", flush=True)
"""
"""Writes a table of one site's own."""
AT_ONCE: Final = """
import random, sys, replicate
path, seed, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
connection = replicate.connect(path, timeout=60)
print("ready", flush=True)
for number in range(stop):
    key, value = rng.randint(1, 8), rng.randint(1, 10**6)
    connection.execute(*rng.choice([
        ("UPDATE shared SET n = ? WHERE id = ?", (value, key)),
        ("UPDATE shared SET m = ? WHERE id = ?", (value, key)),
        ("UPDATE OR IGNORE shared SET name = ? WHERE id = ?", (f"n{value % 12}", key)),
        ("DELETE FROM shared WHERE id = ?", (key,)),
        ("INSERT OR IGNORE INTO shared VALUES (?, ?, ?, 0)", (key, f"n{value % 12}", value)),
        ("INSERT INTO shared (n) VALUES (?)", (value,)),
    ]))
    connection.commit()
print("done", flush=True)
"""
"""Writes the table that all write."""
BUSY_MS: Final = 60_000
STATE: Final = ("journal", "regions", "consumers")
"""Directories of an instance that a snapshot of its machine turns back."""


class SupplierStreet(Street):
    """Table t + NAME is written by NAME, and is in the partition P + NAME; those of `shared` are in S, which a writes
    until `share`. `ways`: who sends to whom. `over_relays`: every line leads over `relays[source, consumer]`. `apart`:
    the tables of a second region, stock, if there is one."""

    apart = ""
    ways: Mapping[str, Sequence[str]] = STAR
    shared: Sequence[str] = ("shared",)
    sums: Sequence[str] = ()
    """Columns of those that sites add to."""
    over_relays = False

    def build(self) -> SupplierStreet:
        self.by = {name: self.directory / name for name in NAMES}
        self.others = list(self.by.values())
        self.ports = {name: free_port() for name in NAMES}
        self.relays: dict[tuple[str, str], BadNetwork] = {}
        if self.over_relays:
            for name in NAMES:
                self.relays |= {(name, to): BadNetwork(self.ports[to]) for to in self.ways[name]}
        a = self.by["a"]
        self.run("instance", "create", a, "--role", "primary", "--name", "a")
        self._set(a)
        self.on(a, "region", "add", self.database)
        if self.apart:
            make_database(self.stock, self.apart)
            self.on(a, "region", "add", self.stock, "--name", "stock")
        network = json.loads(self.on(a, "--json", "instance", "show").stdout)["network"]
        for name in NAMES[1:]:
            self.on(a, "partition", "create", f"P{name}")
            self.on(a, "partition", "assign", f"P{name}", f"t{name}")
        self.on(a, "partition", "create", "S")
        self.on(a, "partition", "assign", "S", *self.shared)
        self.on(a, "instance", "convert", "--role", "supplier")
        for name in NAMES[1:]:
            site = self.by[name]
            self.run("instance", "create", site, "--role", "secondary", "--name", name, "--network", network)
            self._set(site)
            self.on(a, "peer", "add", name, self.address("a", name))
            self.on(site, "seed", "--from", a)
            self.on(site, "instance", "convert", "--role", "supplier")
            for peer in self.ways[name]:
                self.on(site, "peer", "add", peer, self.address(name, peer))
        for name in NAMES:
            self.start_site(name)
        for name in NAMES[1:]:
            wait_until(lambda name=name: self.gives(name), what=f"a knows {name}")
        wait_until(lambda: all(len(self.writers(name)) == 3 for name in NAMES), what="all know who writes what")
        return self

    def address(self, source: str, consumer: str) -> str:
        """What the source knows its consumer by."""
        relay = self.relays.get((source, consumer))
        return f"127.0.0.1:{self.ports[consumer] if relay is None else relay.port}"

    def daemons(self, name: str) -> list[str]:
        """Those of a site."""
        return ["receiver", "update", *(f"source-{peer}" for peer in self.ways[name])]

    def start_site(self, name: str) -> None:
        """Those of its daemons that do not run, as a host does that comes up."""
        for daemon in self.daemons(name):
            if LockFile(self.by[name], daemon).probe() is None:
                self.start_daemon(name, daemon)

    def start_daemon(self, name: str, daemon: str) -> None:
        kind, _, peer = daemon.partition("-")
        extra = ["--peer", peer] if peer else []
        extra += ["--no-update", "--listen", f"127.0.0.1:{self.ports[name]}"] if kind == "receiver" else []
        self.on(self.by[name], kind, "start", *extra)

    def stop_site(self, name: str) -> None:
        for daemon in ("receiver", "update", "source"):
            self.on(self.by[name], daemon, "stop")

    def restart(self, name: str, daemon: str) -> None:
        """Kill a daemon of that site, and start it again."""
        self.kill(self.by[name], daemon)
        self.start_daemon(name, daemon)

    def gives(self, name: str) -> bool:
        return not self.on(self.by["a"], "partition", "give", f"P{name}", name, check=False).returncode

    def share(self) -> None:
        """All of them write the tables `shared`, if they do not yet."""

        def all_know() -> bool:
            listed = [json.loads(self.on(site, "--json", "partition", "list").stdout) for site in self.by.values()]
            return all(one[-1]["shared_with"] == ["b", "c"] for one in listed)

        if not all_know():
            sums = [word for one in self.sums for word in ("--sum", one)]
            for name in NAMES[1:]:
                self.on(self.by["a"], "partition", "share", "S", name, *sums)
            wait_until(all_know, what="all know who writes S")

    # What they have.

    def writers(self, name: str) -> set[str]:
        listed = self.on(self.by[name], "--json", "partition", "list").stdout
        return {one.get("writer", "") for one in json.loads(listed)}

    def vector(self, name: str) -> dict[str, int]:
        found = json.loads(self.on(self.by[name], "--json", "ruv").stdout)
        return {f"{one['name']}/{one['incarnation']}": one["last"] for one in found["origins"]}

    @property
    def stock(self) -> Path:
        """The second database of a."""
        return self.directory / "stock.db"

    def path_of(self, name: str) -> Path:
        """The first database of that site."""
        return self.paths_of(name)[0]

    def paths_of(self, name: str) -> list[Path]:
        """All databases of that site."""
        if name == "a":
            return [self.database, *([self.stock] if self.apart else [])]
        return sorted((self.by[name] / "regions").glob("*.db"))

    def rows(self, name: str) -> dict[str, list[Any]]:
        return {table: rows for path in self.paths_of(name) for table, rows in rows_of(path).items()}

    def rows_at(self, site: Path) -> dict[str, list[Any]]:
        """Of a secondary."""
        paths = sorted((site / "regions").glob("*.db"))
        return {table: rows for path in paths for table, rows in rows_of(path).items()}

    def findings(self, name: str) -> set[str]:
        status = json.loads(self.on(self.by[name], "--json", "status", check=False).stdout)
        return {one["code"] for one in status["findings"]}

    def told(self, name: str) -> dict[str, dict[str, int]]:
        """By `status` there: what each supplier has told that it has."""
        found: dict[str, dict[str, int]] = json.loads(self.on(self.by[name], "--json", "status", check=False).stdout)[
            "told"
        ]
        return found

    def merges(self, name: str) -> list[dict[str, Any]]:
        """What was lost in merges, as that site knows it."""
        listed = json.loads(self.on(self.by[name], "--json", "conflict", "list", check=False).stdout)
        found: list[dict[str, Any]] = listed["merges"]
        return found

    def stamped(self, name: str) -> int:
        """Rows of which that supplier remembers who wrote them."""
        count = 0
        for path in self.paths_of(name):
            with reading(path) as connection:
                count += int(connection.execute("SELECT count(*) FROM _replicate_version").get)
        return count

    def figure(self, name: str, metric: str) -> float:
        """Of that supplier's Update Process; a site has one of each daemon and no peer there."""
        address = self.daemon(self.by[name], "update")["facts"]["metrics_listen"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
        (found,) = (value for label, value in lines if label.startswith(f"dualsite_{metric}{{"))
        return float(found)

    def is_level(self) -> bool:
        """Whether all have the same transactions."""
        first = self.vector(NAMES[0])
        return all(self.vector(name) == first for name in NAMES[1:])

    def level(self) -> None:
        wait_until(self.is_level, what="all vectors are equal")
        wait_until(lambda: self.rows("a") == self.rows("b") == self.rows("c"), what="all rows are equal")

    # More of them, and less.

    def follow(self, name: str, secondary: str) -> None:
        """A secondary of that supplier, which follows it, if there is none of that name yet."""
        source, site, port = self.by[name], self.directory / secondary, free_port()
        if site in self.others:
            return
        network = json.loads(self.on(source, "--json", "instance", "show").stdout)["network"]
        self.run("instance", "create", site, "--role", "secondary", "--name", secondary, "--network", network)
        self._set(site)
        self.on(source, "peer", "add", secondary, f"127.0.0.1:{port}")
        self.on(site, "seed", "--from", source)
        self.others.append(site)
        self.on(site, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{port}")
        self.on(site, "update", "start")
        self.on(source, "source", "start", "--peer", secondary)

    def boot(self, name: str) -> None:
        """What a boot of its machine does to the shared memory of a site, none of whose processes runs."""
        uuid = Instance.open(self.by[name]).content.uuid.hex()
        for pool in Path(self.environment["REPLICATE_SHM_DIR"]).iterdir():
            if uuid in pool.name:
                pool.unlink()

    def keep(self, name: str, copy: Path) -> None:
        """A copy of all that a site has, none of whose processes writes now."""

        def doors(directory: str, names: list[str]) -> list[str]:
            return [one for one in names if Path(directory, one).is_socket() or Path(directory, one).is_fifo()]

        shutil.copytree(self.by[name], copy, ignore=doors)
        if name == "a":
            for database in self.paths_of(name):
                self._move(database, copy)

    def turn_back(self, name: str, copy: Path) -> None:
        """Its machine has the content of that copy again, in the files that are there, as a snapshot has it."""
        site = self.by[name]
        for one in STATE:
            for file in (site / one).iterdir():
                file.unlink()
            for file in (copy / one).iterdir():
                shutil.copy2(file, site / one / file.name)
        shutil.copy2(copy / "instance.json", site / "instance.json")
        if name == "a":
            for database in self.paths_of(name):
                self._move(copy / database.name, database.parent)
        self.boot(name)

    def restore(self, name: str, copy: Path) -> None:
        """Its files are those of that copy, as a backup has them."""
        site = self.by[name]
        shutil.rmtree(site)
        shutil.copytree(copy, site)
        if name == "a":
            for database in self.paths_of(name):
                self._move(copy / database.name, database.parent)
        self.boot(name)

    @staticmethod
    def _move(database: Path, place: Path) -> None:
        for suffix in ("", "-wal", "-shm"):
            (place / f"{database.name}{suffix}").unlink(missing_ok=True)
            if suffix != "-shm" and Path(f"{database}{suffix}").exists():
                shutil.copy2(f"{database}{suffix}", place)

    def close(self) -> None:
        super().close()
        for relay in getattr(self, "relays", {}).values():
            relay.close()


@contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """A database, read past the product."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(BUSY_MS)
        yield connection


def by_hand(path: Path, *statements: str) -> None:
    """Changes past the product and its guards, as `.dbconfig enable_trigger off` lets somebody make them."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        for statement in statements:
            connection.execute(statement)


def rows_of(path: Path) -> dict[str, list[Any]]:
    """Every row of every table of the users."""
    with reading(path) as connection:
        named = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB '_replicate_*' ORDER BY 1"
        tables = [table for (table,) in connection.execute(named) if table != "sqlite_sequence"]
        return {table: list(connection.execute(f"SELECT * FROM {table} ORDER BY 1")) for table in tables}
