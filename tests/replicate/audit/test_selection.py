"""Names and keys as an operator writes them. (What a selection picks: test_read.py.)"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.audit.selection import Chooser, Selection, is_key, keys_of, ops_named, origins_named, row_named
from replicate.errors import JournalDamagedError, NotFoundError, UsageError
from replicate.model.transaction import History, Op, TableDefinition, mask_of
from replicate.model.vector import SynchronizationVector
from tests.harness.journals import INSTANCE, make_definition

PLAIN = make_definition()
DOUBLE = replace(make_definition("double"), key=(2, 0))


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("5", [5, 5.0, "5"]),
        ("5.0", [5, 5.0, "5.0"]),
        ("-9223372036854775808", [-(2**63)]),
        ("2.5", [2.5, "2.5"]),
        ("NULL", [None, "NULL"]),
        ("X'00ff'", [b"\x00\xff", "X'00ff'"]),
        ("it's", ["it's"]),
        ("", [""]),
    ],
)
def test_a_word_of_a_key_means_each_value_that_is_written_so(word: str, values: list[object]) -> None:
    key = row_named([word], PLAIN)[0]
    assert all(is_key(key, [value]) for value in values)
    assert not any(is_key(key, [value]) for value in (6, "other", b"5", b""))


def test_a_key_of_two_columns_is_given_in_the_order_of_the_key() -> None:
    assert is_key(row_named(["a", "1"], DOUBLE)[0], ("a", 1))
    with pytest.raises(UsageError, match="the key of double has 2 values, 1 were given") as caught:
        row_named(["a"], DOUBLE)
    assert caught.value.do == "Give, in this order: c2, c0; or name columns: c0=VALUE, c1=VALUE"


NUMBERED = replace(PLAIN, columns=(replace(PLAIN.columns[0], type="integer"), *PLAIN.columns[1:]))


@pytest.mark.parametrize("definition", [make_definition(rowid=True), NUMBERED])
def test_a_rowid_is_a_whole_number(definition: TableDefinition) -> None:
    for word in ("7", "7.0", "-7"):
        assert is_key(row_named([word], definition)[0], (int(float(word)),))
    for word in ("7.5", "x", "NULL", "colour=red", "X'07'"):
        with pytest.raises(UsageError, match="is a whole number") as caught:
            row_named([word], definition)
        assert "c0, c1, c2: COLUMN=VALUE" in caught.value.do
    assert row_named(["c1=x"], definition)[1] == ("c1",)


@pytest.mark.parametrize("definition", [replace(NUMBERED, without_rowid=True), replace(NUMBERED, key=(0, 1)), DOUBLE])
def test_what_only_looks_like_a_rowid_may_hold_anything(definition: TableDefinition) -> None:
    words = ["x"] * len(definition.key)
    assert is_key(row_named(words, definition)[0], words)


def test_the_keys_of_a_change() -> None:
    assert keys_of(DOUBLE, Op.INSERT, 0, (1, 2, 3)) == [(3, 1)]
    assert keys_of(DOUBLE, Op.UPDATE, mask_of((1,), 3), ("x", 1, 2, 3)) == [(3, 1)]
    assert keys_of(DOUBLE, Op.UPDATE, mask_of((0, 1), 3), (9, "x", 1, 2, 3)) == [(3, 1), (3, 9)]
    with pytest.raises(JournalDamagedError, match="does not fit table double"):
        keys_of(DOUBLE, Op.INSERT, 0, (1, 2))


def test_operations_and_origins_by_their_names() -> None:
    assert ops_named(["insert", "DELETE"]) == {Op.INSERT, Op.DELETE}
    with pytest.raises(UsageError, match="there is no operation 'remove'"):
        ops_named(["remove"])
    known = [History(INSTANCE, "east", number, 0, SynchronizationVector(), "") for number in (1, 2)]
    keys = [one.origin.key for one in known]
    assert origins_named(["east"], known) == set(keys)
    assert origins_named(["east/2"], known) == {keys[1]}
    assert origins_named([f"{keys[0]:08x}"], known) == {keys[0]}
    with pytest.raises(NotFoundError, match="knows no origin 'west'") as caught:
        origins_named(["west"], known)
    assert caught.value.do == "There is east/1, east/2"


def test_a_table_that_nothing_has_defined_yet_is_in_no_frame() -> None:
    mark = Chooser(Selection(tables=frozenset({PLAIN.name})), {}).mark
    assert mark is not None
    assert mark.search(bytes(range(256))) is None
