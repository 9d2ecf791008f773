"""Random schemas and statements for differential tests: every piece is made from one whole number.

Guarantees: equal numbers give equal texts and values, so a failing program is its numbers, and a program shrinks by
leaving steps out. Statements need not fit the schema as it then is: an error is an outcome like any other.
Leaves to others: who runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

CONFLICTS = ("ABORT", "FAIL", "IGNORE", "REPLACE", "ROLLBACK")
VALUES: tuple[Any, ...] = (
    *(None, None, 0, 1, 1, 2, 2, 3, 3, 4, 5, 7, -1, -7, 2**31, 10**12, -(10**12)),
    *(0.0, -0.0, 1.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan")),
    *("", "a", "a", "b", "A", "B ", "ä", "1", "1.0", "01", " 2", "a\0b", "it's", "x" * 70, "\U0001f600"),
    *(b"", b"\0", b"a", b"a", b"\xc3\xa4", b"z" * 90, True),
)
_NUMBERS = (0, 1, 2, 3, 4, 5, 7)
_EXTREMES = (2**63 - 1, -(2**63), 2**53 + 1, 1.7976931348623157e308, 5e-324, "\U0010ffff")
"""Only for a column without affinity that no rowid is made of: after the largest rowid SQLite numbers at random, and
releases differ in how many digits a REAL gets as text."""

Kind = Literal["execute", "many", "script", "commit", "rollback", "with", "reopen", "kill", "blob"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call on one of a program's connections. `items`: (text, parameters) pairs, one but for `with`; for `many`
    the parameters are a list of sets, for `blob` text is a table's name and they are column, rowid and what is written
    there in place. `fails`: the `with` block ends in an exception of the application. `kill` is SIGKILL for a
    connection in a process of its own, and `reopen` for one that is not."""

    connection: int
    kind: Kind
    items: tuple[tuple[str, Any], ...] = ()
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the schema: `columns` can be written to. `create` is its statement."""

    name: str
    columns: tuple[str, ...]
    create: str


def table(number: int, seed: int, *, wild: bool = False) -> Table:
    """Table `t<number>`. `wild`: it may be STRICT, and refer to itself. Guards make SQLite check both another way:
    without triggers a STRICT table keeps the rows before a wrong value, and REPLACE passes over references (measured).
    """
    dice = Random(seed)
    name = f"t{number}"
    style = dice.choice(("alias", "alias", "auto", "bare", "bare", "text", "pair", "without", "without_pair", "desc"))
    strict = wild and dice.random() < 0.3
    names = ["a", "b", "c", "d", "e"][: dice.randint(2, 5)]
    parts = []
    if style == "alias":
        parts.append(f"id INTEGER PRIMARY KEY{_on_conflict(dice)}")
    elif style == "auto":
        parts.append("id INTEGER PRIMARY KEY AUTOINCREMENT")
    elif style == "desc":
        parts.append("id INTEGER PRIMARY KEY DESC")
    for at, column in enumerate(names):
        parts.append(f"{column} {_column(dice, number, at, strict, style)}".rstrip())
    if style in ("pair", "without_pair"):
        parts.append(f"PRIMARY KEY (a, b){_on_conflict(dice)}")
    if dice.random() < 0.2:
        parts.append(f"UNIQUE ({names[-1]}, {names[0]}){_on_conflict(dice)}")
    if dice.random() < 0.3:
        extra = dice.choice(("coalesce(a, 0) || 'g'", "typeof(a) || length(b)", "a"))
        kept = "STORED" if style.startswith("without") else dice.choice(("STORED", "VIRTUAL"))
        parts.insert(dice.randint(0, len(names)), f"g {'ANY' if strict else ''} AS ({extra}) {kept}")
        if style in ("pair", "without_pair"):
            parts.sort(key=lambda part: part.startswith(("PRIMARY KEY", "UNIQUE")))
        parts.sort(key=lambda part: part.startswith(("PRIMARY KEY (", "UNIQUE (")))
    ending = [word for word, wanted in (("STRICT", strict), ("WITHOUT ROWID", style.startswith("without"))) if wanted]
    columns = (("id",) if style in ("alias", "auto", "desc") else ()) + tuple(names)
    if not wild:
        parts = [part.replace(f"REFERENCES {name} ", "REFERENCES t9 ") for part in parts]
    return Table(name, columns, f"CREATE TABLE {name} ({', '.join(parts)}) {', '.join(ending)}".rstrip())


def _on_conflict(dice: Random) -> str:
    return f" ON CONFLICT {dice.choice(CONFLICTS)}" if dice.random() < 0.25 else ""


def _column(dice: Random, number: int, at: int, strict: bool, style: str) -> str:
    types = ("INTEGER", "TEXT", "REAL", "BLOB", "ANY") if strict else ("INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "")
    text = dice.choice(types)
    if at == 0 and style in ("text", "without"):
        plain = dice.random() < 0.5 or strict
        return f"{'TEXT' if plain else 'VARCHAR(9) COLLATE NOCASE'} PRIMARY KEY{_on_conflict(dice)}"
    if text == "TEXT" and dice.random() < 0.3:
        text += dice.choice((" COLLATE NOCASE", " COLLATE RTRIM"))
    chance = dice.random()
    if chance < 0.15:
        text += f" UNIQUE{_on_conflict(dice)}"
    elif chance < 0.25:
        text += f" NOT NULL{_on_conflict(dice)} DEFAULT {dice.choice(('1', chr(39) + 'd' + chr(39), '(abs(-3))'))}"
    elif chance < 0.32:
        text += f" CHECK (typeof({'abcde'[at]}) <> 'blob')"
    elif chance < 0.5:
        action = dice.choice(("CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION"))
        when = dice.choice(("", "", " DEFERRABLE INITIALLY DEFERRED"))
        target = f"t{dice.randint(0, number)}"
        text += f" REFERENCES {target} ON DELETE {action} ON UPDATE {dice.choice(('CASCADE', action))}{when}"
    return text


def trigger(name: str, tables: list[Table], dice: Random) -> str:
    """A CREATE TRIGGER that writes elsewhere, or raises."""
    on, other = dice.choice(tables), dice.choice(tables)
    event = dice.choice(("INSERT", "UPDATE", "DELETE"))
    row = "old" if event == "DELETE" else "new"
    column = dice.choice(on.columns)
    when = f"WHEN {row}.{column} IS {_literal(dice)} " if dice.random() < 0.6 else ""
    there = dice.choice(other.columns)
    body = dice.choice(
        (
            f"INSERT INTO log VALUES ('{name}', {row}.{column});",
            f"INSERT OR REPLACE INTO log VALUES ('{name}', {row}.{column});",
            f"UPDATE OR {dice.choice(CONFLICTS)} {other.name} SET {there} = {row}.{column} "
            f"WHERE {there} IS {_literal(dice)};",
            f"DELETE FROM {other.name} WHERE {there} IS {row}.{column};",
            f"INSERT INTO log VALUES ('{name}', 1); SELECT RAISE({dice.choice(CONFLICTS[1:3])}, 'no');",
            f"SELECT RAISE({dice.choice(('ABORT', 'FAIL', 'ROLLBACK'))}, 'no');",
            "SELECT RAISE(IGNORE);",
        )
    ).replace("RAISE(IGNORE, 'no')", "RAISE(IGNORE)")
    return f"CREATE TRIGGER {name} {dice.choice(('BEFORE', 'AFTER'))} {event} ON {on.name} {when}BEGIN {body} END"


def _generated(dice: Random, column: str) -> str:
    """A generated column that ALTER TABLE can add: from there on the hook gives no row of the table."""
    return f"w{dice.randint(0, 1)} AS ({dice.choice((f'typeof({column})', f'{column} || 1', '7'))}) VIRTUAL"


def _literal(dice: Random) -> str:
    return dice.choice(("NULL", "1", "2", "3", "'a'", "'b'", "x'61'", "1.5"))


def schema(seeds: list[int], *, wild: bool = False) -> tuple[list[Table], list[str]]:
    """The tables and the statements that make them, a log, and triggers."""
    tables = [table(number, seed, wild=wild) for number, seed in enumerate(seeds)]
    dice = Random(sum(seeds))
    statements = ["CREATE TABLE t9 (id INTEGER PRIMARY KEY)", *(one.create for one in tables)]
    statements.append(f"CREATE TABLE log (what TEXT{dice.choice(('', ' UNIQUE', ' PRIMARY KEY'))}, value)")
    for number in range(dice.randint(0, 2)):
        statements.append(trigger(f"g{number}", tables, dice))
    if dice.random() < 0.4:
        on = dice.choice(tables)
        statements.append(f"CREATE INDEX i0 ON {on.name} ({on.columns[-1]} DESC)")
    if dice.random() < 0.3:
        statements.append("CREATE VIRTUAL TABLE f1 USING fts5 (a, b)")
        statements.append("CREATE VIRTUAL TABLE r1 USING rtree (id, x0, x1)")
    return tables, statements


class Program:
    """Makes steps for a schema."""

    def __init__(self, tables: list[Table], *, connections: int = 3, wild: bool = False) -> None:
        """`wild`: new tables may be so; see `table`."""
        self._tables = tables
        self._wild = wild
        self._connections = connections

    def step(self, seed: int) -> Step:
        """The step of one number."""
        dice = Random(seed)
        connection = dice.choice((0,) * 6 + tuple(range(self._connections)))
        chance = dice.random()
        if chance < 0.62:
            return Step(connection, "execute", (self.change(dice),))
        if chance < 0.68:
            text, one = self._insert(dice)
            sets = [one, *(tuple(map(self._value, [dice] * len(one))) for _ in range(dice.randint(0, 3)))]
            return Step(connection, "many", ((text, sets),))
        if chance < 0.80:
            return Step(connection, "execute", ((self._control(dice), ()),))
        if chance < 0.86:
            return Step(connection, dice.choice(("commit", "commit", "commit", "rollback")))
        if chance < 0.90:
            items = tuple(self.change(dice) for _ in range(dice.randint(1, 3)))
            return Step(connection, "with", items, fails=dice.random() < 0.3)
        if chance < 0.93:
            make = self._around if dice.random() < 0.5 else self._script
            return Step(connection, "script", ((make(dice), ()),))
        if chance < 0.94:
            return Step(connection, "reopen")
        if chance < 0.955:
            on = self._table(dice)
            place = (dice.choice(on.columns), dice.randint(1, 6), dice.choice((b"", b"z", b"\0Q", b"zzzzz")))
            return Step(connection, "blob", ((on.name, place),))
        return Step(connection, "execute", ((self.define(dice), ()),))

    # Rows.

    def change(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        """A statement that changes rows, with its parameters."""
        made: tuple[str, tuple[Any, ...]] = dice.choice(
            (self._insert,) * 6 + (self._update,) * 4 + (self._delete,) * 2 + (self._odd,) * 2 + (self._virtual,)
        )(dice)
        return made

    def _value(self, dice: Random) -> Any:
        return dice.choice(_NUMBERS) if dice.random() < 0.5 else dice.choice(VALUES)

    def _table(self, dice: Random) -> Table:
        return dice.choice(self._tables)

    def _or(self, dice: Random) -> str:
        return f" OR {dice.choice(CONFLICTS)}" if dice.random() < 0.45 else ""

    def _returning(self, dice: Random, columns: tuple[str, ...]) -> str:
        return f" RETURNING {dice.choice(('*', columns[0], f'typeof({columns[-1]})'))}" if dice.random() < 0.12 else ""

    def _insert(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        on = self._table(dice)
        columns = on.columns
        if columns[0] == "id" and dice.random() < 0.4:
            columns = columns[1:]
        rows = dice.choice((1, 1, 1, 2, 3))
        marks = ", ".join("(" + ", ".join("?" * len(columns)) + ")" for _ in range(rows))
        ending = ""
        chance = dice.random()
        verb = "INSERT" + self._or(dice)
        if chance < 0.12:
            ending = " ON CONFLICT DO NOTHING"
        elif chance < 0.28:
            column = dice.choice(on.columns)
            ending = f" ON CONFLICT DO UPDATE SET {column} = {dice.choice(('excluded.' + column, _literal(dice)))}"
            ending += dice.choice(("", f" WHERE {dice.choice(on.columns)} IS NOT NULL"))
        elif chance < 0.36:
            verb = "REPLACE"
        parameters = tuple(self._value(dice) for _ in range(rows * len(columns)))
        text = f"{verb} INTO {on.name} ({', '.join(columns)}) VALUES {marks}{ending}"
        return text + self._returning(dice, on.columns), parameters

    def _where(self, dice: Random, on: Table) -> tuple[str, tuple[Any, ...]]:
        chance = dice.random()
        column = dice.choice(on.columns)
        if chance < 0.3:
            return "", ()
        if chance < 0.7:
            return f" WHERE {column} IS ?", (self._value(dice),)
        return f" WHERE {column} {dice.choice(('<', '>=', '<>'))} ?", (self._value(dice),)

    def _update(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        on = self._table(dice)
        column, other = dice.choice(on.columns), dice.choice(on.columns)
        where, parameters = self._where(dice, on)
        assignment, more = dice.choice(
            (
                (f"{column} = ?", (self._value(dice),)),
                (f"{column} = ?", (self._value(dice),)),
                (f"{column} = {column} + 1", ()),
                (f"{column} = {other}, {other} = {column}" if column != other else f"{column} = {column}", ()),
                (f"{column} = CASE {column} WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE {column} END", ()),
                (f"{column} = -{column}", ()),
                (f"{column} = {column} || 'x', {other} = NULL" if column != other else f"{column} = NULL", ()),
            )
        )
        text = f"UPDATE{self._or(dice)} {on.name} SET {assignment}"
        if dice.random() < 0.1:
            text += " FROM log"
        return text + where + self._returning(dice, on.columns), (*more, *parameters)

    def _delete(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        on = self._table(dice)
        where, parameters = self._where(dice, on)
        return f"DELETE FROM {on.name}{where}" + self._returning(dice, on.columns), parameters

    def _odd(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        on, other = self._table(dice), self._table(dice)
        count = min(len(on.columns), len(other.columns))
        names = ", ".join(on.columns[-count:])
        return dice.choice(
            (
                (
                    f"INSERT{self._or(dice)} INTO {on.name} ({names}) SELECT {', '.join(other.columns[-count:])} "
                    f"FROM {other.name} ORDER BY {other.columns[0]} LIMIT 5",
                    (),
                ),
                ("WITH n(x) AS (VALUES (?), (?)) INSERT INTO log SELECT 'n' || x, x FROM n", self._two(dice)),
                (
                    f"WITH n AS (SELECT 1) UPDATE {on.name} SET {on.columns[-1]} = ? WHERE {on.columns[0]} IS ?",
                    self._two(dice),
                ),
                (f"SELECT {on.columns[0]} FROM {on.name} ORDER BY 1", ()),
                (f"INSERT INTO {on.name} DEFAULT VALUES", ()),
                (f"INSERT INTO {on.name} (rowid, {on.columns[-1]}) VALUES (?, ?)", self._two(dice)),
                (f"UPDATE {on.name} SET rowid = rowid + 10 WHERE {on.columns[-1]} IS ?", (self._value(dice),)),
                (f"UPDATE sqlite_sequence SET seq = ? WHERE name = '{on.name}'", (dice.randint(0, 50),)),
                self._counter_of_nothing(dice),
                ("INSERT INTO log VALUES (?, ?)", (self._value(dice), dice.choice(_EXTREMES))),
                (f"UPDATE log SET value = (SELECT count(*) FROM {on.name})", ()),
                ("INSERT INTO nowhere VALUES (?)", (1,)),
                ("INSERT OR IGNORE INTO t9 VALUES (?), (1), (2), (3)", (dice.randint(4, 9),)),
                ("DELETE FROM t9 WHERE id = ?", (dice.randint(1, 5),)),
                (f"INSERT INTO {on.name} VALUES (?)", (1,)),
                (f"UPDATE {on.name} SET {on.columns[0]} = abs(-9223372036854775807 - 1)", ()),
            )
        )

    @staticmethod
    def _counter_of_nothing(dice: Random) -> tuple[str, tuple[Any, ...]]:
        """A row of sqlite_sequence by which no table counts. (Two of one name are refused.)"""
        name, value = dice.choice(("nothing", "log", "no one's")), dice.choice((dice.randint(0, 50), None, "x"))
        return dice.choice(
            (
                (
                    "INSERT INTO sqlite_sequence SELECT ?1, ?2 "
                    "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)",
                    (name, value),
                ),
                ("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (value, name)),
                ("DELETE FROM sqlite_sequence WHERE name = ?", (name,)),
            )
        )

    def _virtual(self, dice: Random) -> tuple[str, tuple[Any, ...]]:
        """A change of a full-text index or an R*Tree, which may not be there."""
        words = " ".join(dice.choice(("one", "two", "three", "four")) + str(dice.randint(0, 9)) for _ in range(5))
        row = dice.randint(1, 9)
        return dice.choice(
            (
                ("INSERT INTO f1 (a, b) VALUES (?, ?)", (words, "b")),
                ("INSERT INTO f1 (a, b) VALUES (?, ?)", (words, "b")),
                (f"INSERT{self._or(dice)} INTO f1 (rowid, a, b) VALUES (?, ?, 'first'), (1, 'x', 'y')", (row, words)),
                (f"INSERT INTO f1 (a) SELECT {dice.choice(self._tables).columns[0]} FROM t0 LIMIT 3", ()),
                ("UPDATE f1 SET a = ? WHERE rowid = ?", (words, row)),
                ("DELETE FROM f1 WHERE rowid = ?", (row,)),
                ("SELECT count(*) FROM f1 WHERE f1 MATCH 'one1 OR two2'", ()),
                ("INSERT INTO f1 (f1) VALUES ('optimize')", ()),
                (f"INSERT{self._or(dice)} INTO r1 VALUES (?, ?, ?)", (row, row, row + dice.randint(-1, 3))),
                ("INSERT INTO r1 (x0, x1) SELECT 1, 2 UNION ALL SELECT 3, 2", ()),
                ("UPDATE r1 SET x1 = x1 + 1 WHERE id = ?", (row,)),
                ("DELETE FROM r1 WHERE id = ?", (row,)),
            )
        )

    def _two(self, dice: Random) -> tuple[Any, Any]:
        return self._value(dice), self._value(dice)

    # Transactions.

    def _control(self, dice: Random) -> str:
        name = dice.choice(("s1", "s1", "s2", "S1"))
        return dice.choice(
            (
                "BEGIN",
                "BEGIN IMMEDIATE",
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                *(f"SAVEPOINT {name}",) * 4,
                *(f"ROLLBACK TO {name}",) * 4,
                *(f"RELEASE {name}",) * 2,
                "PRAGMA defer_foreign_keys = ON",
            )
        )

    def _script(self, dice: Random) -> str:
        on = self._table(dice)
        parts = []
        for _ in range(dice.randint(2, 5)):
            column = dice.choice(on.columns)
            parts.append(
                dice.choice(
                    (
                        f"INSERT{self._or(dice)} INTO {on.name} ({column}) "
                        f"VALUES ({_literal(dice)}), ({_literal(dice)})",
                        f"UPDATE{self._or(dice)} {on.name} SET {column} = {_literal(dice)}",
                        f"DELETE FROM {on.name} WHERE {column} IS {_literal(dice)}",
                        *(self._control(dice).replace("BEGIN IMMEDIATE", "BEGIN") for _ in "12"),
                        "INSERT INTO log VALUES ('script; \"', 1) -- a comment; with a semicolon\n",
                        self.define(dice),
                    )
                )
            )
        if dice.random() < 0.7:
            parts.append("COMMIT")
        return ";\n".join(parts) + dice.choice((";", "", "; -- end"))

    def _around(self, dice: Random) -> str:
        """One transaction that writes the same few rows before and after each of some schema changes of their table."""
        on = self._table(dice)
        column = dice.choice(on.columns)
        one, other = _literal(dice), _literal(dice)

        def write() -> str:
            return dice.choice(
                (
                    f"INSERT OR {dice.choice(CONFLICTS[:4])} INTO {on.name} ({column}) VALUES ({one})",
                    f"UPDATE OR IGNORE {on.name} SET {column} = {other} WHERE {column} IS {one}",
                    f"UPDATE OR IGNORE {on.name} SET {column} = {one} WHERE {column} IS {other}",
                    f"DELETE FROM {on.name} WHERE {column} IS {dice.choice((one, other))}",
                )
            )

        parts = ["BEGIN"]
        for _ in range(dice.randint(1, 3)):
            parts += [write() for _ in range(dice.randint(1, 2))]
            saved = dice.random() < 0.3
            parts += ["SAVEPOINT around", write()] if saved else []
            number = dice.randint(0, 1)
            parts.append(
                dice.choice(
                    (
                        f"ALTER TABLE {on.name} ADD COLUMN {_generated(dice, column)}",
                        f"ALTER TABLE {on.name} ADD COLUMN {_generated(dice, column)}",
                        f"ALTER TABLE {on.name} DROP COLUMN w{number}",
                        f"ALTER TABLE {on.name} ADD COLUMN x{number} DEFAULT 7",
                        f"ALTER TABLE {on.name} DROP COLUMN x{number}",
                        f"CREATE INDEX IF NOT EXISTS j{number} ON {on.name} ({column})",
                        f"DROP INDEX IF EXISTS j{number}",
                    )
                )
            )
            parts += [write()] + (["ROLLBACK TO around", write()] if saved and dice.random() < 0.5 else [])
        return ";\n".join([*parts, write(), dice.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))])

    # The schema.

    def define(self, dice: Random) -> str:
        """A schema change, or a pragma that travels."""
        on = self._table(dice)
        column = dice.choice(on.columns)
        number = dice.randint(0, 2)
        return dice.choice(
            (
                table(8, dice.getrandbits(20), wild=self._wild).create.replace(
                    "TABLE t8", f"TABLE IF NOT EXISTS n{number}"
                ),
                f"CREATE TABLE n{number} AS SELECT * FROM {on.name}",
                f"DROP TABLE IF EXISTS n{number}",
                f"DROP TABLE {on.name}" if dice.random() < 0.3 else "DROP TABLE log",
                on.create,
                "CREATE TABLE IF NOT EXISTS log (what, value)",
                f"ALTER TABLE {on.name} ADD COLUMN x{number} {dice.choice(('', 'TEXT DEFAULT 7', 'REFERENCES t0'))}",
                *(f"ALTER TABLE {on.name} ADD COLUMN {_generated(dice, column)}",) * 3,
                f"ALTER TABLE {on.name} DROP COLUMN {dice.choice((column, f'x{number}', 'w0', 'w1'))}",
                f"ALTER TABLE {on.name} RENAME COLUMN {column} TO y{number}",
                f"ALTER TABLE {on.name} RENAME COLUMN y{number} TO {column}",
                f"ALTER TABLE {on.name} RENAME TO n{number}",
                f"ALTER TABLE n{number} RENAME TO {on.name}",
                f"CREATE {dice.choice(('', 'UNIQUE '))}INDEX j{number} ON {on.name} ({column} COLLATE NOCASE)",
                f"DROP INDEX IF EXISTS j{number}",
                f"CREATE VIEW IF NOT EXISTS v{number} AS SELECT {column} FROM {on.name}",
                f"DROP VIEW IF EXISTS v{number}",
                trigger(f"h{number}", self._tables, dice),
                f"DROP TRIGGER IF EXISTS h{number}",
                f"DROP TRIGGER IF EXISTS g{number}",
                f"PRAGMA user_version = {number}",
                f"INSERT INTO n{number} SELECT * FROM {on.name}",
                f"DELETE FROM n{number}",
                "REINDEX",
                "ANALYZE",
                f"CREATE VIRTUAL TABLE f1 USING {dice.choice(('fts5', 'fts5', 'fts4'))} (a, b)",
                "CREATE VIRTUAL TABLE IF NOT EXISTS r1 USING rtree (id, x0, x1)",
                f"DROP TABLE IF EXISTS {dice.choice(('f1', 'r1'))}",
            )
        )
