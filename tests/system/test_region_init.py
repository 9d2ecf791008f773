"""The application's own functions and collations in a schema (`region.init`): through the whole street, and what is
said when they are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.street import Street
from tests.harness.waiting import wait_until

MODULE = """
def register(connection):
    connection.create_function("shorten", 1, lambda text: None if text is None else str(text)[:3], deterministic=True)
    connection.create_collation("backwards", lambda one, other: (one < other) - (one > other))

def failing(connection):
    raise RuntimeError("no such luck")
"""
SETTINGS = """
    [journal]
    durability = "interval"
    [region]
    init = "shop_functions:register"
"""
SCHEMA = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE audit (what TEXT, at INTEGER);
"""
STATEMENTS = (
    "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT CHECK (shorten(name) <> 'bad'), "
    "short AS (shorten(name)) STORED, seen AS (shorten(name) || '!') VIRTUAL)",
    "CREATE UNIQUE INDEX person_short ON person (shorten(name))",
    "CREATE INDEX person_seen ON person (seen)",
    "CREATE TABLE word (text TEXT COLLATE backwards PRIMARY KEY, n) WITHOUT ROWID",
    "INSERT INTO person (name) VALUES ('Ada Lovelace'), ('Grace Hopper'), (NULL)",
    "INSERT INTO word VALUES ('a', 1), ('c', 2), ('b', 3)",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    (tmp_path / "shop_functions.py").write_text(MODULE)
    made = Street(tmp_path, settings=SETTINGS, schema=SCHEMA)
    made.environment["PYTHONPATH"] += f":{tmp_path}"
    try:
        yield made.build().start()
    finally:
        made.close()


def test_functions_and_collations_of_the_application_in_a_schema(street: Street) -> None:
    street.write(*STATEMENTS)
    seqno = street.write(
        "UPDATE person SET name = 'Edsger' WHERE shorten(name) = 'Gra'",
        "DELETE FROM person WHERE seen = 'Ada!'",
        "INSERT OR REPLACE INTO person (name) VALUES ('Edsel')",
        "UPDATE word SET n = n + 1 WHERE text < 'b'",
        "DELETE FROM word WHERE text = 'a'",
    )
    street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "120")
    street.on(street.secondary, "compare", "--with", street.primary)
    # A writer and an Update Process that were killed: recovery needs the functions too.
    street.kill(street.secondary, "update")
    street.write("INSERT INTO person (name) VALUES ('Barbara')", "INSERT INTO word VALUES ('d', 4)")
    street.start_update()
    # A copy of it brings the secondary up again.
    street.on(street.secondary, "update", "stop")
    street.on(street.secondary, "seed", "--from", street.primary, "--restart")
    street.start_update()
    seqno = street.write("UPDATE person SET name = 'Ada' WHERE id = 1", "INSERT INTO person (name) VALUES ('Alan')")
    street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "120")
    street.on(street.secondary, "compare", "--with", street.primary)
    refused = street.python("import sys, replicate; c = replicate.connect(sys.argv[1]);"
                            "c.create_function('shorten', 1, len)", str(street.primary))  # fmt: skip
    assert "depends on shorten" in refused.communicate(timeout=120)[1]


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("no_such_module:register", "cannot be imported"),
        ("shop_functions:nobody", "no function nobody"),
        ("shop_functions", "should read module:function"),
        ("shop_functions:failing", "no such luck"),
    ],
)
def test_what_cannot_be_registered_is_refused_at_the_start(tmp_path: Path, init: str, said: str) -> None:
    (tmp_path / "shop_functions.py").write_text(MODULE)
    street = Street(tmp_path, schema=SCHEMA)
    street.environment["PYTHONPATH"] += f":{tmp_path}"
    try:
        street.build()
        (street.primary / "replicate.toml").write_text(f'[region]\ninit = "{init}"\n')
        done = street.on(street.primary, "digest", check=False)
        assert (done.returncode, "region.init" in done.stderr, said in done.stderr) == (78, True, True), done.stderr
        writer = street.python("import sys, replicate; replicate.connect(sys.argv[1])", str(street.primary))
        assert said in writer.communicate(timeout=120)[1]
        assert street.on(street.primary, "status", check=False).returncode in (0, 1)
    finally:
        street.close()


def test_a_secondary_without_them_stops_by_name_and_goes_on_with_them(street: Street) -> None:
    street.on(street.secondary, "update", "stop")
    (street.secondary / "replicate.toml").write_text('[region]\ninit = ""\n')
    street.start_update()
    street.write(*STATEMENTS)
    wait_until(lambda: street.daemon(street.secondary, "update")["exit_code"], what="it stops by name")
    error = street.daemon(street.secondary, "update")["error"]
    assert "shorten" in error
    assert "region.init" in error
    (street.secondary / "replicate.toml").write_text('[region]\ninit = "shop_functions:nobody"\n')
    refused = street.on(street.secondary, "update", "start", check=False)
    assert refused.returncode == 78
    (street.secondary / "replicate.toml").write_text('[region]\ninit = "shop_functions:register"\n')
    street.start_update()
    last_seqno = street.write("INSERT INTO person (name) VALUES ('Barbara')")
    street.on(street.secondary, "wait", "--seqno", str(last_seqno), "--timeout", "120")
    assert json.loads(street.on(street.primary, "--json", "compare", "--with", street.secondary).stdout)
