"""The ends of daemons as processes: what they still do, what they say, and what is left when one is killed in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import LockFile
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, pool_path
from tests.harness import command_line
from tests.harness.manual import chapter, commands, section
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SETTINGS = QUICK

pytestmark = pytest.mark.slow


def begin(street: Street, instance: Path, *words: str) -> subprocess.Popen[str]:
    """A command as a process that the test may kill."""
    return street.python("import sys; from replicate.cli.main import main; main()", "-i", str(instance), *words)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and all that it has said."""
    output, errors = process.communicate(timeout=120)
    return process.returncode, output + errors


def words_of(street: Street) -> Any:
    """The control words of the primary's journal pool."""
    with command_line.in_environment(street.environment):
        pool = pool_path(PoolKind.JOURNAL, Instance.open(street.primary).content.uuid)
    with open(pool, "rb") as file:
        return memoryview(file.read(8192)).cast("Q")


def acknowledged(street: Street) -> int:
    """What the primary's Source Server knows to be durable on the secondary."""
    return int(street.daemon(street.primary, "source-secondary")["facts"].get("last_acknowledged_seqno") or 0)


def lines_of(street: Street, title: str) -> list[list[str]]:
    """The commands of a section of the manual, for these instances."""
    found = commands(section(chapter("services"), title))
    return [line.replace("-i ", f"-i {street.directory}/").split()[1:] for line in found]


def test_a_stopped_source_server_says_what_was_acknowledged(street: Street) -> None:
    street.finish([street.writer(1, 50)])
    last = street.prove_equal()
    stop, stop_level = lines_of(street, "Stopping a Source Server")
    said = street.run(*stop).stdout
    assert said == f"source-secondary: stopped; sent {last}, acknowledged {last}, 0 not acknowledged\n"
    (line,) = [line for line in street.log(street.primary, "source-secondary") if line["event"] == "sending ended"]
    assert (line["last_sent_seqno"], line["last_acknowledged_seqno"], line["unacknowledged"]) == (last, last, 0)
    # What was not sent is counted, in this run and in the next, which sends nothing.
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    street.start_source()
    street.finish([street.writer(2, 5)])
    said = street.on(street.primary, "source", "stop", "--timeout", "0.2").stdout
    assert f"sent {last}, acknowledged {last}, 5 not acknowledged" in said
    assert street.run(*stop).stdout == "source-secondary: does not run\n"
    street.start_receiver(street.status(street.primary)["peers"][0]["address"])
    street.start_source()
    assert street.run(*stop_level).stdout.endswith(f"\nzero backlog at {last + 5}\n")


def test_zero_backlog_is_proved_while_writers_wait(street: Street) -> None:
    writer = street.writer(1)
    for _ in range(3):
        said = json.loads(street.on(street.primary, "--json", "source", "stop", "--zero-backlog").stdout)
        assert (said["zero_backlog"], said["not_acknowledged"]) == (True, {})
        last = street.daemon(street.primary, "source-secondary")["facts"]["last_acknowledged_seqno"]
        assert last == said["seqno"]
        street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "0")
        before = street.last_seqno(street.primary)
        wait_until(lambda before=before: street.last_seqno(street.primary) > before, what="the writer goes on")
        street.start_source()
    assert writer.poll() is None
    writer.kill()
    writer.communicate()
    street.prove_equal()


def test_what_is_not_acknowledged_is_counted_and_the_door_opens(street: Street) -> None:
    last = street.prove_equal()
    street.on(street.secondary, "update", "stop")
    wait_until(lambda: acknowledged(street) == last, what="the source knows what is durable there")
    street.finish([street.writer(1, 7)])
    stopped = street.on(street.primary, "source", "stop", "--zero-backlog", "--timeout", "0.5", check=False)
    assert (stopped.returncode, stopped.stdout.splitlines()[-1]) == (1, "7 not acknowledged by secondary")
    assert street.write("INSERT INTO audit VALUES ('open', 1)") == last + 8
    refused = street.on(street.primary, "source", "stop", "--zero-backlog", check=False)
    assert (refused.returncode, "source-secondary does not run" in refused.stderr) == (69, True)
    street.start_source()
    street.on(street.primary, "source", "deactivate")
    refused = street.on(street.primary, "source", "stop", "--zero-backlog", check=False)
    assert (refused.returncode, "source-secondary is passive" in refused.stderr) == (2, True)


@pytest.mark.parametrize("whom", ["command", "daemon", "both"])
def test_the_door_opens_when_one_is_killed_that_holds_it(street: Street, whom: str) -> None:
    street.prove_equal()
    street.on(street.secondary, "update", "stop")
    street.write("INSERT INTO audit VALUES ('lacking', 1)")
    command = begin(street, street.primary, "source", "stop", "--zero-backlog")
    wait_until(lambda: words_of(street)[word.CLOSING], what="the door is closed")
    if whom in ("command", "both"):
        command.send_signal(signal.SIGKILL)
    if whom in ("daemon", "both"):
        street.kill(street.primary, "source-secondary")
    code, said = ended(command)
    assert (code, "source-secondary does not run" in said) == ((69, True) if whom == "daemon" else (-9, False))
    street.write("INSERT INTO audit VALUES ('open', 1)")
    street.start_update()
    if whom != "command":
        street.start_source()
    street.prove_equal()


def test_two_stops_at_once_end_clearly(street: Street) -> None:
    street.prove_equal()
    street.on(street.secondary, "update", "stop")
    street.write("INSERT INTO audit VALUES ('lacking', 1)")
    first = begin(street, street.primary, "source", "stop", "--zero-backlog")
    wait_until(lambda: words_of(street)[word.CLOSING], what="the door is closed")
    second = street.on(street.primary, "source", "stop", "--zero-backlog", "--timeout", "0.2", check=False)
    assert (second.returncode, "BUSY" in second.stderr) == (75, True)
    street.start_update()
    code, said = ended(first)
    assert (code, "zero backlog at" in said) == (0, True)


def runs(street: Street, name: str) -> bool:
    """Whether that daemon of the secondary runs."""
    return LockFile(street.secondary, name).probe() is not None


def received(street: Street) -> int:
    return int(street.daemon(street.secondary, "receiver")["facts"]["last_received_seqno"])


def test_one_command_stops_and_one_starts_the_secondary(street: Street) -> None:
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    stop, start, keep, alone, update = lines_of(street, "The secondary's two daemons")
    start = [*start, "--listen", listen]
    writer = street.writer(1)
    wait_until(lambda: street.last_seqno(street.secondary) > 5, what="it applies")
    said = street.run(*stop).stdout
    last = street.last_seqno(street.secondary)
    assert said.splitlines()[0] == f"update: stopped; applied {last}, 0 received and not applied"
    assert said.splitlines()[1] == "receiver: stopped"
    assert (runs(street, "update"), runs(street, "receiver")) == (False, False)
    (line,) = [line for line in street.log(street.secondary, "update") if line["event"] == "applying ended"]
    assert (line["last_applied_seqno"], line["receiver_backlog"]) == (last, 0)
    said = street.run(*start).stdout
    assert [line.partition(" serves as ")[0] for line in said.splitlines()] == ["receiver", "update"]
    wait_until(lambda: street.last_seqno(street.secondary) > last, what="it applies again")
    pid = street.pid(street.secondary, "update")
    assert street.run(*keep).stdout == "receiver: stopped\n"
    both = json.loads(street.run("--json", *start).stdout)
    assert (both["daemon"], both["update"]["status"]) == ("receiver", f"runs already (process {pid})")
    # A supervisor's stop is a signal, and takes nobody along.
    os.kill(street.pid(street.secondary, "receiver"), signal.SIGTERM)
    wait_until(lambda: not runs(street, "receiver"), what="it ends")
    assert runs(street, "update")
    street.kill(street.secondary, "update")
    street.run(*alone, "--listen", listen)
    assert not runs(street, "update")
    street.run(*update)
    writer.kill()
    writer.communicate()
    street.prove_equal()


def test_before_the_first_copy_only_the_receiver_starts(tmp_path: Path) -> None:
    street = Street(tmp_path, settings=SETTINGS).build()
    try:
        said = street.on(street.secondary, "receiver", "start", "--listen", "127.0.0.1:0").stdout
        assert said.splitlines()[1].startswith("update: starts after the first copy; next: replicate -i ")
        stopped = street.on(street.secondary, "receiver", "stop").stdout
        assert stopped == "update: does not run\nreceiver: stopped\n"
    finally:
        street.close()


def test_a_frozen_update_process_is_ended_and_what_it_left_is_counted(street: Street) -> None:
    last = street.prove_equal()
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    street.kill(street.secondary, "update", signal.SIGSTOP)
    street.finish([street.writer(1, 5)])
    wait_until(lambda: received(street) == last + 5, what="they are received")
    stopped = street.on(street.secondary, "receiver", "stop", "--timeout", "0.5", check=False)
    assert stopped.returncode == 1
    update, receiver, left = stopped.stdout.splitlines()
    assert receiver.startswith("receiver: stopped")  # half a second is not much for its own drain on a busy machine
    assert (update, left) == (
        "update: did not end and was killed",
        "5 transactions that were received are not applied; they stay in the receive pool",
    )
    street.on(street.secondary, "receiver", "start", "--listen", listen)
    street.prove_equal()


def test_one_that_is_killed_in_its_stop_is_told_and_two_stops_end(street: Street) -> None:
    last = street.prove_equal()
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    street.kill(street.secondary, "update", signal.SIGSTOP)
    street.finish([street.writer(1, 3)])
    wait_until(lambda: received(street) == last + 3, what="they are received")
    stops = [begin(street, street.secondary, "receiver", "stop") for _ in range(2)]
    wait_until(DaemonFiles(street.secondary, "update").stop_timeout.exists, what="it is asked")
    street.kill(street.secondary, "update")
    for code, said in map(ended, stops):
        assert (code, "3 transactions that were received are not applied" in said) == (1, True), said
    street.on(street.secondary, "receiver", "start", "--listen", listen)
    stops = [begin(street, street.secondary, "receiver", "stop") for _ in range(2)]
    assert [code for code, _ in map(ended, stops)] == [0, 0]
    street.on(street.secondary, "receiver", "start", "--listen", listen)
    street.prove_equal()


def change_past_the_guards(street: Street, statement: str) -> None:
    """On the secondary, by a program that runs no triggers."""
    program = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
connection.execute(sys.argv[2])
"""
    street.finish([street.python(program, str(street.secondary / "regions" / "main.db"), statement)])


def test_a_conflict_does_not_hold_the_stop_up(street: Street) -> None:
    last = street.prove_equal()
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    change_past_the_guards(street, "UPDATE account SET balance = 77 WHERE id = 1")
    street.write("UPDATE account SET balance = 11 WHERE id = 1")
    wait_until(lambda: not runs(street, "update"), what="the conflict ends it")
    stopped = street.on(street.secondary, "receiver", "stop", check=False)
    assert stopped.returncode == 1
    assert stopped.stdout.splitlines() == [
        "update: does not run",
        "receiver: stopped",
        "1 transactions that were received are not applied; they stay in the receive pool",
    ]
    change_past_the_guards(street, "UPDATE account SET balance = 10 WHERE id = 1")
    street.on(street.secondary, "receiver", "start", "--listen", listen)
    street.on(street.secondary, "wait", "--seqno", str(last + 1))
    street.prove_equal()


def test_half_a_large_transaction_is_left_for_the_next_start(street: Street) -> None:
    """The Receiver Server stands still in the midst of it, so the rest never comes."""
    last = street.prove_equal()
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    street.on(street.secondary, "receiver", "stop")
    street.environment["REPLICATE_FAILPOINT"] = "receiver.before_offer:4:stop"
    street.on(street.secondary, "receiver", "start", "--no-update", "--listen", listen)
    del street.environment["REPLICATE_FAILPOINT"]
    street.start_update()
    large = street.write("INSERT INTO loose WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
                         "30000) SELECT i, randomblob(1000) FROM n")  # fmt: skip
    wait_until(lambda: "part" in street.daemon(street.secondary, "update")["text"], what="it has a part of it")
    stopped = street.on(street.secondary, "receiver", "stop", "--timeout", "0", check=False)
    assert stopped.returncode == 1
    assert stopped.stdout.splitlines() == [
        f"update: stopped before everything was drained; applied {last}, 0 received and not applied",
        "receiver: did not end and was killed",
    ]
    street.on(street.secondary, "receiver", "start", "--listen", listen)
    street.on(street.secondary, "wait", "--seqno", str(large))
    street.prove_equal()
