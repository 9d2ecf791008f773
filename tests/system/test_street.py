"""The main job, end to end: real processes over real TCP, each killed under load; both databases equal at the end.

Faults 1 to 10, 15, 18, 25, 54 and 68 of the project's catalogue, as whole processes; their small forms are unit tests.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.harness.memory import Memory
from tests.harness.street import Street
from tests.harness.waiting import wait_until

SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 2097152
    [source]
    heartbeat_period_s = 0.5
    dead_after_s = 2.0
    hard_period_s = 0.1
    soft_period_s = 0.3
    [receiver]
    pool_bytes = 8388608
    heartbeat_period_s = 0.5
    dead_after_s = 2.0
"""

NOTICED_WITHIN_S = 60.0
"""A frozen peer: `dead_after_s`, a heartbeat before that, and much time on a busy machine."""

pytestmark = pytest.mark.slow


def test_two_writers_and_every_daemon_killed_under_load(street: Street) -> None:
    writers = [street.writer(number, seed=number) for number in (1, 2)]
    wait_until(lambda: street.last_seqno(street.secondary) > 50, what="the stream runs")
    street.kill(street.secondary, "update")
    street.start_update()
    street.kill(street.primary, "source-secondary")
    street.start_source()
    street.kill(street.secondary, "receiver")
    street.start_receiver(f"127.0.0.1:{street.port()}")
    writers[0].kill()
    wait_until(lambda: writers[0].poll() is not None, what="the writer is gone")
    third = street.writer(3, 20, seed=3)
    street.finish([third])
    writers[1].kill()
    street.prove_equal()


def test_a_frozen_receiver_is_noticed_and_the_stream_goes_on_when_it_thaws(street: Street) -> None:
    street.write("INSERT INTO loose VALUES (1, 1)")
    street.prove_equal()
    street.kill(street.secondary, "receiver", signal.SIGSTOP)
    frozen_s = time.monotonic()
    try:
        street.write("INSERT INTO loose VALUES (2, 2)")
        wait_until(
            lambda: any("silent" in line.get("error", "") for line in street.log(street.primary, "source-secondary")),
            timeout_s=NOTICED_WITHIN_S - (time.monotonic() - frozen_s),
            what="the source says that its peer is silent",
        )
    finally:
        street.kill(street.secondary, "receiver", signal.SIGCONT)
    street.prove_equal()


def test_a_dead_update_process_is_said_and_not_restarted(street: Street) -> None:
    street.kill(street.secondary, "update")
    street.write("INSERT INTO loose VALUES (3, 3)")
    wait_until(
        lambda: any(
            line.get("level") == "error" and "Update Process" in line["event"]
            for line in street.log(street.secondary, "receiver")
        ),
        what="the receiver says that the Update Process is dead",
    )
    assert not street.daemon(street.secondary, "update")["exit_code"]
    status = street.on(street.secondary, "status", check=False)
    assert status.returncode == 1
    assert "update start" in status.stdout
    street.start_update()
    street.prove_equal()
    # Stopped by command, alone, it reads as stopped; the Receiver Server goes on.
    assert street.on(street.secondary, "update", "stop").stdout.startswith("update: stopped; applied ")
    seqno = street.write("INSERT INTO loose VALUES (4, 4)")
    wait_until(
        lambda: street.daemon(street.secondary, "receiver")["facts"]["last_received_seqno"] == seqno,
        what="it is received all the same",
    )
    assert "DAEMON_STOPPED" in {one["code"] for one in street.status(street.secondary)["findings"]}
    assert street.daemon(street.secondary, "receiver")["facts"]["is_connected"]
    street.start_update()
    street.prove_equal()


def test_a_conflict_stops_the_update_process_with_everything_an_operator_needs(street: Street) -> None:
    street.write("INSERT INTO account VALUES (77, 'Ada', 1, NULL, NULL)")
    street.prove_equal()
    street.on(street.secondary, "update", "stop")
    # The guard keeps other clients out; one who drops it first is found by the before-image all the same.
    street.finish([
        street.python(
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA writable_schema=1');"
            "v = c.execute('PRAGMA schema_version').fetchone()[0];"
            "guard = '_replicate_guard_update_account';"
            "sql = c.execute('SELECT sql FROM sqlite_schema WHERE name = ?', (guard,)).fetchone()[0];"
            "c.execute('DROP TRIGGER _replicate_guard_update_account');"
            "c.execute('DROP TRIGGER account_audit');"
            "c.execute('UPDATE account SET balance = 2 WHERE id = 77');"
            "c.execute(sql);"
            "c.execute(\"CREATE TRIGGER account_audit AFTER UPDATE ON account\\nBEGIN INSERT INTO audit VALUES "
            "('account ' || new.id, new.balance); END\");"
            "c.execute(f'PRAGMA schema_version={v}'); c.commit()",
            str(street.secondary / "regions" / "main.db"),
        )
    ])  # fmt: skip
    street.start_update()
    seqno = street.write("UPDATE account SET balance = 3 WHERE id = 77")
    wait_until(lambda: street.daemon(street.secondary, "update")["exit_code"] == 65, what="the update stops")
    error = street.daemon(street.secondary, "update")["error"]
    assert "account" in error
    assert str(seqno) in error
    files = list((street.secondary / "conflict").iterdir())
    assert len(files) == 1
    assert files[0].stat().st_mode & 0o777 == 0o600
    conflict = json.loads(files[0].read_text())
    assert conflict["table"] == "account"
    assert "expected" in conflict
    assert "found" in conflict
    assert street.last_seqno(street.secondary) == seqno - 1


def test_a_large_transaction_passes_small_pools_with_bounded_memory(street: Street) -> None:
    program = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
print("ready", flush=True)
with connection:
    connection.executemany(
        "INSERT INTO account(owner, balance, photo) VALUES ('big', ?, ?)",
        ((n, bytes([n % 256]) * 10_000) for n in range(10_500)),
    )
print(connection.last_seqno, flush=True)
"""
    daemons = ((street.primary, "source-secondary"), (street.secondary, "receiver"), (street.secondary, "update"))
    pids = {name: street.pid(instance, name) for instance, name in daemons}
    writer = street.python(program, str(street.primary))
    pids["writer"] = writer.pid
    memory = Memory(pids)
    memory.start()
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        seqno = int(writer.stdout.readline())
        street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "120")
    finally:
        peaks = memory.stop()
    assert all(10 < peak < 60 for peak in peaks.values()), peaks
    street.finish([writer])
    street.prove_equal()


def test_schema_changes_and_two_versions_of_a_table_pass_the_street(street: Street) -> None:
    street.write(
        "INSERT INTO setting VALUES ('one', 1)",
        "ALTER TABLE setting ADD COLUMN unit TEXT DEFAULT 'm'",
        "UPDATE setting SET value = 2 WHERE name = 'one'",
        "INSERT INTO setting VALUES ('two', 2, 'km')",
        "CREATE TABLE made (id INTEGER PRIMARY KEY, a UNIQUE)",
        "INSERT INTO made VALUES (1, 'x'), (2, 'y')",
    )
    street.write("CREATE INDEX made_a ON made(a)", "INSERT INTO made VALUES (3, 'z')", "DROP TABLE loose")
    street.prove_equal()


def test_the_source_reads_the_pool_in_steady_state(street: Street) -> None:
    def counts() -> tuple[int, int]:
        facts = street.daemon(street.primary, "source-secondary")["facts"]
        return facts["transactions_from_pool"], facts["transactions_from_files"]

    street.finish([street.writer(1, 20)])  # a stream begins in the files
    wait_until(
        lambda: street.write("INSERT INTO loose VALUES (1, 1)") and counts()[0], what="the source is at the pool"
    )
    first = street.prove_equal()
    wait_until(lambda: street.daemon(street.primary, "source-secondary")["facts"].get("last_applied_seqno", 0) >= first)
    before = counts()
    street.finish([street.writer(2, 400)])
    street.prove_equal()
    wait_until(lambda: sum(counts()) - sum(before) >= 400, what="the source has told its counts")
    pool, files = (now - was for now, was in zip(counts(), before, strict=True))
    assert pool >= 0.99 * (pool + files), (pool, files)


def test_a_reboot_of_both_hosts_loses_nothing(street: Street) -> None:
    """Pools gone, daemons gone, in the middle of the load: everything is there after a start in any order."""
    writer = street.writer(1)
    wait_until(lambda: street.last_seqno(street.secondary) > 30, what="the stream runs")
    writer.kill()
    for instance, name in (
        (street.secondary, "update"),
        (street.primary, "source-secondary"),
        (street.secondary, "receiver"),
    ):
        street.kill(instance, name)
    wait_until(lambda: writer.poll() is not None, what="the writer is gone")
    for file in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        file.unlink()
    port = street.port()
    street.start_update()
    street.start_source()
    street.start_receiver(f"127.0.0.1:{port}")
    street.prove_equal()
    assert os.path.exists(street.primary / "log" / "recovery.log")


def test_a_second_start_is_refused_and_stop_ends_everything(street: Street) -> None:
    again = street.on(street.secondary, "update", "start", check=False)
    assert again.returncode == 73
    assert "ALREADY_RUNNING" in again.stderr
    for instance, name in ((street.primary, "source"), (street.secondary, "update"), (street.secondary, "receiver")):
        assert street.on(instance, name, "stop").returncode == 0
    assert street.daemon(street.primary, "source-secondary")["state"] == "stopped"


def test_release_gives_plain_sqlite_back(street: Street) -> None:
    street.write("INSERT INTO loose VALUES (9, 9)")
    street.prove_equal()
    street.on(street.primary, "source", "stop")
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    street.on(street.secondary, "region", "release", "main")
    street.on(street.primary, "region", "release", "main")
    program = """
import sqlite3, sys
for path in sys.argv[1:]:
    connection = sqlite3.connect(path)
    ours = "SELECT name FROM sqlite_schema WHERE name LIKE '\\\\_replicate%' ESCAPE '\\\\'"
    assert not connection.execute(ours).fetchall()
    connection.execute("INSERT INTO loose VALUES (10, 10)")
    connection.commit()
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
"""
    street.finish([street.python(program, str(street.database), str(street.secondary / "regions" / "main.db"))])
