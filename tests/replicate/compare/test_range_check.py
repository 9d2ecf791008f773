"""Ranges digested on a primary and verified on its secondary, which is at the same transaction or beyond it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin import partitions, subscriptions
from replicate.admin.regions import add_region
from replicate.admin.schema_run import run_schema
from replicate.compare.patrol_rounds import Place
from replicate.compare.range_check import Outcome, Taken, as_of, skip_table, take_range, verify
from replicate.instance.instance import Instance
from replicate.model.elements import DEFINITION, PLACED, SECTION, STORAGE
from replicate.wire.message import Check
from tests.harness.conflicting import spoil
from tests.harness.pair import Pair

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL DEFAULT 'o', note, amount REAL);
CREATE TABLE word (word TEXT COLLATE NOCASE, part INTEGER, what BLOB, PRIMARY KEY (word, part)) WITHOUT ROWID;
CREATE TABLE loose (a, b NUMERIC, c REAL, d INT, made AS (a || 'x'));
CREATE TABLE exact (id TEXT PRIMARY KEY, v ANY) STRICT;
CREATE VIRTUAL TABLE note USING fts5(body);
CREATE INDEX by_owner ON account (owner);
"""
VALUES = [
    None,
    0,
    1,
    -1,
    2**62,
    -(2**63),
    0.5,
    -0.0,
    1.0,
    3.0,
    1e300,
    float("inf"),
    "",
    "a",
    "A",
    "ä",
    b"",
    b"\0x",
    "7",
]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


def round_of(instance: Instance) -> list[Check]:
    """A whole round, as the source tells it."""
    place: Place | None = Place(7)
    checks: list[Check] = []
    while place is not None:
        taken = take_range(instance, place)
        assert isinstance(taken, Taken)
        if taken.check is not None:
            checks.append(taken.check)
        place = taken.place
    return checks


def outcomes(pair: Pair, checks: list[Check]) -> dict[str, set[str]]:
    """By table, what verifying has found."""
    found: dict[str, set[str]] = {}
    for check in checks:
        found.setdefault(check.table, set()).add(verify(pair.secondary, check, 0).outcome.value)
    return found


def some_changes(pair: Pair, dice: random.Random, count: int) -> None:
    """Transactions of every kind of change on every shape of table."""
    connection = pair.connect()

    def value() -> object:
        return dice.choice(VALUES)

    for _ in range(count):
        key, word = dice.randrange(40), dice.choice("abcdeABCDE")
        for statement, values in dice.sample(
            [
                ("INSERT INTO account (note, amount) VALUES (?, ?)", (value(), value())),
                ("UPDATE account SET note = ?, amount = ? WHERE id = ?", (value(), value(), key)),
                ("UPDATE OR IGNORE account SET id = ? WHERE id = ?", (dice.randrange(40), key)),
                ("DELETE FROM account WHERE id = ?", (key,)),
                ("INSERT OR REPLACE INTO word VALUES (?, ?, ?)", (word, key % 3, value())),
                ("UPDATE OR REPLACE word SET word = ? WHERE word = ?", (dice.choice("abcdeABCDE"), word)),
                ("DELETE FROM word WHERE word = ? AND part = ?", (word, key % 3)),
                ("INSERT INTO loose (a, b, c, d) VALUES (?, ?, ?, ?)", (value(), value(), value(), value())),
                ("UPDATE loose SET b = ?, c = ? WHERE rowid % 7 = ?", (value(), value(), key % 7)),
                ("DELETE FROM loose WHERE rowid % 11 = ?", (key % 11,)),
                ("INSERT OR REPLACE INTO exact VALUES (?, ?)", (word, value())),
                ("UPDATE exact SET v = ? WHERE id = ?", (value(), word)),
                ("INSERT INTO note VALUES (?)", (word * 3,)),
            ],
            3,
        ):
            connection.execute(statement, values)
        connection.commit()
    connection.close()


EVERYTHING = {"", "account", "word", "loose", "exact", "sqlite_sequence"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_secondary_that_has_gone_on_is_verified_as_it_was(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was changed since, in whatever values: never a false alarm, and nothing passed over."""
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 5)
    dice = random.Random(seed)
    some_changes(pair, dice, 60)
    checks = round_of(pair.primary)
    assert {check.table for check in checks} >= EVERYTHING
    assert [check.number for check in checks] == list(range(1, len(checks) + 1))
    assert [check.is_last for check in checks] == [False] * (len(checks) - 1) + [True]
    some_changes(pair, dice, 60)
    pair.catch_up()
    found = outcomes(pair, checks)
    assert set().union(*found.values()) == {"equal"}, found


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("account", "UPDATE account SET amount = amount + 1 WHERE id = 17"),
        ("account", "DELETE FROM account WHERE id = 1"),
        ("word", "INSERT INTO word VALUES ('ZZ', 1, 'after the last')"),
        ("word", "UPDATE word SET what = 1.0 WHERE what = 1"),
        ("loose", "UPDATE loose SET rowid = rowid + 100000 WHERE rowid = 3"),
        ("exact", "UPDATE exact SET v = '7' WHERE id = 'z'"),
        ("sqlite_sequence", "INSERT INTO sqlite_sequence VALUES ('loose', 5)"),
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_row_that_was_changed_past_the_guards_is_found(
    pair: Pair, table: str, statement: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a range that is changed all the time."""
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 50)
    connection = pair.connect()
    connection.executemany("INSERT INTO account (amount) VALUES (?)", ((n,) for n in range(120)))
    connection.execute("INSERT INTO word VALUES ('w', 1, 1)")
    connection.executemany("INSERT INTO loose (a) VALUES (?)", ((n,) for n in range(120)))
    connection.execute("INSERT INTO exact VALUES ('z', 7)")
    connection.commit()
    pair.catch_up()
    spoil(pair, statement)
    checks = round_of(pair.primary)
    if goes_on:
        connection.execute("UPDATE account SET note = 'later' WHERE id > 20")
        connection.execute("INSERT INTO word VALUES ('w', 2, 1)")
        connection.execute("UPDATE loose SET b = 1 WHERE rowid > 5")
        connection.commit()
        connection.execute("INSERT INTO account (amount) VALUES (1)")
        connection.commit()
        pair.catch_up()
    connection.close()
    found = outcomes(pair, checks)
    assert "different" in found.pop(table)
    assert set().union(*found.values()) == {"equal"}, found


def test_a_byte_that_a_disk_has_turned_is_found(pair: Pair) -> None:
    connection = pair.connect()
    connection.execute("INSERT INTO account (note) VALUES ('the one that is turned'), ('another')")
    connection.commit()
    connection.close()
    pair.catch_up()
    database = pair.secondary.path / "regions" / "main.db"
    with closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = database.read_bytes()
    at = data.index(b"the one that is turned")
    with database.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    found = outcomes(pair, round_of(pair.primary))
    assert found.pop("account") == {"different"}
    assert set().union(*found.values()) == {"equal"}


def test_what_a_secondary_holds_is_told_to_a_third_site(pair: Pair) -> None:
    """Its regions bear other marks of how far they are than a primary's."""
    dice = random.Random(9)
    some_changes(pair, dice, 20)
    pair.catch_up()
    checks = round_of(pair.secondary)
    assert {check.seqno for check in checks} == {pair.last_seqno()}
    some_changes(pair, dice, 20)
    assert {verify(pair.primary, check, 0).outcome for check in checks} == {Outcome.EQUAL}


def test_what_is_not_applied_yet_is_asked_for_again(pair: Pair) -> None:
    pair.write(3)
    (schema, account, *_) = round_of(pair.primary)
    assert verify(pair.secondary, account, 0).outcome is Outcome.NOT_YET
    pair.catch_up()
    assert verify(pair.secondary, account, 0).outcome is Outcome.EQUAL
    assert verify(pair.secondary, schema, 0).outcome is Outcome.EQUAL


def test_a_schema_that_was_changed_meanwhile_is_passed_over(pair: Pair) -> None:
    pair.write(3)
    checks = round_of(pair.primary)
    connection = pair.connect()
    connection.execute("ALTER TABLE account ADD COLUMN more TEXT")
    connection.execute("DROP TABLE exact")
    connection.commit()
    connection.close()
    pair.catch_up()
    found = outcomes(pair, checks)
    assert found[""] == found["account"] == found["exact"] == {"passed over"}
    assert found["word"] == {"equal"}


def test_a_table_that_has_another_key_by_now_is_passed_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 1)
    connection = pair.connect()
    connection.execute("INSERT INTO word VALUES ('a', 1, 1), ('b', 1, 1)")
    connection.commit()
    checks = round_of(pair.primary)
    for statement in (
        "CREATE TABLE other (word TEXT PRIMARY KEY, part, what) WITHOUT ROWID",
        "INSERT INTO other SELECT * FROM word",
        "DROP TABLE word",
        "ALTER TABLE other RENAME TO word",
    ):
        connection.execute(statement)
    connection.commit()
    connection.close()
    pair.catch_up()
    assert outcomes(pair, checks)["word"] == {"passed over"}


def test_another_schema_is_found(pair: Pair) -> None:
    pair.write(1)
    pair.catch_up()
    spoil(pair, "DROP INDEX by_owner")
    spoil(pair, "DROP TABLE exact")
    found = outcomes(pair, round_of(pair.primary))
    assert found[""] == found["exact"] == {"different"}
    assert found["account"] == {"equal"}


def test_a_region_that_is_not_here_is_passed_over(pair: Pair) -> None:
    pair.write(1)
    pair.catch_up()
    (check, *_) = round_of(pair.primary)
    found = verify(pair.secondary, Check(7, 1, False, 1, "other", "", b"", b"", 0, bytes(16)), 0)
    assert (found.outcome, found.why) == (Outcome.PASSED, "region other is not here")
    garbage = Check(7, 1, False, check.seqno, "main", "account", b"\xc1", b"", 0, bytes(16))
    assert verify(pair.secondary, garbage, 0).outcome is Outcome.PASSED


def test_a_region_that_nobody_writes_is_verified_at_a_number_of_now(tmp_path: Path, pair: Pair) -> None:
    """What came since its own last transaction stands in the secondary's journal no more, or never did."""
    pair.write(3)
    with closing(sqlite3.connect(tmp_path / "side.db")) as other:
        other.execute("CREATE TABLE side (id INTEGER PRIMARY KEY)")
    add_region(pair.primary, tmp_path / "side.db", name="side")
    pair.seed(restart=True)
    spoil(pair, "DELETE FROM account WHERE id = 2")
    last = pair.last_seqno()
    (check,) = [one for one in round_of(pair.primary) if one.table == "account"]
    assert check.seqno < last
    found = verify(pair.secondary, check, 0)
    assert (found.outcome, found.why) == (
        Outcome.PASSED, f"transaction {check.seqno + 1} is not in the journal any more"
    )  # fmt: skip
    now = as_of(check, last, check.seqno)
    assert now.seqno == last
    assert verify(pair.secondary, now, 0).outcome is Outcome.DIFFERENT


def test_a_number_is_not_raised_beyond_what_the_region_may_lack(pair: Pair) -> None:
    """Something newer has touched it, or is about to, when it was taken."""
    pair.write(1)
    (check, *_) = round_of(pair.primary)
    assert as_of(check, check.seqno + 5, check.seqno + 1) == check
    assert as_of(check, check.seqno - 1, check.seqno - 1) == check


@pytest.mark.parametrize("absent", [(STORAGE,), (SECTION,), (STORAGE, SECTION), PLACED])
def test_definitions_that_do_not_come_are_passed_over(pair: Pair, absent: tuple[str, ...]) -> None:
    """And rows are verified all the same."""
    names = {DEFINITION: "defs", STORAGE: "indexes", SECTION: "triggers"}
    for instance in (pair.primary, pair.secondary):
        for element, name in names.items():
            partitions.create(instance, name)
            partitions.place_element(instance, element, name)
    subscriptions.set_(pair.secondary, ["DEFAULT", *(name for one, name in names.items() if one not in absent)])
    pair.seed(restart=True)
    pair.write(3)
    with closing(pair.connect()) as connection:
        connection.executescript(
            "CREATE INDEX by_note ON account (note); CREATE TRIGGER made AFTER DELETE ON exact BEGIN SELECT 1; END;"
            "CREATE TABLE fresh (id INTEGER PRIMARY KEY)"
        )
    if DEFINITION in absent:
        run_schema(pair.secondary, "CREATE TABLE fresh (id INTEGER PRIMARY KEY CHECK (id > 0))", where="there")
    pair.catch_up()
    found = outcomes(pair, round_of(pair.primary))
    assert found.pop("") == {"passed over"}
    assert set().union(*found.values()) == {"equal"}, found
    spoil(pair, "DELETE FROM account WHERE id = 2")
    assert outcomes(pair, round_of(pair.primary))["account"] == {"different"}


def test_a_table_that_cannot_be_read_is_gone_past(pair: Pair) -> None:
    pair.write(1)
    place = Place(7, 3, "main", "account")
    assert skip_table(pair.primary, place) == Place(7, 4, "main", "exact")
    assert skip_table(pair.primary, Place(7, 3, "zzz")) is None


def test_a_key_that_is_too_large_for_a_message_ends_no_range(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 1)
    connection = pair.connect()
    for word in ("a", "b" * 3000, "c" * 3000, "d", "e"):
        connection.execute("INSERT INTO word VALUES (?, 1, NULL)", (word,))
    connection.commit()
    connection.close()
    pair.catch_up()
    checks = [check for check in round_of(pair.primary) if check.table == "word"]
    assert [check.rows for check in checks] == [1, 3, 1, 0]
    assert {verify(pair.secondary, check, 0).outcome for check in checks} == {Outcome.EQUAL}
