"""Rows of sqlite_sequence that an application writes itself: each travels as it is, of whatever table or of none.

Plain SQLite allows any row there: what is left of a table that is gone, what is there before its table, and nonsense.
"""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.compare.compare import compare
from replicate.dbapi import IntegrityError, NotSupportedError, OperationalError
from tests.harness.pair import Pair, assert_equal
from tests.harness.replaying import replayed

SCHEMA = """
CREATE TABLE auto (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE plain (id INTEGER PRIMARY KEY, v);
CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT);
INSERT INTO auto (v) VALUES (1);
INSERT INTO sqlite_sequence VALUES ('left over', 7);
"""
NONE_COUNTS = "CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT); DROP TABLE gone; CREATE TABLE plain (id, v)"
"""sqlite_sequence stays when its last table goes."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


def counters(pair: Pair, side: str) -> list[Any]:
    """All rows, with the types of their values; those at 0 too."""
    path = getattr(pair, side).region("main").path
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return sorted(connection.execute("SELECT quote(name), typeof(seq), quote(seq) FROM sqlite_sequence").fetchall())


def play(pair: Pair, *steps: str) -> None:
    with closing(pair.connect()) as connection:
        for step in steps:
            connection.execute(step)
        connection.commit()


def arrived(pair: Pair) -> None:
    pair.catch_up()
    assert_equal(pair)
    assert counters(pair, "primary") == counters(pair, "secondary")


STEPS = {
    "of no table": ["INSERT INTO sqlite_sequence VALUES ('nowhere', 5)"],
    "left over, moved": ["UPDATE sqlite_sequence SET seq = 99 WHERE name = 'left over'"],
    "left over, renamed": ["UPDATE sqlite_sequence SET name = 'other' WHERE name = 'left over'"],
    "left over, gone": ["DELETE FROM sqlite_sequence WHERE name = 'left over'"],
    "all gone": ["DELETE FROM sqlite_sequence"],
    "of a table that does not count": [
        "INSERT INTO sqlite_sequence VALUES ('plain', 5)",
        "INSERT INTO plain VALUES (1, 1)",
    ],
    "before its table": [
        "INSERT INTO sqlite_sequence VALUES ('fresh', 40)",
        "CREATE TABLE fresh (id INTEGER PRIMARY KEY AUTOINCREMENT)",
        "INSERT INTO fresh VALUES (NULL)",
        "UPDATE sqlite_sequence SET seq = 77 WHERE name = 'fresh'",
    ],
    "before its table, which gets the name": [
        "INSERT INTO sqlite_sequence VALUES ('fresh', 40)",
        "ALTER TABLE gone RENAME TO fresh",
        "INSERT INTO fresh VALUES (NULL)",
    ],
    "of a table that goes": ["UPDATE sqlite_sequence SET seq = 9 WHERE name = 'auto'", "DROP TABLE auto"],
    "after a table that went": ["DROP TABLE auto", "INSERT INTO sqlite_sequence VALUES ('auto', 3)"],
    "no number": [
        "UPDATE sqlite_sequence SET seq = NULL",
        "INSERT INTO sqlite_sequence VALUES ('null', NULL), ('zero', 0), ('text', 'x''y'), ('blob', x'00ff'), "
        "('real', -1.5e-7), ('most', 9223372036854775807), ('least', -9223372036854775808), ('infinite', 9e999)",
    ],
    "no name": [
        "INSERT INTO sqlite_sequence VALUES (NULL, 1), (7, 2), (x'61', 3), ('a''b', 4), ('\N{SNOWMAN}', 5), ('', 6)"
    ],
    "both kinds in one": ["UPDATE sqlite_sequence SET seq = seq + 10", "INSERT INTO auto (v) VALUES (2)"],
    "with a pragma after": ["INSERT INTO sqlite_sequence VALUES ('nowhere', 5)", "PRAGMA user_version = 4"],
    "a part taken back": [
        "INSERT INTO sqlite_sequence VALUES ('stays', 1)",
        "SAVEPOINT s",
        "INSERT INTO sqlite_sequence VALUES ('goes', 2)",
        "DELETE FROM sqlite_sequence WHERE name = 'left over'",
        "ROLLBACK TO s",
        "UPDATE sqlite_sequence SET seq = 2 WHERE name = 'stays'",
    ],
    "by a trigger": [
        "CREATE TRIGGER t AFTER INSERT ON plain BEGIN INSERT INTO sqlite_sequence VALUES ('by ' || new.v, new.id); END",
        "INSERT INTO plain VALUES (3, 'it')",
    ],
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", STEPS)
def test_a_row_written_by_hand_travels(pair: Pair, kind: str) -> None:
    play(pair, *STEPS[kind])
    arrived(pair)
    # And what comes after it meets what it expects.
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS auto (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
        connection.execute("INSERT INTO auto (v) VALUES ('after')")
        connection.commit()
    arrived(pair)


def test_a_replay_brings_it_too(pair: Pair) -> None:
    for kind in ("left over, gone", "both kinds in one", "no number"):
        play(pair, *STEPS[kind])
    replayed(pair)
    assert_equal(pair)
    assert counters(pair, "primary") == counters(pair, "secondary")


def test_where_no_table_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, NONE_COUNTS)
    pair.seed()
    play(pair, "INSERT INTO sqlite_sequence VALUES ('gone', 5)")
    arrived(pair)
    play(pair, "CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT)", "INSERT INTO gone VALUES (NULL)")
    arrived(pair)
    assert pair.rows("gone") == [(6, 6)]


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO sqlite_sequence VALUES ('twice', 1), ('twice', 2)",
        "INSERT INTO sqlite_sequence VALUES ('twice', 1), ('twice', 0)",
        "INSERT INTO sqlite_sequence VALUES ('auto', 1)",
        "INSERT INTO sqlite_sequence VALUES ('a' || char(0) || 'b', 1)",
    ],
)
def test_what_cannot_travel_is_refused_before_commit(pair: Pair, text: str) -> None:
    with closing(pair.connect()) as connection:
        connection.execute(text)
        with pytest.raises(NotSupportedError, match="sqlite_sequence"):
            connection.commit()
        connection.rollback()
    arrived(pair)


@pytest.mark.parametrize("how", ["FAIL", "ABORT"])
def test_what_a_failed_statement_has_left_travels(pair: Pair, how: str) -> None:
    """RAISE(FAIL) keeps what a trigger has written; ABORT takes it back. No row was captured of either."""
    with closing(pair.connect()) as connection:
        connection.execute(
            "CREATE TRIGGER t BEFORE INSERT ON plain BEGIN INSERT INTO sqlite_sequence VALUES ('left', 5); "
            f"SELECT RAISE({how}, 'no'); END"
        )
        connection.execute("INSERT INTO auto (v) VALUES (1)")
        with pytest.raises(IntegrityError, match="no"):
            connection.execute("INSERT INTO plain VALUES (1, 1)")
        connection.commit()
    arrived(pair)
    assert ("'left'" in str(counters(pair, "secondary"))) == (how == "FAIL")


def test_a_drop_and_a_rename_travel_as_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite writes there itself; it does so on the other site too, and nothing more is journaled."""
    monkeypatch.delattr("replicate.region.sqlite.capture.capture.counter_statements")
    play(pair, "ALTER TABLE auto RENAME TO renamed", "DROP TABLE gone", "DROP TABLE renamed")
    arrived(pair)


def test_seed_and_compare_agree_on_it(pair: Pair) -> None:
    for kind in ("no number", "no name"):
        play(pair, *STEPS[kind])
    pair.seed(restart=True)
    arrived(pair)
    path = pair.secondary.region("main").path
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DELETE FROM sqlite_sequence WHERE name IS 7")
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert not found.equal


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(5))
def test_any_of_it_in_any_order(pair: Pair, seed: int) -> None:
    dice = random.Random(seed)
    steps = [step for kind in STEPS.values() for step in kind if not step.startswith(("SAVEPOINT", "ROLLBACK"))]
    with closing(pair.connect()) as connection:
        for _ in range(40):
            with suppress(OperationalError, IntegrityError, NotSupportedError):  # a table is there, or is not
                connection.execute(dice.choice(steps))
            if dice.random() < 0.3:
                with suppress(NotSupportedError):  # two of one name
                    connection.commit()
                connection.rollback()
            elif dice.random() < 0.1:
                connection.rollback()
        connection.rollback()
    arrived(pair)
