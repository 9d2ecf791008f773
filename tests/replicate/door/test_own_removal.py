"""Rows that a frame cannot hold give way for their unique values: by a large transaction of our own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from replicate.door import own_removal
from replicate.door.own_removal import REMOVES
from replicate.errors import NotWriterError
from replicate.journal.merged_large import told_and_written
from replicate.journal.record import read_head
from replicate.model.transaction import Kind, Op
from replicate.roles.partition_writers import share
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.merging_worlds import BY_KEY
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, carry_between, run, shared
from tests.update_process.test_merging import merged_at
from tests.update_process.test_merging_large import NAMED, ROWS, larges

pytestmark = pytest.mark.slow

SIZES = (200_000, 1_200_000)
"""Of a row: one that a frame holds, but not three times; and one that none holds."""


def at_once(made: Suppliers, size: int, *, is_later: bool = True) -> None:
    """A row of that size at b wants a name that one of many rows of a has, all of a large transaction: it was written
    later, or earlier."""
    row = f"INSERT INTO named VALUES ('b', 'name 7', '{'x' * size}', 0)"
    for name, statement in [("a", NAMED), ("b", row)][:: 1 if is_later else -1]:
        run(made, name, statement)


def own_removals(made: Suppliers, name: str) -> int:
    """Large transactions in a journal that remove rows for their unique values."""
    return sum(
        any(Op.RESOLVED in written[0::4] for written, _ in told_and_written(one))
        for one in larges(made, name)
        if read_head(one.commit_frame).kind in (Kind.LARGE, Kind.RESTATED_LARGE)
    )


def assert_it_gave_way(made: Suppliers, size: int) -> None:
    made.assert_converged()
    rows = made.rows("a")["named"]
    assert len(rows) == ROWS
    assert "b" not in {row[0] for row in rows}
    kept = [one.merged for name in made.names for one in merged_at(made, name) if one.merged.lost.what == "unique"]
    assert {(one.key, one.lost.values[2]) for one in kept} == {(("b",), "x" * size)}


@pytest.mark.parametrize("size", SIZES)
def test_it_is_gone_on_all_suppliers(tmp_path: Path, size: int) -> None:
    """It is here already, and is yet to come by a large transaction: each meets the other one's."""
    three = shared(tmp_path, 3, schema=BY_KEY)
    at_once(three, size)
    three.carry("a", "b")
    assert own_removals(three, "b") == 1
    assert len(three.rows("b")["named"]) == ROWS
    three.carry("b", "c")
    assert len(three.rows("c")["named"]) == ROWS
    three.level()
    assert_it_gave_way(three, size)


@pytest.mark.parametrize("size", SIZES)
def test_one_that_is_yet_to_come_is_gone_before(tmp_path: Path, size: int) -> None:
    two = shared(tmp_path, schema=BY_KEY)
    at_once(two, size)
    two.carry("b", "a")
    assert "b" not in {row[0] for row in two.rows("a")["named"]}
    two.level()
    two.assert_converged()
    assert len(two.rows("b")["named"]) == ROWS


def test_a_row_of_many_gives_way_to_it(tmp_path: Path) -> None:
    """Which has the name longer."""
    two = shared(tmp_path, schema=BY_KEY)
    at_once(two, SIZES[1], is_later=False)
    two.level()
    two.assert_converged()
    keys = [row[0] for row in two.rows("a")["named"]]
    assert len(keys) == ROWS
    assert "b" in keys
    assert "a7" not in keys


def test_a_site_that_may_not_write_there_removes_it(tmp_path: Path) -> None:
    three = Suppliers.create(tmp_path, 3, schema=BY_KEY)
    share(three.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    three.level()
    at_once(three, SIZES[1])
    three.carry("a", "c")
    three.carry("b", "c")
    assert own_removals(three, "c") == 1
    three.carry("c", "a")
    three.level()
    assert_it_gave_way(three, SIZES[1])


def test_who_removes_it_may_write_nothing_else_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes beside all rules stops the others by name."""
    three = Suppliers.create(tmp_path, 3, schema=BY_KEY)
    share(three.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    three.level()
    at_once(three, SIZES[1])
    three.carry("a", "c")

    def pack(changes: list[Any]) -> bytes:
        more = [int(Op.INSERT), changes[9], 0, ["z", "z", "z", 0]] if changes[4:8] == REMOVES else []
        return kept([*changes, *more])

    kept = own_removal.pack_changes
    monkeypatch.setattr(own_removal, "pack_changes", pack)
    three.carry("b", "c")
    monkeypatch.undo()
    with pytest.raises(NotWriterError, match="has changed partition"):
        three.carry("c", "a")


def test_it_stays_gone_after_a_power_loss(tmp_path: Path) -> None:
    """The region is older than the journal: it is made by redo, and stamps by what the journal says."""
    two = shared(tmp_path, schema=BY_KEY)
    at_once(two, SIZES[1])
    save_region(two.by["b"].regions[0].path, tmp_path / "aside")
    two.carry("a", "b")
    restore_region(two.by["b"].regions[0].path, tmp_path / "aside")
    lose_pool(two.by["b"])
    run(two, "b", "UPDATE named SET n = 1 WHERE id = 'a9'")
    two.level()
    assert_it_gave_way(two, SIZES[1])


@pytest.mark.parametrize("place", ["adopt.before_rename", "adopt.renamed", "adopt.after_rename", "apply.after_commit"])
def test_one_that_is_killed_as_it_removes_it_goes_on(tmp_path: Path, place: str) -> None:
    two = shared(tmp_path, schema=BY_KEY)
    at_once(two, SIZES[1])
    sites = [two.by[name].path for name in ("a", "b")]
    assert kill_at(f"{place}:1", "tests.harness.suppliers:carry_between", *sites) == -signal.SIGKILL
    carry_between(two.by["a"], two.by["b"])
    two.level()
    assert_it_gave_way(two, SIZES[1])
