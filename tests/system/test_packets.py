"""A takeover, the old primary's return and the switch back, by packets alone: no daemon ever runs. And packets beside a
line whose daemons do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import replicate
from replicate.compare.compare import compare
from replicate.errors import ReplicateError, RollbackNeededError
from replicate.instance.instance import Instance
from tests.harness.instances import last_seqno, lose_pool
from tests.harness.pair import Pair
from tests.harness.street import Street, assert_same_databases
from tests.replicate.cli.test_partition import said


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    made = Pair.create(tmp_path)
    said("-i", "east", "peer", "remove", "west")
    said("-i", "east", "peer", "add", "west", "--packets")
    said("-i", "east", "seed", "--to-file", str(tmp_path / "west.seed"), "--for", "west")
    said("-i", "west", "seed", "--from-file", str(tmp_path / "west.seed"))
    (tmp_path / "stick").mkdir()
    return made


def write(site: Path, count: int) -> int:
    connection = replicate.connect(site)
    for _ in range(count):
        connection.execute("INSERT INTO account(owner) VALUES (?)", (site.name,))
        connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def carry(pair: Pair, sender: str, target: str) -> None:
    """What the sender has for the target, and a receipt back."""
    stick = pair.directory / "stick"
    said("-i", sender, "packet", "export", "--to", target, "--outbox", str(stick))
    said("-i", target, "packet", "import", str(stick), "--remove")
    said("-i", target, "packet", "export", "--to", sender, "--receipt", "--outbox", str(stick))
    said("-i", sender, "packet", "import", str(stick), "--remove")


def level(pair: Pair) -> None:
    east, west = Instance.open(pair.primary.path), Instance.open(pair.secondary.path)
    assert last_seqno(east) == last_seqno(west)
    first, second = (east, west) if east.role == "primary" else (west, east)
    assert compare(first, second, timeout_s=60).equal


def test_the_roles_go_there_and_back(pair: Pair) -> None:
    east, west = pair.primary.path, pair.secondary.path
    write(east, 5)
    carry(pair, "east", "west")
    level(pair)
    common = write(east, 3) - 3
    assert f"with all transactions up to {common}" in said("-i", "west", "promote")
    write(west, 4)
    said("-i", "east", "demote")
    said("-i", "west", "peer", "add", "east", "--packets")
    with pytest.raises(RollbackNeededError) as caught:  # it has three that nobody else has
        carry(pair, "west", "east")
    assert f"rollback --to {common}" in caught.value.do
    said("-i", "east", "packet", "export", "--to", "west", "--receipt", "--outbox", str(pair.directory / "stick"))
    with pytest.raises(ReplicateError, match="says that east has transaction"):
        said("-i", "west", "packet", "import", str(pair.directory / "stick"))
    assert f"east is back at {common}" in said("-i", "east", "rollback", "--to", str(common))
    said("-i", "east", "packet", "import", str(pair.directory / "stick"), "--remove")
    level(pair)
    for path in (pair.directory / "stick").iterdir():
        path.unlink()  # the receipt that was too much
    carry(pair, "west", "east")
    assert "DAEMON_STOPPED" not in said("-i", "east", "status")
    # And back, by plan: the last packet first.
    last = write(west, 2)
    carry(pair, "west", "east")
    said("-i", "west", "demote")
    carry(pair, "west", "east")
    said("-i", "east", "promote", "--expect", str(last))
    write(east, 2)
    carry(pair, "east", "west")
    level(pair)
    matrix = json.loads(said("--json", "-i", "east", "epochs"))
    rows = {one["replica"]: one["epochs"] for one in matrix["replicas"]}
    assert rows["east"] == rows["west"]
    assert set(rows["east"]) == {"east", "west"}


@pytest.mark.slow
def test_a_line_that_is_down_and_the_daemons_that_stand_aside(street: Street) -> None:
    """The line's daemons run on, in the same processes, and it goes on where the packets ended."""
    primary, secondary = street.primary, street.secondary
    street.write("INSERT INTO loose VALUES ('by the line', 1)")
    street.prove_equal()
    pids = [street.daemon(secondary, name)["pid"] for name in ("receiver", "update")]
    street.on(primary, "source", "stop")
    stick = street.directory / "stick"
    stick.mkdir()
    for number in range(3):
        last = street.write(f"INSERT INTO loose VALUES ('by packet', {number})")
        street.on(primary, "packet", "export", "--to", "secondary", "--outbox", stick)
    street.on(secondary, "packet", "import", stick, "--remove")
    assert_same_databases(street.database, secondary / "regions" / "main.db")
    street.on(secondary, "wait", "--seqno", str(last), "--timeout", "60")
    street.on(primary, "source", "start")
    street.write("INSERT INTO loose VALUES ('by the line again', 2)")
    street.prove_equal()
    assert [street.daemon(secondary, name)["pid"] for name in ("receiver", "update")] == pids
    street.on(secondary, "journal", "verify")


@pytest.mark.slow
def test_beside_a_line_of_some_partitions(street: Street) -> None:
    """The secondary has sales only, by a line and by packets; so does a third site, which gets packets from it."""
    primary, secondary = street.primary, street.secondary
    street.on(primary, "partition", "create", "sales", "--id", "2")
    street.on(primary, "partition", "assign", "sales", "account", "entry")
    street.on(secondary, "wait", "--seqno", str(street.last_seqno(primary)), "--timeout", "60")
    street.on(secondary, "subscription", "set", "2")
    third = street.directory / "third"
    network = street.status(primary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(third, "subscription", "set", "2")
    street.on(secondary, "peer", "add", "third", "--packets")
    stick = street.directory / "stick"
    stick.mkdir()
    street.write("INSERT INTO account (owner) VALUES ('by the line')")
    came(street, secondary)
    street.on(secondary, "seed", "--to-file", stick / "third.seed", "--for", "third")
    street.on(third, "seed", "--from-file", stick / "third.seed")
    pids = [street.daemon(secondary, name)["pid"] for name in ("receiver", "update")]
    street.on(primary, "source", "stop")
    for number in range(3):
        street.write(
            f"INSERT INTO account (owner) VALUES ('by packet {number}')", f"INSERT INTO loose VALUES ('no', {number})"
        )
        street.on(primary, "packet", "export", "--to", "secondary", "--outbox", stick)
    street.on(secondary, "packet", "import", stick, "--remove")
    came(street, secondary)
    street.on(primary, "source", "start")
    street.write("INSERT INTO account (owner) VALUES ('by the line again')")
    came(street, secondary)
    assert [street.daemon(secondary, name)["pid"] for name in ("receiver", "update")] == pids
    street.on(secondary, "packet", "export", "--to", "third", "--outbox", stick)
    (path,) = stick.glob("*.packet")
    assert json.loads(street.run("--json", "packet", "show", path).stdout)["partitions"] == [2]
    street.on(third, "packet", "import", stick)
    came(street, third)
    street.on(third, "journal", "verify")


def came(street: Street, instance: Path) -> None:
    """All of account and entry is there, and of the others nothing new."""
    last = street.last_seqno(street.primary)
    street.on(instance, "wait", "--seqno", str(last), "--timeout", "60")
    found = json.loads(street.on(instance, "--json", "compare", "--with", street.primary).stdout)
    status = {one["table"]: one["status"] for one in found["regions"][0]["comparison"]["tables"]}
    assert (status["account"], status["entry"]) == ("equal", "equal")
    assert status["loose"].startswith("left out")


def test_a_restored_primary_gets_its_own_transactions_back(pair: Pair) -> None:
    """From the one that it had sent them to; nothing is numbered twice."""
    east, west, backup = pair.primary.path, pair.secondary.path, pair.directory / "backup"
    common = write(east, 5)
    carry(pair, "east", "west")
    shutil.copytree(east, backup / "east", symlinks=True)
    for file in pair.directory.glob("app.db*"):
        shutil.copy(file, backup)
    write(east, 6)
    carry(pair, "east", "west")
    lose_pool(Instance.open(east))
    shutil.rmtree(east)
    shutil.copytree(backup / "east", east, symlinks=True)
    for file in pair.directory.glob("app.db*"):
        file.unlink()
    for file in backup.glob("app.db*"):
        shutil.copy(file, pair.directory)
    said("-i", "west", "promote")
    said("-i", "west", "peer", "add", "east", "--packets")
    said("-i", "east", "demote")
    stick = str(pair.directory / "stick")
    said("-i", "east", "packet", "export", "--to", "west", "--receipt", "--outbox", stick)
    with pytest.raises(RollbackNeededError, match="says that east has transaction 8") as caught:
        said("-i", "west", "packet", "import", stick, "--remove")  # the copy began a life of its own
    assert caught.value.do.startswith(f"There: replicate -i east rollback --to {common},")
    said("-i", "east", "rollback", "--to", str(common))
    (pair.directory / "stick" / "east.west.000002.packet").unlink()
    said("-i", "east", "packet", "export", "--to", "west", "--receipt", "--outbox", stick)
    said("-i", "west", "packet", "import", stick, "--remove")
    carry(pair, "west", "east")
    level(pair)
    last = write(west, 1)
    carry(pair, "west", "east")
    said("-i", "west", "demote")
    carry(pair, "west", "east")
    said("-i", "east", "promote", "--expect", str(last))
    write(east, 1)
    carry(pair, "east", "west")
    level(pair)
