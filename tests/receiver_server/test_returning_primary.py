"""The old primary comes back by itself, as processes: refused, it goes back to where the other took over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.parted import SETTINGS, Parted, carried
from tests.harness.street import Street, assert_same_databases, is_alive
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[Parted]:
    street = Street(tmp_path, settings=SETTINGS).build().start()
    try:
        yield Parted(street)
    finally:
        street.close()


def test_it_goes_back_by_itself_and_follows(parted: Parted) -> None:
    """All that it has more is in one file, and the processes are those that were started."""
    parted.part(lost=3)
    parted.come_back("--auto-rollback")
    done = parted.wait_told("went back by itself")
    assert (done["to"], done["because"]) == (
        parted.common,
        f"secondary says that secondary took over after transaction {parted.common}",
    )
    (file,) = parted.files()
    assert (done["file"], len(carried(file))) == (str(file), 3)
    pids = {name: parted.street.pid(parted.old, name) for name in ("receiver", "update", "source-secondary")}
    parted.level()
    for name in ("update", "source-secondary"):
        assert len(parted.told("stands aside", name)) == 1
    for name, pid in pids.items():
        assert parted.street.pid(parted.old, name) == pid
        if name != "source-secondary":  # which has run before, too
            assert (len(parted.told("daemon started", name)), parted.told("daemon ended", name)) == (1, [])


def test_what_was_lost_travels_to_the_new_primary_and_is_applied_there_once(parted: Parted) -> None:
    """By hand it went back; the Receiver Server and the Source Server are killed while the file is on its way."""
    street = parted.street
    parted.part(lost=3)
    street.on(parted.old, "demote")
    street.on(parted.old, "rollback", "--to", str(parted.common))
    (file,) = parted.files()
    street.environment["REPLICATE_FAILPOINT"] = "lost.placed:1:kill"  # whole there, and not yet acknowledged
    parted.come_back()
    del street.environment["REPLICATE_FAILPOINT"]
    wait_until(lambda: not is_alive(street.pid(parted.new, "source-primary")), what="it is killed there")
    street.on(parted.new, "source", "start", "--peer", "primary")
    parted.wait_told("lost file sent")
    (came,) = parted.new.parent.glob("secondary-lost-*.jsonl")
    assert came.read_bytes() == file.read_bytes()
    assert [path.name for path in parted.new.parent.glob(".*")] == []
    findings = [one["code"] for one in street.status(parted.new)["findings"]]
    assert "LOST_UNSETTLED" in findings
    assert "LOST_UNSETTLED" not in [one["code"] for one in street.status(parted.old)["findings"]]
    assert "3 sent to secondary" in street.on(parted.old, "lost", "list").stdout
    assert street.on(parted.new, "lost", "list", check=False).returncode == 1
    assert "3 applied" in street.on(parted.new, "lost", "apply", came).stdout
    assert "3 had been settled before" in street.on(parted.new, "lost", "apply", came).stdout
    street.kill(parted.new, "source-primary")
    street.on(parted.new, "source", "start", "--peer", "primary")
    parted.level()
    assert len(list(parted.new.parent.glob("secondary-lost-*.jsonl"))) == 1, "it is sent once"


def change_alone(parted: Parted) -> None:
    """The schema is changed in what only the old primary has: that cannot be taken back."""
    parted.part(lost=2)
    parted.write(parted.old, "ALTER TABLE audit ADD COLUMN more")


def test_across_a_schema_change_the_command_that_is_told_fills_it_again(parted: Parted) -> None:
    change_alone(parted)
    parted.come_back("--auto-rollback")
    error = str(parted.wait_told("could not go back by itself")["error"])
    assert "seed --restart" in error
    (file,) = parted.files()
    assert len(carried(file)) == 3
    street = parted.street
    street.on(parted.old, "update", "stop")
    street.on(parted.old, "seed", "--restart")
    street.on(parted.old, "update", "start")
    is_filled(parted)
    assert parted.files() == [file]
    assert parted.told("filled again by itself") == [], "nobody has asked for that"


def is_filled(parted: Parted) -> None:
    """It follows, and is equal; its regions are in its own directory now."""
    street = parted.street
    last = parted.write(parted.new, "INSERT INTO audit VALUES ('level', 1)")
    street.follows(parted.old, last)
    street.on(parted.old, "compare", "--with", parted.new)
    assert_same_databases(parted.old / "regions" / "main.db", parted.new / "regions" / "main.db")


@pytest.mark.parametrize("failpoint", ["", "seed.received", "seed.journal_begun"])
def test_across_a_schema_change_it_is_filled_again_by_itself_where_that_is_set(parted: Parted, failpoint: str) -> None:
    """In the processes that run; also when the Receiver Server is killed before the copy is put in its place, or in the
    middle of that: an Update Process that has seen half a copy has ended."""
    change_alone(parted)
    street = parted.street
    street.on(parted.old, "config", "set", "receiver.auto_seed", "true")
    is_half = failpoint == "seed.journal_begun"
    if failpoint:
        street.environment["REPLICATE_FAILPOINT"] = f"{failpoint}:1:kill"
    parted.come_back("--auto-rollback")
    street.environment.pop("REPLICATE_FAILPOINT", None)
    if failpoint:
        wait_until(lambda: not is_alive(street.pid(parted.old, "receiver")), what="it is killed there")
        if is_half:  # before the next one has made it whole
            wait_until(lambda: parted.told("daemon ended", "update"), what="it ends by name")
        listen = street.daemon(parted.old, "receiver")["facts"]["listen"]
        street.on(parted.old, "receiver", "start", "--listen", listen, "--no-update", "--auto-rollback")
    done = parted.wait_told("filled again by itself")
    assert done["seqno"] > parted.common
    if is_half:
        street.on(parted.old, "update", "start")
    else:
        assert parted.told("daemon ended", "update") == []
    is_filled(parted)
    (file,) = parted.files()
    assert len(carried(file)) == 3
    wait_until(lambda: "could not" not in street.on(parted.old, "receiver", "status", check=False).stdout)
