"""Events: what goes out comes back the same, whatever it is."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from replicate.filters.encoding import EXACT_MAX, Form, read_line
from replicate.filters.events import EventWriter, Tables, read_change
from replicate.journal.record import pack_changes
from replicate.model.transaction import Op
from tests.harness.talking import DELETE, INSERT, LOOSE, UPDATE, known

NUMBERS = (0, 1, -1, EXACT_MAX, -EXACT_MAX, EXACT_MAX + 1, -(2**63), 2**63 - 1)
REALS = (0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, float("inf"), float("-inf"), 2.0**53)
TEXTS = ("", "a", 'q"\\/', "\n\r\t\x00\x1f\x7f", "\u2028\u2029", "ä", "\U0001f600", "{}", "x" * 5000)
BLOBS = (b"", b"\0", bytes(range(256)))
VALUES: tuple[Any, ...] = (None, *NUMBERS, *REALS, *TEXTS, *BLOBS, msgpack.ExtType(1, b"\xff\xfe"))


def back(changes: list[Any], form: Form, tables: Tables) -> bytes:
    """The changes that come back when a filter says what it was told."""
    event = EventWriter(tables, form).write(changes)
    read = read_line if form is Form.JSON else lambda data: msgpack.unpackb(data)
    return read_change(read(event), tables)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
def test_a_value_comes_back_as_it_is(value: Any, form: Form) -> None:
    tables = Tables(known(LOOSE))
    for change in ([INSERT, LOOSE.table_id, 0, [1, value, "z"]], [DELETE, LOOSE.table_id, 0, [1, "z", value]]):
        assert back(change, form, tables) == pack_changes(change)


@pytest.mark.parametrize("form", Form)
def test_changes_drawn_at_random_come_back_as_they_are(form: Form) -> None:
    draw = random.Random(f"events {form}")
    tables = Tables(known(LOOSE))
    for _ in range(300):
        before: list[Any] = [draw.randrange(1 << 40), draw.choice(VALUES), draw.choice(VALUES)]
        after = [before[0], *(draw.choice(VALUES) if draw.random() < 0.5 else value for value in before[1:])]
        changed = [at for at in (1, 2) if repr(before[at]) != repr(after[at])]
        if not changed:
            continue
        mask = sum(1 << at for at in changed)
        change = [UPDATE, LOOSE.table_id, mask, [*(after[at] for at in changed), *before]]
        assert back(change, form, tables) == pack_changes(change)


def test_a_zero_that_changes_its_sign_has_changed() -> None:
    tables = Tables(known(LOOSE))
    for before, after in ((0.0, -0.0), (1, 1.0), ("1", b"1")):
        change = [UPDATE, LOOSE.table_id, 2, [after, 1, before, None]]
        assert back(change, Form.JSON, tables) == pack_changes(change)


def test_an_update_that_changes_nothing_is_nothing() -> None:
    assert back([UPDATE, LOOSE.table_id, 2, [5, 1, 5, None]], Form.JSON, Tables(known(LOOSE))) == b""


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("partition", [0, 5])
def test_a_schema_change_stays_in_the_partition_of_its_element(form: Form, partition: int) -> None:
    change = [int(Op.SCHEMA), partition, "main", ["CREATE TABLE t (a)"]]
    assert back(change, form, Tables(known(LOOSE))) == pack_changes(change)
