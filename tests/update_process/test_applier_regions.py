"""What the Update Process makes of regions that come and go on the primary."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from replicate import connect
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.errors import HardResyncNeededError, NotFoundError
from replicate.pool.shared_memory import PoolKind, pool_path
from tests.harness.pair import SCHEMA, Pair, work_all
from tests.harness.regions import make_database


def test_a_region_released_and_added_again_must_be_seeded_again(pair: Pair) -> None:
    path = pair.primary.region("main").path
    release_region(pair.primary, "main", timeout_s=5)
    # Written behind nobody's back: it is plain SQLite now. By another process, since this one has the other library.
    program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('DELETE FROM account'); c.commit()"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    add_region(pair.primary, path)
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier:
            before = applier.applied_seqno
            with pytest.raises(HardResyncNeededError, match="seed --restart"):
                work_all(applier)
            assert applier.applied_seqno == before


def test_a_region_that_the_secondary_lost_stops_it_by_name(pair: Pair, tmp_path: Path) -> None:
    """Also where one region is left there, which has the same table: its rows went in there."""
    add_region(pair.primary, make_database(tmp_path / "two.db", SCHEMA), name="two")
    pair.seed(restart=True)
    release_region(pair.secondary, "two", timeout_s=5)
    with connect(pair.primary.path, "two") as connection:
        connection.execute("INSERT INTO account VALUES (7, 'two', 0, NULL)")
        connection.commit()
    with pair.receive_pool() as pool:
        pair.deliver(pool)
        with pair.applier(pool) as applier, pytest.raises(NotFoundError, match=r"'two'.*seed --restart"):
            work_all(applier)
    assert pair.rows("account") == pair.rows("account", pair.primary)


def test_a_forced_release_needs_no_journal_and_the_last_one_takes_the_pools(pair: Pair) -> None:
    for segment in pair.primary.journal_directory.glob("*.journal"):
        segment.unlink()
    journal_pool = pool_path(PoolKind.JOURNAL, pair.primary.content.uuid)
    assert journal_pool.exists()
    path = pair.primary.region("main").path
    release_region(pair.primary, "main", timeout_s=5, force=True)
    assert not journal_pool.exists()
    names = subprocess.run(
        [sys.executable, "-c", "import sqlite3, sys; print([r[0] for r in sqlite3.connect(sys.argv[1])"
         ".execute('SELECT name FROM sqlite_schema')])", str(path)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "_replicate" not in names
    assert "account" in names
