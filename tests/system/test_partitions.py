"""Partitions over real processes: a secondary and a third site with some of them, under load, with both sides killed;
tables that move meanwhile; what the two say to each other when something is not to be had."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.ports import free_port
from tests.harness.street import DAEMONS, MANY, QUICK, Street
from tests.harness.waiting import wait_until


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    """Of the tables account and entry (sales) and setting (stock) the secondary has those of sales."""
    made = Street(tmp_path, settings=QUICK).build()
    try:
        made.on(made.primary, "partition", "create", "sales")
        made.on(made.primary, "partition", "create", "stock")
        made.on(made.primary, "partition", "assign", "sales", "account", "entry")
        made.on(made.primary, "partition", "assign", "stock", "setting")
        made.on(made.primary, "partition", "assign", "NONE", "loose")
        made.on(made.secondary, "subscription", "set", "2")
        made.start()
        yield made
    finally:
        made.close()


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


def came(street: Street, instance: Path, *partial: str) -> None:
    """All that is wanted is there, row by row, and nothing else."""
    last = street.write("INSERT INTO audit VALUES ('proof', 1)")
    street.on(instance, "wait", "--seqno", str(last), "--timeout", "120")
    found = json.loads(street.on(instance, "--json", "compare", "--with", street.primary).stdout)
    status = {one["table"]: one["status"] for one in found["regions"][0]["comparison"]["tables"]}
    here = instance / "regions" / "main.db"
    for table in ("account", "entry", "setting", "audit", "loose"):
        if table in partial:
            assert rows(here, table) == rows(street.database, table) != []
            assert status[table] == "equal"
        else:
            assert rows(here, table) == []
            assert status[table].startswith("left out")


@pytest.mark.slow
def test_under_load_with_kills_and_tables_that_move(street: Street) -> None:
    dice = Random(3)
    writers = [street.writer(number, 400, seed=number, pause_s=0.002) for number in (1, 2)]
    # Each new partition has the source begin again.
    street.kill_each(
        (*DAEMONS, "source-secondary"),
        lambda: street.on(street.primary, "partition", "create", f"p{dice.randrange(10**9)}"),
    )
    street.finish(writers)
    came(street, street.secondary, "account", "entry")
    street.write(  # larger than a frame, of which a half is not wanted
        f"{MANY} INSERT INTO account (owner, note) SELECT 'many', printf('%100d', i) FROM n",
        f"{MANY} INSERT OR REPLACE INTO setting SELECT 'many ' || i, printf('%100d', i) FROM n",
    )
    came(street, street.secondary, "account", "entry")
    kinds = {json.loads(line)["kind"] for line in
             street.on(street.secondary, "--json", "journal", "show").stdout.splitlines()}  # fmt: skip
    assert {"NULL", "MIXED", "LARGE"} <= kinds
    for instance, daemon, event in (
        (street.primary, "source-secondary", "streaming"),
        (street.secondary, "receiver", "receiving"),
        (street.secondary, "update", "receive pool attached"),
    ):
        found = [line["partitions"] for line in street.log(instance, daemon) if line["event"] == event]
        assert found, daemon
        assert all(one == ["sales"] for one in found[1:]), found  # the first one comes before names are known


@pytest.mark.slow
def test_a_third_site_has_what_its_relay_has_or_less(street: Street) -> None:
    third, port = street.directory / "third", free_port()
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
    refused = street.on(third, "seed", "--from", street.secondary, check=False)
    assert "the copy has the rows of 2; third wants all" in refused.stderr
    street.on(third, "subscription", "set", "2", "3")
    assert street.on(third, "seed", "--from", street.secondary, check=False).returncode
    street.on(third, "subscription", "set", "2")
    street.on(third, "seed", "--from", street.secondary)
    street.on(third, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{port}")
    street.on(street.secondary, "source", "start", "--peer", "third")
    street.on(third, "update", "start")
    street.finish([street.writer(1, 60)])
    came(street, third, "account", "entry")
    # Less than it has is wanted on the way: it says so, and stops.
    street.on(street.secondary, "subscription", "set", "1", "2")
    street.on(street.secondary, "subscription", "remove", "2")
    street.write("INSERT INTO account (owner) VALUES ('more')")

    def says_so() -> bool:
        return any("PARTITION_REFUSED" in json.dumps(line) for line in street.log(street.secondary, "source-third"))

    wait_until(says_so, what="the relay refuses by name")


@pytest.mark.slow
def test_a_peer_that_asks_for_more_than_it_may_have(street: Street) -> None:
    """Refused by name, and nothing lost: it goes on as soon as it may."""
    street.on(
        street.primary, "peer", "add", "secondary", f"127.0.0.1:{street.port()}", "--partitions", "stock", "--replace"
    )
    street.write("INSERT INTO account (owner) VALUES ('at once')")

    def says_so() -> bool:
        told = "secondary may have partition stock of primary, and asks for sales"
        return any(told in json.dumps(line) for line in street.log(street.primary, "source-secondary"))

    wait_until(says_so, what="the source refuses by name")
    street.write("INSERT INTO account (owner) VALUES ('waits')", "INSERT INTO entry (amount) VALUES (1)")
    street.on(
        street.primary, "peer", "add", "secondary", f"127.0.0.1:{street.port()}", "--partitions", "2,stock", "--replace"
    )
    came(street, street.secondary, "account", "entry")
