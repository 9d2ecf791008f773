"""Several suppliers with their daemons: an island, a secondary of one of them, one that is gone for good.

Kills, cuts, lost hosts and restorations are the campaign's (tests/faults/suppliers.py)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool
from tests.harness.supplier_street import AT_ONCE, NAMES, SCHEMA, SETTINGS, WRITER, SupplierStreet
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow
DIVIDED: Final = "each source gets a receive pool of its own"


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupplierStreet]:
    """One for all tests, which leave it level: but for the last one, of which b is gone. Which tests there are before
    one, nobody knows: they have their turns."""
    made = SupplierStreet(tmp_path_factory.mktemp("street"), settings=SETTINGS, schema=SCHEMA)
    try:
        yield made.build()
    finally:
        made.close()


def test_an_island_writes_on_and_comes_back(street: SupplierStreet) -> None:
    """Cut off from all others, its applications feel nothing; a partition is given in the meantime."""
    street.stop_site("b")
    writers = [street.python(WRITER, str(street.by[name]), f"t{name}", "50") for name in NAMES]
    street.finish(writers)
    wait_until(lambda: street.rows("a")["tc"] == street.rows("c")["tc"], what="the others go on")
    assert street.rows("a")["tb"] == []
    street.on(street.by["c"], "partition", "give", "3", "a")
    ((origin, last),) = [(name, last) for name, last in street.vector("b").items() if name.startswith("b/")]
    street.start_site("b")
    street.on(street.by["c"], "wait", "--origin", origin, "--seqno", str(last), "--timeout", "60")
    assert len(street.rows("c")["tb"]) == 50, "what b has committed as an island can be read on c now"
    street.level()
    status = json.loads(street.on(street.by["a"], "--json", "status", check=False).stdout)
    assert status["role"] == "supplier"
    assert {one["name"] for one in status["suppliers"]} == {"b", "c"}
    street.finish([street.python(WRITER, str(street.by["a"]), "tc", "5")])
    street.on(street.by["a"], "partition", "give", "3", "c")
    street.level()
    assert len(street.rows("b")["tc"]) == 55


def test_each_source_has_a_receive_pool_of_its_own(street: SupplierStreet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's pool was divided when the second site came, once; a Receiver Server that is killed finds it so."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", street.environment["REPLICATE_SHM_DIR"])

    def lanes(name: str) -> int:
        with closing(ReceivePool.attach(Instance.open(street.by[name]).content.uuid)) as pool:
            return len(pool.lanes)

    assert (lanes("a"), lanes("b"), lanes("c")) == (2, 1, 1)
    log = street.by["a"] / "log" / "receiver.log"
    divided = log.read_text().count(DIVIDED)
    os.kill(street.pid(street.by["a"], "receiver"), signal.SIGKILL)
    street.on(street.by["a"], "receiver", "start", "--listen", f"127.0.0.1:{street.ports['a']}")
    street.finish([street.python(WRITER, str(street.by[name]), f"t{name}", "20") for name in ("b", "c")])
    street.level()
    assert (lanes("a"), log.read_text().count(DIVIDED)) == (2, divided)


def test_an_island_and_the_others_write_one_table(street: SupplierStreet) -> None:
    """What was changed on both sides of a cut is merged when it is over, and all have told what they have seen. A
    secondary of one of them follows what was merged there."""
    street.share()
    street.follow("a", "d")
    street.stop_site("b")
    street.finish([street.python(AT_ONCE, str(street.by[name]), str(at), "150") for at, name in enumerate(NAMES)])
    wait_until(lambda: street.rows("a")["shared"] == street.rows("c")["shared"], what="the others go on")
    assert street.rows("a")["shared"] != street.rows("b")["shared"]
    street.start_site("b")
    street.level()
    told = {name: set(NAMES) for name in NAMES}
    wait_until(lambda: {name: set(street.told(name)) for name in NAMES} == told, what="each says who has what of whom")
    assert street.figure("b", "merged_total") > 0
    assert 0 < street.figure("b", "lost_total") <= len(street.merges("b"))
    compared = street.on(street.by["a"], "compare", "--with", street.by["b"])
    assert "equal" in compared.stdout
    wait_until(lambda: street.rows_at(street.directory / "d") == street.rows("a"), what="the secondary follows")
    wait_until(lambda: not any(map(street.stamped, NAMES)), what="all have told, and all have forgotten")
    vectors = [street.vector(name) for name in NAMES]
    street.finish([street.python(WRITER, str(street.by["b"]), "tb", "5")])
    street.level()
    assert street.vector("a") != vectors[0]


LARGE = """
import sys, replicate
path, seed = sys.argv[1], int(sys.argv[2])
connection = replicate.connect(path, timeout=60)
connection.execute("BEGIN")
for number in range(60):
    name = f"same {number}" if number % 20 == 0 else f"of {seed} {number}"
    size = 300_000 if number % 20 == 0 else 15_000  # one that gives way, more than a frame holds three times
    connection.execute("INSERT OR IGNORE INTO shared (name, n, m) VALUES (?, ?, ?)", (name, seed, "x" * size))
connection.execute("UPDATE shared SET n = ? WHERE id % 3 = ?", (1000 + seed, seed))
connection.execute("UPDATE shared SET m = ? WHERE id <= 8", (2000 + seed,))
connection.commit()
"""


def test_large_transactions_at_once_while_those_who_bring_and_merge_them_are_killed(street: SupplierStreet) -> None:
    """Each site writes two, which the others have not seen; rows of the same names give way."""
    street.share()
    street.follow("a", "d")
    for name in NAMES:
        street.on(street.by[name], "update", "stop")
    for _ in range(2):
        street.finish([street.python(LARGE, str(street.by[name]), str(at)) for at, name in enumerate(NAMES)])
    before = {name: len(street.merges(name)) for name in NAMES}
    for name in NAMES:
        street.start_daemon(name, "update")
    for name, daemon in 2 * [("a", "update"), ("b", "update"), ("a", "source-c"), ("c", "update"), ("b", "receiver")]:
        street.restart(name, daemon)
    street.level()
    named = [row[1] for row in street.rows("c")["shared"] if str(row[1]).startswith(("same", "of"))]
    each = {f"of {at} {number}" for at in range(3) for number in range(60) if number % 20}
    assert sorted(named) == sorted(each | {"same 0", "same 20", "same 40"})
    assert all(len(street.merges(name)) > before[name] for name in NAMES)
    assert "equal" in street.on(street.by["a"], "compare", "--with", street.by["b"]).stdout
    wait_until(lambda: street.rows_at(street.directory / "d") == street.rows("a"), what="the secondary follows")
    wait_until(lambda: not any(map(street.stamped, NAMES)), what="all have told, and all have forgotten")


NAMED = """
import sys, replicate
path, seed = sys.argv[1], int(sys.argv[2])
connection = replicate.connect(path, timeout=60)
for number in range(30):
    connection.execute("INSERT INTO shared (name, n) VALUES (?, ?)", (f"back {number % 10} {number // 10}", seed))
    connection.execute("UPDATE shared SET name = name || '.' WHERE name LIKE 'back 3%' AND n = ?", (seed,))
    connection.commit()
"""


def test_one_that_is_restored_gets_back_rows_that_gave_way(street: SupplierStreet) -> None:
    """Which of two rows of one name went, the others know; one that lacks what came after it takes their word."""
    street.share()
    street.stop_site("b")
    street.keep("b", street.directory / "kept")
    street.start_site("b")
    for name in NAMES:
        street.on(street.by[name], "update", "stop")
    street.finish([street.python(NAMED, str(street.by[name]), str(at)) for at, name in enumerate(NAMES)])
    for name in NAMES:
        street.start_daemon(name, "update")
    street.level()
    street.finish([street.python(NAMED.replace("back", "once more"), str(street.by["c"]), "9")])
    street.level()
    before = street.rows("a")
    street.stop_site("b")
    street.restore("b", street.directory / "kept")
    street.start_site("b")
    wait_until(lambda: "RESTORING" not in street.findings("b"), what="it has back what it had")
    street.level()
    assert street.rows("b") == street.rows("a") == before
    assert "equal" in street.on(street.by["a"], "compare", "--with", street.by["b"]).stdout
    street.finish([street.python(WRITER, str(street.by["b"]), "tb", "5")])
    street.level()


def test_one_that_is_gone_for_good_is_inherited_and_lets_nobody_stop_when_it_returns(street: SupplierStreet) -> None:
    """b is lost with transactions that nobody has, and some that only a has; c, which b never talks to, retires it."""
    a, b, c = (street.by[name] for name in NAMES)
    before = {table: len(rows) for table, rows in street.rows("c").items()}
    street.on(c, "source", "stop", "--peer", "a")
    street.on(a, "source", "stop", "--peer", "c")
    street.finish([street.python(WRITER, str(b), "tb", "20")])
    wait_until(lambda: len(street.rows("a")["tb"]) == before["tb"] + 20, what="a has what c does not have")
    street.on(b, "source", "stop")
    street.finish([street.python(WRITER, str(b), "tb", "5")])
    street.stop_site("b")
    waits = street.on(c, "replica", "retire", "b", "--yes", "--timeout", "0", check=False)
    assert waits.returncode == 1
    assert "waited for: a" in waits.stdout
    street.on(c, "source", "start", "--peer", "a")
    street.on(a, "source", "start", "--peer", "c")
    done = street.on(c, "replica", "retire", "b", "--yes")
    assert "b is retired" in done.stdout
    assert len(street.rows("c")["tb"]) == before["tb"] + 20, "what anybody had of it is everywhere"
    street.finish([street.python(WRITER, str(c), "tb", "5")])
    wait_until(lambda: street.rows("a")["tb"] == street.rows("c")["tb"], what="the heir's rows are on a")
    told = json.loads(street.on(a, "--json", "replica", "list").stdout)
    assert {one["name"]: one["told"] for one in told}["b"] == "retired"
    street.start_site("b")  # it was not gone after all
    wait_until(lambda: "SUPPLIER_RETIRED" in street.findings("b"), what="it is told")
    refused = street.python(WRITER, str(b), "tb", "1")
    _, error = refused.communicate(timeout=60)
    assert refused.returncode
    assert "gone for good, by a" in error
    street.finish([street.python(WRITER, str(site), table, "5") for site, table in ((a, "ta"), (c, "tc"))])
    wait_until(lambda: street.rows("a") == street.rows("c"), what="the others go on")
    after = {table: len(rows) for table, rows in street.rows("a").items()}
    assert [after[table] - before[table] for table in ("ta", "tc")] == [5, 5]
    again = street.on(c, "replica", "retire", "b", "--yes")
    assert "b is retired" in again.stdout
