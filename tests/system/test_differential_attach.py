"""Plain SQLite with two attached databases, a primary with two attached regions, and its secondary under the same
random programs: all three must end up the same, database by database.

By default a few hundred statements; `--differential-statements N` above 20,000 runs N/40. `--differential-seed S` runs
others than usual; each program's seed is printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from tests.harness.attach_programs import SCHEMA, program
from tests.harness.plain_sqlite import PlainConnection
from tests.harness.regions import make_database
from tests.harness.several import Several, content_of

USUAL = 20_000


class Side:
    """One connection, and what it calls the two databases."""

    def __init__(self, connection: Any, home: str, other: tuple[str, Path]) -> None:
        self.connection = connection
        connection.execute("ATTACH ? AS ?", (str(other[1]), other[0]))
        self._names = {home: "main", other[0]: other[0]}

    def run(self, text: str) -> tuple[Any, ...]:
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
                return (None,)
            code = error.extendedresult if isinstance(error, apsw.Error) else error.sqlite_errorcode
            found = code
        return found, self.connection.in_transaction


class Sides:
    """A primary's regions and two plain files, each with a connection that is opened in either order."""

    def __init__(self, directory: Path) -> None:
        self.several = Several.make(directory, ("main", "two"), SCHEMA)
        self.plain = {name: make_database(directory / f"plain-{name}.db", SCHEMA) for name in "ab"}
        self.regions = {name: self.several.path(region) for name, region in (("a", "main"), ("b", "two"))}
        self.statements = self.refused = 0
        self.log: list[str] = []

    def open(self, home: str, level: str | None) -> tuple[Side, Side]:
        """Ours and the plain one, the database `home` first."""
        other = "b" if home == "a" else "a"
        region = "main" if home == "a" else "two"
        ours = replicate.connect(self.several.primary.path, region, timeout=0, isolation_level=level)
        plain = PlainConnection(str(self.plain[home]), level)
        return Side(ours, home, (other, self.regions[other])), Side(plain, home, (other, self.plain[other]))

    def run(self, seed: str) -> None:
        """One program; AssertionError where the sides differ."""
        for home, level in (("a", ""), ("b", None)):
            ours, plain = self.open(home, level)
            for transaction in program(f"{seed}-{home}"):
                self._transaction(transaction, ours, plain)
                for name in "ab":
                    assert content_of(self.regions[name]) == content_of(self.plain[name]), self.said(seed)
            for side in (ours, plain):
                side.connection.close()
        self.several.same()

    def said(self, seed: str) -> str:
        """For a failure."""
        return "\n".join([f"seed {seed}", *self.log[-40:]])

    def _transaction(self, statements: list[str], ours: Side, plain: Side) -> None:
        for text in statements:
            self.statements += 1
            found = ours.run(text)
            self.log.append(f"{text} -> {found}")
            if found == (None,):
                self.refused += 1
                for side in (ours, plain):
                    side.connection.rollback()
                return
            assert found == plain.run(text), self.log[-40:]
        for side in (ours, plain):  # a COMMIT that failed, or a savepoint of no transaction
            side.connection.rollback()


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_all_sides_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    asked = int(request.config.getoption("--differential-statements"))
    wanted = 150 if asked <= USUAL else asked // 40
    start = request.config.getoption("--differential-seed")
    statements = refused = programs = 0
    while statements < wanted:
        seed = f"{start}-attach-{programs}"
        print(f"seed {seed}")
        directory = tmp_path / str(programs)
        directory.mkdir()
        sides = Sides(directory)
        sides.run(seed)
        programs, statements, refused = programs + 1, statements + sides.statements, refused + sides.refused
    print(f"{programs} programs, {statements} statements, {refused} refused by name")
    assert refused <= statements // 20
