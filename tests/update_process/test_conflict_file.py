"""update_process/conflict_file.py: both images, each value in its class, for the owner only; no image in the error."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from replicate.errors import BusyError, ConflictError, DamagedError, NotFoundError
from replicate.model.transaction import Op
from replicate.region.sqlite.apply.rows import Conflict
from update_process.conflict_file import conflict_path, read_conflict, stopped, write_conflict

SECRET = "a secret of a row"


def conflict(**changes: object) -> Conflict:
    made = {
        "seqno": 0, "region": "main", "table": "t", "op": int(Op.UPDATE), "reason": "the row is another one",
        "key": (1,), "columns": ("id", "v"), "expected": (1, SECRET), "found": (1, b"\x00\xff"), "after": None,
        **changes,
    }  # fmt: skip
    return Conflict(**made)  # type: ignore[arg-type]


def test_it_is_read_as_it_was_written_and_only_by_its_owner(tmp_path: Path) -> None:
    path = write_conflict(tmp_path, conflict(seqno=9), "a transaction's name")
    assert path == conflict_path(tmp_path, 9)
    assert path.stat().st_mode & 0o777 == 0o600
    facts = read_conflict(tmp_path, 9)
    assert (facts["seqno"], facts["transaction"], facts["operation"]) == (9, "a transaction's name", "UPDATE")
    assert (facts["expected"], facts["after"]) == ({"id": 1, "v": SECRET}, None)
    write_conflict(tmp_path, conflict(seqno=9, reason="another time"))
    assert read_conflict(tmp_path, 9)["reason"] == "another time", "the newest stands there"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None), (1, 1), (1.0, 1.0), ("1", "1"), (b"1", {"blob": "31"}), (float("inf"), {"real": "inf"}),
        (float("nan"), {"real": "nan"}), (msgpack.ExtType(1, b"\xff"), {"text": "ff"}), ("\udcff", "\udcff"),
        (object, {"unknown": "<class 'object'>"}),
    ],
)  # fmt: skip
def test_a_value_keeps_its_class(tmp_path: Path, value: object, shown: object) -> None:
    write_conflict(tmp_path, conflict(seqno=1, found=(1, value)))
    found = json.loads(conflict_path(tmp_path, 1).read_text("utf-8", "surrogatepass"))["found"]["v"]
    assert (found, type(found)) == (shown, type(shown))


def test_an_image_of_another_width_is_told_by_places_and_an_operation_by_its_number(tmp_path: Path) -> None:
    write_conflict(tmp_path, conflict(seqno=1, found=(1, 2, 3), op=99))
    facts = read_conflict(tmp_path, 1)
    assert (facts["found"], facts["operation"]) == ({"0": 1, "1": 2, "2": 3}, "99")


def test_the_error_names_the_file_and_holds_no_image(tmp_path: Path) -> None:
    error = ConflictError("x", key="1")
    error.conflict = conflict()
    told = stopped(error, 12, tmp_path)
    assert isinstance(told, ConflictError)
    assert SECRET not in f"{told} {told.facts}"
    assert str(conflict_path(tmp_path, 12)) in str(told)
    for way in ("conflict show 12", "conflict skip 12", "conflict overwrite 12", "seed --restart"):
        assert way in told.do
    assert read_conflict(tmp_path, 12)["seqno"] == 12


def test_another_error_gets_the_number_alone(tmp_path: Path) -> None:
    error = BusyError("x")
    assert stopped(error, 12, tmp_path) is error
    assert (error.facts["seqno"], list(tmp_path.iterdir())) == (12, [])


def test_what_is_not_there_or_makes_no_sense_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="transaction 3"):
        read_conflict(tmp_path, 3)
    for text in ("{", "[]", "[" * 100_000):
        conflict_path(tmp_path, 3).write_text(text)
        with pytest.raises(DamagedError):
            read_conflict(tmp_path, 3)
