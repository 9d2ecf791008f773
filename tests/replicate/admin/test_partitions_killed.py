"""admin/partitions.py: an assignment that is killed at any step is done once, when the same command runs again."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

import replicate
from replicate.admin import partitions, subscriptions
from replicate.admin.region_create import add_created_region
from replicate.audit.changes import records_of
from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.compare.compare import compare
from replicate.limits import PARTITION_NONE
from replicate.pool.shared_memory import PoolKind, pool_path
from replicate.system import failpoint
from replicate.transfer.seed.rows import tables_by_partition
from tests.harness.pair import Pair

STEPS = (
    *("commit.before_append", "append.before_write", "append.after_write", "commit.after_commit"),
    *("finish.before_publish", "publish.after_early", "publish.after_data", "publish.after_head"),
    *("publish.after_written", "publish.after_published"),
)
KILLS = tuple((step, number) for step in STEPS for number in (1, 2))
"""In each region's transaction."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two regions with a table each; the secondary has the partitions that they move between."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, "CREATE TABLE one (id INTEGER PRIMARY KEY, v);")
    add_created_region(made.primary, tmp_path / "side.db", name="side")
    with closing(replicate.connect(made.primary.path, "side")) as connection:
        connection.execute("CREATE TABLE two (id INTEGER PRIMARY KEY, v)")
        connection.commit()
    for name in ("sales", "stock"):
        partitions.create(made.primary, name)
    partitions.assign(made.primary, "stock", ["one", "side.two"])
    subscriptions.set_(made.secondary, ["2", "3"])
    made.seed()
    return made


def where(pair: Pair) -> dict[str, int]:
    return {table: number for number, tables in tables_by_partition(pair.primary).items() for _, table in tables}


def write(pair: Pair) -> None:
    for region, table in (("main", "one"), ("side", "two")):
        with closing(replicate.connect(pair.primary.path, region)) as connection:
            connection.execute(f"INSERT INTO {table} (v) VALUES (1)")
            connection.commit()


def killed(pair: Pair, step: str, number: int, name: str) -> bool:
    """Whether the command, in a process of its own, was killed at that step."""
    pid = os.fork()
    if pid == 0:
        try:
            failpoint.arm(f"{step}:{number}:kill")
            partitions.assign(pair.primary, name, ["one", "side.two"])
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def moves(pair: Pair) -> list[str]:
    found = find_in_instance(pair.primary, Query(ops=("comment",)))
    return [one.text for match in found for one in records_of(match) if "partition" in one.text]


@pytest.mark.parametrize("is_off", [False, True], ids=["killed", "and the pool is lost"])
def test_killed_at_each_step_each_table_moves_once(pair: Pair, is_off: bool) -> None:
    before, hits = len(moves(pair)), set[tuple[str, int]]()
    for place, (step, number) in enumerate(KILLS):
        name = ("sales", "stock")[place % 2]
        if killed(pair, step, number, name):
            hits.add((step, number))
        if is_off:
            pool_path(PoolKind.JOURNAL, pair.primary.content.uuid).unlink(missing_ok=True)
        write(pair)  # a writer finishes what was left, and goes on in whatever partition it is
        partitions.assign(pair.primary, name, ["one", "side.two"])
        assert set(where(pair).values()) == {2 + place % 2}
        assert len(moves(pair)) == before + 2 * (place + 1)
    assert hits == set(KILLS)
    write(pair)
    pair.catch_up()
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    assert len(pair.rows("one")) == len(KILLS) + 1


@pytest.mark.parametrize("step", ["replace.before_rename", "replace.renamed"])
def test_killed_before_its_first_row_is_kept_back(pair: Pair, step: str) -> None:
    """The first table in NONE: Source Servers are told before it is there."""
    assert killed(pair, step, 1, "NONE")
    assert set(where(pair).values()) == {3}
    assert pair.primary.partitions_now().keeps_back == (step == "replace.renamed")
    partitions.assign(pair.primary, "NONE", ["one", "side.two"])
    assert set(where(pair).values()) == {PARTITION_NONE}
    write(pair)
    pair.catch_up()
    assert pair.rows("one") == []
