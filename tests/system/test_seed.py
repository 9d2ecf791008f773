"""Seeding over the connection, with real processes: writers go on, anybody may be killed, and it ends equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.street import SCHEMA, Street
from tests.harness.waiting import wait_until

SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 1048576
    segment_bytes = 1048576
    [source]
    heartbeat_period_s = 0.5
    dead_after_s = 60.0
    hard_period_s = 0.1
    soft_period_s = 0.2
    [receiver]
    pool_bytes = 4194304
    heartbeat_period_s = 0.5
    dead_after_s = 60.0
"""

BULK = (
    SCHEMA
    + """
CREATE TABLE bulk (number INTEGER PRIMARY KEY, content BLOB);
WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 240)
INSERT INTO bulk SELECT i, randomblob(50000) FROM n;
"""
)
"""About 12 MiB: some fifty chunks."""

WRITER = """
import sys, time
import replicate
connection = replicate.connect(sys.argv[1], timeout=60)
print("ready", flush=True)
number = 0
while True:
    number += 1
    with connection:
        connection.execute("INSERT INTO loose VALUES (?, ?)", (sys.argv[2], number))
        connection.execute("UPDATE bulk SET content = zeroblob(100) WHERE number = ?", (number % 200,))
    time.sleep(0.005)  # it goes on all the time, but leaves no backlog for minutes
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    """Both instances, the receiver and the peer; the source is started by the test."""
    made = Street(tmp_path, settings=SETTINGS, schema=BULK).build()
    try:
        made.start_receiver()
        made.on(made.primary, "peer", "add", "secondary", f"127.0.0.1:{made.port()}")
        yield made
    finally:
        made.close()


def start_source(street: Street, failpoint: str = "") -> None:
    street.environment["REPLICATE_FAILPOINT"] = failpoint
    street.start_source()
    street.environment["REPLICATE_FAILPOINT"] = ""


def seed(street: Street, *arguments: str, failpoint: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "replicate.cli.main", "-i", str(street.secondary), "seed", *arguments],
        env={**street.environment, "REPLICATE_FAILPOINT": failpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_on(street: Street, number: int) -> subprocess.Popen[str]:
    """A process that commits until it is killed; returns once it does."""
    process = street.python(WRITER, str(street.primary), str(number))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def part_bytes(street: Street) -> int:
    """How much of the seed is here."""
    try:
        return (street.secondary / "seed" / "incoming.part").stat().st_size
    except FileNotFoundError:
        return 0


def offsets(street: Street) -> list[int]:
    """From which byte the source has sent, each time."""
    return [line["from_offset"] for line in street.log(street.primary, "source-secondary")
            if line["event"] == "sending the seed"]  # fmt: skip


def finish(street: Street, *arguments: str, writer: subprocess.Popen[str] | None = None) -> None:
    """Run it to its end while the writer goes on, start the rest, and prove that both sites are equal."""
    done = street.on(street.secondary, "seed", *arguments)
    assert "seeded at seqno" in done.stdout
    assert "receiving" not in done.stderr  # no progress where there is no terminal
    if writer is not None:
        writer.kill()
        writer.wait()
    street.start_update()
    street.prove_equal()
    wait_until(lambda: not list((street.primary / "seed").glob("*")), what="the source has removed its file")
    assert list((street.secondary / "seed").glob("*")) == []
    assert list((street.primary / "consumers").glob("*.hold")) == []


def test_over_the_connection_while_writers_go_on(street: Street) -> None:
    start_source(street)
    writers = [write_on(street, number) for number in (1, 2)]
    done = street.on(street.secondary, "--json", "seed", "--from", "primary")
    for writer in writers:
        writer.kill()
        writer.wait()
    assert json.loads(done.stdout)["regions"] == ["main"]
    street.start_update()
    street.prove_equal()


def test_once_more_over_a_secondary_that_is_streaming(street: Street) -> None:
    start_source(street)
    street.on(street.secondary, "seed")
    assert street.on(street.secondary, "seed", check=False).returncode == 73
    street.start_update()
    street.write("INSERT INTO loose VALUES ('between', 1)")
    assert "ALREADY_RUNNING" in street.on(street.secondary, "seed", "--restart", check=False).stderr
    street.on(street.secondary, "update", "stop")
    finish(street, "--restart")


def test_the_source_is_killed_while_it_sends(street: Street) -> None:
    start_source(street, "seed.sending:20:kill")
    writer = write_on(street, 1)
    command = seed(street)
    wait_until(lambda: street.status(street.primary)["peers"][0]["source"]["state"] == "dead", what="it is killed")
    wait_until(lambda: part_bytes(street) > 1_000_000, what="much of what was sent is written down")
    start_source(street)
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors
    assert "seeded at seqno" in output
    assert offsets(street)[0] == 0
    assert offsets(street)[1] > 1_000_000
    writer.kill()
    street.start_update()
    street.prove_equal()


def test_the_source_is_killed_while_it_makes_the_seed(street: Street) -> None:
    start_source(street, "seed.making:3:kill")
    writer = write_on(street, 1)
    command = seed(street)
    wait_until(lambda: street.status(street.primary)["peers"][0]["source"]["state"] == "dead", what="it is killed")
    start_source(street)
    _, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors
    writer.kill()
    street.start_update()
    street.prove_equal()
    wait_until(lambda: not list((street.primary / "seed").iterdir()), what="the source has removed its file")


def test_the_receiver_is_killed_while_it_receives(street: Street) -> None:
    port = street.port()
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    street.environment["REPLICATE_FAILPOINT"] = "seed.incoming:20:kill"
    street.start_receiver(f"127.0.0.1:{port}")
    street.environment["REPLICATE_FAILPOINT"] = ""
    start_source(street)
    writer = write_on(street, 1)
    done = street.on(street.secondary, "seed", check=False)
    assert done.returncode == 69
    assert f"run replicate -i {street.secondary} seed again: it goes on where it was" in done.stderr
    assert part_bytes(street) > 1_000_000
    street.start_receiver(f"127.0.0.1:{port}")
    finish(street, writer=writer)
    assert offsets(street)[-1] > 1_000_000


def test_the_command_is_killed_while_it_waits(street: Street) -> None:
    port = street.port()
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    street.environment["REPLICATE_FAILPOINT"] = "seed.incoming:20:stop"  # stands still in the middle of the file
    street.start_receiver(f"127.0.0.1:{port}")
    street.environment["REPLICATE_FAILPOINT"] = ""
    start_source(street)
    writer = write_on(street, 1)
    command = seed(street)
    receiver = street.pid(street.secondary, "receiver")
    stat = Path(f"/proc/{receiver}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="it stands still")
    command.kill()
    command.communicate()
    os.kill(receiver, signal.SIGCONT)
    finish(street, writer=writer)
    assert offsets(street)[-1] > 1_000_000


@pytest.mark.parametrize("place", ["seed.received:1:kill", "seed.journal_begun:1:kill"])
def test_the_command_is_killed_when_all_has_come(street: Street, place: str) -> None:
    """Before anything is installed, and half way: the file is there, and nobody is asked for it again."""
    start_source(street)
    writer = write_on(street, 1)
    command = seed(street, failpoint=place)
    command.communicate(timeout=120)
    assert command.returncode == -signal.SIGKILL
    assert (street.secondary / "seed" / "incoming.seed").exists()
    finish(street, writer=writer)
    assert len(offsets(street)) == 1


def test_what_cannot_be_is_said_by_name(street: Street) -> None:
    start_source(street)
    other = street.on(street.secondary, "seed", "--from", "elsewhere", check=False)
    assert other.returncode == 76
    assert "the source that is connected is primary, not elsewhere" in other.stderr
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    nobody = street.on(street.secondary, "seed", check=False)
    assert nobody.returncode == 69
    assert "receiver start" in nobody.stderr
