"""Rows are stamped by what stands in the journal; a copy for another site has all of its stamps."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgpack
import pytest

from replicate.door.absorb_stamps import absorb, held_absorbed, shared_tables
from replicate.door.snapshot import door_of, take_absorbed
from replicate.errors import BusyError, DiskFullError
from replicate.journal.reader import LargeTransaction
from replicate.model.merged_row import Row, unpack_row
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.row_stamps import write_absorbed
from tests.harness.suppliers import Suppliers, run, shared, tell


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


def test_a_disk_that_is_full_is_called_so(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a seed is made: its Source Server knows what to say of that, and tries again."""
    run(two, "b", "INSERT INTO ta VALUES (1, 'x', 0)")

    def finish(_merger: RowMerger, _absorbed: int) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patch, door_of(two.by["b"]) as door:
        patch.setattr(RowMerger, "finish", finish)
        with pytest.raises(DiskFullError), held_absorbed(door, timeout_s=30):
            pass
    with door_of(two.by["b"]) as door, held_absorbed(door, timeout_s=30):
        assert stamps(two, "b")[0] == two.last_seqno("b")


def test_where_nothing_is_shared_nothing_is_held(tmp_path: Path) -> None:
    made = Suppliers.create(tmp_path)
    connection = made.connect("a")
    connection.execute("INSERT INTO ta VALUES (1, 'x', 0)")
    with door_of(made.by["b"]) as door, held_absorbed(door, timeout_s=0.05):
        made.write("b")
    connection.close()


def stamped(made: Suppliers, name: str, from_seqno: int, stable: dict[int, int]) -> list[str]:
    """Keys of the rows of tu that get stamps by what the journal has from there on, where no row has any; `stable`:
    instance -> the last of its transactions that all have."""
    with made.session(name) as session:
        session.begin()
        rows, last_seqno = session.merging(), session.position.last_seqno
        assert isinstance(rows, RowMerger)
        rows.begin()
        connection = rows._connection
        connection.execute("DELETE FROM _replicate_version")
        write_absorbed(connection, from_seqno - 1)
        definitions = session.door.catalogue_now().definitions
        absorb(rows, session.door, last_seqno, shared_tables(definitions, session.writers()), stable)
        rows.write_stamps()
        tu = next(table_id for table_id, one in definitions.items() if one.table == "tu")
        text = "SELECT key FROM _replicate_version WHERE table_id = ? ORDER BY key"
        keys = [msgpack.unpackb(key)[0] for (key,) in connection.execute(text, (tu,))]
        session.rollback()
        return keys


def test_what_everybody_has_is_stamped_where_something_else_that_is_before_it_is_not_known_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill of an Update Process that had merged it. What only tells is nothing that is before anything."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path, schema=("CREATE TABLE tu (id TEXT PRIMARY KEY, u UNIQUE) WITHOUT ROWID",))
    begin = two.last_seqno("b") + 1
    run(two, "a", "INSERT INTO tu VALUES ('of a', 1)")
    run(two, "b", "INSERT INTO tu VALUES ('of b', 2)")
    two.carry("a", "b")
    run(two, "b", "INSERT INTO tu VALUES ('of b, later', 3)")
    (a, last_a), (b, last_b) = ((one, two.vector("b")[one][0]) for one in (origin(two, "a"), origin(two, "b")))
    assert stamped(two, "b", begin, {a: last_a, b: last_b}) == []
    assert stamped(two, "b", begin, {a: last_a - 1, b: last_b}) == ["of a", "of b", "of b, later"]
    assert stamped(two, "b", begin + 2, {a: last_a, b: last_b - 1}) == ["of b, later"]
    run(two, "a", "INSERT INTO ta VALUES (1, 'x', 0)")
    two.carry("a", "b")
    with door_of(two.by["b"]) as door:
        tell(door)
    assert two.vector("b")[b][0] == last_b + 1, "b has told that it has that"
    assert stamped(two, "b", begin, {a: last_a + 1, b: last_b}) == []


def test_a_large_transaction_that_everybody_has_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = shared(tmp_path, schema=("CREATE TABLE tu (id TEXT PRIMARY KEY, u UNIQUE) WITHOUT ROWID",))
    begin = two.last_seqno("a") + 1
    some = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 60)"
    run(two, "a", f"INSERT INTO tu {some} SELECT i, i || '{'x' * 15_000}' FROM c")
    a, b = origin(two, "a"), origin(two, "b")
    last = two.vector("a")[a][0]
    assert len(stamped(two, "a", begin, {a: last - 1, b: 2**63})) == 60
    monkeypatch.setattr(LargeTransaction, "parts", None)
    assert stamped(two, "a", begin, {a: last, b: 2**63}) == []


def origin(made: Suppliers, name: str) -> int:
    """The key of a supplier's living origin."""
    return made.by[name].content.origin.key
