"""A day of an operator: daemons in every order, frozen, killed and stale; logs rotated; systemd; segments, pruning and
pools that are too small; a third site; seeding again; regions given back; differences found; disks that are full.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from tests.harness.notified import Notified
from tests.harness.street import Street, is_alive, make_database
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
    compression = "zstd"
    [receiver]
    pool_bytes = 4194304
    heartbeat_period_s = 0.5
    dead_after_s = 60.0
"""

BULK = """
import os, sqlite3, sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
done = 0
try:
    for number in range(int(sys.argv[2])):
        with connection:
            connection.execute("INSERT INTO loose VALUES (?, ?)", (number, os.urandom(int(sys.argv[3]))))
        done += 1
except sqlite3.Error as error:
    print(error, file=sys.stderr)
print(done)
"""

LAPS = """
import os, sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
print("ready", flush=True)
for line in sys.stdin:
    for number in range(int(line)):
        with connection:
            connection.execute("INSERT INTO loose VALUES (?, ?)", (number, os.urandom(100_000)))
    print(connection.last_seqno, flush=True)
"""

# An operator who knows how to get around the guards.
ONE_ROW = """
import sys, replicate
with replicate.connect(*sys.argv[1:]) as connection:
    connection.execute("INSERT INTO t (b) VALUES ('one')")
"""
ROWS = """
import sys, time, replicate
connection = replicate.connect(*sys.argv[1:])
while True:
    with connection:
        connection.execute("INSERT INTO t (b) VALUES ('one')")
        connection.execute("UPDATE t SET b = a WHERE a = (SELECT max(a) FROM t) - 5")
    time.sleep(0.01)
"""
BY_HAND = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.create_function("replicate_connect_is_required", -1, lambda *_: 0)
version = connection.execute("PRAGMA schema_version").fetchone()[0]
for statement in sys.argv[2:]:
    connection.execute(statement)
connection.execute(f"PRAGMA schema_version = {version}")
"""

COUNTED = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM loose').fetchone()[0])"

PAUSE_S = 0.005
"""Between two transactions of a writer that goes on beside commands, which want a processor too."""

pytestmark = pytest.mark.slow


@pytest.fixture
def street(shared_street: Street) -> Street:
    return shared_street


def daemons(street: Street) -> tuple[tuple[Path, str, str], ...]:
    """Instance, name and noun of the three."""
    return (
        (street.primary, "source-secondary", "source"),
        (street.secondary, "receiver", "receiver"),
        (street.secondary, "update", "update"),
    )


def bulk(street: Street, count: int, size: int) -> tuple[int, str]:
    """Transactions of `size` bytes: how many were committed, and the error that ended them."""
    output, errors = street.python(BULK, str(street.primary), str(count), str(size)).communicate(timeout=120)
    assert "Traceback" not in errors
    return int(output), errors.strip()


def join(street: Street, name: str, feeder: Path) -> Path:
    """A further site, fed by `feeder`, seeded and running."""
    network = json.loads(street.on(street.primary, "--json", "instance", "show").stdout)["network"]
    made = street.directory / name
    street.others.append(made)
    street.run("instance", "create", made, "--role", "secondary", "--network", network)
    (made / "replicate.toml").write_text("[receiver]\npool_bytes = 4194304\n[journal]\npool_bytes = 1048576\n")
    street.on(made, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
    street.on(feeder, "peer", "add", name, street.daemon(made, "receiver")["facts"]["listen"])
    street.on(feeder, "source", "start", "--peer", name)
    street.on(made, "seed", "--from", feeder)
    street.on(made, "update", "start")
    return made


def test_daemons_started_in_every_order(street: Street) -> None:
    port = street.port()
    starts = {
        "receiver": lambda: street.start_receiver(f"127.0.0.1:{port}"),
        "update": street.start_update,
        "source": street.start_source,
    }
    for order in list(itertools.permutations(starts))[1::2]:
        for instance, name, noun in daemons(street):
            assert street.on(instance, noun, "status").stdout.startswith(f"{name}: serving")
        for instance, _, noun in daemons(street):
            assert street.on(instance, noun, "stop").returncode == 0
            assert "does not run" in street.on(instance, noun, "stop").stdout
            assert street.on(instance, noun, "status", check=False).returncode == 1
        for noun in order:
            starts[noun]()
        street.prove_equal()


def test_a_frozen_daemon_is_said_and_can_be_stopped(street: Street) -> None:
    street.kill(street.secondary, "update", signal.SIGSTOP)
    status = street.on(street.secondary, "status", check=False)
    assert status.returncode == 1
    assert "update is frozen" in status.stdout
    seqno = street.write("INSERT INTO loose VALUES ('after', 1)")
    pid = street.pid(street.secondary, "update")
    stopped = street.on(street.secondary, "update", "stop", "--timeout", "0", check=False)
    assert stopped.returncode == 1
    assert "killed" in stopped.stdout
    assert not is_alive(pid)
    dead = street.on(street.secondary, "status", check=False)
    assert "update dead" in dead.stdout
    # The lag grows while nobody applies and nobody writes, on both sides.
    for instance in (street.primary, street.secondary):

        def lag(instance: Path = instance) -> float:
            found = street.status(instance)
            part = found["receiving"] or found["peers"][0]
            return float(part["lag_s"] or 0) if part["backlog"] == 1 else 0.0

        wait_until(lambda lag=lag: lag() > 0.0, what="there is a lag")
        first = lag()
        wait_until(lambda lag=lag, first=first: lag() > first + 0.5, what="the lag grows")
    street.start_update()
    street.on(street.secondary, "wait", "--seqno", str(seqno))
    street.prove_equal()


def test_stop_with_a_frozen_peer_keeps_its_time_limit(street: Street) -> None:
    street.kill(street.secondary, "receiver", signal.SIGSTOP)
    try:
        street.finish([street.writer(1, 20)])
        began = time.monotonic()
        stopped = street.on(street.primary, "source", "stop", "--timeout", "1")
        assert time.monotonic() - began < 30  # the peer would be dead for it after 60
        assert "source-secondary: stopped" in stopped.stdout
    finally:
        street.kill(street.secondary, "receiver", signal.SIGCONT)
    street.start_source()
    street.prove_equal()


def test_a_stale_lock_file_stops_nobody(street: Street) -> None:
    """The number of a killed daemon now belongs to another process: it is not signalled, and a start goes on."""
    street.kill(street.secondary, "update")
    (street.secondary / "run" / "update.lock").write_text(f"{os.getpid()} 12345\n")
    assert "does not run" in street.on(street.secondary, "update", "stop").stdout
    assert "dead" in street.on(street.secondary, "update", "status", check=False).stdout
    street.start_update()
    street.prove_equal()


def test_logs_are_rotated_and_one_that_cannot_be_opened_harms_nothing(street: Street) -> None:
    for instance, name, noun in daemons(street):
        log = instance / "log" / f"{name}.log"
        log.rename(f"{log}.1")
        log.mkdir()
        street.on(instance, noun, "reopen-log")
        wait_until(lambda log=log: "log not reopened" in Path(f"{log}.1").read_text(), what="it says so in the old one")
        log.rmdir()
        os.kill(street.pid(instance, name), signal.SIGHUP)
        wait_until(lambda log=log: log.exists() and "log reopened" in log.read_text(), what="the new log")
    street.prove_equal()
    street.on(street.secondary, "update", "stop")
    assert street.on(street.secondary, "update", "reopen-log", check=False).returncode == 1
    log = street.secondary / "log" / "update.log"
    log.rename(f"{log}.2")
    log.mkdir(0o700)  # closed to others, else that would be the complaint
    refused = street.on(street.secondary, "update", "start", check=False)
    assert refused.returncode == 74
    assert str(log) in refused.stderr
    log.rmdir()
    street.start_update()


def test_run_in_the_foreground_tells_systemd(street: Street, tmp_path: Path) -> None:
    street.on(street.secondary, "update", "stop")
    told = Notified(tmp_path / "notify")
    process = subprocess.Popen(
        [sys.executable, "-m", "replicate.cli.main", "-i", str(street.secondary), "update", "run"],
        env={**street.environment, "NOTIFY_SOCKET": str(told.path), "WATCHDOG_USEC": "400000"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told.hear("READY=1")
        for _ in range(3):
            told.heard.clear()
            told.hear("WATCHDOG=1")
        assert street.on(street.secondary, "update", "start", check=False).returncode == 73
        process.send_signal(signal.SIGTERM)
        told.hear("STOPPING=1")
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()
        told.close()
    street.start_update()


def test_idle_daemons_cost_next_to_nothing(street: Street) -> None:
    street.prove_equal()

    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def spare() -> dict[str, float]:
        """How much less than a hundredth of a processor each of them used in six seconds, and 20 ms."""
        before = {name: ticks(pid) for name, pid in pids.items()}
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 6, what="six seconds of nothing")
        allowed_s = 0.01 * (time.monotonic() - began) + 0.02
        return {name: allowed_s - (ticks(pid) - before[name]) / os.sysconf("SC_CLK_TCK") for name, pid in pids.items()}

    pids = {name: street.pid(instance, name) for instance, name, _ in daemons(street)}
    most = spare()
    for _ in range(12):  # the same work takes more of a processor that others use, too
        if min(most.values()) < 0:
            most = {name: max(most[name], left) for name, left in spare().items()}
    assert min(most.values()) >= 0, most


def test_reconnects_leave_no_descriptor_behind(street: Street) -> None:
    street.prove_equal()
    receiver, port = street.pid(street.secondary, "receiver"), street.port()

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{receiver}/fd"))

    before = descriptors()
    for _ in range(200):
        socket.create_connection(("127.0.0.1", port)).close()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    street.prove_equal()  # those who say nothing keep nobody out
    assert descriptors() < before + 60
    for connection in silent:
        connection.close()
    for _ in range(3):
        street.on(street.primary, "source", "stop")
        street.start_source()
    street.prove_equal()
    wait_until(lambda: descriptors() <= before, what="all descriptors are closed")


def test_a_small_pool_switches_to_files_and_back_again_and_again(street: Street) -> None:
    """Twenty times lapped, each time back in the pool; and while it keeps up, it reads from nowhere else."""
    source = street.pid(street.primary, "source-secondary")

    def facts() -> dict[str, int]:
        return dict(street.daemon(street.primary, "source-secondary")["facts"])

    def switched(to: str) -> list[int]:
        """The next seqno at each switch; the log tells it at once, the status file each second."""
        lines = street.log(street.primary, "source-secondary")
        return [line["next_seqno"] for line in lines if line["event"].startswith(f"now reading from {to}")]

    with subprocess.Popen(
        [sys.executable, "-c", LAPS, str(street.primary)],
        env=street.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        for number in range(20):
            before = len(switched("journal files"))
            street.kill(street.primary, "source-secondary", signal.SIGSTOP)
            try:
                print(14, file=writer.stdin, flush=True)
                last_seqno = int(writer.stdout.readline())
            finally:
                os.kill(source, signal.SIGCONT)
            wait_until(lambda last=last_seqno: last + 1 in switched("the journal pool"), what=f"lap {number}")
            assert len(switched("journal files")) > before
        writer.stdin.close()
    wait_until(lambda: facts()["last_sent_seqno"] == last_seqno, what="all of it is told")
    assert facts()["switches"] >= 40
    assert facts()["transactions_from_files"] >= 40
    before_files, before_pool = facts()["transactions_from_files"], facts()["transactions_from_pool"]
    street.finish([street.writer(1, 400)])
    last_seqno = street.prove_equal()
    wait_until(lambda: facts()["last_sent_seqno"] == last_seqno, what="all of it is told")
    files = facts()["transactions_from_files"] - before_files
    assert facts()["transactions_from_pool"] - before_pool >= 99 * files
    assert street.pid(street.primary, "source-secondary") == source
    assert "no findings" in street.on(street.primary, "journal", "verify").stdout


def test_pruning_keeps_what_a_registered_peer_needs(street: Street) -> None:
    street.prove_equal()
    street.on(street.primary, "peer", "add", "absent", "127.0.0.1:1")
    first = street.status(street.primary)["journal"]["first_kept_seqno"]
    assert bulk(street, 30, 100_000)[0] == 30
    street.on(street.primary, "journal", "prune")
    assert street.status(street.primary)["journal"]["first_kept_seqno"] == first
    street.on(street.primary, "peer", "remove", "absent")
    last_seqno = street.prove_equal()
    wait_until(
        lambda: street.status(street.primary)["peers"][0]["last_durable_seqno"] >= last_seqno, what="acknowledged"
    )

    def is_pruned() -> bool:  # what a peer has acknowledged is stored once a second
        street.on(street.primary, "journal", "prune")
        return bool(street.status(street.primary)["journal"]["segments"] == 2)

    wait_until(is_pruned, what="only the two newest segments are left")
    journal = street.status(street.primary)["journal"]
    assert journal["first_kept_seqno"] > first
    gone = street.on(street.primary, "journal", "show", "--from", "1", "--to", "2", check=False)
    assert gone.returncode == 2
    assert f"{journal['first_kept_seqno']} to {last_seqno}" in gone.stderr
    assert "no findings" in street.on(street.primary, "journal", "verify").stdout


def test_compare_finds_a_type_a_rowid_and_one_byte(street: Street) -> None:
    street.write(
        "DELETE FROM loose", "INSERT INTO loose VALUES (1, 1)", "INSERT OR REPLACE INTO setting VALUES ('k', x'0102')"
    )
    street.prove_equal()
    region = str(street.secondary / "regions" / "main.db")
    for change, back, shown in (
        ("UPDATE loose SET b = '1'", "UPDATE loose SET b = 1", "secondary '1'"),
        ("UPDATE loose SET b = 1.0", "UPDATE loose SET b = 1", "secondary 1.0"),
        ("UPDATE loose SET rowid = 7", "UPDATE loose SET rowid = 1", "row 1: missing in the second"),
        (
            "UPDATE setting SET value = x'0103' WHERE name = 'k'",
            "UPDATE setting SET value = x'0102' WHERE name = 'k'",
            "secondary x'0103'",
        ),
        ("CREATE INDEX foreign_made ON loose(a)", "DROP INDEX foreign_made", "foreign_made"),
    ):
        street.finish([street.python(BY_HAND, region, change)])
        found = street.on(street.primary, "compare", "--with", street.secondary, check=False)
        assert found.returncode == 1
        assert "DIFFERENT" in found.stdout
        assert shown in found.stdout
        street.finish([street.python(BY_HAND, region, back)])
        assert street.on(street.primary, "compare", "--with", street.secondary, check=False).returncode == 0


def test_a_second_secondary_and_a_chain_to_a_third(street: Street) -> None:
    """Seeded while a writer goes on; and two sites have the same digest at one number in the middle of the load."""
    writer = street.writer(5, pause_s=PAUSE_S)
    try:
        with ThreadPoolExecutor() as pool:
            sites = {"second": street.primary, "third": street.secondary}
            second, third = pool.map(lambda name: join(street, name, sites[name]), sites)
        assert street.on(street.primary, "source", "start").stdout.count("runs already") == 2
        for ahead in (500, 2000, 8000):  # a busy machine: the writer may pass it before both are asked
            at = street.last_seqno(street.primary) + ahead
            asked = [
                street.python("import sys; from replicate.cli.main import main; main(sys.argv[1:])", "-i",
                              str(instance), "--json", "digest", "--at", str(at), "--timeout", "90")
                for instance in (second, third)
            ]  # fmt: skip
            answers = [process.communicate(timeout=120) for process in asked]
            if not any("is passed" in errors for _, errors in answers):
                break
    finally:
        writer.kill()
        wait_until(lambda: writer.poll() is not None, what="the writer is gone")
    assert [process.returncode for process in asked] == [0, 0], answers
    said = [json.loads(output) for output, _ in answers]
    assert [one["seqno"] for one in said] == [at, at]
    assert said[0]["regions"] == said[1]["regions"]
    last_seqno = street.prove_equal()
    for instance in (second, third):  # compare waits until it is there
        assert f"{last_seqno}" in street.on(instance, "compare", "--with", street.primary).stdout
    refused = street.on(street.primary, "peer", "remove", "second", check=False)
    assert refused.returncode == 73
    for feeder, name in ((street.primary, "second"), (street.secondary, "third")):
        street.on(feeder, "source", "stop", "--peer", name)
        street.on(feeder, "peer", "remove", name)


def test_seeding_again_while_writers_go_on_and_a_region_added_again(street: Street) -> None:
    writer = street.writer(6, pause_s=PAUSE_S)
    try:
        assert street.on(street.secondary, "seed", "--from", street.primary, check=False).returncode == 73
        for _ in range(2):
            street.on(street.secondary, "update", "stop")
            street.on(street.secondary, "seed", "--from", street.primary, "--restart")
            street.start_update()
    finally:
        writer.kill()
        wait_until(lambda: writer.poll() is not None, what="the writer is gone")
    street.prove_equal()
    assert street.on(street.primary, "region", "release", "main", check=False).returncode == 73  # the source runs
    street.on(street.primary, "source", "stop")
    street.on(street.primary, "region", "release", "main")
    street.on(street.primary, "region", "add", street.database, "--yes")
    street.write("INSERT INTO loose VALUES ('added', 'again')")
    street.start_source()
    wait_until(
        lambda: "HARD_RESYNC_NEEDED" in street.daemon(street.secondary, "update")["error"], what="it stops by name"
    )
    wait_until(  # it says why before it has ended
        lambda: "seed --restart" in street.on(street.secondary, "status", check=False).stdout, what="status has the way"
    )
    street.on(street.secondary, "seed", "--from", street.primary, "--restart")
    street.start_update()
    street.prove_equal()


def test_regions_are_added_under_load_and_stop_nobody(street: Street) -> None:
    make_database(street.directory / "empty.db", "CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
    make_database(
        street.directory / "full.db", "CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 1)"
    )
    writer = street.writer(7, pause_s=PAUSE_S)
    try:
        street.on(street.primary, "region", "add", street.directory / "empty.db")
        refused = street.on(street.primary, "region", "add", street.directory / "full.db", check=False)
        assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
        street.on(street.primary, "region", "add", street.directory / "full.db", "--yes")
        for name in ("empty", "full"):
            street.finish([street.python(ONE_ROW, str(street.primary), name)])
        added = street.last_seqno(street.primary)
        wait_until(lambda: street.last_seqno(street.secondary) > added, what="the secondary goes on after them")
    finally:
        writer.kill()
        wait_until(lambda: writer.poll() is not None, what="the writer is gone")
    shown = street.on(street.secondary, "status", check=False)
    assert (shown.returncode, "REGION_WAITS" in shown.stdout) == (1, True)
    found = street.on(street.primary, "compare", "--with", street.secondary, check=False).stdout.splitlines()
    assert [line for line in found if ".t:" in line or "region full" in line] == [
        "  empty.t: equal, 1 rows",
        "  region full is missing in secondary: it waits for its seed (replicate -i secondary status)",
    ]
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "seed", "--from", street.primary, "--restart")
    street.start_update()
    street.prove_equal()
    assert "REGION_WAITS" not in street.on(street.secondary, "status", check=False).stdout


def streams_begun(street: Street) -> int:
    return sum(entry["event"] == "receiving" for entry in street.log(street.secondary, "receiver"))


@pytest.mark.parametrize("how", ["connection", "here", "file"])
def test_one_region_is_seeded_while_the_others_go_on(street: Street, tmp_path: Path, how: str) -> None:
    """Writers of both regions do not pause; the daemons stay the same processes, and the stream is not cut."""
    numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    schema = "CREATE TABLE t (a INTEGER PRIMARY KEY, b);"
    make_database(street.directory / f"{how}.db", f"{schema} {numbers} INSERT INTO t SELECT i, zeroblob(200) FROM n;")
    pids = {name: street.pid(street.secondary, name) for name in ("receiver", "update")}
    writer = street.writer(7, pause_s=PAUSE_S)
    street.on(street.primary, "region", "add", street.directory / f"{how}.db", "--yes")
    rows = street.python(ROWS, str(street.primary), how)
    try:
        wait_until(lambda: how in Instance.open(street.secondary).waiting, what="it waits there")
        begun = streams_begun(street)
        given = ["seed", "--region", how]
        if how == "here":
            given += ["--from", str(street.primary)]
        elif how == "file":
            path = tmp_path / "a.seed"
            street.on(street.primary, "seed", "--to-file", path, "--for", "secondary", "--region", how)
            given += ["--from-file", str(path)]
        told = street.on(street.secondary, *given).stdout
        assert re.search(rf"seeded at seqno \d+, and level with the others: {how} \(\d+ pages\)", told)
        assert writer.poll() is rows.poll() is None
    finally:
        for process in (writer, rows):
            process.kill()
            process.wait()
    street.prove_equal()
    assert {name: street.pid(street.secondary, name) for name in pids} == pids
    assert streams_begun(street) == begun
    assert "REGION_WAITS" not in street.on(street.secondary, "status", check=False).stdout
    assert street.on(street.secondary, *given, check=False).returncode == 73  # it is here
    street.write("UPDATE loose SET a = a")  # and the stream goes on after the pool was made again
    street.prove_equal()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_full_disk(tmp_path: Path, side: str) -> None:
    """Commits are refused by name, or the Update Process stops by name; with room again nothing is missing."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m,mode=700", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs")
    street = Street(tmp_path, settings=SETTINGS)
    street.calls_here = False
    setattr(street, side, small / side)

    def has_stopped() -> bool:
        return street.on(street.secondary, "update", "status", check=False).returncode == 1

    try:
        street.build().start()
        if side == "primary":  # for a peer that has nothing yet all of it is kept: no pruning makes room meanwhile
            street.on(street.primary, "peer", "add", "absent", "127.0.0.1:1")
        done, error = bulk(street, 100, 200_000)
        if side == "primary":
            assert 0 < done < 100
            assert "DISK_FULL" in error
            status = street.on(street.primary, "status", check=False)
            assert (status.returncode, "the disk of the journal is " in status.stdout) == (1, True)
            street.on(street.primary, "peer", "remove", "absent")
        else:
            assert (done, error) == (100, "")
            wait_until(has_stopped, what="it stops")
            status = street.on(street.secondary, "status", check=False)
            assert (status.returncode, "full" in status.stdout) == (1, True)
            refused = street.on(street.secondary, "update", "start", check=False)
            if refused.returncode:
                assert refused.returncode == 74
                assert "DISK_FULL" in refused.stderr
            # Else it had nothing to write before it served; its status file cannot be written either.
            wait_until(has_stopped, what="it stops again")
        subprocess.run(["mount", "-o", "remount,size=300m", str(small)], check=True)
        if side == "primary":
            assert bulk(street, 10, 200_000) == (10, "")
            done += 10
        else:
            street.start_update()
        street.prove_equal()
        output, _ = street.python(COUNTED, str(street.database)).communicate(timeout=120)
        assert int(output) == done
    finally:
        street.close()
        subprocess.run(["umount", "-l", str(small)], check=False)
