"""What the Applier counts of each partition: alone, in batches, put off, over several, and of a large transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.admin.partitions import assign, create
from replicate.settings.table import UpdateConfig
from tests.harness.pair import Pair, run, work_all
from update_process.applier import Applier
from update_process.batch.by_partition import PartitionCounts

SCHEMA = "".join(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v);" for name in ("account", "entry", "third"))
MANY = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path, SCHEMA)


def test_each_way_counts(pair: Pair) -> None:
    """account is in sales (2), entry in stock (3), third in DEFAULT, of which nothing is counted before the first
    table of another partition is known."""
    pair.seed()
    counted = PartitionCounts()

    def seen() -> dict[int, tuple[int, int]]:
        return {number: (transactions, rows) for number, (transactions, rows, _) in counted.found.items()}

    with pair.session() as session, pair.receive_pool() as pool:
        applier = Applier(session, pool, UpdateConfig(), conflict_directory=pair.directory, counted=counted)

        def applied(*transactions: str) -> None:
            run(pair, *transactions)
            pair.deliver(pool)
            work_all(applier)
            while applier.left(applier.arrived):
                pair.deliver(pool)
                work_all(applier)

        applied("INSERT INTO third (v) VALUES (1)")
        assert seen() == {}
        for name, table in (("sales", "account"), ("stock", "entry")):
            create(pair.primary, name)
            assign(pair.primary, name, [table])
        applied("INSERT INTO third (v) VALUES (1)")
        assert {number: rows for number, (_, rows) in seen().items()} == {1: 1, 3: 0}  # to assign a table counts, too
        counted.found.clear()
        applied("INSERT INTO account (v) VALUES (1)")
        applied("INSERT INTO account (v) VALUES (2)")  # alone
        assert seen() == {2: (2, 2)}
        applied(
            *(f"INSERT INTO account (v) VALUES ({number})" for number in range(5)),
            *(f"INSERT INTO entry (v) VALUES ({number})" for number in range(3)),
            "INSERT INTO account (v) VALUES (7);INSERT INTO entry (v) VALUES (8);INSERT INTO entry (v) VALUES (9)",
        )
        assert seen() == {2: (8, 8), 3: (4, 5)}
        applied("UPDATE account SET v = 3", "INSERT INTO third (v) VALUES (2)", "UPDATE entry SET v = 4 WHERE v = 1")
        assert seen() == {1: (1, 1), 2: (9, 16), 3: (5, 6)}
        before = counted.found[3][2]
        applied(f"{MANY} INSERT INTO entry (v) SELECT printf('%100d', i) FROM n")
        assert seen() == {1: (1, 1), 2: (9, 16), 3: (6, 20006)}
        assert counted.found[3][2] - before > 20000 * 100
        applier.close()
