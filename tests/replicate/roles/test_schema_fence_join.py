"""Changing the schema of suppliers while one more joins them: who is not known yet leaves nothing beside the change."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin.schema_run import run_fenced
from replicate.dbapi import Connection, OperationalError, connect
from replicate.errors import BusyError, TryAgainError
from replicate.model.told_fences import ToldFence
from replicate.roles.merge_losses import merges
from replicate.roles.partition_writers import leave, share
from replicate.roles.schema_fence import fence, fences, unfence
from replicate.roles.supplier import convert
from tests.harness.fences import change, fence_all, run_once
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, give_back, run, shared

MORE = "ALTER TABLE u ADD COLUMN more"
ONES = (("a", "ka"), ("b", "kb"))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """Both write u, which has a unique value; c is to join them."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 2, schema=["CREATE TABLE u (id TEXT PRIMARY KEY, v UNIQUE, w)"])


def clash(made: Suppliers) -> None:
    """Two rows that want one unique value, of two that do not know of each other."""
    for name, key in ONES:
        run(made, name, f"INSERT INTO u VALUES ('{key}', 'one', '{name}')")


def joins(made: Suppliers) -> None:
    """c is linked with the others, and its first word comes."""
    made.names = ("a", "b", "c")
    made.level()


def columns(made: Suppliers, name: str) -> list[str]:
    """Of u, at a site."""
    with closing(made.connect(name)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info (u)")]


def let_write(made: Suppliers) -> None:
    """c writes what both write."""
    share(made.by["a"], "DEFAULT", "c", keys_chosen=True, timeout_s=30)


@pytest.mark.parametrize("text", [MORE, "DROP TABLE u", "ALTER TABLE u DROP COLUMN w", "ALTER TABLE u RENAME TO other"])
@pytest.mark.parametrize("seen_first", ["a", "b"])
def test_one_that_nobody_knows_yet_leaves_nothing_beside_the_change(two: Suppliers, text: str, seen_first: str) -> None:
    convert(two.seed_one_more("c"), "supplier", timeout_s=30)
    clash(two)
    two.carry(seen_first, "c")
    two.carry("ab".replace(seen_first, ""), "c")
    two.level()
    change(two, text)
    two.level()
    joins(two)
    two.assert_converged()
    let_write(two)
    two.level()
    run(two, "c", "INSERT INTO ta (id, v) VALUES (7, 'of c')")
    two.level()
    two.assert_converged()


def test_what_waits_there_goes_once_it_writes(two: Suppliers) -> None:
    """By the word of those that knew; what was written there under its key meanwhile is merged with that."""
    convert(two.seed_one_more("c"), "supplier", timeout_s=30)
    let = Suppliers(two.directory, ("a", "b", "c"))
    let.by = two.by
    let.carry("c", "a")
    let_write(two)
    clash(two)
    let.carry("b", "c")
    let.carry("a", "c")
    with closing(let.connect("c")) as connection:
        (here,) = [key for (key,) in connection.execute("SELECT id FROM u")]
        (gone,) = {key for _, key in ONES} - {here}
        connection.execute(f"INSERT INTO u VALUES ('{gone}', 'another', 'c')")
        connection.commit()
    let.level()
    let.assert_converged()
    assert let.rows("c")["u"] == [(here, "one", here[1])]
    for name in let.names:
        assert [one.lost["v"] for one in merges(let.by[name])] == ["one", "another"]


def test_one_that_has_left_everything_leaves_nothing_beside_a_change_either(two: Suppliers) -> None:
    """Where one alone writes everything no fence is wanted: the other one merges what comes, and removes nothing."""
    clash(two)
    leave(two.by["b"], "DEFAULT", timeout_s=30)
    give_back(two.by["b"])
    two.carry("b", "a")
    run(two, "a", "DROP TABLE u")
    two.level()
    two.assert_converged()


def test_one_that_was_seeded_while_others_stand_aside_stands_aside(two: Suppliers) -> None:
    with pytest.raises(TryAgainError):
        fence(two.by["a"], timeout_s=0)
    convert(two.seed_one_more("c"), "supplier", timeout_s=30)
    assert [one.by for one in fences(two.by["c"])] == ["a"]
    joins(two)
    with pytest.raises(BusyError, match="who writes what stays as it is meanwhile"):
        let_write(two)
    assert [one.awaited for one in fences(two.by["a"])] == [()]
    change(two, MORE)
    unfence(two.by["a"], timeout_s=30)
    two.level()
    let_write(two)
    two.level()
    run(two, "c", "INSERT INTO u VALUES ('kc', 'two', 'c', 'more')")
    two.level()
    two.assert_converged()


def test_one_that_is_heard_of_late_is_waited_for(two: Suppliers) -> None:
    convert(two.seed_one_more("c"), "supplier", timeout_s=30)
    fence_all(two)
    joined = Suppliers(two.directory, ("a", "b", "c"))
    joined.by = two.by
    joined.carry("c", "a")
    with pytest.raises(OperationalError, match="a has all other suppliers stand aside, and waits for c"):
        run(two, "a", MORE)
    with pytest.raises(TryAgainError, match="c is waited for"):
        run_once(two.by["a"], MORE)
    joins(two)
    assert run_once(two.by["a"], MORE).stays_fenced
    unfence(two.by["a"], timeout_s=30)
    two.level()
    two.assert_converged()


def test_one_that_is_heard_of_between_the_fence_and_the_change_is_waited_for_too(two: Suppliers) -> None:
    convert(two.seed_one_more("c"), "supplier", timeout_s=30)
    joined = Suppliers(two.directory, ("a", "b", "c"))
    joined.by = two.by
    waited_for = list[tuple[str, ...]]()
    connections = iter(range(3))

    def connect_late(name: str) -> Connection:
        """The first one tries the statements; as the second one is made all stand aside, and the change begins."""
        if next(connections) == 1:
            joined.carry("c", "a")
        return connect(two.by["a"].path, name)

    def waits(found: ToldFence) -> None:
        waited_for.append(found.awaited)
        (joined if found.awaited == ("c",) else two).level()

    done = run_fenced(two.by["a"], MORE, connect_late, where="change.sql", timeout_s=30, waits=waits)
    assert not done.stays_fenced
    assert waited_for[0] == ("b",)
    assert ("c",) in waited_for
    joined.level()
    joined.assert_converged()
    assert all("more" in columns(joined, name) for name in joined.names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["role.region_turned:1", "role.pool_retired:1", "role.pool_retired:2", "role.changed:1"]
)
def test_a_conversion_is_killed_while_others_stand_aside(two: Suppliers, place: str) -> None:
    with pytest.raises(TryAgainError):
        fence(two.by["a"], timeout_s=0)
    c = two.seed_one_more("c")
    assert kill_at(place, "tests.harness.suppliers:convert_to_supplier", c.path) == -signal.SIGKILL
    convert(c, "supplier", timeout_s=30)
    joins(two)
    change(two, MORE)
    unfence(two.by["a"], timeout_s=30)
    two.level()
    two.assert_converged()
