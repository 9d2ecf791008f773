"""Giving partitions, and writing them together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.admin import partitions
from replicate.cli.root import root
from replicate.dbapi import OperationalError
from replicate.errors import (
    ConfigurationError,
    NotFoundError,
    NotPrimaryError,
    NotSupportedError,
    NotWriterError,
    ReplicateError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.roles.writing import give, leave, share, tables_that_bar, written
from tests.harness.suppliers import Suppliers, run

SCHEMA = ("CREATE TABLE doc (id TEXT PRIMARY KEY, v)", "CREATE TABLE note (id TEXT PRIMARY KEY, v) WITHOUT ROWID")


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path, schema=SCHEMA)


def of_default(instance: Instance) -> tuple[str, tuple[str, ...]]:
    """Whose DEFAULT is, and who writes it, too."""
    found = {one.number: one for one in written(instance)}
    one = found.get(1, found[0])
    return one.by, one.others


def test_what_cannot_be_merged_is_named_with_the_way_out(two: Suppliers) -> None:
    with pytest.raises(NotSupportedError, match="doc: its rows are found by a hidden rowid") as told:
        share(two.by["a"], "DEFAULT", "b", keys_chosen=False, timeout_s=30)
    assert "WITHOUT ROWID" in str(told.value)
    assert [one.table for one in tables_that_bar(two.by["a"], "DEFAULT", keys_chosen=True)] == ["doc"]
    assert of_default(two.by["a"]) == ("a", ())


def shared_note(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    partitions.create(two.by["a"], "notes", 9)
    partitions.assign(two.by["a"], "notes", ["note"])
    share(two.by["a"], "notes", "b", keys_chosen=False, timeout_s=30)


def test_who_shares_writes_once_it_knows(two: Suppliers) -> None:
    shared_note(two)
    with pytest.raises(OperationalError, match="is written by a"):
        run(two, "b", "INSERT INTO note VALUES ('b', 1)")
    two.level()
    run(two, "b", "INSERT INTO note VALUES ('b', 1)")
    run(two, "a", "INSERT INTO note VALUES ('a', 1)")
    two.level()
    two.assert_converged()
    for name in two.names:
        notes = next(one for one in written(two.by[name]) if one.number == 9)
        assert (notes.by, notes.others) == ("a", ("b",))


def test_the_same_call_again_changes_nothing(two: Suppliers) -> None:
    shared_note(two)
    before = two.last_seqno("a")
    assert share(two.by["a"], "notes", "b", keys_chosen=False, timeout_s=30) == before
    two.level()
    leave(two.by["b"], "9", timeout_s=30)
    before = two.last_seqno("b")
    assert leave(two.by["b"], "9", timeout_s=30) == before


def test_who_comes_back_has_the_place_that_it_had(two: Suppliers) -> None:
    shared_note(two)
    two.level()
    leave(two.by["b"], "9", timeout_s=30)
    two.level()
    share(two.by["a"], "notes", "b", keys_chosen=False, timeout_s=30)
    two.level()
    run(two, "b", "INSERT INTO note VALUES ('b', 1)")
    two.level()
    two.assert_converged()


REFUSED: list[tuple[Callable[[Suppliers], object], type[ReplicateError], str]] = [
    (lambda two: leave(two.by["a"], "notes", timeout_s=30), ConfigurationError, "is that of a itself"),
    (lambda two: give(two.by["a"], "notes", "b", timeout_s=30), ConfigurationError, "b writes that, too"),
    (lambda two: share(two.by["a"], "notes", "x", keys_chosen=False, timeout_s=30), NotFoundError, "no supplier x"),
    (lambda two: share(two.by["a"], "NONE", "b", keys_chosen=False, timeout_s=30), NotFoundError, "never leaves"),
]


@pytest.mark.parametrize(("call", "error", "told"), REFUSED)
def test_what_cannot_be_is_refused_by_name(
    two: Suppliers, call: Callable[[Suppliers], object], error: type[ReplicateError], told: str
) -> None:
    shared_note(two)
    two.level()
    with pytest.raises(error, match=told):
        call(two)


def test_one_way_of_merging_for_all_who_share(tmp_path: Path) -> None:
    three = Suppliers.create(tmp_path, 3)
    share(three.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    with pytest.raises(UsageError, match="merged column by column already"):
        share(three.by["a"], "DEFAULT", "c", keys_chosen=True, timeout_s=30, by_row=True)
    three.level()
    with pytest.raises(NotWriterError, match="a writes that, not b"):
        share(three.by["b"], "1", "c", keys_chosen=True, timeout_s=30)


def test_a_secondary_shares_nothing(tmp_path: Path) -> None:
    primary = Instance.create(tmp_path / "p", role="primary", name="p")
    with pytest.raises(NotPrimaryError, match="from supplier to supplier"):
        share(primary, "DEFAULT", "b", keys_chosen=False, timeout_s=1)


def test_rows_that_are_merged_whole(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    partitions.create(two.by["a"], "notes", 9)
    partitions.assign(two.by["a"], "notes", ["ta"])
    share(two.by["a"], "notes", "b", keys_chosen=True, timeout_s=30, by_row=True)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET n = 7")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "old", 7)], "the later change stays whole"


def command(site: Instance, *words: str) -> Result:
    return CliRunner().invoke(root, ["-i", str(site.path), *words], standalone_mode=False)


def test_by_command(two: Suppliers) -> None:
    site = two.by["a"]
    tried = command(site, "partition", "share", "DEFAULT", "b", "--dry-run")
    assert tried.return_value == 1
    assert "doc: its rows are found by a hidden rowid" in tried.output
    converted = command(site, "instance", "convert", "--role", "supplier", "--dry-run")
    assert "doc can be written by one supplier at a time" in converted.output
    shared_note(two)
    assert "notes: written by a, b" in command(site, "partition", "list").output
    two.level()
    left = command(two.by["b"], "partition", "leave", "9")
    assert "b does not write 9" in left.output
    assert command(site, "partition", "share", "notes", "b", "--dry-run").output == "notes can be shared\n"
