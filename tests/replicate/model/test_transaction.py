"""Definitions, history and catalogue round-trip; views of changes are exact; junk raises named errors only."""

from __future__ import annotations

import string

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import FormatUnknownError, InternalError, JournalDamagedError, ReplicateError
from replicate.model.transaction import (
    RAW_TEXT_CODE,
    Catalogue,
    Column,
    DefinitionChange,
    History,
    LogComment,
    Op,
    RegionChange,
    Resolved,
    RowChange,
    SchemaChange,
    Seen,
    SequenceChange,
    TableDefinition,
    changed_of,
    decode_change,
    mask_of,
    unpack_partitions,
)
from replicate.model.vector import SynchronizationVector
from tests.harness.journals import INSTANCE, make_definition

NAMES = st.text(string.ascii_letters, min_size=1, max_size=8)
COLUMNS = st.builds(Column, NAMES, NAMES, st.booleans(), NAMES)


@st.composite
def definitions(draw: st.DrawFn) -> TableDefinition:
    columns = tuple(draw(st.lists(COLUMNS, min_size=1, max_size=6)))
    rowid = draw(st.booleans())
    ordinals = st.integers(0, len(columns) + rowid - 1)
    return TableDefinition(
        draw(NAMES), draw(st.integers(1, 99)), draw(NAMES), draw(NAMES), draw(st.integers(0, 2**32 - 1)), columns,
        tuple(draw(st.lists(ordinals, min_size=1, unique=True))), rowid, draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


HISTORIES = st.builds(
    History,
    st.binary(min_size=16, max_size=16), NAMES, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1),
    st.dictionaries(st.tuples(st.integers(1, 9), st.integers(0, 2)), st.integers(1, 99)).map(SynchronizationVector),
    NAMES, st.integers(0, 2**64 - 1),
)  # fmt: skip
VALUES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.binary(max_size=5) | st.just(msgpack.ExtType(RAW_TEXT_CODE, b"\xff"))
)  # fmt: skip
JUNK = st.recursive(
    VALUES | st.booleans() | st.integers(2**63, 2**64 - 1) | st.just(msgpack.ExtType(9, b"")),
    lambda inner: st.lists(inner, max_size=10),
)


@given(definitions())
def test_definition_round_trip(definition: TableDefinition) -> None:
    again = TableDefinition.unpack(msgpack.unpackb(msgpack.packb(definition.pack())))
    assert again == definition
    assert again.table_id == definition.table_id
    assert definition.table_id >> 31 == 1
    assert definition.image_length == len(definition.columns) + definition.rowid


def test_any_difference_makes_another_id() -> None:
    plain = make_definition()
    others = [
        replace(plain, table="customers"), replace(plain, version=2), replace(plain, rowid=True),
        replace(plain, columns=plain.columns[::-1]), replace(plain, key=(1,)), replace(plain, partition=2),
    ]  # fmt: skip
    assert len({plain.table_id, *(other.table_id for other in others)}) == 7


@given(st.lists(definitions(), max_size=4), st.lists(HISTORIES, max_size=3))
def test_catalogue_round_trip(some: list[TableDefinition], histories: list[History]) -> None:
    catalogue = Catalogue(vector=SynchronizationVector({(1, 0): 5}), chains={1: (5, 77)})
    for definition in some:
        catalogue = catalogue.with_definition(definition)
    for history in histories:
        catalogue = catalogue.with_history(history)
    again = Catalogue.unpack(msgpack.unpackb(msgpack.packb(catalogue.pack())))
    assert again == catalogue
    assert list(again.definitions) == list(catalogue.definitions)


def test_the_last_definition_of_a_table_is_in_force() -> None:
    old, new, other = make_definition(), make_definition(version=2), make_definition("order")
    catalogue = Catalogue().with_definition(old).with_definition(other).with_definition(new)
    assert catalogue.in_force()[old.name] == new
    assert set(catalogue.newest().definitions) == {new.table_id, other.table_id}
    back = catalogue.with_definition(old)  # a schema change taken back: the same definition is in force again
    assert back.in_force()[old.name] == old
    assert len(back.definitions) == 3


def test_an_id_that_is_taken_is_refused() -> None:
    one, other = make_definition("one"), make_definition("other")
    with pytest.raises(InternalError, match="one, other"):
        Catalogue({other.table_id: one}).with_definition(other)


@given(st.sets(st.integers(0, 120), max_size=30), st.integers(121, 200))
def test_masks(changed: set[int], image_length: int) -> None:
    ordinals = tuple(sorted(changed))
    assert changed_of(mask_of(ordinals, image_length), image_length) == ordinals
    low = tuple(ordinal for ordinal in ordinals if ordinal < 64)
    mask = mask_of(low, 64)
    assert isinstance(mask, int)
    assert changed_of(mask) == low


@given(st.lists(VALUES, min_size=1, max_size=80), st.data())
def test_update_gives_both_whole_images(before: list[object], data: st.DataObject) -> None:
    changed = sorted(data.draw(st.sets(st.integers(0, len(before) - 1))))
    after = list(before)
    for ordinal in changed:
        after[ordinal] = data.draw(VALUES)
    flat = [after[ordinal] for ordinal in changed] + before
    change = decode_change(2, 7, mask_of(changed, len(before)), flat)
    assert change == RowChange(Op.UPDATE, 7, tuple(before), tuple(after), tuple(changed))


def test_each_operation() -> None:
    definition = make_definition()
    assert decode_change(1, 7, 0, [1, "a"]) == RowChange(Op.INSERT, 7, None, (1, "a"))
    assert decode_change(3, 7, 0, [1, "a"]) == RowChange(Op.DELETE, 7, (1, "a"), None)
    assert decode_change(4, definition.table_id, 1, definition.pack()) == DefinitionChange(definition)
    assert decode_change(5, 0, "main", ["CREATE TABLE t (a)"]) == SchemaChange("main", "CREATE TABLE t (a)")
    assert decode_change(6, 0, 0, ["hello"]) == LogComment("hello")
    assert decode_change(7, 7, 0, [None, 2**62]) == SequenceChange(7, None, 2**62)
    assert decode_change(8, 0, "main", ["added", INSTANCE]) == RegionChange("main", "added", INSTANCE)
    assert decode_change(8, 4, "main", ["shared", INSTANCE, 2]) == RegionChange("main", "shared", INSTANCE, 4, 2)
    whole = RegionChange("main", "shared", INSTANCE, 4, 2, True)
    assert decode_change(8, 4, "main", ["shared", INSTANCE, 2, True]) == whole
    summed = RegionChange("main", "shared", INSTANCE, 4, 2, summed=("t", "n"))
    assert decode_change(8, 4, "main", ["shared", INSTANCE, 2, False, ["t", "n"]]) == summed
    by_table = RegionChange("main", "shared", INSTANCE, 4, 2, summed=("t", "n"), whole=("u",))
    assert decode_change(8, 4, "main", ["shared", INSTANCE, 2, False, ["t", "n", "u", None]]) == by_table
    for names in (["t"], "tn", [1, 2], 7):
        with pytest.raises(JournalDamagedError, match="sum"):
            decode_change(8, 4, "main", ["shared", INSTANCE, 2, False, names])
    fenced = RegionChange("main", "fenced", INSTANCE, number=5, is_once=True)
    assert decode_change(8, 0, "main", ["fenced", INSTANCE, 5, True]) == fenced
    stands = RegionChange("main", "stands", INSTANCE, other=INSTANCE, number=5, turn=2)
    assert decode_change(8, 0, "main", ["stands", INSTANCE, 5, INSTANCE, 2]) == stands
    assert decode_change(8, 0, "main", ["unfenced", INSTANCE, 5]) == RegionChange(
        "main", "unfenced", INSTANCE, number=5
    )
    for values in (
        ["fenced", INSTANCE, 0, True],
        ["stands", INSTANCE, 5, b"x", 1],
        ["stands", INSTANCE, 5, INSTANCE, 3],
    ):
        with pytest.raises(JournalDamagedError):
            decode_change(8, 0, "main", values)
    assert decode_change(8, 4, "main", ["left", INSTANCE]) == RegionChange("main", "left", INSTANCE, 4)
    assert decode_change(10, 0, 0, [5, 1, 7]) == Seen(5, {1: 7})
    assert decode_change(11, 0, 1, [b"payload", 4, [b"lost"]]) == Resolved(1, b"payload", 4, (b"lost",))
    assert decode_change(11, 0, 0, []) == Resolved(0, b"", 0)


def test_an_operation_of_a_later_release_is_named() -> None:
    with pytest.raises(FormatUnknownError, match="operation 99"):
        decode_change(99, 0, 0, [])


def test_a_definition_under_a_strange_id_is_refused() -> None:
    definition = make_definition()
    with pytest.raises(JournalDamagedError):
        decode_change(4, definition.table_id ^ 1, 1, definition.pack())


@pytest.mark.slow
@given(st.integers(0, 12), JUNK, JUNK, JUNK)
def test_junk_changes_raise_named_errors_only(op: int, ident: object, argument: object, values: object) -> None:
    try:
        decode_change(op, ident, argument, values)
        decode_change(op, 7, argument, values)
    except ReplicateError:
        pass


@pytest.mark.slow
@given(JUNK)
def test_junk_records_raise_named_errors_only(junk: object) -> None:
    for unpack in (Column.unpack, TableDefinition.unpack, Catalogue.unpack, unpack_partitions):
        try:
            unpack(junk)
        except ReplicateError:
            pass
    try:
        History.unpack(junk, 1)
    except ReplicateError:
        pass


@pytest.mark.slow
@given(definitions(), st.integers(0, 9), JUNK)
def test_a_definition_with_one_part_replaced(definition: TableDefinition, index: int, junk: object) -> None:
    packed = definition.pack()
    packed[index] = junk
    try:
        TableDefinition.unpack(packed)
    except JournalDamagedError:
        pass
