"""Plain SQLite, a primary and its secondary under the same random programs: all three must end up the same.

By default some hundred programs of up to 90 steps. REPLICATE_DIFFERENTIAL_PROGRAMS=N runs N of each kind, and
REPLICATE_DIFFERENTIAL_SEED=S other ones than usual; the seed is printed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.harness.differential import Plain, Street, run
from tests.harness.sql_programs import Program, schema

PROGRAMS = int(os.environ.get("REPLICATE_DIFFERENTIAL_PROGRAMS", "75"))
SEED = int(os.environ.get("REPLICATE_DIFFERENTIAL_SEED", "20"))
PRAGMAS = ("PRAGMA foreign_keys = ON", "PRAGMA recursive_triggers = ON")

_numbers = st.integers(min_value=0, max_value=2**32 - 1)
_tables = st.lists(_numbers, min_size=1, max_size=4)
_steps = st.lists(_numbers, min_size=30, max_size=90)
_pragmas = st.sampled_from([(), PRAGMAS[:1], PRAGMAS[1:], PRAGMAS])
_how = st.sampled_from([(1, 1), (1, 1000), (400, 3), (64 * 1024, 1), (64 * 1024, 1000)])
"""Bytes of a received record, transactions of a batch."""

_settings = settings(
    max_examples=PROGRAMS,
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


@pytest.mark.timeout(3600)
def test_plain_and_primary_and_secondary(plain: Plain) -> None:
    tally = Tally()

    @seed(SEED)
    @_settings
    @given(_tables, _steps, _pragmas, _how)
    def same(tables: list[int], steps: list[int], pragmas: tuple[str, ...], how: tuple[int, int]) -> None:
        made, script = schema(tables)
        program = Program(made)
        record_bytes, batch_transactions = how
        tally.add(
            run(
                plain,
                ";\n".join(script) + ";",
                [program.step(number) for number in steps],
                pragmas,
                record_bytes=record_bytes,
                batch_transactions=batch_transactions,
            )
        )

    print(f"seed {SEED}")
    same()
    print(f"{tally.programs} programs, {tally.steps} steps, {tally.refused} refused by name")
    print(f"{tally.compared} programs compared with plain SQLite to the end")
    assert tally.refused <= tally.steps // 20
    assert tally.compared >= tally.programs // 2


@pytest.mark.timeout(3600)
def test_primary_and_secondary_where_guards_change_what_sqlite_does(plain: Plain) -> None:
    tally = Tally()

    @seed(SEED)
    @_settings
    @given(_tables, _steps, _pragmas, _how)
    def same(tables: list[int], steps: list[int], pragmas: tuple[str, ...], how: tuple[int, int]) -> None:
        made, script = schema(tables, wild=True)
        program = Program(made, wild=True)
        record_bytes, batch_transactions = how
        tally.add(
            run(
                plain,
                ";\n".join(script) + ";",
                [program.step(number) for number in steps],
                pragmas,
                plain_side=False,
                record_bytes=record_bytes,
                batch_transactions=batch_transactions,
            )
        )

    print(f"seed {SEED}")
    same()
    print(f"{tally.programs} programs, {tally.steps} steps, {tally.refused} refused by name")
