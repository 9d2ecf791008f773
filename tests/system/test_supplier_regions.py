"""Three suppliers with two regions each and their daemons: all of them write transactions over both at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.supplier_street import NAMES, SCHEMA, SETTINGS, SupplierStreet
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

APART = "CREATE TABLE goods (id TEXT PRIMARY KEY, name TEXT UNIQUE, n INTEGER) WITHOUT ROWID;"
BOTH = """
import random, sys, time, replicate
path, seed, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
connection = replicate.connect(path, timeout=60)
connection.attach("stock")
number = refused = 0
while number < stop:
    key, value = rng.randint(1, 8), rng.randint(1, 10**6)
    try:
        connection.execute(*rng.choice([
            ("UPDATE shared SET n = ? WHERE id = ?", (value, key)),
            ("DELETE FROM shared WHERE id = ?", (key,)),
            ("INSERT OR IGNORE INTO shared VALUES (?, ?, ?, 0)", (key, f"n{value % 12}", value)),
        ]))
        connection.execute(*rng.choice([
            ("UPDATE goods SET n = ? WHERE id = ?", (value, f"k{key}")),
            ("UPDATE OR IGNORE goods SET name = ? WHERE id = ?", (f"n{value % 12}", f"k{key}")),
            ("DELETE FROM goods WHERE id = ?", (f"k{key}",)),
            ("INSERT OR IGNORE INTO goods (id, name, n) VALUES (?, ?, ?)", (f"k{key}", f"n{value % 12}", value)),
        ]))
        connection.execute("INSERT INTO goods (id, n) VALUES (?, ?)", (f"of {seed} {number} {refused}", value))
        connection.execute("INSERT INTO shared (name, n) VALUES (?, ?)", (f"of {seed} {number} {refused}", value))
        connection.commit()
        number += 1
    except replicate.OperationalError as error:
        connection.rollback()
        if "stand aside" not in str(error) and "all other suppliers" not in str(error):
            raise
        refused += 1
        time.sleep(0.02)
"""
"""Each transaction changes rows of both regions that others change, and has a row of its own in each."""


ONE = """
import sys, replicate
connection = replicate.connect(sys.argv[1], sys.argv[2], timeout=60)
connection.execute(sys.argv[3])
connection.commit()
"""


class Apart(SupplierStreet):
    """Two regions."""

    apart = APART
    shared = ("shared", "stock.goods")


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    made = Apart(tmp_path_factory.mktemp("street"), settings=SETTINGS, schema=SCHEMA)
    try:
        made.build()
        made.share()
        keys = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 8) SELECT i FROM c"
        write_one(made, "a", "main", f"INSERT INTO shared (id) {keys}")  # so that nobody counts those any more
        yield made
    finally:
        made.close()


def write_one(street: Apart, name: str, region: str, statement: str) -> None:
    """A transaction in one region."""
    street.finish([street.python(ONE, str(street.by[name]), region, statement)])


def write_at_once(street: Apart, first: int, stop: int = 60) -> list[subprocess.Popen[str]]:
    """Writers on all sites."""
    return [street.python(BOTH, str(street.by[name]), str(first + at), str(stop)) for at, name in enumerate(NAMES)]


def assert_whole(street: Apart) -> None:
    """What one transaction wrote in both regions is in both, everywhere, and in a secondary."""
    street.level()
    rows = street.rows("c")
    of_stock = {row[0] for row in rows["goods"] if row[0].startswith("of ")}
    assert of_stock == {row[1] for row in rows["shared"] if str(row[1]).startswith("of ")}
    for other in ("b", "c"):
        assert "equal" in street.on(street.by["a"], "compare", "--with", street.by[other]).stdout
    wait_until(lambda: street.rows_at(street.directory / "d") == street.rows("a"), what="the secondary follows")


def test_all_write_both_regions_at_once_while_daemons_are_killed(street: Apart) -> None:
    street.follow("a", "d")
    for name in NAMES:
        street.on(street.by[name], "update", "stop")
    street.finish(write_at_once(street, 0))
    writers = write_at_once(street, 10)
    for name in NAMES:
        street.start_daemon(name, "update")
    for name, daemon in 2 * [("a", "update"), ("b", "update"), ("a", "source-c"), ("c", "update"), ("b", "receiver")]:
        street.restart(name, daemon)
    street.finish(writers)
    assert_whole(street)
    assert len([row for row in street.rows("b")["goods"] if row[0].startswith("of ")]) == 360
    for name in NAMES:
        assert {one["region"] for one in street.merges(name)} == {"main", "stock"}
    wait_until(lambda: not any(map(street.stamped, NAMES)), what="all have told, and all have forgotten")


def test_what_is_lost_is_taken_back_by_its_region(street: Apart) -> None:
    street.follow("a", "d")
    street.on(street.by["b"], "conflict", "settle", "--all")
    site = street.by["b"]
    for name in NAMES:
        street.on(street.by[name], "update", "stop")
    for at, name in enumerate(NAMES):
        write_one(street, name, "stock", f"INSERT INTO goods VALUES ('one', NULL, {at})")
    for name in NAMES:
        street.start_daemon(name, "update")
    street.level()
    lost = [one for one in street.merges("b") if one["key"] == {"id": "one"}]
    assert {one["lost"]["n"] for one in lost} == {0, 1}
    (first,) = (one["id"] for one in lost if one["lost"]["n"] == 0)
    assert first in street.on(site, "conflict", "list").stdout
    assert street.on(site, "conflict", "take", first).stdout == f"{first} is written, and settled\n"
    wait_until(lambda: ("one", None, 0) in street.rows("c")["goods"], what="it has come to all")
    refused = street.on(site, "conflict", "show", "m99", check=False)
    assert refused.returncode
    assert "nothing was lost under the number m99" in refused.stderr
    assert street.on(site, "conflict", "settle", "--all").returncode == 0
    assert street.merges("b") == []
    assert_whole(street)


def test_the_schema_of_one_region_changes_while_all_write_both(street: Apart, tmp_path: Path) -> None:
    street.follow("a", "d")
    change = tmp_path / "change.sql"
    change.write_text("ALTER TABLE goods ADD COLUMN more; CREATE INDEX goods_n ON goods (n);")
    writers = write_at_once(street, 20, 150)
    street.restart("c", "update")
    done = street.on(street.by["b"], "--json", "schema", "run", change, "--region", "stock", "--timeout", "120")
    assert json.loads(done.stdout)["region"] == "stock"
    street.restart("a", "update")
    street.finish(writers)
    assert_whole(street)
    assert len(street.rows("a")["goods"][0]) == 4
    for name in NAMES:
        assert street.on(street.by[name], "schema", "status").stdout == "nobody changes the schema\n"
