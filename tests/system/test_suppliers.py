"""Several suppliers with their daemons: all write, lines are cut, daemons and writers die; everybody has everything."""

from __future__ import annotations

import json
import random
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.harness.ports import free_port
from tests.harness.street import Street
from tests.harness.waiting import wait_until

SETTINGS = """
[journal]
pool_bytes = "1MiB"
[receiver]
pool_bytes = "4MiB"
heartbeat_period_s = 1
[source]
heartbeat_period_s = 1
hard_period_s = 0.2
soft_period_s = 0.5
[update]
tell_seen_s = 1
metrics_listen = "127.0.0.1:0"
"""
NAMES = ("a", "b", "c")
TABLES = ("ta", "tb", "tc")
WRITER = """
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
SHARED = "CREATE TABLE shared (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n INTEGER, m INTEGER);"
AT_ONCE = """
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


class SupplierStreet(Street):
    """Suppliers a, b, c: a is linked with each of the others, both ways. Table t + NAME is written by NAME."""

    def build(self) -> SupplierStreet:
        self.by = {name: self.directory / name for name in NAMES}
        self.others = list(self.by.values())
        self.ports = {name: free_port() for name in NAMES}
        a = self.by["a"]
        self.run("instance", "create", a, "--role", "primary", "--name", "a")
        self._set(a)
        self.on(a, "region", "add", self.database)
        network = json.loads(self.on(a, "--json", "instance", "show").stdout)["network"]
        for name in NAMES[1:]:
            self.on(a, "partition", "create", f"P{name}")
            self.on(a, "partition", "assign", f"P{name}", f"t{name}")
        self.on(a, "partition", "create", "S")
        self.on(a, "partition", "assign", "S", "shared")
        self.on(a, "instance", "convert", "--role", "supplier")
        for name in NAMES[1:]:
            site = self.by[name]
            self.run("instance", "create", site, "--role", "secondary", "--name", name, "--network", network)
            self._set(site)
            self.on(a, "peer", "add", name, f"127.0.0.1:{self.ports[name]}")
            self.on(site, "seed", "--from", a)
            self.on(site, "instance", "convert", "--role", "supplier")
            self.on(site, "peer", "add", "a", f"127.0.0.1:{self.ports['a']}")
        for name in NAMES:
            self.start_site(name)
        for name in NAMES[1:]:
            wait_until(lambda name=name: self.gives(name), what=f"a knows {name}")
        wait_until(lambda: all(len(self.writers(name)) == 3 for name in NAMES), what="all know who writes what")
        return self

    def start_site(self, name: str) -> None:
        site = self.by[name]
        self.on(site, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{self.ports[name]}")
        self.on(site, "update", "start")
        for peer in NAMES[1:] if name == "a" else ("a",):
            self.on(site, "source", "start", "--peer", peer)

    def gives(self, name: str) -> bool:
        return not self.on(self.by["a"], "partition", "give", f"P{name}", name, check=False).returncode

    def writers(self, name: str) -> set[str]:
        listed = self.on(self.by[name], "--json", "partition", "list").stdout
        return {one.get("writer", "") for one in json.loads(listed)}

    def vector(self, name: str) -> dict[str, int]:
        found = json.loads(self.on(self.by[name], "--json", "ruv").stdout)
        return {f"{one['name']}/{one['incarnation']}": one["last"] for one in found["origins"]}

    def rows(self, name: str) -> dict[str, list[Any]]:
        return self._rows(self.database if name == "a" else next((self.by[name] / "regions").glob("*.db")))

    def rows_at(self, site: Path) -> dict[str, list[Any]]:
        """Of a secondary."""
        return self._rows(next((site / "regions").glob("*.db")))

    @staticmethod
    def _rows(path: Path) -> dict[str, list[Any]]:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            tables = (*(f"t{one}" for one in NAMES), "shared")
            return {table: list(connection.execute(f"SELECT * FROM {table} ORDER BY id")) for table in tables}
        finally:
            connection.close()

    def stamped(self, name: str) -> int:
        """Rows of which that supplier remembers who wrote them."""
        path = self.database if name == "a" else next((self.by[name] / "regions").glob("*.db"))
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(connection.execute("SELECT count(*) FROM _replicate_version").get)
        finally:
            connection.close()

    def figure(self, name: str, metric: str) -> float:
        """Of that supplier's Update Process; a site has one of each daemon and no peer there."""
        address = self.daemon(self.by[name], "update")["facts"]["metrics_listen"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines()]
        (found,) = (value for label, value in lines if label.startswith(f"dualsite_{metric}{{"))
        return float(found)

    def follow(self, name: str, secondary: str) -> None:
        """A secondary of that supplier, which follows it."""
        source, site, port = self.by[name], self.directory / secondary, free_port()
        network = json.loads(self.on(source, "--json", "instance", "show").stdout)["network"]
        self.run("instance", "create", site, "--role", "secondary", "--name", secondary, "--network", network)
        self._set(site)
        self.on(source, "peer", "add", secondary, f"127.0.0.1:{port}")
        self.on(site, "seed", "--from", source)
        self.others.append(site)
        self.on(site, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{port}")
        self.on(site, "update", "start")
        self.on(source, "source", "start", "--peer", secondary)

    def restart(self, name: str, daemon: str) -> None:
        """Kill a daemon of that site, and start it again."""
        self.kill(self.by[name], daemon)
        kind, _, peer = daemon.partition("-")
        extra = ["--peer", peer] if peer else []
        extra += ["--no-update", "--listen", f"127.0.0.1:{self.ports[name]}"] if kind == "receiver" else []
        self.on(self.by[name], kind, "start", *extra)

    def level(self) -> None:
        wait_until(lambda: self.vector("a") == self.vector("b") == self.vector("c"), what="all vectors are equal")
        wait_until(lambda: self.rows("a") == self.rows("b") == self.rows("c"), what="all rows are equal")


@pytest.fixture
def street(tmp_path: Path) -> Iterator[SupplierStreet]:
    schema = "".join(f"CREATE TABLE t{name} (id INTEGER PRIMARY KEY, v);" for name in NAMES) + SHARED
    made = SupplierStreet(tmp_path, settings=SETTINGS, schema=schema)
    try:
        yield made.build()
    finally:
        made.close()


def test_all_write_while_daemons_die(street: SupplierStreet) -> None:
    """Two sources at once on a, and what b writes comes to c by way of a."""
    count = 300
    writers = [street.python(WRITER, str(street.by[name]), f"t{name}", str(count)) for name in NAMES]
    rng = random.Random(1)
    for _ in range(6):
        name = rng.choice(NAMES)
        daemon = rng.choice(["receiver", "update", *(["source-a"] if name != "a" else ["source-b", "source-c"])])
        street.restart(name, daemon)
    street.finish(writers)
    street.level()
    assert {table: len(rows) for table, rows in street.rows("b").items() if rows} == dict.fromkeys(TABLES, count)


def test_a_machine_that_is_turned_back_gets_back_what_it_had(street: SupplierStreet) -> None:
    """It takes no writes until it has; its applications are told so by name."""
    site = street.by["b"]
    street.finish([street.python(WRITER, str(site), "tb", "20")])
    street.level()
    stop_site(street, "b")
    for one in ("journal", "regions", "consumers"):
        shutil.copytree(site / one, street.directory / "snapshot" / one)
    street.start_site("b")
    street.finish([street.python(WRITER, str(site), "tb", "20")])
    street.level()
    stop_site(street, "b")
    for one in ("journal", "regions", "consumers"):
        for file in (site / one).iterdir():
            file.unlink()
        for file in (street.directory / "snapshot" / one).iterdir():
            shutil.copy2(file, site / one / file.name)
    for pool in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        if str(site) in pool.read_bytes()[4096:8192].decode("utf-8", "replace"):
            pool.unlink()  # its machine has booted
    street.start_site("b")
    street.level()
    wait_until(lambda: "RESTORING" not in findings(street, "b"), what="it takes writes again")
    street.finish([street.python(WRITER, str(site), "tb", "5")])
    street.level()
    assert len(street.rows("c")["tb"]) == 45
    logs = [(site / "log" / f"{one}.log").read_text() for one in ("update", "source-a")]
    assert "TURNED_BACK" in logs[0] or "was turned back" in logs[1], "by what came, or by what a consumer has"


def stop_site(street: SupplierStreet, name: str) -> None:
    for daemon in ("receiver", "update", "source"):
        street.on(street.by[name], daemon, "stop")


def findings(street: SupplierStreet, name: str) -> set[str]:
    status = json.loads(street.on(street.by[name], "--json", "status", check=False).stdout)
    return {one["code"] for one in status["findings"]}


def test_one_that_is_gone_for_good_is_inherited_and_lets_nobody_stop_when_it_returns(street: SupplierStreet) -> None:
    """b is lost with transactions that nobody has, and some that only a has; c, which b never talks to, retires it."""
    a, b, c = (street.by[name] for name in NAMES)
    street.on(c, "source", "stop", "--peer", "a")
    street.on(a, "source", "stop", "--peer", "c")
    street.finish([street.python(WRITER, str(b), "tb", "20")])
    wait_until(lambda: len(street.rows("a")["tb"]) == 20, what="a has what c does not have")
    street.on(b, "source", "stop")
    street.finish([street.python(WRITER, str(b), "tb", "5")])
    stop_site(street, "b")
    waits = street.on(c, "replica", "retire", "b", "--yes", "--timeout", "0", check=False)
    assert waits.returncode == 1
    assert "waited for: a" in waits.stdout
    street.on(c, "source", "start", "--peer", "a")
    street.on(a, "source", "start", "--peer", "c")
    done = street.on(c, "replica", "retire", "b", "--yes")
    assert "b is retired" in done.stdout
    assert len(street.rows("c")["tb"]) == 20, "what anybody had of it is everywhere"
    street.finish([street.python(WRITER, str(c), "tb", "5")])
    wait_until(lambda: street.rows("a")["tb"] == street.rows("c")["tb"], what="the heir's rows are on a")
    told = json.loads(street.on(a, "--json", "replica", "list").stdout)
    assert {one["name"]: one["told"] for one in told}["b"] == "retired"
    street.start_site("b")  # it was not gone after all
    wait_until(lambda: "RETIRED" in (b / "log" / "source-a.log").read_text(), what="it is told")
    street.finish([street.python(WRITER, str(site), table, "5") for site, table in ((a, "ta"), (c, "tc"))])
    wait_until(lambda: street.rows("a") == street.rows("c"), what="the others go on")
    assert len(street.rows("a")["ta"]) == len(street.rows("a")["tc"]) == 5
    again = street.on(c, "replica", "retire", "b", "--yes")
    assert "b is retired" in again.stdout


def test_an_island_writes_on_and_comes_back(street: SupplierStreet) -> None:
    """Cut off from all others, its applications feel nothing; a partition is given in the meantime."""
    stop_site(street, "b")
    writers = [street.python(WRITER, str(street.by[name]), f"t{name}", "50") for name in NAMES]
    street.finish(writers)
    wait_until(lambda: street.rows("a")["tc"] == street.rows("c")["tc"], what="the others go on")
    assert street.rows("a")["tb"] == []
    street.on(street.by["c"], "partition", "give", "3", "a")
    street.start_site("b")
    street.level()
    status = json.loads(street.on(street.by["a"], "--json", "status", check=False).stdout)
    assert status["role"] == "supplier"
    assert {one["name"] for one in status["suppliers"]} == {"b", "c"}
    street.finish([street.python(WRITER, str(street.by["a"]), "tc", "5")])
    street.level()


def share(street: SupplierStreet) -> None:
    """All of them write the table `shared`."""
    for name in NAMES[1:]:
        street.on(street.by["a"], "partition", "share", "S", name)

    def all_know() -> bool:
        listed = [json.loads(street.on(site, "--json", "partition", "list").stdout) for site in street.others]
        return all(one[-1]["shared_with"] == ["b", "c"] for one in listed)

    wait_until(all_know, what="all know who writes S")


def merges(street: SupplierStreet, name: str) -> list[dict[str, Any]]:
    """What was lost in merges, as that site knows it."""
    listed = json.loads(street.on(street.by[name], "--json", "conflict", "list", check=False).stdout)
    found: list[dict[str, Any]] = listed["merges"]
    return found


def test_all_write_one_table_while_daemons_die(street: SupplierStreet) -> None:
    """Rows are changed by all three at once; a secondary of one of them follows what was merged there."""
    share(street)
    street.follow("a", "d")
    writers = [street.python(AT_ONCE, str(street.by[name]), str(at), "400") for at, name in enumerate(NAMES)]
    rng = random.Random(2)
    for _ in range(6):
        name = rng.choice(NAMES)
        street.restart(name, rng.choice(["receiver", "update", *(["source-a"] if name != "a" else ["source-b"])]))
    street.finish(writers)
    street.level()
    assert street.rows("a")["shared"]
    assert merges(street, "a")
    compared = street.on(street.by["a"], "compare", "--with", street.by["b"])
    assert "equal" in compared.stdout
    wait_until(lambda: street.rows_at(street.directory / "d") == street.rows("a"), what="the secondary follows")


def test_an_island_and_the_others_write_one_table(street: SupplierStreet) -> None:
    """What was changed on both sides of a cut is merged when it is over, and all have told what they have seen."""
    share(street)
    stop_site(street, "b")
    street.finish([street.python(AT_ONCE, str(street.by[name]), str(at), "150") for at, name in enumerate(NAMES)])
    wait_until(lambda: street.rows("a")["shared"] == street.rows("c")["shared"], what="the others go on")
    assert street.rows("a")["shared"] != street.rows("b")["shared"]
    street.start_site("b")
    street.level()
    assert street.figure("b", "merged_total") > 0
    assert 0 < street.figure("b", "lost_total") <= len(merges(street, "b"))
    wait_until(lambda: not any(map(street.stamped, NAMES)), what="all have told, and all have forgotten")
    vectors = [street.vector(name) for name in NAMES]
    street.finish([street.python(WRITER, str(street.by["b"]), "tb", "5")])
    street.level()
    assert street.vector("a") != vectors[0]
