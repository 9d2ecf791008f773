"""`replicate statistics` over the logs of a real street: rotated, compressed, of both sites, with a cut, a kill and a
change of roles."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from tests.harness.manual import chapter, commands, section
from tests.harness.street import Street
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

SETTINGS = """
[source]
statistics_period_s = 0.2
hard_period_s = 0.1
soft_period_s = 0.2
[receiver]
statistics_period_s = 0.2
pool_bytes = "4 MiB"
[update]
statistics_period_s = 0.2
"""


@pytest.fixture
def street(tmp_path: Path) -> Street:
    return Street(tmp_path, settings=SETTINGS)


def rotate(street: Street, instance: Path, daemon: str) -> None:
    """As logrotate does, with compression."""
    log = instance / "log" / f"{daemon}.log"
    moved = log.rename(log.with_suffix(".log.1"))
    kind, _, peer = daemon.partition("-")
    street.on(instance, kind, "reopen-log", *(["--peer", peer] if peer else []))
    wait_until(log.exists)
    packed = log.parent / f"{daemon}.log.2.gz"
    packed.touch(mode=0o600)
    packed.write_bytes(gzip.compress(moved.read_bytes()))
    moved.unlink()


def manual(street: Street) -> list[list[str]]:
    """The commands of the manual, for this street."""
    here = {"primary": str(street.primary), "secondary": str(street.secondary),
            "week.png": str(street.directory / "week.png")}  # fmt: skip
    lines = commands(section(chapter("watching"), "Logs as a table and a picture"))
    assert len(lines) == 4
    return [[here.get(word, word) for word in line.partition(" > ")[0].split()[1:]] for line in lines]


def is_told_acknowledged(street: Street, seqno: int) -> bool:
    lines = [one for one in street.log(street.primary, "source-secondary") if one["event"] == "statistics"]
    return any(one["last_acknowledged_seqno"] >= seqno for one in lines)


def is_told_applied(street: Street, seqno: int) -> bool:
    lines = [one for one in street.log(street.secondary, "update") if one["event"] == "statistics"]
    return any(one["current_seqno"] >= seqno for one in lines)


def test_what_a_street_went_through_is_told_from_its_logs(street: Street) -> None:
    try:
        street.build().start()
        for number in range(20):
            street.write(f"INSERT INTO audit VALUES ('a', {number})")
        street.prove_equal()
        rotate(street, street.primary, "source-secondary")
        rotate(street, street.secondary, "update")
        street.kill(street.secondary, "receiver")
        wait_until(
            lambda: street.daemon(street.primary, "source-secondary")["facts"]["state"] == "waiting for a connection"
        )
        last = street.write("INSERT INTO audit VALUES ('cut', 1)")
        street.start_receiver(f"127.0.0.1:{street.status(street.primary)['peers'][0]['address'].rpartition(':')[2]}")
        street.kill(street.secondary, "update")
        street.start_update()
        street.prove_equal()
        wait_until(lambda: is_told_acknowledged(street, last), what="a line has what the peer acknowledged")
        wait_until(lambda: is_told_applied(street, last), what="a line has what was applied")
        street.on(street.primary, "source", "stop")
        street.on(street.primary, "demote")
        street.on(street.primary, "update", "start")
        street.on(street.secondary, "receiver", "stop")
        street.on(street.secondary, "update", "stop")
        street.on(street.secondary, "promote", "--force")
        street.on(street.secondary, "receiver", "start", "--listen", "127.0.0.1:0")
        street.on(street.secondary, "receiver", "stop")
        logs = [street.primary, street.secondary]
        found = json.loads(street.run("--json", "statistics", *logs).stdout)
        names = {one["name"] for one in found["daemons"]}
        assert names == {"primary/source-secondary", "primary/update", "secondary/receiver", "secondary/update"}
        events = [(f"{one['instance'].rpartition('/')[2]}/{one['daemon']}", one["event"]) for one in found["events"]]
        for event in (
            ("primary/source-secondary", "stream begins"),
            ("primary/source-secondary", "stream lost"),
            ("secondary/receiver", "died without a word"),
            ("secondary/update", "died without a word"),
            ("secondary/receiver", "role changed"),
            ("primary/source-secondary", "ended"),
        ):
            assert event in events, events
        sent = [row for row in found["rows"] if row["daemon"] == "source-secondary"]
        assert sum(row["transactions"] for row in sent) >= 21
        assert max(row["last_acknowledged_seqno"] for row in sent) >= last
        assert sum(row["cuts"] for row in sent) == 1
        assert any(row["cut_s"] > 0 for row in sent)
        applied = [
            row for row in found["rows"] if row["daemon"] == "update" and row["instance"] == str(street.secondary)
        ]
        assert max(row["last_seqno"] for row in applied) >= last
        states = {one["state"] for one in found["states"] if one["daemon"] == "receiver"}
        assert {"streaming", "not running", "standing by", "secondary", "primary"} <= states
        text = street.run("statistics", *logs).stdout
        assert "stream lost" in text
        assert "role changed: secondary is primary, it was secondary" in text
        rows = list(csv.DictReader(street.run("statistics", "--csv", *logs).stdout.splitlines()))
        assert sum(int(row["transactions"]) for row in rows if row["daemon"] == "source-secondary") >= 21
        for words in manual(street):
            printed = street.run(*words).stdout
            assert "drawn from" in printed if "--plot" in words else "secondary" in printed
        assert (street.directory / "week.png").stat().st_size > 20_000
    finally:
        street.close()
