"""One step of a program on PEP 249 connections, and what is in a database then.

Guarantees: both sides of a differential test run exactly this code; an outcome is plain data.
Leaves to others: what outcomes should be, and whose connections they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import apsw

from replicate.region.sqlite.sql.names import quote
from tests.harness.sql_programs import Step

CONNECTIONS = 3
LEVELS: tuple[str | None, ...] = ("", "IMMEDIATE", None)
"""Isolation level of each connection."""

Outcome = tuple[Any, ...]
Content = dict[str, list[str]]


class ApplicationError(Exception):
    """What a `with` block ends with when it is to fail."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a step raised, as far as a differential test asks."""

    text: str
    code: str | None
    sqlite_errorname: str | None

    def __str__(self) -> str:
        return self.text


class Calls:
    """The connections of one program, or those of `numbers`. `connect` opens one with an isolation level."""

    def __init__(
        self,
        connect: Callable[[str | None], Any],
        pragmas: tuple[str, ...],
        numbers: Iterable[int] = range(CONNECTIONS),
    ) -> None:
        self._connect = connect
        self._pragmas = pragmas
        self.error: BaseException | None = None
        """What the last step raised."""
        self.connections = {number: self._open(number) for number in numbers}

    def _open(self, number: int) -> Any:
        connection = self._connect(LEVELS[number])
        for text in self._pragmas:
            connection.execute(text)
        return connection

    def close(self) -> None:
        """Close all."""
        for connection in self.connections.values():
            connection.close()

    def perform(self, step: Step) -> Outcome:
        """Run one step: what came of it, and whether a transaction is open then."""
        self.error = None
        try:
            what = self._perform(step)
        except ApplicationError:
            what = ("application",)
        except (sqlite3.Error, apsw.Error) as error:
            self.error = error
            what = ("error", getattr(error, "sqlite_errorcode", None) or getattr(error, "extendedresult", None))
        except (OverflowError, TypeError, ValueError) as error:
            self.error = error
            what = ("raised", type(error).__name__)
        return (*what, self.connections[step.connection].in_transaction)

    def _perform(self, step: Step) -> Outcome:
        connection = self.connections[step.connection]
        if step.kind == "execute":
            text, parameters = step.items[0]
            cursor = connection.execute(text, parameters)
            rows = typed(cursor.fetchall())
            return "rows", rows, cursor.rowcount
        if step.kind == "many":
            text, sets = step.items[0]
            return "many", connection.executemany(text, sets).rowcount
        if step.kind == "script":
            connection.executescript(step.items[0][0])
        elif step.kind == "commit":
            connection.commit()
        elif step.kind == "rollback":
            connection.rollback()
        elif step.kind == "blob":
            table, (column, row, data) = step.items[0]
            with connection.blobopen(table, column, row) as blob:
                blob.write(data)
        elif step.kind in ("reopen", "kill"):
            connection.close()
            self.connections[step.connection] = self._open(step.connection)
        else:
            with connection:
                for text, parameters in step.items:
                    connection.execute(text, parameters).fetchall()
                if step.fails:
                    raise ApplicationError
        return ("done",)

    def roll_back(self, number: int) -> None:
        """Roll back one connection's transaction."""
        self.connections[number].rollback()

    def in_transaction(self, number: int) -> bool:
        """Whether a transaction is open on a connection."""
        found: bool = self.connections[number].in_transaction
        return found

    def rows(self, text: str) -> list[Any]:
        """What a query gives on the first connection."""
        found: list[Any] = self.connections[0].execute(text).fetchall()
        return found


def typed(rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Rows as texts that tell 1, 1.0, '1' and x'31' apart, sorted."""
    return sorted(repr(tuple(row)) for row in rows)


def content(query: Callable[[str], Iterable[tuple[Any, ...]]], *, shadows: bool = False) -> Content:
    """Everything of the application's in a database, with the rowids. `shadows`: what virtual tables are made of too
    (how much of it is in one piece, is a matter of when it was written)."""
    found: Content = {
        "(schema)": typed(
            query(
                "SELECT type, name, tbl_name FROM sqlite_schema "
                "WHERE tbl_name NOT GLOB '_replicate_*' AND name NOT GLOB '_replicate_*'"
                " AND name NOT GLOB 'sqlite_stat*'"
            )
        ),
        "(user_version)": typed(query("PRAGMA user_version")),
    }
    kinds = "'table', 'virtual', 'shadow'" if shadows else "'table', 'virtual'"
    tables = list(
        query(
            f"SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type IN ({kinds}) "
            "AND name NOT GLOB '_replicate_*' AND name NOT GLOB 'sqlite_*'"
        )
    )
    for name, without_rowid in tables:
        try:
            found[name] = typed(query(f"SELECT {'' if without_rowid else 'rowid, '}* FROM {quote(name)}"))
        except apsw.SQLError as error:
            found[name] = [str(error)]  # a virtual table without a content of its own
    if list(query("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'")):
        found["sqlite_sequence"] = typed(query("SELECT name, seq FROM sqlite_sequence WHERE seq IS NOT 0"))
    return found
