"""What a rollback would take back, counted over all that there may be between two numbers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from replicate.audit.show import ShownChange, ShownTransaction
from replicate.model.transaction import Kind, Op
from replicate.roles.rollback_survey import BARS, survey

CHANGE = st.builds(
    ShownChange,
    what=st.sampled_from([one.name for one in Op]),
    table=st.sampled_from(["", "main.t", "main.u"]),
    text=st.sampled_from(["", "CREATE TABLE v (a)"]),
)


def transaction(seqno: int, kind: str, *changes: ShownChange) -> ShownTransaction:
    return ShownTransaction(
        seqno=seqno, kind=kind, wall="", wall_ns=0, origin="", origin_name=None, origin_incarnation=None,
        origin_seqno=seqno, csn=0, mark=0, chain="", frame_bytes=0, change_count=len(changes), changes=changes,
    )  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([one.name for one in Kind]), st.lists(CHANGE, max_size=4))))
def test_all_is_counted(made: list[tuple[str, list[ShownChange]]]) -> None:
    found = survey(transaction(seqno, kind, *changes) for seqno, (kind, changes) in enumerate(made, 1))
    assert found.transactions == sum(kind not in ("PART", "HISTORY", "NULL") for kind, _ in made)
    rows = [one for _, changes in made for one in changes if one.what in ("INSERT", "UPDATE", "DELETE")]
    assert Counter({(table, what): n for table, of in found.changes.items() for what, n in of.items()}) == Counter(
        (one.table, one.what) for one in rows
    )
    assert list(found.changes) == sorted(found.changes)
    bars = [seqno for seqno, (_, changes) in enumerate(made, 1) if any(one.what in BARS for one in changes)]
    assert found.barred_at == (bars[0] if bars else 0)
    assert bool(found.barred_by) is bool(bars)


def test_the_first_that_bars_the_way_is_told() -> None:
    found = survey(
        [
            transaction(7, "TRANSACTION", ShownChange("INSERT", "main.t", "(1)")),
            transaction(8, "TRANSACTION", ShownChange("SCHEMA", "", "CREATE TABLE u (a)")),
            transaction(9, "TRANSACTION", ShownChange("DEFINE", "main.u", "version 1")),
        ]
    )
    assert (found.transactions, found.barred_at, found.barred_by) == (3, 8, "SCHEMA CREATE TABLE u (a)")


def test_a_large_one_counts_once_and_its_parts_bring_the_rows() -> None:
    row = ShownChange("DELETE", "main.t", "(1)")
    parts = [transaction(7, "PART", row, row), transaction(7, "PART", row)]
    found = survey([transaction(7, "LARGE"), *parts])
    assert (found.transactions, found.changes) == (1, {"main.t": {"DELETE": 3}})
