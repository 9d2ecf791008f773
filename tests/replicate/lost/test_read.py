"""Lost files are read as they were written: each value as the database had it, each transaction with all its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from replicate.audit.record_lines import plain
from replicate.errors import DamagedError, FormatUnknownError, NotFoundError
from replicate.lost.read import LostReader, _value
from replicate.model.transaction import RAW_TEXT_CODE

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=30),
    st.binary(max_size=30).map(lambda data: msgpack.ExtType(RAW_TEXT_CODE, data)),
)


@given(value=VALUES)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    back = _value(json.loads(json.dumps(plain(value))))
    assert (type(back), repr(back)) == (type(value), repr(value))


def facts(seqno: int, kind: str, *changes: str) -> dict[str, Any]:
    return {
        "seqno": seqno, "kind": kind, "origin": "aa", "origin_seqno": seqno, "chain": "00",
        "changes": [
            {"what": what, "table": "main.main.t", "text": "", "columns": ["a"], "before": None, "after": [seqno]}
            for what in changes
        ],
    }  # fmt: skip


def written(path: Path, *lines: dict[str, Any], head: object = None) -> Path:
    body = b"".join(json.dumps(one).encode() + b"\n" for one in ({"format": 1} if head is None else head, *lines))
    last = {"transactions": 0, "unreadable": [], "xxh3": xxh3_64_hexdigest(body)}
    path.write_bytes(body + json.dumps(last).encode() + b"\n")
    return path


def test_a_large_one_has_the_changes_of_its_parts_and_a_small_one_its_own(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x-lost-1-4.jsonl",
        facts(1, "TRANSACTION", "INSERT", "DELETE"),
        facts(2, "LARGE"),
        facts(2, "PART", "INSERT"),
        facts(2, "PART", "UPDATE", "UPDATE"),
        facts(3, "NULL"),
        facts(4, "RESTATED", "INSERT"),
    )
    with LostReader(path) as lost:
        found = list(lost.transactions())
        assert [(one.seqno, one.kind, one.is_data) for one in found] == [
            (1, "TRANSACTION", True), (2, "LARGE", True), (3, "NULL", False), (4, "RESTATED", True),
        ]  # fmt: skip
        assert [[change.what for change in lost.changes(one)] for one in found] == [
            ["INSERT", "DELETE"], ["INSERT", "UPDATE", "UPDATE"], [], ["INSERT"],
        ]  # fmt: skip
        (change,) = lost.changes(found[3])
        assert (change.table, change.columns, change.before, change.after) == ("main.main.t", ("a",), None, (4,))
        assert list(lost.transactions()) == found, "as often as one likes"
    lost.close()


def test_one_without_a_transaction_has_none(tmp_path: Path) -> None:
    with LostReader(written(tmp_path / "file")) as lost:
        assert list(lost.transactions()) == []


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        LostReader(tmp_path / "none")
    for head, error in (
        ([], DamagedError),
        ("x", DamagedError),
        ({}, DamagedError),
        ({"format": 9}, FormatUnknownError),
    ):
        with pytest.raises(error) as caught:
            LostReader(written(tmp_path / "file", head=head))
        assert caught.value.where == str(tmp_path / "file")
    path = written(tmp_path / "file", facts(1, "TRANSACTION", "INSERT"))
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    with pytest.raises(DamagedError, match="not whole, or was changed"):
        LostReader(path)
    path.write_bytes(content.rstrip())
    with pytest.raises(DamagedError, match="not whole, or was changed"):
        LostReader(path)
