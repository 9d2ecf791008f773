"""Rows without definitions over real processes: a secondary and a third site stop by name at a table that is not as the
stream has it, are changed by their operator, and go on; both sides killed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

CHANGE = """
ALTER TABLE account ADD COLUMN more INTEGER;
CREATE TABLE fresh (id INTEGER PRIMARY KEY, v);
"""


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    """The primary has its definitions in a partition of their own; the secondary has all rows, and none of them."""
    made = Street(tmp_path, settings=QUICK).build()
    try:
        for instance in (made.primary, made.secondary):
            made.on(instance, "partition", "create", "defs")
            made.on(instance, "partition", "element", "DEFINITION", "defs")
        made.on(made.secondary, "subscription", "set", "DEFAULT")
        made.start()
        yield made
    finally:
        made.close()


def third_site(street: Street) -> Path:
    third, port = street.directory / "third", free_port()
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
    street.on(third, "partition", "create", "defs")
    street.on(third, "partition", "element", "DEFINITION", "defs")
    street.on(third, "subscription", "set", "DEFAULT")
    street.on(third, "seed", "--from", street.secondary)
    street.on(third, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{port}")
    street.on(street.secondary, "source", "start", "--peer", "third")
    street.on(third, "update", "start")
    return third


def stops(street: Street, instance: Path) -> None:
    def has_failed() -> bool:
        error = str(street.daemon(instance, "update").get("error"))
        return 'it lacks "more" INTEGER' in error and "schema run FILE" in error

    wait_until(has_failed, what=f"{instance.name} stops by name")


@pytest.mark.slow
def test_a_secondary_and_a_third_site_follow_by_hand(street: Street) -> None:
    third = third_site(street)
    street.finish([street.writer(1, 40)])
    street.write(*(one for one in CHANGE.strip().splitlines()), "INSERT INTO fresh VALUES (1, 'a')")
    street.write("CREATE UNIQUE INDEX fresh_v ON fresh (v)")
    writer = street.writer(2, 60)
    stops(street, street.secondary)
    file = street.directory / "change.sql"
    file.write_text(CHANGE)
    street.on(street.secondary, "schema", "run", file)
    street.start_update()
    street.finish([writer])
    last = street.write("INSERT INTO account (owner, more) VALUES ('after', 7)")
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "120")
    stops(street, third)  # not before its relay has gone on
    street.kill(street.secondary, "source-third")
    street.on(street.secondary, "source", "start", "--peer", "third")
    street.on(third, "schema", "run", file)
    street.on(third, "update", "start")
    street.kill(third, "update")
    street.on(third, "update", "start")
    street.on(third, "wait", "--seqno", str(last), "--timeout", "120")
    for instance in (street.secondary, third):
        told = json.loads(street.on(instance, "--json", "compare", "--with", street.primary).stdout)
        assert told["equal"], told
        named = {one["name"]: one["left_out"] for one in told["regions"][0]["comparison"]["schema"]}
        assert named["fresh_v"] is True
    refused = street.on(street.secondary, "promote", check=False)
    assert refused.returncode
    assert "does not get DEFINITION, STORAGE, SECTION" in refused.stderr


@pytest.mark.slow
def test_a_relay_has_no_definitions_to_send(street: Street) -> None:
    """A third site that wants them is refused by name."""
    third = third_site(street)
    street.on(third, "subscription", "add", "defs")
    assert street.on(third, "seed", "--restart", "--from", street.secondary, check=False).returncode
