"""Some columns of a table over real processes: what is not listed never comes, no matter who is killed; what stops it.

What a list says is in tests/replicate/model/test_column_list.py; random tables and histories in
tests/replicate/transfer/seed/test_rows_columns.py.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replicate.instance.instance import Instance
from replicate.transfer.seed.file import read_header
from tests.harness.ports import free_port
from tests.harness.street import MANY, QUICK, Street
from tests.harness.waiting import wait_until

LIST = ("--columns", "id,balance", "--where", "balance > 5 OR id = 1")
HERE = "COLUMNS (id, balance) WHERE balance > 5 OR id = 1"
SHOWN = "SELECT id, '', balance, NULL, NULL FROM account WHERE balance > 5 OR id = 1 ORDER BY id"
MARKS = (b"writer 1", b"never leaves")
"""The owner of the writers' accounts, which is not listed, and what the tests write."""


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=QUICK).build()
    try:
        made.on(made.secondary, "subscription", "filter", "account", *LIST)
        made.start()
        yield made
    finally:
        made.close()


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def came(street: Street, instance: Path, shown: str = SHOWN) -> None:
    """It is that of the primary, by SQLite and by `compare`; of what is not listed nothing is in any of its files."""
    last = street.write("INSERT INTO audit VALUES ('proof', 1)")
    street.on(instance, "wait", "--seqno", str(last), "--timeout", "120")
    here = instance / "regions" / "main.db"
    assert rows(here, "SELECT * FROM account ORDER BY id") == rows(street.database, shown)
    for table in ("entry", "setting", "loose"):
        query = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert rows(here, query) == rows(street.database, query)
    found = json.loads(street.on(instance, "--json", "compare", "--with", street.primary).stdout)
    assert {one["status"] for one in found["regions"][0]["comparison"]["tables"]} == {"equal"}
    array = json.loads(street.on(street.primary, "--json", "scr", "--with", instance).stdout)
    assert {one["state"] for one in array["rows"]} == {"even"}
    stays_away(instance)


def stays_away(instance: Path) -> None:
    files = [path for path in instance.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files for mark in MARKS if mark in path.read_bytes()]


@pytest.mark.slow
def test_under_load_with_kills_and_large_transactions(street: Street) -> None:
    writers = [street.writer(number, 200, seed=number, pause_s=0.002) for number in (1, 11)]
    street.kill_each()
    street.finish(writers)
    came(street, street.secondary)
    street.write(f"{MANY} INSERT INTO account (owner, balance, note) SELECT 'never leaves', i % 11, 'writer 1' FROM n")
    street.write("UPDATE account SET balance = balance - 3, id = id + 100000, note = 'never leaves' WHERE id > 500")
    street.write("UPDATE account SET note = 'never leaves, too'")
    street.write("INSERT INTO account (owner, balance) VALUES ('never leaves', 0)")
    came(street, street.secondary)
    kinds = [
        json.loads(line)["kind"]
        for line in street.on(street.secondary, "--json", "journal", "show").stdout.splitlines()
    ]
    assert {"NULL", "RESTATED", "RESTATED_LARGE"} <= set(kinds)
    assert any(mark in path.read_bytes() for mark in MARKS for path in (street.primary / "journal").iterdir())


@pytest.mark.slow
def test_what_it_is_not_and_what_people_see(street: Street) -> None:
    street.write("INSERT INTO account (owner, balance) VALUES ('never leaves', 9)")
    came(street, street.secondary)
    told = "of table main.account the columns id, balance where balance > 5 OR id = 1"
    secondary = street.secondary
    street.on(secondary, "peer", "add", "third", "127.0.0.1:9")
    for words in (
        ("promote",),
        ("promote", "--force"),
        ("replay", "--journal", street.primary),
        ("packet", "export", "--to", "third", "--outbox", street.directory),
    ):
        refused = street.on(secondary, *words, check=False)
        assert refused.returncode, words
        assert told in refused.stderr, (words, refused.stderr)
    refused = street.on(street.primary, "switchover", "--to", "secondary", check=False)
    assert told in refused.stdout + refused.stderr
    assert Instance.open(secondary).role == "secondary"
    assert told in street.on(secondary, "instance", "show").stdout
    (fact,) = json.loads(street.on(secondary, "--json", "subscription", "filter").stdout)
    assert fact == {"table": "main.account", "wanted": HERE, "held": HERE, "in_force": True}
    assert "table main.account: the columns id, balance where" in street.on(secondary, "subscription", "list").stdout
    street.on(secondary, "subscription", "filter", "account", "--columns", "id,owner,balance")
    status = street.on(secondary, "--json", "status", check=False).stdout
    assert "of table main.account the columns id, owner, balance are wanted, and are here with the next copy" in status
    for words, refusal in (
        (("--columns", "owner"), "column id is of the key"),
        (("--columns", "id,weight"), "has no column weight"),
        (("--columns", "id", "--where", "balance = 1"), "the condition names column balance"),
        (("--columns", "id,,owner"), "the columns cannot be read"),
    ):
        refused = street.on(secondary, "subscription", "filter", "account", *words, check=False)
        assert refusal in refused.stderr
        assert refused.returncode


@pytest.mark.slow
def test_a_third_site_gets_what_is_there_if_it_asks_for_that(street: Street) -> None:
    street.write("INSERT INTO account (owner, balance, note) VALUES ('never leaves', 9, 'never leaves')")
    came(street, street.secondary)
    third, port = street.directory / "third", free_port()
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
    refused = street.on(third, "seed", "--from", street.secondary, check=False)
    assert "the copy has of table main.account the columns id, balance where" in refused.stderr
    assert "and third wants all" in refused.stderr
    street.on(third, "subscription", "filter", "account", *LIST)
    street.on(third, "seed", "--from", street.secondary)
    street.on(third, "receiver", "start", "--listen", f"127.0.0.1:{port}")
    street.on(street.secondary, "source", "start", "--peer", "third")
    street.finish([street.writer(1, 60)])
    came(street, third)
    came(street, street.secondary)


@pytest.mark.slow
def test_a_table_that_changes_stops_it_by_name_and_a_load_mends_it(street: Street) -> None:
    street.write("INSERT INTO account (owner, balance) VALUES ('never leaves', 1), ('never leaves', 9)")
    street.write("ALTER TABLE account ADD COLUMN more NOT NULL DEFAULT 'all'", "CREATE INDEX by_more ON account (more)")
    street.write("UPDATE account SET more = 'never leaves'")
    came(street, street.secondary, SHOWN.replace("NULL, NULL", "NULL, NULL, x''"))
    last = street.last_seqno(street.primary)
    street.write("CREATE TABLE new__account (id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER NOT NULL)")
    street.write("INSERT INTO new__account SELECT id, owner, balance FROM account")
    street.write("DROP TABLE account", "ALTER TABLE new__account RENAME TO account")

    def stopped() -> bool:
        facts = street.daemon(street.primary, "source-secondary")["facts"]
        return "it is made again, by this name or by one that is to take its place" in str(facts.get("last_error"))

    wait_until(stopped, what="the stream stops by name")
    wait_until(lambda: street.last_seqno(street.secondary) == last, what="all before that is there")
    stays_away(street.secondary)
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "subscription", "filter", "account", "--columns", "id,balance", "--ahead")
    street.on(street.secondary, "seed", "--restart")  # over the connection
    street.start_update()
    street.write("INSERT INTO account (owner, balance) VALUES ('never leaves', 5)")
    came(street, street.secondary, "SELECT id, NULL, balance FROM account ORDER BY id")


WIDER = ("--columns", "id,balance,note")
WIDER_SHOWN = "SELECT id, '', balance, note, NULL FROM account ORDER BY id"


@pytest.mark.turns(2)
@pytest.mark.parametrize("failpoint", ["seed.received:1:kill", "seed.journal_begun:1:kill"])
def test_a_change_by_a_seed_that_is_killed(street: Street, failpoint: str) -> None:
    """List and rows change together: before the copy is in its place it is the old one's, after that the new."""
    street.finish([street.writer(1, 60)])
    street.on(street.secondary, "subscription", "filter", "account", *WIDER)
    street.finish([street.writer(11, 30)])
    came(street, street.secondary)
    street.on(street.secondary, "update", "stop")
    street.seed_killed(failpoint, "--restart")
    stays_away(street.secondary)
    if failpoint.startswith("seed.received"):  # nothing was given up: it goes on by the old one
        came_so = read_header(street.secondary / "seed" / "incoming.seed").rows  # the others stayed at the source
        assert came_so == {("main", "account"): "COLUMNS (id, balance, note)"}
        street.start_update()
        came(street, street.secondary)
        street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "seed", "--restart")
    street.start_update()
    street.finish([street.writer(12, 30)])
    came(street, street.secondary, WIDER_SHOWN)


@pytest.mark.turns(2)
@pytest.mark.parametrize("failpoint", ["partition.begun:1:kill", "partition.rolled:1:kill", "partition.put_in:1:kill"])
def test_a_change_by_a_load_of_a_partition_that_is_killed(tmp_path: Path, failpoint: str) -> None:
    street = Street(tmp_path, settings=QUICK).build()
    try:
        for instance in (street.primary, street.secondary):
            street.on(instance, "partition", "create", "sales")
        street.on(street.primary, "partition", "assign", "sales", "account", "entry")
        street.on(street.secondary, "subscription", "set", "DEFAULT", "sales")
        street.on(street.secondary, "subscription", "filter", "account", *LIST)
        street.start()
        street.finish([street.writer(1, 60)])
        came(street, street.secondary)
        street.on(street.secondary, "subscription", "filter", "account", *WIDER)
        for what in ("remove", "add"):
            street.on(street.secondary, "subscription", what, "sales")
        writer = street.writer(11, 0, pause_s=0.01)
        street.seed_killed(failpoint, "--partition", "sales")
        if not Instance.open(street.secondary).content.choice.holds(2):
            street.on(street.secondary, "seed", "--partition", "sales")
        assert writer.poll() is None
        writer.kill()
        writer.wait()
        came(street, street.secondary, WIDER_SHOWN)
        assert not Instance.open(street.secondary).content.choice.uncopied
    finally:
        street.close()
