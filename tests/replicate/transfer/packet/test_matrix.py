"""The matrix: the description's three tables, estimates marked, ages told."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import UsageError
from replicate.limits import PARTITION_STREAM
from replicate.model.vector import Position, SynchronizationVector
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.packet.format import OriginName
from replicate.transfer.packet.matrix import MatrixRow, lay_out, matrix_of, set_estimate
from tests.harness.packets import export, now_ns, summary, take
from tests.harness.pair import Pair

SITES = ("bangalore", "boston_hub", "sanfran_hub")
KEYS = dict(zip(SITES, (3, 1, 2), strict=True))
ORIGINS = {key: OriginName(key, name, 1) for name, key in KEYS.items()}
S = 10**9


def at(**epochs: int) -> Position:
    vector = SynchronizationVector({(KEYS[name], PARTITION_STREAM): number for name, number in epochs.items()})
    return Position(sum(epochs.values()), vector)


OWN = at(boston_hub=950, sanfran_hub=504, bangalore=653)


def row(matrix: tuple[MatrixRow, ...], name: str) -> dict[str, int]:
    (found,) = [one for one in matrix if one.name == name]
    return dict(zip(SITES, found.epochs, strict=True))


def test_the_matrix_of_three_replicas() -> None:
    known = Epochs().heard("sanfran_hub", EpochRow(at(boston_hub=912, sanfran_hub=504, bangalore=653), 5 * S))
    known = known.heard("bangalore", EpochRow(at(boston_hub=709, sanfran_hub=221, bangalore=653), 7 * S))
    matrix = lay_out("boston_hub", OWN, known, ORIGINS, {}, 10 * S, 0)
    assert matrix.origins == SITES
    assert row(matrix.rows, "boston_hub") == {"boston_hub": 950, "sanfran_hub": 504, "bangalore": 653}
    assert row(matrix.rows, "sanfran_hub") == {"boston_hub": 912, "sanfran_hub": 504, "bangalore": 653}
    assert row(matrix.rows, "bangalore") == {"boston_hub": 709, "sanfran_hub": 221, "bangalore": 653}
    assert [(one.kind, one.age_s) for one in matrix.rows] == [("own", 0.0), ("heard", 5.0), ("heard", 3.0)]
    # An export to bangalore moves its row at once.
    after = known.exported(replace(summary(0, 1, targets=("bangalore",)), end=OWN, own=OWN), "f", 1)
    moved = lay_out("boston_hub", OWN, after, ORIGINS, {}, 10 * S, 0)
    assert row(moved.rows, "bangalore") == row(moved.rows, "boston_hub")
    assert [one.kind for one in moved.rows] == ["own", "heard", "estimated"]
    assert row(moved.rows, "sanfran_hub") == row(matrix.rows, "sanfran_hub")


def test_incarnations_are_folded_unless_each_is_asked_for() -> None:
    origins = {1: OriginName(1, "east", 1), 2: OriginName(2, "east", 2)}
    vector = SynchronizationVector({(1, PARTITION_STREAM): 40, (2, PARTITION_STREAM): 5})
    folded = lay_out("east", Position(45, vector), Epochs(), origins, {}, 0, 0)
    assert (folded.origins, folded.rows[0].epochs) == (("east",), (45,))
    each = lay_out("east", Position(45, vector), Epochs(), origins, {}, 0, 0, by_origin=True)
    assert (each.origins, each.rows[0].epochs) == (("east/1", "east/2"), (40, 5))


def test_one_that_was_never_heard_of_has_zeros() -> None:
    matrix = lay_out("boston_hub", OWN, Epochs(), ORIGINS, {"off": True}, 10 * S, 5.0)
    assert (matrix.rows[1].epochs, matrix.rows[1].age_s, matrix.rows[1].is_late) == ((0, 0, 0), None, False)


def test_who_does_not_confirm_is_late() -> None:
    made = summary(0, 9, targets=("off",), wall_ns=2 * S)
    known = Epochs().exported(made, "f", 1)
    for now_s, within_s, by_packets, late in ((8, 5.0, True, True), (6, 5.0, True, False), (8, 0.0, True, False),
                                              (8, 5.0, False, False)):  # fmt: skip
        matrix = lay_out("boston_hub", OWN, known, ORIGINS, {"off": by_packets}, now_s * S, within_s)
        assert matrix.rows[1].is_late is late


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def test_of_an_instance(pair: Pair) -> None:
    last = pair.write(4)
    (made,) = export(pair.primary, pair.directory / "out", "west")
    matrix = matrix_of(pair.primary, now_ns())
    assert [(one.name, one.kind, one.seqno) for one in matrix.rows] == [
        ("east", "own", last),
        ("west", "estimated", last),
    ]
    assert matrix.rows[0].epochs == matrix.rows[1].epochs
    take(pair.secondary, made.path)
    (back,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    take(pair.primary, back.path)
    assert matrix_of(pair.primary, now_ns()).rows[1].kind == "heard"
    there = matrix_of(pair.secondary, now_ns())
    assert [(one.name, one.kind, one.seqno) for one in there.rows] == [("west", "own", last), ("east", "heard", last)]


def test_an_operator_sets_a_row_within_its_bounds(pair: Pair) -> None:
    last = pair.write(4)
    set_estimate(pair.primary, "west", last - 1, now_ns())
    (made,) = export(pair.primary, pair.directory / "out", "west")
    assert made.first_seqno == last
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    set_estimate(pair.primary, "off", 0, now_ns())
    with pytest.raises(UsageError, match="is beyond that"):
        set_estimate(pair.primary, "west", last + 1, now_ns())
    known = read_epochs(pair.primary.consumers_directory).of("off").known
    assert known is not None
    assert known.seqno == 0
