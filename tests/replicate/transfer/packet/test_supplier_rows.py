"""What a supplier knows of what another has: by its last word, by what it told, by what was exported to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.limits import PARTITION_STREAM
from replicate.model.ruv import covers
from replicate.model.transaction import History
from replicate.model.vector import Chains, Origin, Position, SynchronizationVector
from replicate.transfer.packet.epochs import EpochRow, Replica
from replicate.transfer.packet.format import OriginName
from replicate.transfer.packet.supplier_rows import (
    UNPROVEN,
    MetSupplier,
    SupplierRow,
    joined,
    lowest,
    met_suppliers,
    needed,
    proven,
    row_of,
    vector_of,
)

A, B = bytes([1]) * 16, bytes([2]) * 16
OF_A, OF_B, LATER = Origin(A, 1).key, Origin(B, 1).key, Origin(B, 2).key
HERE: Chains = {OF_A: (10, 110), OF_B: (5, 25)}
ROWS = st.dictionaries(st.integers(1, 5), st.tuples(st.integers(0, 9), st.integers(1, 2**64 - 1)), max_size=5)


def history(instance: bytes, name: str, incarnation: int, **base: int) -> History:
    keys = {"a": OF_A, "b": OF_B}
    vector = SynchronizationVector({(keys[one], PARTITION_STREAM): number for one, number in base.items()})
    return History(instance, name, incarnation, 0, vector, "test")


def at(chains: Chains, seqno: int = 1, wall_ns: int = 1) -> EpochRow:
    return EpochRow(Position(seqno, vector_of(chains), chains), wall_ns)


def met(**told: int) -> MetSupplier:
    keys = {"a": OF_A, "b": OF_B}
    return MetSupplier("b", B, 1, OF_B, {keys[one]: number for one, number in told.items()})


def test_what_it_writes_it_has_and_what_it_told_counts() -> None:
    assert row_of(met(a=7), Replica(), HERE) == SupplierRow(
        {OF_A: (7, UNPROVEN), OF_B: (5, 25)}, {OF_A: (7, UNPROVEN), OF_B: (5, 25)}
    )


def test_of_one_that_was_never_met_nothing_is_known() -> None:
    assert row_of(None, Replica(), HERE) is None
    word = at({OF_A: (3, 33)})
    assert row_of(None, Replica(word), HERE) == SupplierRow({OF_A: (3, 33)}, {OF_A: (3, 33)})


def test_its_last_word_counts_alone_until_it_has_written_since() -> None:
    """One that was restored has less than it told before."""
    word = at({OF_A: (3, 33), OF_B: (5, 25)})
    row = row_of(met(a=7), Replica(word), HERE)
    assert row is not None
    assert row.heard[OF_A] == (3, 33)
    since = row_of(met(a=7), Replica(word), {**HERE, OF_B: (6, 26)})
    assert since is not None
    assert since.heard[OF_A] == (7, UNPROVEN)


def test_what_was_exported_is_known_and_not_heard() -> None:
    row = row_of(met(a=7), Replica(None, at({OF_A: (10, 110)})), HERE)
    assert row is not None
    assert (row.heard[OF_A], row.known[OF_A]) == ((7, UNPROVEN), (10, 110))


def test_a_later_incarnation_has_told_nothing_and_its_base_is_what_it_had() -> None:
    histories = [history(A, "a", 1), history(B, "b", 1, a=2), history(B, "b", 2, a=6, b=5)]
    seen = {OF_B: {OF_A: 9}, LATER: {OF_A: 7}}
    found = met_suppliers(histories, [], seen)
    assert found["b"] == MetSupplier("b", B, 2, LATER, {OF_A: 7, OF_B: 5})
    assert met_suppliers(histories[:2], [], seen)["b"].told == {OF_A: 9}
    # Its own packets say so before its journal does.
    restored = met_suppliers(histories[:2], [OriginName(LATER, "b", 2)], seen)["b"]
    assert (restored.living, restored.incarnation, restored.told) == (LATER, 2, {})


def test_one_that_was_made_again_under_its_name_is_another() -> None:
    again = bytes([3]) * 16
    histories = [history(B, "b", 5, a=9), history(again, "b", 1, a=2)]
    found = met_suppliers(histories, [OriginName(Origin(B, 6).key, "b", 6)], {})["b"]
    assert found == MetSupplier("b", again, 1, Origin(again, 1).key, {OF_A: 2})


def test_a_row_asks_for_no_more_than_is_here() -> None:
    assert needed({OF_A: (12, 1), OF_B: (4, 2), 7: (1, 1)}, HERE) == {OF_A: (10, 110), OF_B: (4, 2)}


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_the_lowest_is_what_all_have(rows: list[Chains]) -> None:
    found = lowest(rows)
    assert all(covers(row, found) for row in rows)
    for origin in set.intersection(*(set(row) for row in rows)):
        assert found[origin] in [row[origin] for row in rows]


@given(ROWS, ROWS)
def test_joined_covers_both_and_nothing_more(one: Chains, other: Chains) -> None:
    made = joined(one, other)
    assert covers(made, one)
    assert covers(made, other)
    assert all(place in (one.get(origin), other.get(origin)) for origin, place in made.items())
    assert vector_of(made) == vector_of(joined(other, one))


def test_a_hash_that_nobody_told_is_filled_in_where_it_is_ours() -> None:
    assert joined({OF_A: (3, UNPROVEN)}, {OF_A: (3, 33)}) == {OF_A: (3, 33)}
    assert proven({OF_A: (10, UNPROVEN), OF_B: (4, UNPROVEN)}, HERE) == {OF_A: (10, 110), OF_B: (4, UNPROVEN)}
    other = {OF_A: (10, 7)}
    assert proven(other, HERE) == other, "that it is another one is for the decision to find"
    assert replace(met(), name="c").name == "c"
