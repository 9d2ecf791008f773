"""Plain windows: their columns say what the loops over frames say, for every cut; what is not plain is left alone."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from replicate.errors import DivergedError, GapError, JournalDamagedError, ReplicateError
from replicate.journal.record import changes_of, pack_null, read_head, renumbered
from replicate.model.vector import Position, SynchronizationVector
from tests.harness import frames
from tests.harness.frames import Writer
from update_process.plan import Window, advance, open_window
from update_process.window.columns import Points

PARTITIONS = {9: 1, 10: 2, 11: None}


def window(made: list[bytes], points: Points | None = None, next_seqno: int = 1) -> Window:
    data = b"".join(made)
    return open_window(data, frames.decode(data), next_seqno, {} if points is None else points)


def written(shape: str, count: int = 40) -> tuple[list[bytes], Writer]:
    dice = random.Random(shape)
    writer = Writer(origin=7)
    made = []
    for number in range(count):
        if shape == "nulls" or (shape == "with nulls" and dice.random() < 0.4):
            made.append(pack_null(read_head(writer.frame([frames.INSERT, 9, 0, [number]])), "", ()))
            continue
        rows = 1 if shape in ("single", "with nulls") else dice.choice([0, 1, 2, 5])
        made.append(
            writer.frame(
                list(
                    chain.from_iterable(
                        (dice.choice([frames.INSERT, frames.DELETE]), dice.choice([9, 10, 11]), 0, [number, row])
                        for row in range(rows)
                    )
                )
            )
        )
    return made, writer


@pytest.mark.parametrize("shape", ["single", "several", "with nulls", "nulls"])
def test_every_cut_has_the_changes_and_the_position_of_its_frames(shape: str) -> None:
    made, writer = written(shape)
    points: Points = {}
    found = window(made, points)
    assert found.plain is not None
    assert points == {7: writer.chains[7]}
    before = Position(0, SynchronizationVector(), {})
    for start in range(0, 40, 3):
        for stop in range(start + 1, 41):
            bodies = found.bodies[start:stop]
            changes = list(chain.from_iterable(zip(*found.plain.changes(start, stop), strict=True)))
            assert changes == list(chain.from_iterable(map(changes_of, bodies)))
            assert list(found.plain.seqnos(start, stop)) == [
                body[1] for body in bodies for _ in range(0, len(changes_of(body)), 4)
            ]
            assert found.position_at(before, start, stop, PARTITIONS.get) == advance(before, bodies, PARTITIONS.get)


@pytest.mark.parametrize("shape", ["single", "several", "with nulls", "nulls"])
@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("place", [0, 1, 20, 39])
def test_a_number_of_this_journal_that_does_not_follow_is_a_gap(shape: str, step: int, place: int) -> None:
    """The part that travels is whole, its chain too: it does not cover the number that a journal gives."""
    made, _ = written(shape)
    made[place] = renumbered(made[place], place + 1 + step, 0)
    points: Points = {}
    with pytest.raises(GapError) as caught:
        window(made, points)
    assert (caught.value.facts["expected"], caught.value.facts["got"]) == (place + 1, place + 1 + step)
    assert points == {}


@pytest.mark.parametrize("text_bytes", [10, 3000], ids=["copied", "viewed"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_every_hash_is_looked_at_however_long_the_frames(text_bytes: int, rows: int, place: int) -> None:
    def made(wrong: str) -> list[bytes]:
        writer = Writer(origin=7)
        return [
            writer.frame([frames.INSERT, 9, 0, [n, (wrong if n == place else "x") * text_bytes]] * rows)
            for n in range(10)
        ]

    found = window(made("x"))
    assert found.plain is not None
    other = made("x")
    other[place] = other[place][:41] + made("y")[place][41:]
    points: Points = {}
    with pytest.raises(DivergedError) as caught:
        window(other, points)
    assert caught.value.facts["seqno"] == place + 1
    assert points == {}


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("diverges", [False, True])
def test_a_hash_that_is_no_number_makes_no_sense_wherever_it_stands(place: int, diverges: bool) -> None:
    made, _ = written("single", 6)
    made[place] = made[place][:32] + b"\xcb" + made[place][33:]  # the marker of a float
    points = {7: (0, 1)} if diverges else {}
    with pytest.raises(JournalDamagedError, match="makes no sense"):
        window(made, points)


@pytest.mark.parametrize("kind", ["a null that names partitions", "history", "schema", "other origin"])
def test_what_is_not_plain_is_left_to_the_loop(kind: str) -> None:
    made, writer = written("single", 3)
    if kind == "a null that names partitions":
        made.append(writer.frame(["void", [1]], frames.NULL))
    elif kind == "schema":
        made.append(writer.frame([frames.SCHEMA, 0, "main", ["CREATE TABLE a (b)"]]))
    else:
        writer.origin = 8
        if kind == "history":
            made.append(writer.frame([b"i" * 16, "one", 1, 0, [], "created"], frames.HISTORY))
        else:
            made += writer.many(1)
    points: Points = {}
    found = window(made, points)
    assert found.plain is None
    assert found.alone == ([3] if kind in ("history", "schema") else [])
    assert points == writer.chains


@pytest.mark.parametrize(
    ("kind", "origins", "refused"),
    [
        (frames.PART, (7, 7), JournalDamagedError),
        (frames.NULL, (7, 7), None),
        (frames.TRANSACTION, (7, 8), GapError),
        (frames.TRANSACTION, (0, 0), None),
    ],
    ids=["part", "null", "another origin", "no origin"],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_only_looks_like_a_row_of_the_same_origin_is_not_plain(
    kind: int, origins: tuple[int, int], refused: type[ReplicateError] | None, rows: int
) -> None:
    """Numbers and chain go on as if nothing were wrong. (Where the loop takes it, its position is what refuses no
    origin, and a NULL record changes no row.)"""
    change = [frames.INSERT, 9, 0, [1, "x"]] * rows
    first, chain_hash = frames.pack_frame(frames.TRANSACTION, 1, 0, 0, origins[0], 1, 100, change)
    second, _ = frames.pack_frame(kind, 2, 0, chain_hash, origins[1], 2, 101, change)
    if refused is not None:
        with pytest.raises(refused):
            window([first, second])
    else:
        assert window([first, second]).plain is None
