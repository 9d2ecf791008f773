"""What is seen of conflicts, and what may be decided."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.errors import ConflictError, NotFoundError, UsageError
from tests.harness.conflicting import conflicting_pair, skip, spoil, stops_at
from tests.harness.pair import Pair, run, work_all
from tests.harness.suppliers import Suppliers
from tests.harness.suppliers import run as suppliers_run
from update_process import conflict_file as conflicts
from update_process.conflict_commands import AHEAD, DECIDED, LEFT_OUT, MENDED, WAITS, decide, look_at_conflicts
from update_process.conflict_file import read_conflict


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    return conflicting_pair(tmp_path)


def states(pair: Pair, applied: int) -> list[str]:
    return [one.state for one in look_at_conflicts(pair.secondary.conflict_directory, applied)]


def test_what_has_become_of_each(pair: Pair) -> None:
    spoil(pair, "DELETE FROM t WHERE id IN (3, 5)")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3", "UPDATE t SET a = 'new' WHERE id = 5")
        pair.deliver(pool)
        first = stops_at(pair, pool)
        assert (states(pair, first - 1), states(pair, first - 2), states(pair, first)) == ([WAITS], [AHEAD], [MENDED])
        spoil(pair, "INSERT INTO t VALUES (3, 'old', 3)")
        second = stops_at(pair, pool)
        assert (second, states(pair, first)) == (first + 1, [MENDED, WAITS])
        skip(pair, second)
        assert states(pair, first) == [MENDED, DECIDED]
        with pair.applier(pool) as applier:
            work_all(applier)
    assert states(pair, second) == [MENDED, LEFT_OUT]


def test_what_cannot_be_decided(pair: Pair) -> None:
    last = pair.last_seqno()
    with pytest.raises(NotFoundError, match="no conflict is recorded"):
        decide(pair.secondary, last, None)
    spoil(pair, "DELETE FROM t WHERE id = 3")
    with pair.receive_pool() as pool:
        run(pair, "UPDATE t SET a = 'new' WHERE id = 3")
        pair.deliver(pool)
        seqno = stops_at(pair, pool)
    for number in (seqno - 1, seqno + 1):
        with pytest.raises(UsageError, match="does not wait for a decision"):
            decide(pair.secondary, last, number)
    with pytest.raises(UsageError, match=f"{seqno - 1} is before {seqno}"):
        decide(pair.secondary, last, seqno, until=seqno - 1)
    with pytest.raises(UsageError, match=r"of table main\.t, not main\.u"):
        decide(pair.secondary, last, seqno, table="main.u")
    facts = read_conflict(pair.secondary.conflict_directory, seqno)
    path = conflicts.conflict_path(pair.secondary.conflict_directory, seqno)
    path.write_text(str({**facts, "transaction": ""}).replace("'", '"').replace("None", "null"))
    with pytest.raises(UsageError, match="found by a replay, or by an older release"):
        decide(pair.secondary, last, seqno)


def said(made: Suppliers, *words: str) -> Result:
    return CliRunner().invoke(root, ["-i", str(made.by["b"].path), "conflict", *words], standalone_mode=False)


def test_on_a_supplier_that_writes_on_it_waits_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    two.write("a", 2)
    two.carry("a", "b")

    def write_past(value: str) -> None:
        region = apsw.Connection(str(two.by["b"].regions[0].path))
        region.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        region.execute("UPDATE ta SET v = ? WHERE id = 2", (value,))
        region.close()

    ((_, right, _),) = [row for row in two.rows("b")["ta"] if row[0] == 2]
    write_past("wrong")
    suppliers_run(two, "a", "UPDATE ta SET n = 7 WHERE id = 2")
    for _ in range(2):
        with pytest.raises(ConflictError, match="the row differs"):
            two.carry("a", "b")
        two.write("b", 3)  # an application, which the conflict does not hinder
        listed = said(two, "list")
        assert listed.return_value == 1, "it waits, whatever number the next transaction has"
        assert listed.output.count("waits  UPDATE main.ta: the row differs") == 1
        assert "'wrong'" in said(two, "show").output
    write_past(str(right))
    two.level()
    listed = said(two, "list")
    assert listed.return_value == 0
    assert "mended" in listed.output
    two.assert_converged()
