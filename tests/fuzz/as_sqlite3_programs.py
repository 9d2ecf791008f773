"""Random programs for replicate.dbapi and the standard library's sqlite3: a schema, and steps, from one seed (a text).

Guarantees: equal seeds give equal programs in every process; a step is plain data, so that a program is shrunk by
leaving steps out; steps need not fit each other or the schema: an error is an outcome like any other. Only SQL that
SQLite 3.37 knows, and nothing whose meaning changed since (as_sqlite3_rules.py says what else is left out, and why).
Leaves to others: who runs them.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from random import Random
from typing import Any, Final

STEPS: Final = 60
CURSORS: Final = 3
CONFLICTS: Final = ("ABORT", "FAIL", "IGNORE", "REPLACE", "ROLLBACK")
NUMBERS: Final = (0, 1, 1, 2, 2, 3, 4, 5, 7, 13, -1)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 2**31, -(10**12), 1.5, -2.25, "", "a", "b", "A", "ä", "it's", "1", b"", b"a", b"\0z"),
    *(datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 1, 250), bytearray(b"ba"), ("odd", "view")),
)
ODD: Final = ("point", "huge", "object", "surrogate")
"""Values that are made by the side: one with an adapter, one too large, one that nobody adapts, no good text. (And
"view", a memoryview, which no pipe takes.)"""
TABLES: Final = ("p", "n", "w", "child", "log", "blobs")
COLUMNS: Final = {
    "p": ("id", "a", "b", "c"),
    "n": ("id", "a", "at"),
    "w": ("k", "a", "b"),
    "child": ("id", "p", "d", "n"),
    "log": ("what", "value"),
    "blobs": ("id", "data"),
    "seen": ("id", "a"),
    "temp.scratch": ("x", "y"),
}
# No empty text: after one, `lastrowid` is the connection's here, and stays in sqlite3.
ODDITIES: Final = (
    *("SELEC 1", "SELECT nothing FROM p", "INSERT INTO nowhere VALUES (1)"),
    *(
        "SELECT 1; SELECT 2",
        "INSERT INTO log VALUES (1, 2); ",
        "SELECT ?",
        "SELECT :a, :b",
        "UPDATE p SET",
        "VALUES (1), (2)",
    ),
    *("INSERT INTO p (a) VALUES ((SELECT id, a FROM p))", "INSERT INTO p (id) VALUES ('x')", "PRAGMA nothing_known"),
    *("COMMIT", "ROLLBACK", "END", "BEGIN", "RELEASE nothing", "ROLLBACK TO nothing", "SELECT 'a' || x'00'"),
    *(
        "INSERT INTO seen (id, a) VALUES (70, 71)",
        "DELETE FROM seen",
        "INSERT INTO p (g) VALUES (1)",
        "EXPLAIN SELECT 1",
    ),
    *("SELECT abs(-9223372036854775808)", "SELECT json('{')", "SELECT zeroblob(3)", "SELECT last_insert_rowid()"),
    *("EXPLAIN QUERY PLAN DELETE FROM nowhere", 'SELECT 1 AS "a b [date]"', "REINDEX p"),
    *(
        "INSERT INTO log SELECT max(id), 'm' FROM p HAVING max(id) > 0",
        "DELETE FROM p WHERE id IN (SELECT p FROM child)",
    ),
    *("SELECT count(*) FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 40 WHERE name = 'n'", "ANALYZE p"),
    *("SELECT id FROM p UNION ALL SELECT abs(-9223372036854775808)", "WITH x AS (SELECT 1) SELECT * FROM x"),
    *("WITH x (i) AS (VALUES (1), (2)) INSERT INTO log SELECT 'x', i FROM x", "SELECT 1 WHERE 0", "DROP TABLE nowhere"),
    "  \n INSERT INTO log VALUES (9, 9)",
    "/* first */ INSERT INTO log VALUES (8, 8)",
    "REPLACE INTO p (id, a) VALUES (1, 1)",
)
DEFINITIONS: Final = (
    *("CREATE TEMP TABLE IF NOT EXISTS scratch (x UNIQUE, y)", "DROP TABLE temp.scratch", "CREATE TABLE later (a, b)"),
    *("DROP TABLE IF EXISTS later", "ALTER TABLE log ADD COLUMN extra DEFAULT 5", "CREATE INDEX ia ON p (b)"),
    *("DROP INDEX IF EXISTS ia", "CREATE VIEW vl AS SELECT what FROM log", "DROP VIEW vl", "CREATE TABLE p (a)"),
    *(
        "CREATE UNIQUE INDEX iu ON log (what)",
        "DROP INDEX iu",
        "DROP TRIGGER noted",
        "CREATE TABLE later AS SELECT id, a FROM p",
    ),
    "CREATE TEMP TRIGGER tt AFTER INSERT ON log WHEN new.what = 3 BEGIN SELECT RAISE(FAIL, 'three'); END",
    "ALTER TABLE later RENAME TO w",
)
PRAGMAS: Final = (
    *("PRAGMA foreign_keys = ON", "PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys", "PRAGMA defer_foreign_keys = ON"),
    *(
        "PRAGMA user_version = 7",
        "PRAGMA user_version",
        "PRAGMA application_id = 3",
        "PRAGMA table_info(p)",
        "PRAGMA cache_size = 100",
    ),
    *(
        "PRAGMA recursive_triggers = ON",
        "PRAGMA ignore_check_constraints = ON",
        "PRAGMA ignore_check_constraints = OFF",
    ),
    *("PRAGMA foreign_key_check", "PRAGMA reverse_unordered_selects = OFF"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One call: what is done (as_sqlite3_side.py has a method for each), and with what."""

    kind: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """`options` are connect's."""

    seed: str
    script: str
    options: dict[str, Any]
    steps: tuple[Step, ...]


def draw(seed: str) -> Program:
    """The program of a seed."""
    dice = Random(seed)
    options: dict[str, Any] = {
        "isolation_level": dice.choice(("", "", "", "", None, "DEFERRED", "IMMEDIATE", "EXCLUSIVE")),
        "detect_types": dice.choice((0, 0, 0, 1, 2, 3)),
    }
    made = [_STEPS[dice.choices(range(len(_STEPS)), _WEIGHTS)[0]](dice) for _ in range(STEPS)]
    return Program(seed, schema(dice), options, tuple(made))


def schema(dice: Random) -> str:
    """Tables of every manner, with what may fail."""

    def on_conflict() -> str:
        return f" ON CONFLICT {dice.choice(CONFLICTS)}" if dice.random() < 0.3 else ""

    def either(text: str) -> str:
        return text if dice.random() < 0.5 else ""

    action = dice.choice(("CASCADE", "SET NULL", "RESTRICT", "NO ACTION"))
    kind = dice.choice(("ABORT", "FAIL", "ROLLBACK"))
    raising = dice.choice((f"RAISE({kind}, 'unlucky')", "RAISE(IGNORE)"))
    generated = dice.choice(("", ", g AS (b || '-' || c) STORED", ", g AS (id || b) VIRTUAL"))
    return (
        ";\n".join(
            text
            for text in (
                f"CREATE TABLE p (id INTEGER PRIMARY KEY, a UNIQUE{on_conflict()}, b TEXT NOT NULL{on_conflict()}"
                f" DEFAULT 'd', c CHECK (c IS NULL OR c <> 5){generated})",
                f"CREATE TABLE n (id INTEGER PRIMARY KEY AUTOINCREMENT, a UNIQUE{on_conflict()}, at TIMESTAMP)",
                f"CREATE TABLE w (k TEXT COLLATE NOCASE PRIMARY KEY{on_conflict()}, a INTEGER, b) WITHOUT ROWID",
                f"CREATE TABLE child (id INTEGER PRIMARY KEY, p REFERENCES p (id) ON DELETE {action}"
                f"{either(' DEFERRABLE INITIALLY DEFERRED')}, d DATE, n NUMBER(10))",
                "CREATE TABLE log (what, value)",
                "CREATE TABLE blobs (id INTEGER PRIMARY KEY, data BLOB)",
                "CREATE VIEW seen AS SELECT id, a FROM p WHERE a IS NOT NULL",
                "CREATE TRIGGER seen_insert INSTEAD OF INSERT ON seen BEGIN"
                " INSERT INTO p (id, a) VALUES (new.id, new.a); INSERT INTO log VALUES ('seen', new.a); END",
                either(
                    "CREATE TRIGGER seen_update INSTEAD OF UPDATE ON seen BEGIN"
                    " UPDATE p SET a = new.a WHERE id = old.id; END"
                ),
                either(
                    f"CREATE TRIGGER guard {dice.choice(('BEFORE', 'AFTER'))} {dice.choice(('INSERT', 'UPDATE'))} ON p"
                    f" WHEN new.a IN (7, 13) BEGIN INSERT INTO log VALUES ('guard', new.a); SELECT {raising}; END"
                ),
                either("CREATE TRIGGER noted AFTER UPDATE ON p BEGIN INSERT INTO log VALUES ('p', new.a); END"),
                "INSERT INTO p (id, a) VALUES (1, 1), (2, 2)",
                "INSERT INTO n (a) VALUES (1)",
                "INSERT INTO w VALUES ('a', 1, 'one'), ('b', 2, 'two')",
                "INSERT INTO child (id, p, d) VALUES (1, 1, '2024-02-29')",
                "INSERT INTO blobs VALUES (1, x'00112233'), (2, 'text'), (3, NULL)",
                "",
            )
        )
        .replace("\n;\n", "\n")
        .replace("\n;", "\n")
    )


# Texts.


def _value(dice: Random) -> Any:
    chance = dice.random()
    return dice.choice(NUMBERS) if chance < 0.7 else dice.choice(VALUES) if chance < 0.97 else ("odd", dice.choice(ODD))


def _value_for(dice: Random, column: str) -> Any:
    """Rowids are whole numbers: what SQLite keeps of a statement that fails at another one depends on its releases and
    on whether the table has triggers, as ours always have (guards)."""
    return dice.choice((*NUMBERS, None)) if column == "id" else _value(dice)


def _or(dice: Random) -> str:
    return f" OR {dice.choice(CONFLICTS)}" if dice.random() < 0.4 else ""


def _table(dice: Random) -> str:
    return dice.choice((*TABLES, "p", "p", "n", "seen", "temp.scratch"))


def _returning(dice: Random, columns: tuple[str, ...]) -> str:
    return f" RETURNING {dice.choice(('*', columns[0], columns[-1] + ' AS last'))}" if dice.random() < 0.2 else ""


def _insert(dice: Random, *, rows: tuple[int, ...] = (1, 1, 1, 2, 3)) -> tuple[str, tuple[Any, ...]]:
    table = _table(dice)
    every = columns = COLUMNS[table]
    if columns[0] == "id" and dice.random() < 0.5:
        columns = columns[1:]
    if len(columns) > 2 and dice.random() < 0.5:
        columns = columns[:2]
    count = dice.choice(rows)
    ending = ""
    verb = f"INSERT{_or(dice)}"
    chance = dice.random()
    if chance < 0.1:
        ending = " ON CONFLICT DO NOTHING"
    elif chance < 0.2:
        key = {"w": "k", "p": "id", "n": "a"}.get(table, every[0])
        ending = (
            f" ON CONFLICT ({key}) DO UPDATE SET {every[-1]} = {dice.choice(('excluded.' + every[-1], '5', 'NULL'))}"
        )
    elif chance < 0.28:
        verb = "REPLACE"
    marks = ", ".join("(" + ", ".join("?" * len(columns)) + ")" for _ in range(count))
    text = f"{verb} INTO {table} ({', '.join(columns)}) VALUES {marks}{ending}{_returning(dice, every)}"
    return text, tuple(_value_for(dice, column) for _ in range(count) for column in columns)


def _update(dice: Random) -> tuple[str, tuple[Any, ...]]:
    table = _table(dice)
    columns = COLUMNS[table]
    column, other = dice.choice(columns), dice.choice(columns)
    set_to, given = dice.choice((("?", 1), ("?", 1), (f"{column} + 1", 0), ("NULL", 0), ("'x'", 0)))
    if column == "id" and set_to in ("NULL", "'x'"):
        set_to = "9"
    where, more = dice.choice((("", 0), (f" WHERE {other} IS ?", 1), (f" WHERE {other} >= ?", 1)))
    text = f"UPDATE{_or(dice)} {table} SET {column} = {set_to}{where}"
    returning = _returning(dice, columns)
    if table != "seen":  # of a view's columns that are not set, SQLite 3.40 returns NULL, later ones what they are
        text += returning
    return text, tuple(_value_for(dice, name) for name in (column,) * given + (other,) * more)


def _delete(dice: Random) -> tuple[str, tuple[Any, ...]]:
    table = _table(dice)
    columns = COLUMNS[table]
    where, given = dice.choice((("", 0), (f" WHERE {dice.choice(columns)} IS ?", 1), (f" WHERE {columns[-1]} < ?", 1)))
    return f"DELETE FROM {table}{where}{_returning(dice, columns)}", tuple(_value(dice) for _ in range(given))


def _select(dice: Random) -> tuple[str, tuple[Any, ...]]:
    table = _table(dice)
    columns = COLUMNS[table]
    return dice.choice(
        (
            (f"SELECT * FROM {table} ORDER BY 1, 2", ()),
            (f"SELECT {columns[-1]}, {columns[0]} FROM {table} ORDER BY 2, 1", ()),
            (
                f'SELECT count(*) AS "how many", max({columns[0]}) FROM {table} WHERE {columns[-1]} IS NOT ?',
                (_value(dice),),
            ),
            (f"SELECT {columns[0]} AS \"it [point]\", 'x' FROM {table} ORDER BY 1", ()),
            ('SELECT d, d AS "d [date]", at AS "at [timestamp]" FROM child, n ORDER BY 1, 3', ()),
            ("SELECT twice(id), total(id), fails(1) FROM p ORDER BY id LIMIT 4", ()),
            ("SELECT twice(a), gathered(a) FROM p GROUP BY a ORDER BY 1", ()),
            ("SELECT b FROM p ORDER BY b COLLATE backwards, id", ()),
            ("SELECT what, value, fails(value) FROM log ORDER BY rowid", ()),
        )
    )


def _change(dice: Random) -> tuple[str, Any]:
    text, given = dice.choice((_insert, _insert, _insert, _update, _update, _delete))(dice)
    chance = dice.random()
    if given and chance < 0.03:
        return text, given[1:]
    if given and chance < 0.06:
        return text, (*given, 1)
    if given and chance < 0.12:
        for number in range(len(given)):
            text = text.replace("?", f":v{number}", 1)
        names = {f"v{number}": value for number, value in enumerate(given)}
        if dice.random() < 0.2:
            names.popitem()
        return text, names
    return text, list(given) if chance < 0.2 else given


def _text(dice: Random) -> tuple[str, Any]:
    chance = dice.random()
    if chance < 0.55:
        return _change(dice)
    if chance < 0.75:
        return _select(dice)
    if chance < 0.87:
        return dice.choice(ODDITIES), ()
    if chance < 0.93:
        return dice.choice(DEFINITIONS), ()
    return dice.choice(PRAGMAS), ()


# Steps.


def _slot(dice: Random) -> int:
    return dice.choice((0, 0, *range(CURSORS)))


def _run(dice: Random, text: str, given: Any) -> Step:
    return Step("execute", (_slot(dice), text, given, "RETURNING" in text or dice.random() < 0.5))


def _execute(dice: Random) -> Step:
    return _run(dice, *_change(dice))


def _execute_any(dice: Random) -> Step:
    return _run(dice, *_text(dice))


def _many(dice: Random) -> Step:
    text, given = _insert(dice, rows=(1,)) if dice.random() < 0.7 else _text(dice)
    width = len(given)
    sets = [given, *(tuple(_value(dice) for _ in range(width)) for _ in range(dice.randint(0, 4)))]
    if dice.random() < 0.1:
        sets = []
    if dice.random() < 0.05:
        sets.insert(dice.randint(0, len(sets)), (1,) * (width + 1))
    columns = text.partition("(")[2].partition(")")[0].split(", ")
    if text.startswith(("INSERT", "REPLACE")) and columns[0] == "id":  # see `_value_for`
        sets = [_with_rowids(one, len(columns)) for one in sets]
    return Step(
        "many", (_slot(dice), text, tuple(sets), dice.choice(("list", "generator", "fails", "reads", "commits")))
    )


def _with_rowids(given: Any, width: int) -> Any:
    if isinstance(given, dict):
        return given
    kinds = (int, bool, type(None))
    return tuple(value if at % width or type(value) in kinds else 9 for at, value in enumerate(given))


def _script(dice: Random) -> Step:
    texts = []
    for _ in range(dice.randint(1, 4)):
        text, _ = _change(dice)
        texts.append(text if dice.random() < 0.3 else text.replace("?", str(dice.choice(NUMBERS))))
    if dice.random() < 0.3:
        texts.insert(0, dice.choice(("BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT s")))
        if dice.random() < 0.7:
            texts.append(dice.choice(("COMMIT", "ROLLBACK", "RELEASE s")))
    if dice.random() < 0.2:
        texts.append(dice.choice((*ODDITIES, *DEFINITIONS)))
    return Step("script", (_slot(dice), "; ".join(texts) + dice.choice(("", ";", "; -- end"))))


def _with(dice: Random) -> Step:
    texts = tuple(_text(dice) for _ in range(dice.randint(1, 3)))
    return Step("with_block", (texts, dice.random() < 0.3))


def _control(dice: Random) -> Step:
    text = dice.choice(
        (
            *("BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN DEFERRED TRANSACTION", "COMMIT", "END TRANSACTION"),
            *(
                "ROLLBACK",
                "SAVEPOINT s",
                "SAVEPOINT s",
                "SAVEPOINT r",
                "RELEASE s",
                "RELEASE SAVEPOINT r",
                "ROLLBACK TO s",
            ),
            *("ROLLBACK TRANSACTION TO SAVEPOINT r", "rollback to S"),
        )
    )
    return Step("execute", (_slot(dice), text, (), False))


def _fetch(dice: Random) -> Step:
    how = dice.choice(
        ("one", "one", "all", "many", "many 0", "many 1", "many 2", "many -1", "many None", "next", "iterate", "list")
    )
    return Step("fetch", (_slot(dice), how))


def _setting(dice: Random) -> Step:
    kind, values = dice.choice(
        (
            ("row_factory", (None, None, "Row", "list", "fails", "dict")),
            ("cursor_row_factory", (None, "Row", "list", "dict")),
            ("text_factory", ("str", "str", "bytes", "bytearray", "upper", "fails")),
            ("isolation_level", ("", "", "DEFERRED", "immediate", None, "WRONG", 7)),
            ("arraysize", (1, 2, 3)),
            ("authorizer", (None, None, "deny log", "ignore b")),
            ("trace", (None, "told", "fails")),
        )
    )
    return Step("setting", (kind, dice.choice(values), _slot(dice)))


def _define(dice: Random) -> Step:
    return Step("register", (dice.choice(("twice", "fails", "gathered", "backwards", "total")),))


def _other(dice: Random) -> Step:
    return dice.choice(
        (
            Step("look"),
            Step("look"),
            Step("backup"),
            Step("dump"),
            Step("thread"),
            Step("new_cursor", (_slot(dice),)),
            Step("close_cursor", (_slot(dice),)),
            Step(
                "blob",
                (
                    dice.choice((1, 1, 2, 3, 9)),
                    dice.choice(("read", "write", "index", "too long")),
                    dice.random() < 0.3,
                ),
            ),
            Step("interrupt"),
            Step("progress", (_slot(dice), "goes", *_change(dice))),
            Step("progress", (_slot(dice), dice.choice(("stops", "raises", "wrong", "fails")), *_select(dice))),
            Step("limit"),
            Step("call", (dice.choice(ODDITIES),)),
            Step("nested", (_slot(dice), dice.choice(("close", "execute", "fetch")))),
        )
    )


def _end(dice: Random) -> Step:
    return Step(dice.choice(("commit", "commit", "commit", "rollback")))


_STEPS: Final = (_execute, _execute_any, _many, _script, _with, _control, _fetch, _setting, _define, _other, _end)
_WEIGHTS: Final = (22, 20, 6, 4, 5, 8, 10, 5, 2, 9, 9)
