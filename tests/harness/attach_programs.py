"""Random programs of connections with two attached databases: what tests/system/test_differential_attach.py runs.

Guarantees: a program depends on its seed alone. Names stand as {a} and {b} for the two databases, since each connection
has them under other names; "" where SQLite is to find the table itself.
Leaves to others: what runs the statements.
"""

from __future__ import annotations

from random import Random
from typing import Final

SCHEMA: Final = """
CREATE TABLE t (id INTEGER PRIMARY KEY, v, w TEXT UNIQUE);
CREATE TABLE k (n INTEGER PRIMARY KEY AUTOINCREMENT, v INTEGER);
CREATE TABLE g (v, d AS (v || 'd') VIRTUAL, s AS (v || 's') STORED);
CREATE TABLE p (x TEXT, y, PRIMARY KEY (x, y)) WITHOUT ROWID;
CREATE TABLE c (id INTEGER PRIMARY KEY, t REFERENCES t (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);
CREATE TRIGGER log AFTER DELETE ON t BEGIN INSERT INTO k (v) VALUES (old.id); END;
"""
DATABASES: Final = ("{a}.", "{b}.")
ONLY: Final = {"{a}.": "only_a", "{b}.": "only_b"}
"""A table that only this database has: for unqualified names."""
ONLY_TABLES: Final = tuple(f"CREATE TABLE {schema}{only} (a, b)" for schema, only in ONLY.items())
TOGETHER_SCHEMA: Final = SCHEMA + "CREATE TABLE done (player, number, PRIMARY KEY (player, number)) WITHOUT ROWID;"
_ALTERED: Final = ("t", "k", "g", "p", "c")
_OR: Final = ("", "", "", " OR IGNORE", " OR REPLACE", " OR FAIL", " OR ABORT", " OR ROLLBACK")


def program(seed: str, transactions: int = 12) -> list[list[str]]:
    """Transactions, each a list of statements."""
    dice = Random(seed)
    made = [_once(dice)]
    for _ in range(transactions):
        statements = [_statement(dice, DATABASES) for _ in range(dice.randint(1, 9))]
        if dice.random() < 0.6:
            statements.insert(0, dice.choice(["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT outer"]))
        statements = _with_savepoints(dice, statements)
        made.append([*statements, "ROLLBACK" if dice.random() < 0.15 else "COMMIT"])
    return made


def settings(seed: str, databases: tuple[str, str]) -> list[str]:
    """What one of several connections sets for itself alone."""
    return _settings(Random(f"{seed} settings"), databases)


def together(seed: str, player: int, databases: tuple[str, str], transactions: int) -> list[list[str]]:
    """Transactions of one of several connections, each begun by word. Each inserts a row that tells whose it is, so
    that none which is committed is empty."""
    dice = Random(f"{seed} {player}")
    made = []
    for number in range(transactions):
        statements = [_statement(dice, databases) for _ in range(dice.randint(1, 6))]
        statements = _with_savepoints(dice, statements)
        row = f"INSERT INTO {dice.choice(databases)}done VALUES ({player}, {number})"
        statements.insert(dice.choice([0, len(statements)]), row)
        if dice.random() < 0.4:  # a reader first, who becomes a writer
            statements.insert(0, f"SELECT id, v FROM {dice.choice(databases)}t ORDER BY 1")
        begin = dice.choice(["BEGIN", "BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT outer"])
        made.append([begin, *statements, "ROLLBACK" if dice.random() < 0.1 else "COMMIT"])
    return made


def _once(dice: Random) -> list[str]:
    return [*ONLY_TABLES, *_settings(dice, DATABASES)]


def _settings(dice: Random, databases: tuple[str, str]) -> list[str]:
    text = []
    if dice.random() < 0.5:
        text.append("PRAGMA foreign_keys = ON")
    if dice.random() < 0.5:
        text.append("PRAGMA recursive_triggers = ON")
    one, other = dice.sample(databases, 2)
    if dice.random() < 0.7:
        text.append(
            f"CREATE TEMP TRIGGER across AFTER INSERT ON {one}t BEGIN "
            f"INSERT{dice.choice(_OR[3:])} INTO {other}p VALUES (new.v, new.id % 5); END"
        )
    if dice.random() < 0.5:
        text.append(
            f"CREATE TEMP TRIGGER back AFTER UPDATE ON {other}k BEGIN DELETE FROM {one}t WHERE id = new.v % 7; END"
        )
    return text


def _with_savepoints(dice: Random, statements: list[str]) -> list[str]:
    found: list[str] = []
    depth = 0
    for statement in statements:
        found.append(statement)
        if dice.random() < 0.15:
            depth += 1
            found.append(f"SAVEPOINT s{depth}")
        elif depth and dice.random() < 0.3:
            found.append(f"{dice.choice(['ROLLBACK TO', 'ROLLBACK TO', 'RELEASE'])} s{depth}")
            depth -= found[-1].startswith("RELEASE")
    return found


def _value(dice: Random) -> str:
    return dice.choice(["NULL", "1", "-0.0", "'x'", "x'0041'", "9007199254740993", str(dice.randint(0, 9)), "'ä'"])


def _statement(dice: Random, databases: tuple[str, str]) -> str:
    schema, other = dice.sample(databases, 2)
    number = dice.randint(1, 8)
    if dice.random() < 0.12:
        return _definition(dice, schema)
    how = dice.choice(_OR)
    return dice.choice(
        [
            f"INSERT{how} INTO {schema}t VALUES ({number}, {_value(dice)}, {_value(dice)})",
            f"INSERT{how} INTO {schema}t SELECT id + {number}, v, w || 'z' FROM {other}t WHERE id % 3 = {number % 3}",
            f"INSERT INTO {schema}t VALUES ({number}, 1, 2) ON CONFLICT DO UPDATE SET v = {_value(dice)} RETURNING *",
            f"UPDATE{how} {schema}t SET v = {_value(dice)}, w = {_value(dice)} WHERE id = {number}",
            f"UPDATE {schema}t SET v = (SELECT count(*) FROM {other}p) WHERE id > {number}",
            f"UPDATE{how} {schema}t SET id = {number} WHERE id = {number + 1}",
            f"DELETE FROM {schema}t WHERE id = {number} RETURNING v",
            f"INSERT{how} INTO {schema}k (n, v) VALUES ({dice.choice(['NULL', str(number)])}, {number}), (NULL, 5)",
            f"UPDATE {schema}k SET v = v + 1 WHERE n % 4 = {number % 4}",
            f"DELETE FROM {schema}k WHERE n < {number}",
            f"INSERT INTO {schema}g (v) VALUES ({_value(dice)}), ({_value(dice)})",
            f"UPDATE {schema}g SET v = {_value(dice)} WHERE rowid % 3 = {number % 3}",
            f"INSERT{how} INTO {schema}p VALUES ({_value(dice)}, {number % 4}), ('x', {number % 3})",
            f"DELETE FROM {schema}p WHERE y = {number % 4}",
            f"INSERT{how} INTO {schema}c VALUES ({number}, {dice.randint(1, 5)})",
            f"DELETE FROM {schema}c WHERE id < {number}",
            f"INSERT INTO {ONLY[schema]} (a, b) VALUES ({_value(dice)}, {number})",
            f"UPDATE {ONLY[schema]} SET b = b + 1 WHERE b = {number}",
            f"SELECT one.id, other.v FROM {schema}t AS one JOIN {other}t AS other USING (id) ORDER BY 1",
            f"PRAGMA {schema}user_version = {number}",
        ]
    )


def _definition(dice: Random, schema: str) -> str:
    number = dice.randint(1, 3)
    return dice.choice(
        [
            f"CREATE TABLE {schema}made{number} (a INTEGER PRIMARY KEY, b)",
            f"CREATE TABLE {schema}made{number} AS SELECT id, v FROM {schema}t",
            f"INSERT INTO {schema}made{number} VALUES (NULL, {_value(dice)})",
            f"ALTER TABLE {schema}made{number} RENAME TO made{dice.randint(1, 3)}",
            f"ALTER TABLE {schema}made{number} ADD COLUMN c{dice.randint(1, 2)} DEFAULT 7",
            f"DROP TABLE {schema}made{number}",
            f"DROP TABLE made{number}",
            f"CREATE INDEX {schema}i{number} ON {ONLY[schema]} (a)",
            f"DROP INDEX IF EXISTS i{number}",
            f"CREATE VIEW {schema}v{number} AS SELECT a FROM {ONLY[schema]}",
            f"DROP VIEW {schema}v{number}",
            f"CREATE TRIGGER {schema}r{number} AFTER INSERT ON p BEGIN UPDATE k SET v = v + 1 WHERE n = 1; END",
            f"DROP TRIGGER IF EXISTS {schema}r{number}",
            f"ALTER TABLE {ONLY[schema]} RENAME COLUMN a TO a",
            *(f"ALTER TABLE {schema}{dice.choice(_ALTERED)} ADD COLUMN w{number} AS (1) VIRTUAL",) * 3,
            f"ALTER TABLE {schema}{dice.choice(_ALTERED)} DROP COLUMN w{number}",
            "REINDEX",
        ]
    )
