"""Plain SQLite with two attached databases, a primary with two attached regions, and its secondary under the same
random programs: all three must end up the same, database by database.

By default a few hundred statements; `--differential-statements N` above 20,000 runs N/40. `--differential-seed S` runs
others than usual; each program's seed is printed.

Then several processes at once, each with one or both of them. A transaction that is committed is to be as if it were
alone: so all of them are done again in plain SQLite, one after the other by their numbers in the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.harness.attach_programs import ONLY_TABLES, SCHEMA, TOGETHER_SCHEMA, program, settings, together
from tests.harness.attach_sides import REFUSED, Committed, Player, Seat, Side
from tests.harness.conversation import Conversation
from tests.harness.regions import make_database
from tests.harness.several import Several, content_of

USUAL = 20_000
REGIONS = {"a": "main", "b": "two"}


class Sides:
    """A primary's regions and two plain files, each with a connection that is opened in either order."""

    def __init__(self, directory: Path) -> None:
        self.several = Several.make(directory, ("main", "two"), SCHEMA)
        self.plain = {name: make_database(directory / f"plain-{name}.db", SCHEMA) for name in "ab"}
        self.regions = {name: self.several.path(region) for name, region in REGIONS.items()}
        self.statements = self.refused = 0
        self.log: list[str] = []

    def open(self, home: str, level: str | None) -> tuple[Side, Side]:
        """Ours and the plain one, the database `home` first."""
        seat = Seat(home, "b" if home == "a" else "a", level)
        return seat.ours(self.several.primary.path, REGIONS, self.regions, 0), seat.plain(self.plain)

    def run(self, seed: str) -> None:
        """One program; AssertionError where the sides differ."""
        for home, level in (("a", ""), ("b", None)):
            ours, plain = self.open(home, level)
            for transaction in program(f"{seed}-{home}"):
                self._transaction(transaction, ours, plain)
                for name in "ab":
                    assert content_of(self.regions[name]) == content_of(self.plain[name]), self.said(seed)
            for side in (ours, plain):
                side.close()
        self.several.same()

    def said(self, seed: str) -> str:
        """For a failure."""
        return "\n".join([f"seed {seed}", *self.log[-40:]])

    def _transaction(self, statements: list[str], ours: Side, plain: Side) -> None:
        for text in statements:
            self.statements += 1
            found = ours.run(text)
            self.log.append(f"{text} -> {found}")
            if found == REFUSED:
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
    asked = int(request.config.getoption("--differential-statements") or USUAL)
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


# Several connections at once.

SEATS = (Seat("a", "b"), Seat("b", "a"), Seat("a", None), Seat("b", None))
"""Each in a process of its own. Two have both databases, in opposite order; two have one."""
TRANSACTIONS = 8
"""Of each seat in a program."""


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Conversation]]:
    made = [Conversation("tests.harness.attach_worker") for _ in SEATS]
    yield made
    for worker in made:
        worker.close()


class Together:
    """Regions that several processes write at once, and plain files in which what they committed is done again, one
    transaction after the other by their numbers: each statement must come to the same."""

    def __init__(self, directory: Path, workers: list[Conversation], seed: str, timeout_s: float) -> None:
        directory.mkdir()
        self.several = Several.make(directory, ("main", "two"), TOGETHER_SCHEMA)
        self.workers, self.seed = workers, seed
        self._regions = {name: self.several.path(region) for name, region in REGIONS.items()}
        self._plain = {name: make_database(directory / f"plain-{name}.db", TOGETHER_SCHEMA) for name in "ab"}
        path = self.several.primary.path
        for maker in (SEATS[0].ours(path, REGIONS, self._regions, timeout_s), SEATS[0].plain(self._plain)):
            for text in ONLY_TABLES:
                maker.run(text)
            maker.close()
        self.begun_at = self.several.last_seqno()
        for number, (seat, worker) in enumerate(zip(SEATS, workers, strict=True)):
            shm = os.environ["REPLICATE_SHM_DIR"]
            worker.ask("open", (number, seat, path, REGIONS, self._regions, timeout_s, shm))
            for text in self._settings(number):
                worker.ask("run", text)

    def close(self) -> None:
        """Close what the workers have open."""
        for worker in self.workers:
            worker.ask("close")

    def transactions(self, number: int) -> list[list[str]]:
        """What a seat is to do."""
        return together(self.seed, number, SEATS[number].databases, TRANSACTIONS)

    def _settings(self, number: int) -> list[str]:
        return settings(f"{self.seed} {number}", SEATS[number].databases)

    def prove(self, committed: list[Committed]) -> None:
        """The numbers are those of the journal, and what has them is the same without the others; AssertionError."""
        committed.sort(key=lambda one: one.seqno)
        numbers = [one.seqno for one in committed]
        assert numbers == list(range(self.begun_at + 1, self.several.last_seqno() + 1))
        sides = [seat.plain(self._plain) for seat in SEATS]
        for number, side in enumerate(sides):
            for text in self._settings(number):
                side.run(text)
        for one in committed:
            done = [sides[one.player].run(text) for text in one.statements]
            assert done == one.outcomes, f"{self.seed}: transaction {one.seqno} of {one.player}: {one.statements}"
        for side in sides:
            side.close()
        for name in "ab":
            assert content_of(self._regions[name]) == content_of(self._plain[name]), self.seed
        self.several.same()


def take_turns(players: list[Player], dice: Random) -> None:
    """Some statements of one, then of another. Who has met a busy database waits for the end of a transaction."""
    while left := [player for player in players if not player.is_done]:
        player = dice.choice([player for player in left if not player.is_waiting])
        for _ in range(dice.randint(1, 5)):
            player.step()
            if player.is_between and not player.is_waiting:
                for other in players:
                    other.is_waiting = False
            if player.is_done or player.is_waiting:
                break


Programs = Callable[[str, float], Iterator[Together]]


@pytest.fixture
def programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, workers: list[Conversation]
) -> Programs:
    """Called with a kind of programs and how long a statement may wait: the workers at fresh databases, a seed each."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))

    def each(kind: str, timeout_s: float) -> Iterator[Together]:
        for seed in _wanted(request, kind):
            print(f"seed {seed}")
            yield Together(tmp_path / seed, workers, seed, timeout_s)

    return each


def _wanted(request: pytest.FixtureRequest, kind: str) -> list[str]:
    """The seeds of some programs."""
    asked = int(request.config.getoption("--differential-statements") or USUAL)
    start = request.config.getoption("--differential-seed")
    return [f"{start}-{kind}-{number}" for number in range(2 if asked <= USUAL else asked // 4000)]


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_statements_of_several_processes_one_after_the_other(programs: Programs) -> None:
    """In an order that the seed gives: the same at each run."""
    for made in programs("turns", 0):
        players = [
            Player(
                number,
                made.transactions(number),
                partial(worker.ask, "run"),
                partial(worker.ask, "last seqno"),
            )
            for number, worker in enumerate(made.workers)
        ]
        take_turns(players, Random(f"{made.seed} order"))
        made.close()
        committed = [one for player in players for one in player.committed]
        print(f"{len(committed)} committed, {sum(player.again for player in players)} tried again")
        made.prove(committed)
        assert {one.player for one in committed} == set(range(len(SEATS)))
        assert sum(player.again for player in players) > 0
        assert sum(player.refused for player in players) <= TRANSACTIONS // 2


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_several_processes_at_once(programs: Programs) -> None:
    """In whatever order they come to it."""
    for made in programs("race", 60):
        for number, worker in enumerate(made.workers):
            worker.send("play", made.transactions(number))
        played = [worker.answer() for worker in made.workers]
        made.close()
        committed = [one for found, _, _ in played for one in found]
        print(f"{len(committed)} committed, {sum(again for _, again, _ in played)} begun again")
        made.prove(committed)
        assert committed
