"""The check of what was captured: the truth passes, and any lie about a commit is named before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.door.primary import RegionSession
from replicate.errors import InternalError
from replicate.journal.record import pack_elements
from replicate.model.transaction import Op
from replicate.region.sqlite.capture import check
from replicate.region.sqlite.capture.check import check_captured, is_due
from replicate.region.sqlite.schema import recorded_definitions
from tests.harness.instances import insert, insert_change, make_primary, session_of

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RegionSession]:
    """Of a primary with one row, in a transaction that inserts another one and changes the first."""
    with session_of(make_primary(tmp_path / "alpha")) as made:
        insert(made, 1, "old")
        made.begin(timeout_s=5)
        made.connection.execute("INSERT INTO t VALUES (2, 'new')")
        made.connection.execute("UPDATE t SET v = 'changed' WHERE id = 1")
        yield made
        made.rollback()


def inserted(session: RegionSession, value: object = "new", row_id: int = 2) -> bytes:
    return insert_change(session, row_id, value)[0]


def updated(session: RegionSession, value: object = "changed", before: object = "old") -> bytes:
    definition = next(d for d in recorded_definitions(session.connection) if d.table == "t")
    return pack_elements(int(Op.UPDATE), definition.table_id, 0b10, [value, 1, before])[0]


def checked(session: RegionSession, *stream: bytes, region: str = "main") -> None:
    check_captured(session.connection, "main", region, stream)


def test_the_truth_passes_in_whatever_pieces(session: RegionSession) -> None:
    whole = inserted(session) + updated(session)
    checked(session, whole)
    checked(session, *(whole[at : at + 1] for at in range(len(whole))))
    checked(session, updated(session) + inserted(session))


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (lambda s: inserted(s), "do not lead to the present state: table t is .*row .*1"),
        (lambda s: updated(s), "do not lead to the present state: table t is .*row .*2"),
        (lambda s: b"", "do not lead to the present state"),
        (lambda s: inserted(s, "NEW") + updated(s), "do not lead to the present state: .*row .*2"),
        (lambda s: inserted(s, b"new") + updated(s), "do not lead to the present state: .*row .*2"),
        (lambda s: inserted(s) + inserted(s, "third", 3) + updated(s), "do not lead to the present state: .*row .*3"),
        (lambda s: inserted(s) + updated(s, before="other"), "cannot be applied to the state before"),
        (lambda s: inserted(s) + inserted(s) + updated(s), "cannot be applied to the state before"),
    ],
)
def test_a_lie_is_named(session: RegionSession, lie: object, told: str) -> None:
    assert callable(lie)
    with pytest.raises(InternalError, match=f"the captured changes {told}"):
        checked(session, lie(session))
    assert session.connection.execute("SELECT count(*) FROM t").get == 2, "and nothing is changed by asking"


def test_a_schema_change_that_was_not_told_is_named(session: RegionSession) -> None:
    session.connection.execute("CREATE TABLE extra (a)")
    with pytest.raises(InternalError, match="table extra is"):
        checked(session, inserted(session) + updated(session))


def test_what_is_of_another_region_is_passed_over(session: RegionSession) -> None:
    with pytest.raises(InternalError, match="do not lead"):
        checked(session, inserted(session) + updated(session), region="two")


def test_a_large_region_is_passed_over(session: RegionSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECKED_BYTES_MAX", 1)
    checked(session, b"")


def test_plain_transactions_are_checked_now_and_then_and_all_others_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_plain", 0)
    due = [is_due(4, plain=True) for _ in range(500)]
    assert all(due[: check.PLAIN_FIRST])
    assert [at + 1 for at, is_so in enumerate(due) if is_so and at >= check.PLAIN_FIRST] == [300, 400, 500]
    assert is_due(check.CHECKED_CHANGES_MAX, plain=False)
    assert not is_due(check.CHECKED_CHANGES_MAX + 1, plain=False)
