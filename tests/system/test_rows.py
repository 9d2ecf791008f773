"""Some rows of a table over real processes: seeded, streamed under load with both sides killed, changed by loads that
are killed; what such a secondary is not, and a table that changes under the condition.

What a condition says is in tests/replicate/filters/test_row_filter.py; random histories in test_rows.py there, and in
tests/replicate/transfer/seed/test_rows.py.
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

ACCOUNTS = "balance > 5 AND owner <> 'writer 2' OR id = 1"
ENTRIES = "amount < 4.5"
KEYS = {"account": "id", "entry": "number", "setting": "name", "loose": "a, b, rowid", "audit": "rowid"}


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=QUICK).build()
    try:
        made.on(made.secondary, "subscription", "filter", "account", "--where", ACCOUNTS)
        made.on(made.secondary, "subscription", "filter", "entry", "--where", ENTRIES)
        made.start()
        yield made
    finally:
        made.close()


def rows(path: Path, table: str, where: str = "1") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY {KEYS[table]}").fetchall()


def came(street: Street, instance: Path, **wishes: str) -> None:
    """It is SELECT … WHERE of the primary, by SQLite and by `compare`; without a wish by the first ones."""
    wishes = wishes or {"account": ACCOUNTS, "entry": ENTRIES}
    last = street.write("INSERT INTO audit VALUES ('proof', 1)")
    street.on(instance, "wait", "--seqno", str(last), "--timeout", "120")
    here = instance / "regions" / "main.db"
    for table in KEYS:
        assert rows(here, table) == rows(street.database, table, wishes.get(table, "1")), table
    found = json.loads(street.on(instance, "--json", "compare", "--with", street.primary).stdout)
    assert {one["status"] for one in found["regions"][0]["comparison"]["tables"]} == {"equal"}
    array = json.loads(street.on(street.primary, "--json", "scr", "--with", instance).stdout)
    assert {one["state"] for one in array["rows"]} == {"even"}


@pytest.mark.slow
def test_under_load_with_kills_and_large_transactions(street: Street) -> None:
    writers = [street.writer(number, 300, seed=number, pause_s=0.002) for number in (1, 2)]
    street.kill_each()
    street.finish(writers)
    came(street, street.secondary)
    street.write(f"{MANY} INSERT INTO account (owner, balance, note) SELECT 'many', i % 11, printf('%100d', i) FROM n")
    street.write("UPDATE account SET balance = balance - 3, id = id + 100000 WHERE owner = 'many'")
    came(street, street.secondary)
    street.write("INSERT INTO account (owner, balance) VALUES ('nobody', 0)")
    street.write("DELETE FROM account WHERE balance < 3", "UPDATE entry SET amount = amount + 3")
    came(street, street.secondary)
    kinds = {
        json.loads(line)["kind"]
        for line in street.on(street.secondary, "--json", "journal", "show").stdout.splitlines()
    }
    assert {"NULL", "RESTATED", "RESTATED_LARGE"} <= kinds


@pytest.mark.slow
def test_what_it_is_not(street: Street) -> None:
    street.write("INSERT INTO account (owner, balance) VALUES ('a', 1), ('b', 9)")
    came(street, street.secondary)
    told = "of table main.account where"
    secondary, primary = street.secondary, street.primary
    for words in (
        ("promote",),
        ("promote", "--force"),
        ("replay", "--journal", primary),
        ("packet", "export", "--to", "third", "--outbox", street.directory),
    ):
        street.on(secondary, "peer", "add", "third", "127.0.0.1:9", "--replace", check=False)
        refused = street.on(secondary, *words, check=False)
        assert refused.returncode, words
        assert told in refused.stderr, (words, refused.stderr)
    refused = street.on(primary, "switchover", "--to", "secondary", check=False)
    assert told in refused.stdout + refused.stderr
    assert Instance.open(secondary).role == "secondary"
    assert told in street.on(secondary, "instance", "show").stdout


@pytest.mark.slow
def test_a_third_site_gets_what_is_there_if_it_asks_for_that(street: Street) -> None:
    third, port = street.directory / "third", free_port()
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    street.on(street.primary, "peer", "add", "third", "127.0.0.1:9")
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
    street.on(third, "subscription", "filter", "account", "--where", ACCOUNTS)
    refused = street.on(third, "seed", "--from", street.secondary, check=False)
    assert "the copy has of table main.entry where amount < 4.5, no other rows, and third wants all" in refused.stderr
    street.on(third, "seed", "--from", street.primary)
    street.on(street.primary, "peer", "remove", "third")
    street.on(third, "receiver", "start", "--listen", f"127.0.0.1:{port}")
    street.on(street.secondary, "source", "start", "--peer", "third")

    def says_so() -> bool:
        return any("ROWS_REFUSED" in json.dumps(line) for line in street.log(street.secondary, "source-third"))

    wait_until(says_so, what="the relay refuses by name")  # it has not all entries
    street.on(third, "update", "stop")
    street.on(third, "subscription", "filter", "entry", "--where", ENTRIES)
    street.on(third, "seed", "--restart")  # over the connection to the relay
    street.on(third, "update", "start")
    street.finish([street.writer(1, 60)])
    came(street, third)
    came(street, street.secondary)


@pytest.mark.slow
def test_a_third_site_that_wants_no_partition_of_such_a_table_gets_the_rest(tmp_path: Path) -> None:
    """Its relay has some rows of account, in sales; it wants DEFAULT: what cannot be told is refused before that."""
    street = Street(tmp_path, settings=QUICK).build()
    try:
        for instance in (street.primary, street.secondary):
            street.on(instance, "partition", "create", "sales")
        street.on(street.primary, "partition", "assign", "sales", "account")
        street.on(street.secondary, "subscription", "set", "DEFAULT", "sales")
        street.on(street.secondary, "subscription", "filter", "account", "--where", ACCOUNTS)
        street.start()
        third, port = street.directory / "third", free_port()
        network = street.status(street.secondary)["network"]
        street.run("instance", "create", third, "--role", "secondary", "--network", network)
        street.others.append(third)
        street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
        street.on(third, "subscription", "set", "1")
        street.on(third, "seed", "--from", street.secondary)
        street.on(third, "receiver", "start", "--listen", f"127.0.0.1:{port}")
        street.on(street.secondary, "source", "start", "--peer", "third")
        street.finish([street.writer(1, 60)])  # of account and audit in one transaction, among others

        def holds_the_rest() -> None:
            last = street.write("INSERT INTO audit VALUES ('proof', 1)")
            street.on(third, "wait", "--seqno", str(last), "--timeout", "120")
            there = third / "regions" / "main.db"
            for table in KEYS:
                assert rows(there, table) == ([] if table == "account" else rows(street.database, table)), table

        holds_the_rest()
        street.on(third, "subscription", "add", "2")
        refused = street.on(third, "seed", "--partition", "2", check=False)
        assert "has of table main.account where" in refused.stderr
        assert not Instance.open(third).content.choice.loading
        holds_the_rest()  # the stream of the others goes on
        street.on(street.primary, "partition", "assign", "DEFAULT", "account")

        def says_so() -> bool:
            told = "cannot be told any more: it comes to what is wanted"
            return any(told in json.dumps(line) for line in street.log(street.secondary, "source-third"))

        wait_until(says_so, what="the relay stops before a table of which it has some rows")
        assert rows(third / "regions" / "main.db", "account") == []
    finally:
        street.close()


@pytest.mark.slow
def test_a_table_that_changes_stops_it_by_name_and_a_load_mends_it(street: Street) -> None:
    street.write("INSERT INTO account (owner, balance) VALUES ('a', 1), ('b', 9)")
    street.write("ALTER TABLE account ADD COLUMN more DEFAULT 'x'")  # which says nothing
    came(street, street.secondary)
    last = street.last_seqno(street.primary)
    street.write("ALTER TABLE account RENAME COLUMN balance TO money")
    street.write("INSERT INTO account (owner, money) VALUES ('c', 19)")

    def stopped() -> bool:
        facts = street.daemon(street.primary, "source-secondary")["facts"]
        return "account has no column balance" in str(facts.get("last_error"))

    wait_until(stopped, what="the stream stops by name")
    wait_until(lambda: street.last_seqno(street.secondary) == last, what="all before that is there")
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "subscription", "filter", "account", "--where", "money > 5", "--ahead")
    street.on(street.secondary, "seed", "--restart")  # over the connection
    street.start_update()
    came(street, street.secondary, account="money > 5", entry=ENTRIES)


@pytest.mark.turns(2)
@pytest.mark.parametrize("failpoint", ["seed.received:1:kill", "seed.journal_begun:1:kill"])
def test_a_change_by_a_seed_that_is_killed(street: Street, failpoint: str) -> None:
    """Condition and rows change together: before the copy is in its place it is the old one's, after that the new."""
    street.finish([street.writer(1, 60)])
    street.on(street.secondary, "subscription", "filter", "account", "--where", "balance <= 30")
    street.finish([street.writer(2, 30)])
    came(street, street.secondary)
    assert "ROWS_WAIT" in street.on(street.secondary, "--json", "status", check=False).stdout
    street.on(street.secondary, "update", "stop")
    street.seed_killed(failpoint, "--restart")
    if failpoint.startswith("seed.received"):  # nothing was given up: it goes on by the old one
        came_so = read_header(street.secondary / "seed" / "incoming.seed").rows  # the others stayed at the source
        assert came_so == {("main", "account"): "balance <= 30", ("main", "entry"): ENTRIES}
        street.start_update()
        came(street, street.secondary)
        street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "seed", "--restart")
    street.start_update()
    street.finish([street.writer(3, 30)])
    came(street, street.secondary, account="balance <= 30", entry=ENTRIES)
    assert "ROWS_WAIT" not in street.on(street.secondary, "--json", "status", check=False).stdout


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "failpoint",
    ["partition.begun:1:kill", "partition.rolled:1:kill", "partition.put_in:1:kill", "partition.held:1:kill"],
)
def test_a_change_by_a_load_of_a_partition_that_is_killed(tmp_path: Path, failpoint: str) -> None:
    street = Street(tmp_path, settings=QUICK).build()
    try:
        for instance in (street.primary, street.secondary):
            street.on(instance, "partition", "create", "sales")
        street.on(street.primary, "partition", "assign", "sales", "account", "entry")
        street.on(street.secondary, "subscription", "set", "DEFAULT", "sales")
        street.on(street.secondary, "subscription", "filter", "account", "--where", ACCOUNTS)
        street.start()
        street.finish([street.writer(1, 60)])
        came(street, street.secondary, account=ACCOUNTS)
        street.on(street.secondary, "subscription", "filter", "account", "--where", "balance <= 30")
        for what in ("remove", "add"):
            street.on(street.secondary, "subscription", what, "sales")
        writer = street.writer(2, 0, pause_s=0.01)
        street.seed_killed(failpoint, "--partition", "sales")
        if not Instance.open(street.secondary).content.choice.holds(2):
            street.on(street.secondary, "seed", "--partition", "sales")
        assert writer.poll() is None
        writer.kill()
        writer.wait()
        came(street, street.secondary, account="balance <= 30")
        assert not Instance.open(street.secondary).content.choice.uncopied
    finally:
        street.close()
