"""VACUUM through our connection is refused, and the way that the error names works: rows may then have other rowids."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.dbapi import NotSupportedError
from tests.harness.pair import Pair, work_all

SCHEMA = "CREATE TABLE n (x)"


def apply(pair: Pair) -> None:
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        assert applier.applied_seqno == pair.last_seqno()


def test_vacuum_is_refused_and_the_way_that_the_error_names_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path, SCHEMA)
    pair.seed()
    with pair.connect() as connection:
        connection.executemany("INSERT INTO n VALUES (?)", [(number,) for number in range(10)])
        connection.execute("DELETE FROM n WHERE x < 5")
    before = pair.last_seqno()
    with pytest.raises(NotSupportedError) as caught:
        connection.execute("VACUUM")
    for step in ("VACUUM INTO", "region release main", "region add", "seed --restart"):
        assert step in caught.value.do
    assert not connection.in_transaction
    with pytest.raises(NotSupportedError):
        connection.execute("VACUUM main")
    connection.close()
    assert pair.last_seqno() == before
    apply(pair)
    assert [row[0] for row in pair.rows("n")] == [6, 7, 8, 9, 10]

    pair.acknowledge()
    release_region(pair.primary, "main", timeout_s=5)
    plain = sqlite3.connect(tmp_path / "app.db")
    plain.execute("VACUUM")
    plain.close()
    add_region(pair.primary, tmp_path / "app.db")
    pair.seed(restart=True)
    with pair.connect() as connection:
        connection.execute("UPDATE n SET x = -x WHERE rowid = 5")
    connection.close()
    apply(pair)
    assert pair.rows("n") == [(1, 5), (2, 6), (3, 7), (4, 8), (5, -9)]
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal
