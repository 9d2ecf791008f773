"""Rows are stamped by what stands in the journal; a copy for another site has all of its stamps."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.door.absorbing import held_absorbed
from replicate.door.snapshot import door_of, take_absorbed
from replicate.errors import BusyError
from replicate.model.registers import Row, unpack_row
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


def stamps(made: Suppliers, name: str) -> tuple[int, list[Row]]:
    """Up to where the journal is taken, and the rows' stamps."""
    connection = apsw.Connection(str(made.by[name].regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        absorbed = connection.execute("SELECT value FROM _replicate_state WHERE key = 'absorbed'").get
        rows = [unpack_row(packed) for (packed,) in connection.execute("SELECT stamps FROM _replicate_version")]
        return absorbed, rows
    finally:
        connection.close()


def test_all_of_the_journal_is_taken_and_each_transaction_once(two: Suppliers) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1, 'x', 0), (2, 'y', 0)")
    run(two, "b", "UPDATE ta SET n = 1 WHERE id = 1", "DELETE FROM ta WHERE id = 2")
    assert stamps(two, "b")[1] == []
    for _ in range(2):
        with door_of(two.by["b"]) as door, held_absorbed(door, timeout_s=30):
            pass
        absorbed, rows = stamps(two, "b")
        assert absorbed == two.last_seqno("b")
        assert [(row.is_there, row.values) for row in rows] == [(True, None), (False, (2, "y", 0))]
        assert rows[0].stamps[2] > rows[0].stamps[1], "n was written later"


def test_a_large_transaction_is_taken_part_by_part(two: Suppliers) -> None:
    """Its writer's, and what it came to where it was merged: a row that it deletes has the values that it had there."""
    some = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 60)"
    run(two, "a", f"INSERT INTO ta {some} SELECT i, '{'x' * 15_000}', 0 FROM c")
    two.level()
    run(two, "b", "UPDATE ta SET n = 7 WHERE id = 60")
    run(two, "a", "UPDATE ta SET v = v || 'of a' WHERE id < 50", "DELETE FROM ta WHERE id = 60")
    two.carry("a", "b")
    for name in two.names:
        with door_of(two.by[name]) as door, held_absorbed(door, timeout_s=30):
            pass
        absorbed, rows = stamps(two, name)
        assert absorbed == two.last_seqno(name)
        assert len(rows) == 60 or name == "b", "b took it last of all, so nobody will write beside it any more"
        (gone,) = (row.values for row in rows if not row.is_there)
        assert gone is not None
        assert (gone[0], gone[2]) == (60, 7 if name == "b" else 0)


def test_the_copy_of_another_site_is_of_that_moment(two: Suppliers) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1, 'x', 0)")
    with door_of(two.by["b"]) as door, take_absorbed(door, timeout_s=30) as snapshot:
        connection = next(iter(snapshot.regions.connections.values()))
        run(two, "b", "INSERT INTO ta VALUES (2, 'x', 0)")
        assert connection.execute("SELECT count(*) FROM _replicate_version").get == 1
        assert connection.execute("SELECT count(*) FROM ta").get == 1


def test_an_application_that_has_the_region_is_waited_for(two: Suppliers) -> None:
    connection = two.connect("b")
    connection.execute("INSERT INTO ta VALUES (1, 'x', 0)")
    with door_of(two.by["b"]) as door, pytest.raises(BusyError), held_absorbed(door, timeout_s=0.05):
        pass
    connection.commit()
    connection.close()


def test_where_nothing_is_shared_nothing_is_held(tmp_path: Path) -> None:
    made = Suppliers.create(tmp_path)
    connection = made.connect("a")
    connection.execute("INSERT INTO ta VALUES (1, 'x', 0)")
    with door_of(made.by["b"]) as door, held_absorbed(door, timeout_s=0.05):
        made.write("b")
    connection.close()
