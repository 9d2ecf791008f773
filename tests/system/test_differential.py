"""Plain SQLite, a primary and its secondary under the same random programs: all three must end up the same.

By default 8,000 statements, with --full 20,000, in shards. `--differential-statements N` runs N,
`--differential-seed S` other ones than usual. Each program's seed is printed; it depends on nothing but S, the shard
and its place, so a shard runs the same programs whether it runs alone or in the whole suite.
`--differential-program SEED` runs one program again, and shrinks it if it fails.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pytest

from tests.harness.conversation import ROOT
from tests.harness.differential import Divergence, Plain, Sides, run
from tests.harness.sql_calls import CONNECTIONS
from tests.harness.sql_draw import Drawn, draw, shrink
from tests.harness.sql_worker import Worker

SHARDS = 5
BY_DAY, AT_FULL_LENGTH = 8_000, 20_000


def asked_statements(config: pytest.Config) -> int:
    """How many statements are asked for."""
    asked = config.getoption("--differential-statements")
    return int(asked or (AT_FULL_LENGTH if config.getoption("--full") else BY_DAY))


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    made = Plain()
    yield made
    made.close()


@pytest.fixture(scope="module")
def workers() -> Iterator[Sequence[Worker]]:
    made = [Worker() for _ in range(CONNECTIONS)]
    yield made
    for worker in made:
        worker.close()


class Tally:
    """How much a test has run."""

    def __init__(self) -> None:
        self.programs = self.steps = self.refused = self.compared = self.processes = self.kills = 0

    def add(self, drawn: Drawn, street: Sides) -> None:
        """Count one program."""
        self.programs += 1
        self.steps += street.steps
        self.refused += street.refused
        self.compared += street.plain_side
        self.processes += drawn.processes
        self.kills += sum(step.kind == "kill" for step in drawn.steps)


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("wild", [False, True], ids=["plain", "wild"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_sides_are_the_same(
    plain: Plain, workers: Sequence[Worker], request: pytest.FixtureRequest, shard: int, wild: bool
) -> None:
    again = request.config.getoption("--differential-program")
    if again:
        _again(plain, workers, draw(again))
        return
    wanted = asked_statements(request.config) // (2 * SHARDS)
    start = f"{request.config.getoption('--differential-seed')}-{'wild' if wild else 'plain'}-{shard}"
    tally = Tally()
    while tally.steps < wanted:
        drawn = draw(f"{start}-{tally.programs}")
        print(f"seed {drawn.seed}")
        tally.add(drawn, run(plain, drawn, workers))
    print(f"{tally.programs} programs, {tally.steps} statements, {tally.refused} refused by name")
    print(f"{tally.compared} programs compared with plain SQLite to the end")
    print(f"{tally.processes} programs in several processes, {tally.kills} processes killed")
    assert tally.refused <= tally.steps // 20
    assert wild or tally.compared >= tally.programs // 3
    assert tally.processes


def _again(plain: Plain, workers: Sequence[Worker], drawn: Drawn) -> None:
    """One program; a failing one is made as short as it goes."""
    found: list[Divergence] = []

    def fails(less: Drawn) -> bool:
        try:
            run(plain, less, workers)
        except Divergence as error:
            found.append(error)
            return True
        return False

    if fails(drawn):
        shrink(drawn, fails)
        raise found[-1]


def digest(seed: str) -> str:
    """What tells two programs apart."""
    programs = [draw(f"{seed}-{mode}-{shard}-{shard}") for mode in ("plain", "wild") for shard in range(SHARDS)]
    return sha256(repr(programs).encode()).hexdigest()


def test_a_seed_is_the_same_program_in_every_process() -> None:
    """Here, where a whole suite may be loaded, and in a process with nothing in it."""
    text = "import tests.system.test_differential as it; print(it.digest('7'), it.digest('8'))"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [digest("7"), digest("8")]
    assert digest("7") != digest("8")


def test_a_failing_program_is_shrunk_to_what_it_needs() -> None:
    drawn = draw("1-plain-0-0")
    one, other = drawn.steps[10], drawn.steps[40]
    shrunk = shrink(drawn, lambda less: one in less.steps and other in less.steps)
    assert shrunk.steps == (one, other)
