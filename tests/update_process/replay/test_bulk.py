"""Folding and writing by columns: the same as change by change and row by row, on random histories of every kind.

Each history is drawn from its seed alone. What it should come to is told by a model that looks at one change at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest

from replicate.errors import ConflictError, DamagedError, JournalDamagedError
from replicate.model.transaction import Column, Kind, Op, TableDefinition
from update_process.replay import bulk
from update_process.replay.net import EVERY_PART, NetChange, NetColumns, NetRow, Part, Unique, change_of, same_value
from update_process.window.columns import Changes

VALUES: Final = (0, 1, 1.0, -1, 0.0, -0.0, None, "a", "b", b"a", "c" * 50, 2.5)
HISTORIES: Final = 120
PHASES: Final = tuple(map(int, (Op.DELETE, Op.UPDATE, Op.INSERT)))
Change = tuple[int, int, int, tuple[Any, ...]]


def table(table_id: int, columns: int, key: tuple[int, ...]) -> TableDefinition:
    names = tuple(Column(f"c{number}", "", False, "BINARY") for number in range(columns))
    return TableDefinition("main", 1, "main", f"t{table_id}", 1, names, key, False, False, len(key) > 1)


TABLES: Final = {1: table(1, 3, (0,)), 2: table(2, 4, (0, 2)), 3: table(3, 1, (0,))}


def definition_of(table_id: int) -> TableDefinition:
    if table_id not in TABLES:
        raise DamagedError("no such table")
    return TABLES[table_id]


def mask(before: tuple[Any, ...], after: tuple[Any, ...], dice: Random) -> list[int]:
    """What an UPDATE sets: at least what differs."""
    return [at for at in range(len(before)) if not same_value(before[at], after[at]) or dice.random() < 0.2]


def update(table_id: int, before: tuple[Any, ...], after: tuple[Any, ...], dice: Random) -> Change:
    changed = mask(before, after, dice)
    return int(Op.UPDATE), table_id, sum(1 << at for at in changed), (*(after[at] for at in changed), *before)


class World:
    """Rows as they were, as they are, and the changes between; a model of what a fold should find."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.rows: dict[tuple[int, Any], tuple[Any, ...]] = {}
        self.touched: dict[tuple[int, Any], tuple[tuple[Any, ...] | None, int]] = {}
        self.changes: list[Change] = []
        for _ in range(dice.randint(0, 15)):
            self.rows.setdefault(*self.row(dice.choice((1, 2, 3))))

    def row(self, table_id: int) -> tuple[tuple[int, Any], tuple[Any, ...]]:
        """A row of a table, and what it is known by."""
        definition = TABLES[table_id]
        image = tuple(
            self.dice.randint(1, 6) if at in definition.key else self.dice.choice(VALUES)
            for at in range(len(definition.columns))
        )
        return self.known(table_id, image), image

    def known(self, table_id: int, image: tuple[Any, ...]) -> tuple[int, Any]:
        return table_id, tuple(image[at] for at in TABLES[table_id].key)

    def touch(self, key: tuple[int, Any], after: tuple[Any, ...] | None) -> None:
        self.touched.setdefault(key, (self.rows.get(key), len(self.changes)))
        if after is None:
            del self.rows[key]
        else:
            self.rows[key] = after

    def step(self, kinds: str) -> None:
        """One change; its transaction's number is its place, from 1 on."""
        table_id = self.dice.choice((1, 1, 2, 3))
        key, image = self.row(table_id)
        before = self.rows.get(key)
        kind = self.dice.choice(kinds)
        if before is None and "i" in kinds:
            self.changes.append((int(Op.INSERT), table_id, 0, image))
            self.touch(key, image)
        elif before is not None and kind == "d":
            self.changes.append((int(Op.DELETE), table_id, 0, before))
            self.touch(key, None)
        elif before is not None and kind == "u":
            after = tuple(old if at in TABLES[table_id].key else new
                          for at, (old, new) in enumerate(zip(before, image, strict=True)))  # fmt: skip
            self.changes.append(update(table_id, before, after, self.dice))
            self.touch(key, after)
        elif before is not None and kind == "m":
            self.move(table_id, key, before)

    def move(self, table_id: int, key: tuple[int, Any], before: tuple[Any, ...]) -> None:
        there, after = self.row(table_id)
        if there not in self.rows:
            self.changes.append(update(table_id, before, after, self.dice))
            self.touch(key, None)
            self.touch(there, after)

    def net(self) -> set[str]:
        return {
            repr((key[0], before, self.rows.get(key), seqno, key[1] if before is self.rows.get(key) is None else None))
            for key, (before, seqno) in self.touched.items()
        }


def history(seed: int) -> World:
    dice = Random(f"bulk-{seed}")
    world = World(dice)
    kinds = dice.choice(("iudm", "uuud", "u", "i", "id", "um"))
    for _ in range(dice.randint(1, 150)):
        world.step(kinds)
    return world


def folded(changes: list[Change], dice: Random) -> NetChange:
    """In windows of any size; as frames (of lists), or by columns as verified windows have them."""
    net = NetChange(definition_of)
    cuts = sorted({0, len(changes), *(dice.randint(0, len(changes)) for _ in range(dice.randint(0, 6)))})
    for start, stop in pairwise(cuts):
        window = changes[start:stop]
        if dice.random() < 0.5:
            net.fold(
                [int(Kind.TRANSACTION), start + n, 0, 0, 0, 0, 0, op, table_id, argument, list(values)]
                for n, (op, table_id, argument, values) in enumerate(window, 1)
            )
        else:
            net.fold_changes(Changes(*zip(*window, strict=True)), range(start + 1, stop + 1))
    return net


def as_text(rows: Iterable[NetRow]) -> set[str]:
    return {
        repr((row[0], *(image and tuple(image) for image in row[1:3]), row[3], row[4] and tuple(row[4])))
        for row in rows
    }


def test_random_histories_fold_to_what_a_model_says() -> None:
    parts = Part(0)
    for seed in range(HISTORIES):
        world = history(seed)
        net = folded(world.changes, world.dice)
        assert (net.change_count, net.key_count) == (len(world.changes), len(world.touched))
        assert as_text(net.rows()) == world.net(), seed
        for part in Part:
            rows, columns = list(net.rows(part)), list(net.columns(part))
            parts |= part if rows else Part(0)
            assert sum(one.rows for one in columns) == len(rows)
            for images, of_row in ((3, 1), (4, 2)):
                found = [image for one in columns for image in one[images]]
                assert repr(found) == repr([tuple(row[of_row]) for row in rows if row[of_row] is not None])  # type: ignore[arg-type]
    assert parts == EVERY_PART


def harmed(world: World) -> tuple[list[Change], int]:
    """The changes, one of which does not fit any more what is known of its row; and its number."""
    known: set[tuple[int, Any]] = set()
    for place, (op, table_id, argument, values) in enumerate(world.changes):
        length = len(TABLES[table_id].columns)
        before = values[-length:]
        key = world.known(table_id, before)
        if key in known:
            if op == Op.INSERT:
                found: Change = (int(Op.DELETE), table_id, 0, values)  # there is no such row
            else:
                other = tuple("else" if at not in TABLES[table_id].key else value for at, value in enumerate(before))
                found = (op, table_id, argument, (*values[:-length], *other))
            if found[3] != values or op == Op.INSERT:
                return [*world.changes[:place], found, *world.changes[place + 1 :]], place + 1
        known.add(key)
        if op == Op.UPDATE:
            (net,) = folded([(op, table_id, argument, values)], Random(0)).rows(Part.STAYED | Part.CAME)
            known.add(world.known(table_id, tuple(net.after or ())))
    return [], 0


def test_the_first_change_that_does_not_follow_is_named() -> None:
    count = 0
    for seed in range(HISTORIES):
        world = history(seed)
        changes, number = harmed(world)
        if number:
            count += 1
            with pytest.raises(ConflictError, match=f"transaction {number} does not fit"):
                folded(changes[:number], world.dice)
    assert count > HISTORIES // 2


@pytest.mark.parametrize("unique", [frozenset(), frozenset((1,)), frozenset((0,)), None])
@pytest.mark.parametrize("verify", [False, True])
def test_runs_are_the_changes_that_are_made_row_by_row(unique: Unique, verify: bool) -> None:
    made = dict.fromkeys(PHASES, 0)
    for seed in range(HISTORIES):
        world = history(seed)
        net = folded(world.changes, world.dice)
        for op in PHASES:
            # Only the first table has a second column that no key has.
            rows = [row for row in net.rows() if row.table_id == 1]
            single = [change_of(op, row, unique, verify=verify) for row in rows]
            runs = [
                (op, 1, argument, list(values))
                for one in net.columns()
                if one.table_id == 1
                for argument, images in bulk.runs(op, one, unique, verify=verify)
                for values in images
            ]
            made[op] += len(runs)
            expected = [repr((*change[:3], list(change[3]))) for change in single if change]
            assert sorted(map(repr, runs)) == sorted(expected), seed
    assert made[Op.DELETE] > 50 < made[Op.INSERT]
    assert (made[Op.UPDATE] > 0) == (verify or unique is not None)


def test_runs_keep_the_order_of_rows() -> None:
    befores = [(number, 0, "x") for number in range(50)]
    afters = [(number, number % 2, "y" if number % 3 else "x") for number in range(50)]
    found = NetColumns(1, Part.STAYED, 50, befores, afters)
    runs = list(bulk.runs(int(Op.UPDATE), found, frozenset()))
    assert sorted(argument for argument, _ in runs) == [2, 4, 6]
    for argument, values in runs:
        keys = [one[argument.bit_count()] for one in values]
        assert keys == sorted(keys)
    assert sum(len(values) for _, values in runs) == sum(a != b for a, b in zip(befores, afters, strict=True))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((int(Op.INSERT), 1, 0, (1, 2)), JournalDamagedError),
        ((int(Op.UPDATE), 1, 4, (1, 2, 3)), JournalDamagedError),
        ((int(Op.DELETE), 1, 0, "abc"), JournalDamagedError),
        ((int(Op.INSERT), 1, 0, ([1], 2, 3)), JournalDamagedError),
        ((int(Op.INSERT), [1], 0, (1, 2, 3)), JournalDamagedError),
        ((int(Op.INSERT), 9, 0, (1, 2, 3)), DamagedError),
    ],
)
def test_what_makes_no_sense_among_what_does_is_named(change: Any, error: Callable[..., Any]) -> None:
    good: list[Any] = [(int(Op.INSERT), 1, 0, (number, 2, 3)) for number in range(10)]
    net = NetChange(definition_of)
    with pytest.raises(error) as caught:  # type: ignore[call-overload]
        net.fold_changes(Changes(*zip(*good, change, *good, strict=True)), range(1, 22))
    if error is JournalDamagedError:
        assert caught.value.facts["seqno"] == 11


def test_what_is_no_row_leaves_the_numbers_of_rows_alone() -> None:
    """Counters and comments stand between rows of two tables; each row keeps the number of its first change."""
    net = NetChange(definition_of)
    changes: list[Any] = [
        (int(Op.SEQUENCE), 1, 0, (None, 1)),
        (int(Op.INSERT), 1, 0, (1, "a", 3)),
        (int(Op.COMMENT), 0, 0, ("said",)),
        (int(Op.INSERT), 3, 0, (5,)),
        (int(Op.SEQUENCE), 1, 0, (1, 2)),
        (int(Op.INSERT), 1, 0, (2, "b", 3)),
        (int(Op.UPDATE), 1, 2, ("c", 1, "a", 3)),
    ]
    net.fold_changes(Changes(*zip(*changes, strict=True)), range(11, 18))
    assert [(row.table_id, row.after, row.seqno) for row in net.rows()] == [
        (1, [1, "c", 3], 12),
        (1, [2, "b", 3], 16),
        (3, [5], 14),
    ]
    assert [tuple(counter) for counter in net.sequences()] == [(1, None, 2)]
    assert (net.change_count, net.key_count) == (4, 3)
