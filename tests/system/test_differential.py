"""Plain SQLite, a primary and its secondary under the same random programs: all three must end up the same.

By default 20,000 statements, in shards. `--differential-statements N` runs N, `--differential-seed S` other ones than
usual; the seed is printed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.harness.differential import Plain, Street, run
from tests.harness.sql_programs import Program, schema

SHARDS = 5
PROGRAMS_AT_A_TIME = 4
PRAGMAS = ("PRAGMA foreign_keys = ON", "PRAGMA recursive_triggers = ON")

_numbers = st.integers(min_value=0, max_value=2**32 - 1)
_tables = st.lists(_numbers, min_size=1, max_size=4)
_steps = st.lists(_numbers, min_size=60, max_size=300)
_pragmas = st.sampled_from([(), PRAGMAS[:1], PRAGMAS[1:], PRAGMAS])
_how = st.sampled_from([(1, 1), (1, 1000), (400, 3), (64 * 1024, 1), (64 * 1024, 1000)])
"""Bytes of a received record, transactions of a batch."""

_settings = settings(
    max_examples=PROGRAMS_AT_A_TIME,
    deadline=None,
    database=None,
    derandomize=False,  # the seed below says it all
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    made = Plain()
    yield made
    made.close()


class Tally:
    """How much a test has run."""

    def __init__(self) -> None:
        self.programs = self.steps = self.refused = self.compared = 0

    def add(self, street: Street) -> None:
        """Count one program."""
        self.programs += 1
        self.steps += street.steps
        self.refused += street.refused
        self.compared += street.plain_side


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("wild", [False, True], ids=["plain", "wild"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_sides_are_the_same(plain: Plain, request: pytest.FixtureRequest, shard: int, wild: bool) -> None:
    """`wild`: where our guards change what SQLite does (see sql_programs.table), so without the plain side."""
    wanted = int(request.config.getoption("--differential-statements")) // (2 * SHARDS)
    first_seed = int(request.config.getoption("--differential-seed")) * 1_000_000 + shard * 100_000
    tally = Tally()

    @_settings
    @given(_tables, _steps, _pragmas, _how)
    def same(tables: list[int], steps: list[int], pragmas: tuple[str, ...], how: tuple[int, int]) -> None:
        made, script = schema(tables, wild=wild)
        program = Program(made, wild=wild)
        record_bytes, batch_transactions = how
        tally.add(
            run(
                plain,
                ";\n".join(script) + ";",
                [program.step(number) for number in steps],
                pragmas,
                plain_side=not wild,
                record_bytes=record_bytes,
                batch_transactions=batch_transactions,
            )
        )

    next_seed = first_seed
    while tally.steps < wanted:
        print(f"seed {next_seed}")
        seed(next_seed)(same)()
        next_seed += 1
    print(f"{tally.programs} programs, {tally.steps} statements, {tally.refused} refused by name")
    print(f"{tally.compared} programs compared with plain SQLite to the end")
    assert tally.refused <= tally.steps // 20
    assert wild or tally.compared >= tally.programs // 3
