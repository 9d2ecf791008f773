"""A seed of one region over the connection, whose source, receiver or command dies, or meets a full disk, on the way:
the same command ends it, and the other regions go on.

Real processes. What is refused, and each step of putting the copy into its place, is in test_daemons_down.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.daemon.lock_file import LockFile
from replicate.instance.instance import Instance
from tests.harness.street import QUICK, Street, make_database
from tests.harness.waiting import wait_until

NUMBERS = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
FULL = f"CREATE TABLE t (a INTEGER PRIMARY KEY, b); {NUMBERS} INSERT INTO t SELECT i, randomblob(100) FROM n;"


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=QUICK)
    try:
        yield made.build().start()
    finally:
        made.close()


def again(street: Street, name: str, listen: str, failpoint: str = "") -> None:
    """Start a server that does not run, with that failpoint."""
    if failpoint:
        street.environment["REPLICATE_FAILPOINT"] = failpoint
    if name == "receiver":
        street.start_receiver(listen)
    else:
        street.start_source()
    street.environment.pop("REPLICATE_FAILPOINT", None)


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("name", "failpoint"),
    [
        ("source", "seed.making:1:kill"),
        ("source", "seed.sending:3:kill"),
        ("source", "seed.write:3:errno=ENOSPC"),
        ("receiver", "seed.incoming:3:kill"),
        ("receiver", "seed.incoming:3:errno=ENOSPC"),
        ("command", "seed.received:1:kill"),
    ],
)
def test_the_same_command_ends_it(street: Street, name: str, failpoint: str) -> None:
    listen = f"127.0.0.1:{street.port()}"
    make_database(street.directory / "full.db", FULL)
    street.on(street.primary, "region", "add", street.directory / "full.db", "--yes")
    wait_until(lambda: "full" in Instance.open(street.secondary).waiting, what="it waits there")
    instance, lock = (street.primary, "source-secondary") if name == "source" else (street.secondary, "receiver")
    if name != "command":
        street.on(instance, name, "stop", *(["--keep-update"] if name == "receiver" else []))
        again(street, name, listen, failpoint)
        wait_until(lambda: street.daemon(street.secondary, "receiver")["facts"].get("is_streaming"), what="it streams")
    else:
        street.environment["REPLICATE_FAILPOINT"] = failpoint
    writer = street.python(WRITER, str(street.primary))
    if failpoint.endswith("kill") and name != "command":
        command = street.python(COMMAND, str(street.secondary))
        wait_until(lambda: LockFile(instance, lock).probe() is None, what="it has died")
        again(street, name, listen)
        if name == "source":  # the command has waited for it
            output, errors = command.communicate(timeout=120)
            assert command.returncode == 0, output + errors
        else:
            assert command.wait(120) != 0
    else:
        done = street.on(street.secondary, "seed", "--region", "full", check=False)
        assert done.returncode != 0
        assert ("no space left" in done.stderr) == ("ENOSPC" in failpoint), done
    street.environment.pop("REPLICATE_FAILPOINT", None)
    if Instance.open(street.secondary).waiting:
        if "ENOSPC" in failpoint:
            street.kill(instance, lock)
            again(street, name, listen)
        told = street.on(street.secondary, "seed", "--region", "full").stdout
        assert re.search(r"level with the others: full", told)
    assert writer.poll() is None
    writer.kill()
    writer.wait()
    street.prove_equal()
    assert not Instance.open(street.secondary).waiting
    assert not list((street.secondary / "seed").iterdir())


COMMAND = "import sys; from replicate.cli.main import main; main(['-i', sys.argv[1], 'seed', '--region', 'full'])"
WRITER = """
import sys, time, replicate
STATEMENTS = "INSERT INTO loose VALUES (1, 2)", "UPDATE t SET b = a || 'x' WHERE a = 7"
connections = [replicate.connect(sys.argv[1], name) for name in ("main", "full")]
while True:
    for connection, statement in zip(connections, STATEMENTS):
        with connection:
            connection.execute(statement)
    time.sleep(0.01)
"""
