"""Changing the schema of suppliers while all others stand aside."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.dbapi import OperationalError
from replicate.errors import (
    BusyError,
    NotPrimaryError,
    NotWriterError,
    TryAgainError,
)
from replicate.model.schema_fences import Fences
from replicate.model.writers import Writers
from replicate.roles.partition_writers import leave
from replicate.roles.retiring import retire, writers_of
from replicate.roles.schema_fence import fence, fences, unfence
from replicate.roles.supplier import convert
from tests.harness.fences import CHANGE, COMMIT, change, fence_all, has_more, run_once
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """All write ta, with n as a sum; b and c have a table of their own each."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 3, sums=["ta.n"])


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """Both write ta, with n as a sum."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, sums=["ta.n"])


def sharing(made: Suppliers, site: str) -> Writers:
    """Who writes what, and how, by what is known there."""
    return replace(writers_of(made.by[site]), fences=Fences())


def test_the_schema_changes_and_all_share_as_before(three: Suppliers) -> None:
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 10), (2, 'old', 10)")
    three.level()
    before = sharing(three, "a")
    run(three, "b", "UPDATE ta SET v = 'of b', n = n + 1 WHERE id = 1")
    run(three, "c", "UPDATE ta SET v = 'of c', n = n + 2 WHERE id = 1", "DELETE FROM ta WHERE id = 2")
    run(three, "a", "UPDATE ta SET v = 'of a' WHERE id = 2")
    change(three, f"{CHANGE}; CREATE INDEX ta_more ON ta (more)")
    three.level()
    for name in three.names:
        assert fences(three.by[name]) == []
        assert sharing(three, name) == before
    three.assert_converged()
    run(three, "a", "UPDATE ta SET more = 'of a', n = n + 1 WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'of b again', n = n + 1 WHERE id = 1")
    run(three, "c", "INSERT INTO ta VALUES (9, 'new', 0, 'of c')")
    three.level()
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "of b again", 15, "of a"), (2, "of a", 0, None), (9, "new", 0, "of c")]


def test_who_stands_aside_is_told_for_whom(three: Suppliers) -> None:
    with pytest.raises(TryAgainError, match="b, c is waited for: all suppliers stand aside") as told:
        fence(three.by["a"], timeout_s=0)
    assert told.value.exit_code == 75
    run(three, "b", "INSERT INTO tb (v) VALUES ('nobody has told it yet')")
    with pytest.raises(OperationalError, match="a has all other suppliers stand aside, and waits for b, c"):
        run(three, "a", "INSERT INTO ta VALUES (1, 'of a', 0)")
    with pytest.raises(OperationalError, match="waits for b, c"):
        run(three, "a", CHANGE)
    three.carry("a", "b")
    with pytest.raises(OperationalError, match="a changes the schema, and all other suppliers stand aside") as refused:
        run(three, "b", "INSERT INTO tb (v) VALUES ('its own table')")
    assert "replicate -i a schema unfence" in str(refused.value)
    with pytest.raises(NotWriterError, match="a changes the schema now, and b stands aside"):
        fence(three.by["b"], timeout_s=0)
    three.carry("b", "a")
    (found,) = fences(three.by["a"])
    assert (found.by, found.awaited, found.is_closed) == ("a", ("c",), False)
    three.level()
    (found,) = fences(three.by["a"])
    assert (found.awaited, found.is_closed) == ((), True)
    with pytest.raises(BusyError, match="who writes what stays as it is meanwhile"):
        leave(three.by["b"], "DEFAULT", timeout_s=30)
    assert unfence(three.by["a"], timeout_s=30)
    assert not unfence(three.by["a"], timeout_s=30)
    three.level()
    for name in three.names:
        run(three, name, f"INSERT INTO ta (id, v) VALUES ({ord(name)}, 'writes again')")
    three.level()
    three.assert_converged()


def test_an_application_changes_the_schema_in_several_transactions(three: Suppliers) -> None:
    fence_all(three)
    run(three, "a", CHANGE, "UPDATE ta SET more = 1")
    run(three, "a", "CREATE TABLE later (id TEXT PRIMARY KEY, v)", "INSERT INTO later VALUES ('k', 1)")
    assert run_once(three.by["a"], "CREATE INDEX more ON ta (more)").stays_fenced
    unfence(three.by["a"], timeout_s=30)
    three.level()
    run(three, "b", "UPDATE later SET v = 2")
    run(three, "c", "INSERT INTO later VALUES ('other', 1)")
    three.level()
    three.assert_converged()
    assert three.rows("a")["later"] == [("k", 2), ("other", 1)]


def test_one_that_is_no_owner_changes_the_schema(three: Suppliers) -> None:
    change(three, f"{CHANGE}; ALTER TABLE tb ADD COLUMN also", site="c")
    three.level()
    run(three, "b", "INSERT INTO tb VALUES (1, 'v', 0, 'also')", "INSERT INTO ta VALUES (1, 'v', 0, 'more')")
    three.level()
    three.assert_converged()


def test_without_a_fence_the_schema_is_not_changed(three: Suppliers) -> None:
    with pytest.raises(OperationalError, match="b, c write here, too") as told:
        run(three, "a", CHANGE)
    assert "schema run FILE" in str(told.value)
    for text in ("CREATE TABLE x (id TEXT PRIMARY KEY)", "CREATE INDEX i ON ta (v)", "PRAGMA user_version = 3"):
        with pytest.raises(OperationalError, match="b, c write here, too"):
            run(three, "a", text)
    assert not has_more(three, "a")


def test_one_that_is_away_is_retired_meanwhile(three: Suppliers) -> None:
    left = Suppliers(three.directory, ("a", "b"))
    left.by = three.by
    with pytest.raises(TryAgainError, match="b, c is waited for"):
        run_once(three.by["a"])
    left.level()
    with pytest.raises(TryAgainError, match="c is waited for") as told:
        run_once(three.by["a"])
    assert "replica retire c" in str(told.value)
    retire(three.by["b"], "c", timeout_s=0)
    left.level()
    left.level()
    change(left)
    left.level()
    left.assert_converged()
    run(left, "b", "UPDATE ta SET more = 1")


def test_a_secondary_fences_nothing(three: Suppliers) -> None:
    convert(three.by["c"], "secondary", timeout_s=30)
    for call in (fence, unfence):
        with pytest.raises(NotPrimaryError, match="is secondary"):
            call(three.by["c"], timeout_s=0)


# Kills.


def killed_and_goes_on(two: Suppliers, place: str) -> None:
    """The command dies there; it is given again, until the change is made."""
    assert kill_at(place, "tests.harness.fences:change_at", two.by["a"].path) == -signal.SIGKILL
    two.level()
    if not has_more(two, "a"):
        change(two)
    two.level()
    two.assert_converged()
    run(two, "a", "UPDATE ta SET more = 'of a', n = n + 1")
    run(two, "b", "UPDATE ta SET v = 'again', n = n + 1")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "again", 3, "of a")]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["fence.said:1", *COMMIT])
def test_the_command_is_killed_as_it_fences(two: Suppliers, place: str) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 1)")
    killed_and_goes_on(two, place)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["fence.closed:1", *COMMIT])
def test_the_command_is_killed_as_it_changes_the_schema(two: Suppliers, place: str) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 1)")
    with pytest.raises(TryAgainError):
        run_once(two.by["a"])
    two.level()
    killed_and_goes_on(two, place)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["fence.stands:1", *COMMIT])
def test_one_that_stands_aside_is_killed(two: Suppliers, place: str) -> None:
    with pytest.raises(TryAgainError):
        fence(two.by["a"], timeout_s=0)
    assert (
        kill_at(place, "tests.harness.suppliers:carry_between", two.by["a"].path, two.by["b"].path) == -signal.SIGKILL
    )
    with pytest.raises(OperationalError, match="all other suppliers stand aside"):
        run(two, "b", "INSERT INTO tb (v) VALUES (1)")
    change(two)
    unfence(two.by["a"], timeout_s=30)
    two.level()
    two.assert_converged()
    run(two, "b", "INSERT INTO tb (v) VALUES (1)")
