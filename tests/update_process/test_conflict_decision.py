"""A decision about a conflict counts for the transaction that it names, and for no other one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from update_process.conflict_decision import (
    Decision,
    decision_path,
    find_decision,
    is_large,
    name_of,
    name_of_large,
    read_decision,
    write_decision,
)

NAMED = name_of(0xB3F0A1C2, 17)
DECISION = Decision(10, NAMED, 20, "", "ann", "2026-11-24T10:00:00Z")


def nothing(_seqno: int) -> str:
    return ""


def named(seqno: int) -> str:
    return {10: NAMED}.get(seqno, "")


@pytest.mark.parametrize(
    ("seqno", "transaction", "table", "named_at", "covered"),
    [
        (10, NAMED, "main.t", nothing, True),
        (10, name_of(0xB3F0A1C2, 18), "main.t", named, False),  # the same number after a seed
        (11, "other", "main.t", named, True),
        (20, "other", "main.t", named, True),
        (21, "other", "main.t", named, False),
        (9, "other", "main.t", named, False),
        (11, "other", "main.t", nothing, False),  # the one that it names is no part of our journal
        (11, "other", "main.t", lambda _: "another", False),
    ],
)
def test_what_a_decision_covers(seqno: int, transaction: str, table: str, named_at: object, covered: bool) -> None:
    assert DECISION.covers(seqno, transaction, table, named_at) is covered  # type: ignore[arg-type]


def test_of_one_table_only() -> None:
    decision = Decision(10, NAMED, 20, "main.t", "ann", "now")
    assert decision.covers(10, NAMED, "main.t", named)
    assert not decision.covers(10, NAMED, "main.u", named)
    assert not decision.covers(12, "other", "main.u", named)


def test_written_read_and_found(tmp_path: Path) -> None:
    path = write_decision(tmp_path, DECISION)
    assert (path, path.stat().st_mode & 0o777) == (decision_path(tmp_path, 10), 0o600)
    assert read_decision(tmp_path, 10) == DECISION
    assert read_decision(tmp_path, 11) is None
    assert find_decision(tmp_path, 15, "other", "main.t", named) == DECISION
    own = Decision(15, "other", 15, "", "bob", "later")
    write_decision(tmp_path, own)
    assert find_decision(tmp_path, 15, "other", "main.t", named) == own
    (tmp_path / "x.decision.json").write_text("{}")  # somebody's file
    assert find_decision(tmp_path, 21, "other", "main.t", named) is None


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"seqno": 11}, {"until": "20"}, {"transaction": 7}, {"more": 1}, {"by": None}],
)
def test_what_cannot_be_read_decides_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    facts = json.loads(write_decision(tmp_path, DECISION).read_text())
    decision_path(tmp_path, 10).write_text(json.dumps({**facts, **change}))
    assert read_decision(tmp_path, 10) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"null", b'{"format": 1}', b"[" * 100_000])
def test_garbage_decides_nothing(tmp_path: Path, data: bytes) -> None:
    decision_path(tmp_path, 10).write_bytes(data)
    assert read_decision(tmp_path, 10) is None


def test_names_of_large_ones_are_their_own() -> None:
    assert is_large(name_of_large(1, 2))
    assert not is_large(name_of(1, 2))
    assert name_of_large(1, 2) != name_of_large(2, 2) != name_of_large(2, 1)
