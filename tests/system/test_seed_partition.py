"""A partition is loaded beside the stream over real processes, under writes to its tables; command, servers and Update
Process are killed on the way: the same command ends it, and what is held goes on.

What is refused, and each step of putting rows in, is in tests/replicate/transfer/seed/test_partition.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.daemon.lock_file import LockFile
from replicate.instance.instance import Instance
from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until
from tests.system.test_partitions import rows

MANY = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
SALES = "account", "entry"


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    """The secondary has stock (setting) alone; sales (account and entry, many rows) is on the primary."""
    made = Street(tmp_path, settings=QUICK).build()
    try:
        for name in ("sales", "stock"):
            made.on(made.primary, "partition", "create", name)
            made.on(made.secondary, "partition", "create", name)
        made.on(made.primary, "partition", "assign", "sales", *SALES)
        made.on(made.primary, "partition", "assign", "stock", "setting")
        made.on(made.secondary, "subscription", "set", "stock")
        made.write(f"{MANY} INSERT INTO account (owner, note) SELECT 'many', hex(randomblob(50)) FROM n")
        made.start()
        yield made
    finally:
        made.close()


WRITER = """
import sys, time, replicate
connection = replicate.connect(sys.argv[1])
STATEMENTS = (
    "INSERT INTO account (owner, note) VALUES ('now', 'x')",
    "UPDATE account SET note = note || 'x' WHERE id % 997 = 5",
    "DELETE FROM account WHERE id % 991 = 7",
    "INSERT INTO entry (amount) VALUES (1)",
    "INSERT OR REPLACE INTO setting VALUES ('now', random())",
    "UPDATE setting SET value = value + 1",
)
while True:
    for statement in STATEMENTS:
        with connection:
            connection.execute(statement)
    with connection:
        for statement in STATEMENTS:
            connection.execute(statement)
    time.sleep(0.01)
"""


def level(street: Street, *held: str) -> None:
    """What is held is there, row by row, and by `compare` and `scr`."""
    last = street.write("INSERT INTO audit VALUES ('proof', 1)")
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "120")
    found = json.loads(street.on(street.secondary, "--json", "compare", "--with", street.primary).stdout)
    status = {one["table"]: one["status"] for one in found["regions"][0]["comparison"]["tables"]}
    here = street.secondary / "regions" / "main.db"
    for table in ("account", "entry", "setting", "audit"):
        if table in held:
            assert rows(here, table) == rows(street.database, table) != []
            assert status[table] == "equal"
        else:
            assert status[table].startswith("left out")
    array = json.loads(street.on(street.primary, "--json", "scr", "--with", street.secondary).stdout)
    states = {one["partition_id"]: one["state"] for one in array["rows"]}
    assert states["stock"] == "even"
    assert (states["sales"] == "even") == ("account" in held), states


def choice(street: Street) -> tuple[int, ...] | None:
    return Instance.open(street.secondary).content.held


@pytest.mark.slow
def test_under_writes_and_again_after_it_was_removed(street: Street) -> None:
    writer = street.python(WRITER, str(street.primary))
    level_before = street.last_seqno(street.secondary)
    listed = street.on(street.secondary, "subscription", "add", "sales").stdout
    assert "next: replicate -i" in listed
    assert "seed --partition sales" in listed
    told = street.on(street.secondary, "seed", "--partition", "sales").stdout
    assert "sales: here, and level with the others at seqno" in told
    assert street.last_seqno(street.secondary) > level_before
    assert choice(street) == (2, 3)
    level_now = street.last_seqno(street.secondary)
    wait_until(lambda: street.last_seqno(street.secondary) > level_now + 50, what="all goes on")
    street.on(street.secondary, "subscription", "remove", "sales")
    wait_until(lambda: street.daemon(street.secondary, "receiver")["facts"].get("is_streaming"), what="it streams")
    assert "frozen" in street.on(street.secondary, "subscription", "list").stdout
    street.on(street.secondary, "subscription", "add", "sales")
    street.on(street.secondary, "seed", "--partition", "sales")
    assert writer.poll() is None
    writer.kill()
    writer.wait()
    level(street, *SALES, "setting")
    assert not list((street.secondary / "seed").iterdir())


COMMAND = "import sys; from replicate.cli.main import main; main(['-i', sys.argv[1], 'seed', '--partition', 'sales'])"


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("name", "failpoint"),
    [
        ("source", "seed.making:1:kill"),
        ("source", "seed.sending:3:kill"),
        ("receiver", "seed.incoming:3:kill"),
        ("receiver", "seed.incoming:3:errno=ENOSPC"),
        ("command", "partition.discarded:1:kill"),
        ("command", "partition.begun:1:kill"),
        ("command", "seed.received:1:kill"),
        ("command", "partition.rolled:1:kill"),
        ("command", "partition.put_in:1:kill"),
        ("command", "partition.held:1:kill"),
        ("update", ""),
    ],
)
def test_the_same_command_ends_it(street: Street, name: str, failpoint: str) -> None:
    listen = f"127.0.0.1:{street.port()}"
    street.on(street.secondary, "subscription", "add", "sales")
    instance, lock = {
        "source": (street.primary, "source-secondary"),
        "receiver": (street.secondary, "receiver"),
    }.get(name, (street.secondary, "update"))

    def again(failing: str = "") -> None:
        if failing:
            street.environment["REPLICATE_FAILPOINT"] = failing
        {"source": street.start_source, "receiver": lambda: street.start_receiver(listen)}.get(
            name, street.start_update
        )()
        street.environment.pop("REPLICATE_FAILPOINT", None)

    if name in ("source", "receiver"):
        street.on(instance, name, "stop", *(["--keep-update"] if name == "receiver" else []))
        again(failpoint)
    writer = street.python(WRITER, str(street.primary))
    if name == "command":
        street.environment["REPLICATE_FAILPOINT"] = failpoint
    command = street.python(COMMAND, str(street.secondary))
    street.environment.pop("REPLICATE_FAILPOINT", None)
    if name == "update":
        wait_until(lambda: Instance.open(street.secondary).content.choice.loading, what="it has begun")
        street.kill(instance, lock)
        again()
    elif name != "command" and failpoint.endswith("kill"):
        wait_until(lambda: LockFile(instance, lock).probe() is None, what="it has died")
        again()
    done = _ended(command)
    if choice(street) != (2, 3):
        assert done != 0
        if "ENOSPC" in failpoint:
            street.kill(instance, lock)
            again()
        street.on(street.secondary, "seed", "--partition", "sales")
    assert choice(street) == (2, 3)
    assert writer.poll() is None
    writer.kill()
    writer.wait()
    level(street, *SALES, "setting")


def _ended(command: subprocess.Popen[str]) -> int:
    command.communicate(timeout=120)
    return int(command.returncode)


@pytest.mark.slow
def test_what_the_source_refuses_stops_nothing(street: Street) -> None:
    """The command says so, and what is held streams on without it."""
    address = f"127.0.0.1:{street.port()}"
    street.write("INSERT INTO setting VALUES ('one', 1)", "INSERT INTO entry (amount) VALUES (1)")
    street.on(street.secondary, "partition", "create", "nowhere", "--id", "9")
    street.on(street.secondary, "subscription", "add", "nowhere")
    refused = street.on(street.secondary, "seed", "--partition", "nowhere", check=False)
    assert "primary has no partition 9" in refused.stderr
    street.on(street.primary, "peer", "add", "secondary", address, "--partitions", "stock", "--replace")
    street.on(street.secondary, "subscription", "add", "sales")
    refused = street.on(street.secondary, "seed", "--partition", "sales", check=False)
    assert "secondary may have partition stock of primary, and asks for sales" in refused.stderr
    level(street, "setting")
    # Nor when the command has died before it heard of it.
    street.environment["REPLICATE_FAILPOINT"] = "partition.begun:1:kill"
    assert _ended(street.python(COMMAND, str(street.secondary)))
    street.environment.pop("REPLICATE_FAILPOINT")
    level(street, "setting")
    street.on(street.primary, "peer", "add", "secondary", address, "--partitions", "ALL", "--replace")
    street.on(street.secondary, "seed", "--partition", "sales")
    level(street, *SALES, "setting")


@pytest.mark.slow
def test_a_third_site_that_comes_from_before(street: Street) -> None:
    """The journal of a relay has the partition from a transaction on: who has it to a place before that would miss what
    is between, and is refused by name."""
    third, address = street.directory / "third", f"127.0.0.1:{free_port()}"
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(third, "subscription", "set", "2", "3")
    for relay in (street.primary, street.secondary):
        street.on(relay, "peer", "add", "third", address)
    street.on(third, "seed", "--from", street.primary)
    street.write("INSERT INTO setting VALUES ('one', 1)", "INSERT INTO entry (amount) VALUES (1)")
    street.on(street.secondary, "subscription", "add", "sales")
    street.on(street.secondary, "seed", "--partition", "sales")
    street.on(third, "receiver", "start", "--listen", address)
    street.on(street.secondary, "source", "start", "--peer", "third")

    def says_so() -> bool:
        told = "secondary has partition sales in its journal from transaction"
        return any(told in json.dumps(line) for line in street.log(street.secondary, "source-third"))

    wait_until(says_so, what="the relay refuses by name")
    street.on(street.secondary, "source", "stop", "--peer", "third")
    street.on(third, "update", "stop")
    street.on(third, "seed", "--restart", "--from", street.secondary)
    street.on(third, "update", "start")
    street.on(street.secondary, "source", "start", "--peer", "third")
    last = street.write("INSERT INTO account (owner) VALUES ('more')")
    street.on(third, "wait", "--seqno", str(last), "--timeout", "60")
    street.on(third, "compare", "--with", street.secondary)
    assert rows(third / "regions" / "main.db", "account") == rows(street.database, "account")


@pytest.mark.slow
def test_a_third_site_while_the_relay_removes_and_loads_again(street: Street) -> None:
    """What came between is not in the relay's journal: also where its Source Server has looked before and after only,
    and the relay holds the same both times."""
    third, address = street.directory / "third", f"127.0.0.1:{free_port()}"
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(third, "subscription", "set", "3")
    street.on(street.secondary, "peer", "add", "third", address)
    street.on(third, "receiver", "start", "--listen", address)
    street.on(third, "seed", "--from", street.secondary)
    street.on(third, "update", "start")
    street.on(street.secondary, "source", "start", "--peer", "third")
    last = street.write("INSERT INTO setting VALUES ('before', 1)")
    street.on(third, "wait", "--seqno", str(last), "--timeout", "60")
    street.kill(street.secondary, "source-third", signal.SIGSTOP)
    street.on(street.secondary, "subscription", "add", "sales")  # else none would be left
    street.on(street.secondary, "subscription", "remove", "stock")

    def is_without() -> bool:
        last = street.write("INSERT INTO setting VALUES (hex(randomblob(8)), 1)")
        street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
        return (
            json.loads(street.on(street.secondary, "--json", "audit", "show", "--last", "1").stdout)["kind"] == "NULL"
        )

    wait_until(is_without, what="the relay gets no more of it")
    street.on(street.secondary, "subscription", "set", "stock")
    street.on(street.secondary, "seed", "--partition", "stock")
    street.kill(street.secondary, "source-third", signal.SIGCONT)
    street.write("INSERT INTO setting VALUES ('after', 1)")

    def says_so() -> bool:
        told = "secondary has partition stock in its journal from transaction"
        return any(told in json.dumps(line) for line in street.log(street.secondary, "source-third"))

    wait_until(says_so, what="the relay refuses by name")
    street.on(third, "update", "stop")
    street.on(third, "seed", "--restart", "--from", street.secondary)
    street.on(third, "update", "start")
    street.on(third, "wait", "--seqno", str(street.write("INSERT INTO setting VALUES ('more', 1)")), "--timeout", "60")
    assert rows(third / "regions" / "main.db", "setting") == rows(street.database, "setting")
