"""Connections that have two databases, and what a statement comes to on them: a differential test's sides with ATTACH.

Guarantees: a side of ours and one of plain SQLite are asked by exactly this code. A `Player` commits each of its
transactions at most once. A statement that was busy is tried again; where a reader's snapshot is too old to write, its
transaction is rolled back and begun again.
Leaves to others: what statements should come to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

import replicate
from tests.harness.plain_sqlite import PlainConnection

Outcome = tuple[Any, ...]
REFUSED: Final = (None,)
"""A statement that we refuse by name comes to this."""


class Side:
    """One connection, and what it calls its databases. `home`: the one that it opens ("a" or "b"); `other`: the name
    and file of the one that it attaches."""

    def __init__(self, connection: Any, home: str, other: tuple[str, Path] | None) -> None:
        self.connection = connection
        self._names = {home: "main"}
        if other is not None:
            connection.execute("ATTACH ? AS ?", (str(other[1]), other[0]))
            self._names[other[0]] = other[0]

    def run(self, text: str) -> Outcome:
        """What one statement comes to: rows or an error, and whether a transaction is open then."""
        named = text.format(**self._names)
        try:
            if named in ("COMMIT", "ROLLBACK"):
                getattr(self.connection, named.lower())()
                found: Any = []
            else:
                found = self.connection.execute(named).fetchall()
        except (apsw.Error, replicate.Error) as error:
            if getattr(error, "code", None) == "NOT_SUPPORTED":
                return REFUSED
            code = error.extendedresult if isinstance(error, apsw.Error) else error.sqlite_errorcode
            found = code
        return found, self.connection.in_transaction

    def close(self) -> None:
        """Close it."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a player sits: the database that it opens, the one that it attaches, and its isolation level."""

    home: str
    other: str | None
    level: str | None = None

    @property
    def databases(self) -> tuple[str, str]:
        """For programs: the two that a statement may name."""
        return f"{{{self.home}}}.", f"{{{self.other or self.home}}}."

    def plain(self, paths: dict[str, Path]) -> Side:
        """Plain SQLite there."""
        connection = PlainConnection(str(paths[self.home]), self.level)
        return Side(connection, self.home, self._attached(paths))

    def ours(self, instance: Path, regions: dict[str, str], paths: dict[str, Path], timeout_s: float) -> Side:
        """Ours there."""
        region = regions[self.home]
        connection = replicate.connect(instance, region, timeout=timeout_s, isolation_level=self.level)
        return Side(connection, self.home, self._attached(paths))

    def _attached(self, paths: dict[str, Path]) -> tuple[str, Path] | None:
        return None if self.other is None else (self.other, paths[self.other])


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction with its number, and what each of its statements came to."""

    seqno: int
    player: int
    statements: list[str]
    outcomes: list[Outcome]


class Player:
    """One connection's way through its transactions, a statement at a time. `run` runs one; `last_seqno` asks the
    connection for the number of the last that it committed."""

    def __init__(
        self,
        number: int,
        transactions: Sequence[list[str]],
        run: Callable[[str], Outcome],
        last_seqno: Callable[[], int],
    ) -> None:
        self.committed: list[Committed] = []
        self.again = self.refused = 0
        self.is_waiting = False
        """Its last statement was busy: another player's transaction has to end first."""
        self._number, self._run, self._last_seqno = number, run, last_seqno
        self._left = list(transactions)
        self._outcomes: list[Outcome] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not self._left

    @property
    def is_between(self) -> bool:
        """Whether no transaction is under way."""
        return not self._outcomes

    def step(self) -> None:
        """Run the next statement."""
        statements = self._left[0]
        text = statements[len(self._outcomes)]
        outcome = self._run(text)
        if outcome[0] in (apsw.SQLITE_BUSY, apsw.SQLITE_BUSY_SNAPSHOT):
            self.again += 1
            self.is_waiting = outcome[0] == apsw.SQLITE_BUSY
            if not self.is_waiting:
                self._run("ROLLBACK")
                self._outcomes = []
            return
        self.is_waiting = False
        self._outcomes.append(outcome)
        if outcome == REFUSED:
            self.refused += 1
        elif outcome[1]:
            if len(self._outcomes) < len(statements):
                return  # a COMMIT that failed leaves the transaction open: it is the last
        elif text == "COMMIT":
            self.committed.append(Committed(self._last_seqno(), self._number, statements, self._outcomes))
        self._run("ROLLBACK")
        del self._left[0]
        self._outcomes = []
