"""What somebody did to the secondary past every guard and past the schema version: it stops at the first transaction
that meets it, with everything an operator needs; what came before is committed, and nothing is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from replicate.errors import ConflictError
from tests.harness.pair import Pair, work_all


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = Pair.create(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b); CREATE TABLE other (x);")
    made.seed()
    return made


def by_hand(pair: Pair, *statements: str) -> None:
    """As an operator who puts the schema version back."""
    connection = apsw.Connection(str(pair.secondary.region("main").path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    version = connection.pragma("schema_version")
    for statement in statements:
        connection.execute(statement)
    connection.pragma("schema_version", version)
    connection.close()


@pytest.mark.parametrize(
    ("change", "back", "said"),
    [
        (("DROP TABLE t",), None, "t"),
        (("ALTER TABLE t RENAME TO u",), ("ALTER TABLE u RENAME TO t",), "t"),
        (("ALTER TABLE t ADD COLUMN c",), None, "c"),
        (("DELETE FROM t WHERE id = 1",), ("INSERT INTO t VALUES (1, 1, 'old')",), "t"),
        (("UPDATE t SET b = 'x' WHERE id = 1",), ("UPDATE t SET b = 'old' WHERE id = 1",), "t"),
        (("INSERT INTO t VALUES (9, 5, 0)",), ("DELETE FROM t WHERE id = 9",), "t"),
    ],
)
def test_it_stops_with_the_number_the_table_and_what_to_do(
    pair: Pair, change: tuple[str, ...], back: tuple[str, ...] | None, said: str
) -> None:
    connection = pair.connect()
    connection.execute("INSERT INTO t VALUES (1, 1, 'old')")
    connection.commit()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            work_all(applier)
        by_hand(pair, *change)
        connection.execute("INSERT INTO other VALUES ('before')")
        connection.commit()
        before = connection.last_seqno
        connection.execute("INSERT INTO other VALUES ('not to be seen')")
        connection.execute("UPDATE t SET b = 'new' WHERE id = 1")
        connection.execute("INSERT INTO t VALUES (2, 5, 0)")
        connection.commit()
        connection.execute("INSERT INTO other VALUES ('after')")
        connection.commit()
        connection.close()
        pair.deliver(pool)
        for _ in range(2):  # starting it again changes nothing
            with pair.applier(pool) as applier:
                with pytest.raises(ConflictError) as caught:
                    work_all(applier)
                assert applier.applied_seqno == before
            error = caught.value
            assert error.facts["seqno"] == before + 1
            assert f"seqno {before + 1}" in str(error) or f"transaction {before + 1}" in str(error)
            assert said in str(error)
            assert error.do
            assert pair.rows("other") == [(1, "before")]
            if back is None:
                assert "seed this region again" in str(error)
                continue
            if change[0].startswith("ALTER"):
                continue  # a table that is not there has no images
            written = json.loads((pair.secondary.conflict_directory / f"{before + 1}.json").read_text())
            assert (written["seqno"], written["table"]) == (before + 1, "t")
        if back is not None:
            by_hand(pair, *back)
            with pair.applier(pool) as applier:
                work_all(applier)
            for table in ("t", "other"):
                assert pair.rows(table) == pair.rows(table, pair.primary)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO r VALUES (9, 'free', 'new')",
        "INSERT INTO r VALUES (2, 'taken', 'new')",
        "UPDATE r SET u = 'taken' WHERE id = 1",
        "UPDATE r SET id = 9 WHERE id = 1",
    ],
)
@pytest.mark.parametrize("clause", ["REPLACE", "IGNORE", "ROLLBACK"])
def test_a_row_in_the_way_is_a_conflict_whatever_its_table_does_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clause: str, change: str
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    clause = f"ON CONFLICT {clause}"
    pair = Pair.create(tmp_path, f"CREATE TABLE r (id INTEGER PRIMARY KEY {clause}, u UNIQUE {clause}, v)")
    connection = pair.connect()
    connection.execute("INSERT INTO r VALUES (1, 'one', 'old')")
    connection.commit()
    pair.seed()
    by_hand(pair, "INSERT INTO r VALUES (9, 'taken', 'by hand')")
    connection.execute("INSERT INTO r VALUES (5, 'five', 'before')")
    connection.commit()
    before = connection.last_seqno
    connection.execute(change)
    connection.commit()
    connection.close()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            with pytest.raises(ConflictError):
                work_all(applier)
            assert applier.applied_seqno == before
    assert [row[1:] for row in pair.rows("r")] == [(1, "one", "old"), (5, "five", "before"), (9, "taken", "by hand")]
