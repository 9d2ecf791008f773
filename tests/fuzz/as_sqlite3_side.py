"""One side of the comparison with the standard library's sqlite3: a connection, its cursors, and what a step does.

Guarantees: the same code runs on replicate's connection and on the standard library's; what is seen is plain data, in
which 1, 1.0, True, '1' and b'1' differ and an error is its class of PEP 249 or of Python, its code and its text.
Leaves to others: what should be seen.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from replicate.errors import NotSupportedError
from tests.fuzz.as_sqlite3_programs import CURSORS, Step

Seen = tuple[Any, ...]


class Point:
    """A value of the application."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """An adapter and converters in the standard library's registries, which are ours too; taken out at the end."""
    adapters, converters = dict(sqlite3.adapters), dict(sqlite3.converters)
    sqlite3.register_adapter(Point, lambda point: f"{point.x};{point.y}")
    sqlite3.register_converter("point", lambda data: ("point", data))
    sqlite3.register_converter("number", lambda data: ("number", data))
    try:
        yield
    finally:
        for registry, before in ((sqlite3.adapters, adapters), (sqlite3.converters, converters)):
            registry.clear()
            registry.update(before)


def plain(value: Any) -> Any:
    """A value as data that can be compared, with its type."""
    if isinstance(value, sqlite3.Row):
        return ("Row", tuple(value.keys()), *map(plain, value))
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(plain, value))
    if isinstance(value, dict):
        return ("dict", *((key, plain(one)) for key, one in value.items()))
    if isinstance(value, float):
        return ("float", format(value, ".15g"))  # releases differ in the digits after these
    return (type(value).__name__, repr(value))


def _list(_: Any, row: tuple[Any, ...]) -> list[Any]:
    return list(row)


def _dict(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def failed(error: BaseException) -> Seen:
    """An error as data."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ in ("sqlite3", "builtins"))
    refused = "refused" if isinstance(error, NotSupportedError) else "error"
    return refused, kind, getattr(error, "sqlite_errorname", None), str(error)


class Gathered:
    """An aggregate; it fails at 13."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def step(self, value: Any) -> None:
        """One row."""
        if value == 13:
            raise ValueError(value)
        self.values.append(value)

    def finalize(self) -> str:
        """The result."""
        return repr(self.values)


def _fails(*arguments: Any) -> Any:
    raise ZeroDivisionError([one for one in arguments if not hasattr(one, "fetchone")])


def _fails_at_3(value: Any) -> Any:
    return value if value != 3 else _fails(value)


_ROWS: Final[dict[Any, Any]] = {
    None: None,
    "Row": sqlite3.Row,
    "list": _list,
    "fails": _fails,
    "dict": _dict,
}
_TEXTS: Final[dict[str, Any]] = {
    "str": str,
    "bytes": bytes,
    "bytearray": bytearray,
    "upper": lambda data: data.decode().upper(),
    "fails": _fails,
}


class Side:
    """A connection under a program."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursors = [connection.cursor() for _ in range(CURSORS)]
        self.told: list[str] = []
        for name in ("twice", "fails", "gathered", "backwards"):
            self.register(name)

    def perform(self, step: Step) -> Seen:
        """What comes of a step: its result, and how the connection and the step's cursor stand then."""
        self.told.clear()
        try:
            found: Seen = ("done", plain(getattr(self, step.kind)(*step.arguments)))
        except Exception as error:
            found = failed(error)
        slot = step.arguments[0] if step.arguments and type(step.arguments[0]) is int else 0
        return (*found, "|", *self.stands(slot % CURSORS, step.kind not in ("look", "dump", "backup", "interrupt")))

    def stands(self, slot: int, tells: bool) -> Seen:
        """What the connection and a cursor say of themselves."""
        connection, cursor = self.connection, self.cursors[slot]
        if not tells:
            self.told.clear()
        # What triggers and SQLite itself run is told in other words by each release (and EXPLAIN by some).
        heard = [text for text in self.told if not text.lstrip().startswith(("--", "EXPLAIN"))]
        told = [text for at, text in enumerate(heard) if at == 0 or heard[at - 1] != text]
        return (
            ("in_transaction", connection.in_transaction),
            ("total_changes", connection.total_changes),
            ("isolation_level", connection.isolation_level),
            ("rowcount", cursor.rowcount),
            ("lastrowid", cursor.lastrowid),
            ("description", cursor.description),
            ("arraysize", cursor.arraysize),
            ("told", tuple(told)),
        )

    # Statements.

    def _given(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: self._made(value) for name, value in values.items()}
        return type(values)(map(self._made, values))

    def _made(self, value: Any) -> Any:
        if isinstance(value, tuple) and value[0] == "odd":
            return _ODD[value[1]]
        return value

    def execute(self, slot: int, text: str, values: Any, fetch: bool) -> Any:
        """One statement by a cursor."""
        fetching = False
        try:
            cursor = self.cursors[slot].execute(text, self._given(values))
            fetching = True
            return cursor.fetchall() if fetch else cursor is self.cursors[slot]
        except Exception as error:
            # A foreign key that waits for the COMMIT fails with the last row of RETURNING; ours are all read by then.
            late = getattr(error, "sqlite_errorname", None) == "SQLITE_CONSTRAINT_FOREIGNKEY"
            if "RETURNING" in text and (fetching or late):
                self.close_cursor(slot)
            raise

    def many(self, slot: int, text: str, sets: tuple[Any, ...], giver: str) -> Any:
        """One statement with several sets."""
        given = [self._given(one) for one in sets]

        def give() -> Iterator[Any]:
            for at, one in enumerate(given):
                yield one
                if giver == "fails" and at == 1:
                    _fails(at)
                if giver == "reads":
                    self.connection.execute("SELECT count(*) FROM log").fetchone()
                if giver == "commits" and at == 1:
                    self.connection.commit()

        self.cursors[slot].executemany(text, given if giver == "list" else give())
        return self.cursors[slot].fetchall()

    def script(self, slot: int, text: str) -> None:
        """A script."""
        self.cursors[slot].executescript(text)

    def with_block(self, texts: Any, fails: bool) -> Any:
        """A `with` block, in which an exception may be raised."""
        found = []
        with self.connection:
            for text, values in texts:
                found.append(self.connection.execute(text, self._given(values)).fetchall())
            if fails:
                raise KeyError("the application's")
        return found

    def fetch(self, slot: int, how: str) -> Any:
        """Rows of a cursor."""
        cursor = self.cursors[slot]
        if how.startswith("many"):
            word = how[5:]
            return cursor.fetchmany(None if word == "None" else int(word)) if word else cursor.fetchmany()
        if how == "iterate":
            found = []
            for row in cursor:
                found.append(row)
                if len(found) == 2:
                    break
            return found
        ways: dict[str, Callable[[], Any]] = {
            "one": cursor.fetchone,
            "all": cursor.fetchall,
            "next": lambda: next(cursor, "none"),
            "list": lambda: list(cursor),
        }
        return ways[how]()

    def commit(self) -> None:
        """COMMIT."""
        self.connection.commit()

    def rollback(self) -> None:
        """ROLLBACK."""
        self.connection.rollback()

    # Settings and callbacks.

    def setting(self, kind: str, value: Any, slot: int) -> None:
        """One setting."""
        connection = self.connection
        if kind == "row_factory":
            connection.row_factory = _ROWS[value]
        elif kind == "cursor_row_factory":
            self.cursors[slot].row_factory = _ROWS[value]
        elif kind == "text_factory":
            connection.text_factory = _TEXTS[value]
        elif kind == "isolation_level":
            connection.isolation_level = value
        elif kind == "arraysize":
            self.cursors[slot].arraysize = value
        elif kind == "authorizer":
            self._authorize(value)
        else:
            connection.set_trace_callback({None: None, "told": self.told.append, "fails": _fails}[value])

    def progress(self, slot: int, kind: str, text: str, values: Any) -> Any:
        """A statement under a progress handler, or under an authorizer that denies everything: not a BEGIN, which is
        the door's (nobody is asked about that)."""
        if self.connection.isolation_level is not None and not self.connection.in_transaction:
            return None
        if kind in _authorizers:
            self._authorize(kind)
        else:
            handler: Any = {"goes": lambda: 0, "stops": lambda: 1, "raises": _fails}[kind]
            self.connection.set_progress_handler(handler, 1)
        try:
            return self.execute(slot, text, values, True)
        finally:
            self.connection.set_progress_handler(None, 1)
            self._authorize(None)

    def _authorize(self, name: str | None) -> None:
        """Set an authorizer. (When one is taken off, sqlite3 goes on with the statements in its cache as they were
        prepared under that one, its SQLITE_IGNORE in them; here they are prepared again. Where another one comes, both
        do that.)"""
        self.connection.set_authorizer(_allow if name is None else _authorizers[name])
        if name is None:
            self.connection.set_authorizer(None)

    def register(self, name: str) -> None:
        """A function, an aggregate or a collation."""
        connection = self.connection
        if name == "gathered":
            connection.create_aggregate("gathered", 1, Gathered)
        elif name == "backwards":
            connection.create_collation("backwards", lambda one, other: (one < other) - (one > other))
        elif name == "fails":
            connection.create_function("fails", 1, _fails_at_3)
        elif name == "total":
            connection.create_function("total", 1, lambda value: {1: 2**63, 2: object()}.get(value, value))
        else:
            connection.create_function(
                "twice", 1, lambda value: None if value is None else value * 2, deterministic=True
            )

    # Others.

    def look(self) -> Any:
        """What the tables hold, as this connection sees it."""
        cursor = self.connection.cursor()
        cursor.row_factory = None
        found = []
        for table in ("p", "n", "w", "child", "log", "blobs", "sqlite_sequence"):
            try:
                found.append((table, sorted(map(repr, cursor.execute(f"SELECT * FROM {table}").fetchall()))))
            except sqlite3.Error as error:
                found.append((table, failed(error)))
        return found

    def backup(self) -> Any:
        """A copy by `backup`. (Of its own open transaction sqlite3 makes none: it waits for its end, for good.)"""
        if self.connection.in_transaction:
            return None
        with contextlib.closing(sqlite3.connect(":memory:")) as target:
            self.connection.backup(target)
            return Side.look_at(target)

    def dump(self) -> Any:
        """A copy by `iterdump`, which has no patience with factories in every Python."""
        before = self.connection.row_factory, self.connection.text_factory
        self.connection.row_factory, self.connection.text_factory = None, str
        try:
            text = "".join(self.connection.iterdump())
        finally:
            self.connection.row_factory, self.connection.text_factory = before
        with contextlib.closing(sqlite3.connect(":memory:")) as target:
            target.executescript(text)
            return Side.look_at(target)

    @staticmethod
    def look_at(connection: sqlite3.Connection) -> Any:
        """What a copy holds."""
        return [
            (table, sorted(map(repr, connection.execute(f"SELECT * FROM {table}").fetchall())))
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB '_replicate_*'"
                " AND name NOT GLOB 'sqlite_stat*' ORDER BY name"
            ).fetchall()
        ]

    def thread(self) -> list[str]:
        """What another thread is told."""
        found: list[str] = []
        cursor, other = self.cursors[0], self.connection.cursor()
        actions: tuple[Callable[[], Any], ...] = (
            lambda: self.connection.execute("SELECT 1"),
            lambda: self.connection.cursor(),
            lambda: self.connection.commit(),
            lambda: self.connection.rollback(),
            lambda: other.execute("SELECT 1"),
            lambda: other.executemany("SELECT 1", []),
            lambda: cursor.fetchone(),
            lambda: cursor.fetchall(),
            lambda: cursor.close(),
            lambda: self.connection.create_function("f", 0, None),
            lambda: list(self.connection.iterdump()),
            lambda: self.connection.set_trace_callback(None),
            lambda: self.connection.close(),
        )

        def run() -> None:
            for action in actions:
                try:
                    action()
                    found.append("")
                except Exception as error:
                    found.append(failed(error)[1])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found

    def new_cursor(self, slot: int) -> None:
        """A fresh cursor."""
        self.cursors[slot] = self.connection.cursor()

    def close_cursor(self, slot: int) -> list[Any]:
        """A cursor is closed, asked, and replaced."""
        cursor = self.cursors[slot]
        self.cursors[slot] = self.connection.cursor()
        cursor.close()
        found = []
        for action in (cursor.fetchone, cursor.fetchall, lambda: cursor.execute("SELECT 1"), lambda: next(cursor)):
            try:
                found.append(action())
            except Exception as error:
                found.append(failed(error))
        return found

    def blob(self, row: int, how: str, readonly: bool) -> Any:
        """A BLOB in place."""
        with self.connection.blobopen("blobs", "data", row, readonly=readonly) as blob:
            if how == "read":
                return len(blob), blob.read(2), blob.tell(), blob.read(), blob.read(1)
            if how == "write":
                blob.seek(1)
                blob.write(b"Z")
                return blob.tell(), blob.read()
            if how == "index":
                blob[0] = 7
                blob[1:3] = b"ab"
                return blob[0], blob[1:3], blob[-1]
            blob.write(b"x" * 99)
        return None

    def interrupt(self) -> Any:
        """`interrupt` in the midst of a SELECT: everything fails until that has ended (but a COMMIT at the door)."""
        for slot in range(CURSORS):
            self.close_cursor(slot)
        cursor = self.connection.cursor()
        cursor.row_factory = None
        found = []
        actions: tuple[Callable[[], Any], ...] = (
            lambda: cursor.execute("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3").fetchone(),
            lambda: self.connection.interrupt(),
            lambda: self.connection.execute("SELECT count(*) FROM log"),
            lambda: self.connection.execute("DELETE FROM log WHERE what = 99"),
            lambda: cursor.fetchall(),
            lambda: self.connection.execute("SELECT 4").fetchone()[0],
        )
        for action in actions:
            try:
                found.append(repr(action()) if action is actions[-1] else action() is None)
            except Exception as error:
                found.append(failed(error))
        return found

    def limit(self) -> Any:
        """Limits."""
        before = self.connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 40)
        try:
            self.connection.execute("SELECT 1 " + " " * 40)
        finally:
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, before)
            found = self.connection.getlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH)
        return found

    def call(self, text: str) -> bool:
        """A connection called."""
        return self.connection(text) is not None

    def nested(self, slot: int, how: str) -> Any:
        """A function that uses the cursor which runs it."""
        cursor = self.cursors[slot]
        found = []

        def meddle() -> int:
            try:
                {"close": cursor.close, "execute": lambda: cursor.execute("SELECT 1"), "fetch": cursor.fetchone}[how]()
            except Exception as error:
                found.append(failed(error))
            return 1

        self.connection.create_function("meddle", 0, meddle)
        return cursor.execute("SELECT meddle()").fetchall(), found


class _Nothing:
    """What no adapter knows."""

    def __repr__(self) -> str:
        return "nothing"


_ODD: Final[dict[str, Any]] = {
    "point": Point(1, 2),
    "huge": 2**63,
    "object": _Nothing(),
    "surrogate": "\ud800",
    "view": memoryview(b"mv"),
}


def _allow(*_: Any) -> int:
    return sqlite3.SQLITE_OK


def _deny_log(action: int, one: str | None, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_INSERT and one == "log" else sqlite3.SQLITE_OK


def _ignore_b(action: int, one: str | None, two: str | None, *_: Any) -> int:
    return sqlite3.SQLITE_IGNORE if action == sqlite3.SQLITE_READ and two == "b" else sqlite3.SQLITE_OK


_authorizers: Final[dict[str, Any]] = {
    "deny log": _deny_log,
    "ignore b": _ignore_b,
    "wrong": lambda *_: "wrong",
    "fails": _fails,
}
