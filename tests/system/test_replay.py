"""A secondary that was away is replayed from the primary's journal files, and the live stream goes on from there. One
that is new is rebuilt at a number or a time, goes on live, and feeds a third.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from replicate.model.moment import CSN_COUNTER_BITS
from tests.harness.replaying import archive_segments, csns
from tests.harness.street import SCHEMA, Street, assert_same_databases
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow


def test_the_stream_goes_on_after_a_replay(street: Street) -> None:
    street.finish([street.writer(1, count=40)])
    street.prove_equal()
    port = street.port()

    refused = street.on(street.secondary, "replay", "--journal", street.primary, check=False)
    assert refused.returncode == 73
    assert "Update Process of secondary runs" in refused.stderr
    street.on(street.secondary, "update", "stop")
    refused = street.on(street.secondary, "replay", "--journal", street.primary, check=False)
    assert refused.returncode == 73
    assert "Receiver Server of secondary runs" in refused.stderr

    # Some of the backlog has been received and was not applied, the rest has not even been received.
    street.finish([street.writer(2, count=40, seed=2)])
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    street.finish([street.writer(3, count=60, seed=3)])
    street.write("ALTER TABLE account ADD COLUMN extra DEFAULT 1", "UPDATE account SET extra = 2 WHERE id % 2")
    dry = json.loads(street.on(street.secondary, "replay", "--journal", street.primary, "--dry-run", "--json").stdout)
    done = json.loads(street.on(street.secondary, "replay", "--journal", street.primary, "--json").stdout)
    assert dry["dry_run"]
    assert (dry["seqno"], dry["keys"], dry["pieces"]) == (done["seqno"], done["keys"], done["pieces"])
    assert done["seqno"] == street.last_seqno(street.primary) == street.last_seqno(street.secondary)
    assert done["transactions"] >= 100
    again = street.on(street.secondary, "replay", "--journal", street.primary / "journal")
    assert "nothing to replay" in again.stdout

    street.start_receiver(f"127.0.0.1:{port}")
    street.start_update()
    street.finish([street.writer(4, count=30, seed=4)])
    street.prove_equal()
    street.on(street.secondary, "journal", "verify")


def test_what_makes_no_sense_is_refused(street: Street, tmp_path: Path) -> None:
    for arguments, code, text in (
        (("--journal", tmp_path / "nowhere"), 69, "NOT_FOUND"),
        (("--journal", street.primary, "--to", "many"), 2, "neither a sequence number"),
        (("--journal", street.primary, "--engine", "local", "--master", "local[1]"), 2, "--engine spark"),
        ((), 2, "--journal"),
    ):
        found = street.on(street.secondary, "replay", *map(str, arguments), check=False)
        assert (found.returncode, text in found.stderr) == (code, True), found.stderr
    found = street.on(street.primary, "replay", "--journal", street.primary, check=False)
    assert (found.returncode, "PERMISSION" in found.stderr) == (77, True)


def moment(micros: int) -> str:
    made = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)
    return made.isoformat(timespec="microseconds")


def test_a_rebuilt_secondary_goes_on_live_and_feeds_a_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    street = Street(tmp_path, schema=SCHEMA)
    monkeypatch.setenv("REPLICATE_SHM_DIR", street.environment["REPLICATE_SHM_DIR"])
    try:
        street.build()
        network = json.loads(street.on(street.primary, "--json", "instance", "show").stdout)["network"]
        third = tmp_path / "third"
        street.others.append(third)
        street.run("instance", "create", third, "--role", "secondary", "--name", "third", "--network", network)
        base = tmp_path / "base.seed"
        street.on(street.primary, "peer", "add", "secondary", "127.0.0.1:1")
        made = street.on(street.primary, "seed", "--to-file", base, "--for", "secondary", "--json")
        start = json.loads(made.stdout)["seqno"]
        street.finish([street.writer(1, count=30)])
        many = ", ".join(f"({n}, zeroblob(4000))" for n in range(300))
        street.write(f"INSERT INTO loose VALUES {many}")  # a segment of its own: what is before it is sealed
        street.finish([street.writer(2, count=20)])
        primary = Instance.open(street.primary)
        archive, known = archive_segments(primary, tmp_path / "archive"), csns(primary)
        rebuild = ("rebuild", "--from-file", base, "--journal", archive)
        seqno = next(n for n in sorted(known) if n > 10 and known[n + 1] - known[n] > 3 << CSN_COUNTER_BITS)
        done = street.on(street.secondary, *rebuild, "--at", moment(known[seqno] >> CSN_COUNTER_BITS), "--json")
        assert json.loads(done.stdout)["seqno"] == seqno == street.last_seqno(street.secondary)
        refused = street.on(street.secondary, *rebuild, check=False)
        assert (refused.returncode, " replay --journal URI" in refused.stderr) == (73, True)
        # A third stands where the base copy stands: all that was replayed comes to it from the secondary's journal.
        done = street.on(third, *rebuild, "--to", str(start), "--json")
        assert json.loads(done.stdout)["seqno"] == start == street.last_seqno(third) < seqno
        street.on(third, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
        street.on(street.secondary, "peer", "add", "third", street.daemon(third, "receiver")["facts"]["listen"])
        street.on(street.secondary, "source", "start", "--peer", "third")
        street.on(third, "update", "start")
        street.on(third, "wait", "--seqno", str(seqno), "--timeout", "120")
        assert_same_databases(street.secondary / "regions" / "main.db", third / "regions" / "main.db")

        # The live stream goes on from there, to it and from it to the third.
        street.start_receiver()
        street.on(street.primary, "peer", "add", "--replace", "secondary", f"127.0.0.1:{street.port()}")
        street.start_update()
        street.start_source()
        street.prove_equal()
        street.finish([street.writer(3, count=10)])
        reached = street.prove_equal()
        street.on(third, "wait", "--seqno", str(reached), "--timeout", "120")
        assert_same_databases(street.database, third / "regions" / "main.db")
        street.on(street.secondary, "journal", "verify")
    finally:
        street.close()


def test_who_is_refused_is_told_of_the_replay(street: Street) -> None:
    """While a replay is under way neither a daemon, nor a seed, nor another replay begins; `stop` does not end it."""
    street.finish([street.writer(1, count=20)])
    street.prove_equal()  # a `receiver stop` that leaves received transactions unapplied ends with 1
    street.on(street.secondary, "receiver", "stop")
    street.finish([street.writer(2, count=20)])
    command = [sys.executable, "-m", "replicate.cli.main", "-i", str(street.secondary)]
    command += ["replay", "--journal", str(street.primary)]
    process = subprocess.Popen(
        command, env={**street.environment, "REPLICATE_FAILPOINT": "replay.applied:1:stop"}, stdout=subprocess.DEVNULL
    )
    try:
        status = Path(f"/proc/{process.pid}/stat")
        wait_until(
            lambda: status.read_text().rpartition(")")[2].split()[0] == "T", timeout_s=60, what="it stands still"
        )
        for arguments, code, text in (
            (
                ("replay", "--journal", street.primary),
                75,
                "another seed, replay, rebuild or change of role of secondary",
            ),
            (("seed", "--from", street.primary, "--restart"), 73, "a replay of this instance is under way as process"),
            (("update", "start"), 73, f"a replay of this instance is under way as process {process.pid}"),
            (("update", "stop"), 73, f"a replay of this instance is under way as process {process.pid}"),
            (("receiver", "start"), 73, f"a replay of this instance is under way as process {process.pid}"),
        ):
            found = street.on(street.secondary, *arguments, check=False)
            assert (found.returncode, text in found.stderr) == (code, True), found.stderr
        assert process.poll() is None
        assert "stopped" in street.on(street.secondary, "update", "status", check=False).stdout
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    street.start_receiver(f"127.0.0.1:{street.port()}")
    street.start_update()
    street.prove_equal()
