"""door/recovery/unapply.py: changes and then their inverses leave what was there, by a model of a table in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replicate.door.recovery.unapply import inverse, inverse_apart
from replicate.errors import JournalDamagedError, NotSupportedError
from replicate.model.transaction import Op, changed_of

IDENT = 0x8000_0001
Rows = dict[Any, tuple[Any, ...]]


def apply(rows: Rows, changes: list[Any]) -> None:
    """A table whose first column is the key; each before-image must be what is there."""
    for at in range(0, len(changes), 4):
        op, _, argument, values = changes[at : at + 4]
        if op == Op.INSERT:
            assert values[0] not in rows
            rows[values[0]] = tuple(values)
        elif op == Op.DELETE:
            assert rows.pop(values[0]) == tuple(values)
        elif op == Op.UPDATE:
            changed = changed_of(argument)
            after, before = values[: len(changed)], list(values[len(changed) :])
            assert rows.pop(before[0]) == tuple(before)
            for ordinal, value in zip(changed, after, strict=True):
                before[ordinal] = value
            assert before[0] not in rows
            rows[before[0]] = tuple(before)


def drawn(rows: Rows, dice: random.Random) -> list[Any]:
    """One change that fits `rows`."""
    free = dice.choice([key for key in range(12) if key not in rows])
    if not rows or dice.random() < 0.3:
        return [int(Op.INSERT), IDENT, 0, [free, dice.randrange(99), None]]
    row = list(rows[dice.choice(sorted(rows))])
    if dice.random() < 0.3:
        return [int(Op.DELETE), IDENT, 0, row]
    mask = dice.choice([0b010, 0b100, 0b110, 0b001, 0b111])
    after = [free if ordinal == 0 else dice.randrange(99) for ordinal in changed_of(mask)]
    return [int(Op.UPDATE), IDENT, mask, [*after, *row]]


@pytest.mark.parametrize("seed", range(30))
def test_what_was_done_is_undone_in_the_opposite_order(seed: int) -> None:
    dice = random.Random(seed)
    rows: Rows = {key: (key, key, None) for key in range(4)}
    before = dict(rows)
    changes: list[Any] = []
    for _ in range(dice.randrange(1, 12)):
        one = drawn(rows, dice)
        apply(rows, one)
        changes += one
    after = dict(rows)
    apply(rows, inverse(changes))
    assert rows == before
    apply(rows, inverse(inverse(changes)))
    assert rows == after


def test_counters_come_after_all_rows() -> None:
    changes = [int(Op.SEQUENCE), IDENT, "t", [5, 9], int(Op.INSERT), IDENT, 0, [1, 2]]
    assert inverse_apart(changes) == (
        [int(Op.DELETE), IDENT, 0, [1, 2]],
        [int(Op.SEQUENCE), IDENT, "t", [9, 5]],
    )
    assert inverse(changes)[4] == Op.SEQUENCE


def test_what_cannot_be_taken_back_is_refused() -> None:
    with pytest.raises(JournalDamagedError):
        inverse([int(Op.INSERT), IDENT, 0])
    with pytest.raises(NotSupportedError, match="schema change"):
        inverse([int(Op.SCHEMA), IDENT, 0, ["CREATE TABLE x (a)"]])
