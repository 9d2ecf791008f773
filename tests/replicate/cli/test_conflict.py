"""`replicate conflict …` on a street, with the commands of the manual: retried, left out, and the stream goes on."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.conflicting import spoil_database
from tests.harness.manual import chapter, commands, section
from tests.harness.street import Street
from tests.harness.waiting import wait_until
from tests.system.conftest import running_street

SETTINGS = """
[journal]
pool_bytes = 1048576
segment_bytes = 1048576
[receiver]
pool_bytes = 4194304
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def street(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Street]:
    yield from running_street(tmp_path, request)


def spoil(street: Street, statement: str) -> None:
    spoil_database(street.secondary / "regions" / "main.db", statement)


def stops(street: Street, seqno: int) -> None:
    """Until the Update Process has ended at that transaction, and status says so."""

    def is_told() -> bool:
        found = street.status(street.secondary)["findings"]
        return any(one["code"] == "CONFLICT" and f"conflict skip {seqno}" in one["text"] for one in found)

    wait_until(is_told, what=f"the Update Process has stopped at transaction {seqno}")


def test_the_commands_of_the_manual(street: Street) -> None:
    """Each line of the section is run as it stands, but for the instances' paths and what mends the row."""
    lines = [
        line.replace("-i ", f"-i {street.directory}/").replace("--with ", f"--with {street.directory}/").split()[1:]
        for line in commands(section(chapter("disaster"), "When a row differs"))
        if line.startswith("replicate")
    ]
    list_, show, retry, compare, dry_run, skip, dry_overwrite, overwrite, dry_repair, repair = lines
    street.write("INSERT INTO setting VALUES ('name', 'Ann')", "INSERT INTO setting VALUES ('other', 'Bob')")
    street.prove_equal()
    assert street.run(*list_).stdout == "there is none\n"
    refused = street.run(*show, check=False)
    assert (refused.returncode, "no conflict is recorded" in refused.stderr) == (69, True)

    spoil(street, "UPDATE setting SET value = 'Eve' WHERE name = 'name'")
    seqno = street.write(
        "UPDATE setting SET value = 'Anna' WHERE name = 'name'", "INSERT INTO audit VALUES ('in it', 1)"
    )
    stops(street, seqno)
    listed = street.run(*list_, check=False)
    assert (listed.returncode, listed.stdout.split()[:2]) == (1, [str(seqno), "waits"])
    shown = street.run(*show).stdout
    assert "'Ann'" in shown
    assert "'Eve'" in shown
    assert "'Anna'" in shown
    assert "differs" in shown
    told = street.run(*dry_run)
    assert f"transaction {seqno} would be left out; nothing was decided" in told.stdout
    assert street.run(*list_, check=False).returncode == 1

    spoil(street, "UPDATE setting SET value = 'Ann' WHERE name = 'name'")
    street.run(*retry)
    street.prove_equal()
    street.run(*compare)
    assert street.run(*list_).stdout.split()[:2] == [str(seqno), "mended"]

    spoil(street, "UPDATE setting SET value = 'Eve' WHERE name = 'other'")
    seqno = street.write("UPDATE setting SET value = 'Rob' WHERE name = 'other'", "INSERT INTO audit VALUES ('out', 1)")
    after = street.write("INSERT INTO audit VALUES ('after', 1)")
    stops(street, seqno)
    asked = street.on(street.secondary, "conflict", "skip", check=False)
    assert (asked.returncode, "repeat the command with --yes" in asked.stderr) == (2, True)
    assert f"decided by {getpass.getuser()}" in street.run(*skip).stdout
    street.on(street.secondary, "wait", "--seqno", str(after), "--timeout", "60")
    assert street.run(*list_).stdout.splitlines()[1].split()[:3] == [str(seqno), "left", "out"]

    def told_of() -> list[int]:
        said = street.log(street.secondary, "update")
        return [one["seqno"] for one in said if one["event"] == "transaction left out"]

    wait_until(lambda: told_of() == [seqno], what="the log says so")
    assert (
        "decided by" in street.on(street.secondary, "journal", "show", "--from", str(seqno), "--to", str(seqno)).stdout
    )
    street.on(street.secondary, "journal", "verify")
    differs = street.run(*compare, check=False)
    assert differs.returncode == 1
    would = street.run(*dry_repair, check=False)
    assert (would.returncode, "2 rows would be repaired" in would.stdout) == (1, True)
    repaired = street.run(*repair).stdout
    assert f"{street.secondary}/log/repair.jsonl has both images" in repaired
    assert "main.setting: 1 changed, 0 added, 0 removed" in repaired
    street.prove_equal()
    assert "ROWS_REPAIRED" in [one["code"] for one in street.status(street.secondary)["findings"]]
    assert "CONFLICT" not in [one["code"] for one in street.status(street.secondary)["findings"]]

    spoil(street, "UPDATE setting SET value = 'Eve' WHERE name = 'other'")
    seqno = street.write("UPDATE setting SET value = 'Bo' WHERE name = 'other'", "INSERT INTO audit VALUES ('over', 1)")
    stops(street, seqno)
    assert f"transaction {seqno} would overwrite what is here; nothing" in street.run(*dry_overwrite).stdout
    assert f"transaction {seqno} overwrites what was here: decided by" in street.run(*overwrite).stdout
    street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "60")
    street.prove_equal()
    told = street.on(street.secondary, "journal", "show", "--from", str(seqno), "--to", str(seqno)).stdout
    assert ("RESTATED" in told, "*value='Eve' -> 'Bo'" in told) == (True, True)
    assert street.run(*list_).stdout.splitlines()[2].split()[:2] == [str(seqno), "overwritten"]

    # Killed and begun again, with a receiver that is begun again: both go on from there.
    for daemon in ("update", "receiver"):
        street.kill(street.secondary, daemon)
    address = street.status(street.primary)["peers"][0]["address"]
    street.start_receiver(address)
    street.start_update()
    last = street.write("INSERT INTO audit VALUES ('again', 1)")
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")


def test_a_decision_does_not_outlive_a_seed(street: Street) -> None:
    street.write("INSERT INTO setting VALUES ('name', 'Ann')")
    street.prove_equal()
    spoil(street, "DELETE FROM setting WHERE name = 'name'")
    seqno = street.write("UPDATE setting SET value = 'Anna' WHERE name = 'name'")
    stops(street, seqno)
    words = ("--json", "conflict", "skip", str(seqno), "--until", str(seqno + 50), "--yes")
    decided = json.loads(street.on(street.secondary, *words).stdout)
    assert decided["update"]["pid"] == street.pid(street.secondary, "update")
    assert street.on(street.secondary, "conflict", "retry").stdout == "update: runs already\n"
    assert (decided["seqno"], decided["until"]) == (seqno, seqno + 50)
    street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "60")
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "seed", "--restart", "--from", street.primary)
    street.start_update()
    street.prove_equal()
    spoil(street, "DELETE FROM setting WHERE name = 'name'")
    later = street.write("UPDATE setting SET value = 'Annie' WHERE name = 'name'")
    assert later < seqno + 50
    stops(street, later)  # transaction `seqno` is no part of the journal that the seed began
