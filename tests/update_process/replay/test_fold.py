"""Folding by columns comes to the same as taking change by change; what does not follow is found at its place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replicate.errors import JournalDamagedError
from replicate.model.transaction import Column, Op, TableDefinition, mask_of
from update_process.replay.fold import GONE, Events, Table, images, moved, senseless, way_of

DEFINITION = TableDefinition(
    "main", 1, "main", "t", 1, tuple(Column(f"c{at}", "", False, "BINARY") for at in range(3)), (1,), False, False, True
)
PAIR = TableDefinition("main", 2, "main", "p", 1, DEFINITION.columns, (2, 0), False, False, True)
ONE = TableDefinition("main", 3, "main", "o", 1, DEFINITION.columns[:1], (0,), False, False, True)


def history(chance: random.Random, count: int) -> list[tuple[Any, Any, Any, int]]:
    """(key, image before, image after, number) of changes that follow from each other."""
    rows: dict[Any, Any] = {key: ("old", key) for key in range(4)}
    made = []
    for number in range(1, count + 1):
        key = chance.randrange(8)
        before = rows.get(key, GONE)
        after = GONE if before is not GONE and chance.random() < 0.3 else (number, key)
        made.append((key, before, after, number))
        rows[key] = after
    return made


def folded(changes: list[tuple[Any, Any, Any, int]]) -> tuple[dict[Any, tuple[Any, Any, int]], int | None]:
    """Key -> first image before, last image after, first number; the place of the first that does not follow."""
    found: dict[Any, tuple[Any, Any, int]] = {}
    for place, (key, before, after, number) in enumerate(changes):
        if key in found:
            first, last, first_number = found[key]
            if last != before:
                return found, place
            found[key] = first, after, first_number
        else:
            found[key] = before, after, number
    return found, None


def as_events(changes: list[tuple[Any, Any, Any, int]]) -> Events:
    return Events(*map(list, zip(*changes, strict=True)))


@pytest.mark.parametrize("number", range(30))
def test_by_columns_is_as_change_by_change(number: int) -> None:
    chance = random.Random(number)
    changes = history(chance, 40)
    table, start = Table(DEFINITION), 0
    while start < len(changes):  # whatever the runs are in which they come
        stop = min(len(changes), start + chance.randrange(1, 12))
        assert table.take(as_events(changes[start:stop])) is None
        start = stop
    keys = table.settle()
    rows = dict(zip(keys, zip(table.befores, table.afters, table.seqnos, strict=True), strict=True))
    assert rows == folded(changes)[0]
    assert keys == sorted(keys)


@pytest.mark.parametrize("number", range(30))
def test_the_first_change_that_does_not_follow_is_named(number: int) -> None:
    chance = random.Random(number)
    changes = history(chance, 40)
    seen = [place for place, change in enumerate(changes) if change[0] in {one[0] for one in changes[:place]}]
    for bad in chance.sample(seen, 3):
        key, _, after, seqno = changes[bad]
        changes[bad] = key, ("forged",), after, seqno
    assert Table(DEFINITION).take(as_events(changes)) == folded(changes)[1]


def test_keys_that_cannot_be_ordered_stay_as_they_came() -> None:
    table = Table(DEFINITION)
    changes = [(key, GONE, (key,), at) for at, key in enumerate((3, "a", 1, b"x"), 1)]
    assert table.take(as_events(changes)) is None
    assert table.settle() == [3, "a", 1, b"x"]
    assert table.seqnos == [1, 2, 3, 4]


@pytest.mark.parametrize("definition", [DEFINITION, PAIR, ONE], ids=["one of three", "a pair", "one of one"])
def test_each_kind_of_change_is_taken_apart(definition: TableDefinition) -> None:
    length = definition.image_length
    before, after = tuple(f"b{at}" for at in range(length)), tuple(f"a{at}" for at in range(length))

    def key_of(image: tuple[str, ...]) -> Any:
        key = tuple(image[at] for at in definition.key)
        return key if len(key) > 1 else key[0]

    way = way_of(Op.INSERT, 0, definition)
    assert (way.width, way.key(after), way.before(after), way.after(after)) == (length, key_of(after), GONE, after)
    way = way_of(Op.DELETE, 0, definition)
    assert (way.width, way.key(before), way.before(before), way.after(before)) == (length, key_of(before), before, GONE)
    for bits in range(1, 2**length):
        changed = [at for at in range(length) if bits >> at & 1]
        new = tuple(after[at] if at in changed else before[at] for at in range(length))
        values = (*(after[at] for at in changed), *before)
        way = way_of(Op.UPDATE, mask_of(changed, length), definition)
        assert (way.width, way.key(values)) == (len(values), key_of(before))
        assert (way.before(values), way.after(values)) == (before, new)
        moves = not {*changed}.isdisjoint(definition.key)
        assert (way.key_after is not None) == moves
        if way.key_after is not None:
            assert way.key_after(values) == key_of(new)


def test_a_mask_of_columns_that_are_not_there_is_damage() -> None:
    with pytest.raises(JournalDamagedError):
        way_of(Op.UPDATE, 1 << DEFINITION.image_length, DEFINITION)


def test_a_row_that_moves_ends_there_and_begins_here() -> None:
    events = as_events([(1, ("a",), ("b",), 7), (2, ("c",), ("d",), 8)])
    assert moved(events, [1, 3]) == as_events([(1, ("a",), ("b",), 7), (2, ("c",), GONE, 8), (3, GONE, ("d",), 8)])


def test_images_are_tuples_of_the_right_length_or_damage_by_number() -> None:
    assert images([[1, 2], (3,)], [2, 1], [5, 6]) == [(1, 2), (3,)]
    whole = [(1, 2), (3,)]
    assert images(whole, [2, 1], [5, 6]) is whole
    for values in ([(1, 2), (3, 4)], [(1, 2), 3], [(1, 2), "3"]):
        with pytest.raises(JournalDamagedError) as caught:
            images(values, [2, 1], [5, 6])
        assert caught.value.facts["seqno"] == 6


def test_what_cannot_be_hashed_is_named_by_its_transaction() -> None:
    changes: Any = ([1, 1], [1, 1], [0, 0], [[1], [{}]])
    error = senseless(changes, [5, 6], TypeError("unhashable"))
    assert error.facts["seqno"] == 6
    assert "transaction 6 makes no sense" in str(error)
