"""Giving partitions, and writing them together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.admin import partitions
from replicate.cli.root import root
from replicate.dbapi import NotSupportedError as NotSupportedDbError
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
from replicate.roles.partition_writers import give, leave, share, tables_that_bar, written
from tests.harness.suppliers import Suppliers, run

SCHEMA = (
    "CREATE TABLE doc (a, v)",
    "CREATE TABLE note (id TEXT PRIMARY KEY, v) WITHOUT ROWID",
    "CREATE TABLE card (id TEXT PRIMARY KEY, v)",
)


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
    assert "Give it a primary key" in str(told.value)
    assert [one.table for one in tables_that_bar(two.by["a"], "DEFAULT", keys_chosen=True)] == ["doc"]
    assert of_default(two.by["a"]) == ("a", ())


def shared_note(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    partitions.create(two.by["a"], "notes", 9)
    partitions.assign(two.by["a"], "notes", ["note"])
    share(two.by["a"], "notes", "b", keys_chosen=False, timeout_s=30)


def shared_card(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    partitions.create(two.by["a"], "cards", 9)
    partitions.assign(two.by["a"], "cards", ["card"])
    share(two.by["a"], "cards", "b", keys_chosen=False, timeout_s=30)


def test_connections_that_are_open_when_a_table_comes_to_be_told_by_key(two: Suppliers) -> None:
    """Those of either site go on, and tell its rows in the new way."""
    run(two, "a", "INSERT INTO card (rowid, id, v) VALUES (7, 'old', 1)")
    two.level()
    ours, theirs = two.connect("a"), two.connect("b")
    for one in (ours, theirs):
        assert one.execute("SELECT count(*) FROM card").fetchall() == [(1,)]
    ours.execute("INSERT INTO card VALUES ('before', 1)")
    ours.commit()
    shared_card(two)
    ours.execute("INSERT INTO card VALUES ('of a', 1)")
    ours.commit()
    two.level()
    theirs.execute("INSERT INTO card VALUES ('of b', 1)")
    theirs.execute("UPDATE card SET v = 2 WHERE id = 'old'")
    theirs.commit()
    ours.execute("DELETE FROM card WHERE id = 'before'")
    ours.commit()
    two.level()
    two.assert_converged()
    assert two.rows("a")["card"] == [("of a", 1), ("of b", 1), ("old", 2)]
    ours.close()
    theirs.close()


def test_a_connection_that_is_open_when_a_table_is_put_into_another_partition(two: Suppliers) -> None:
    theirs = two.connect("b")
    theirs.execute("INSERT INTO tb (v) VALUES (1)")
    theirs.commit()
    two.level()
    partitions.create(two.by["a"], "cards", 9)
    partitions.assign(two.by["a"], "cards", ["card"])
    give(two.by["a"], "cards", "b", timeout_s=30)
    two.level()
    theirs.execute("INSERT INTO card VALUES ('of b', 1)")
    theirs.commit()
    theirs.close()
    two.level()
    two.assert_converged()


def test_a_table_moves_between_own_partitions_alone(two: Suppliers) -> None:
    shared_card(two)
    two.level()
    partitions.create(two.by["a"], "notes", 10)
    partitions.assign(two.by["a"], "notes", ["note"])
    with pytest.raises(NotWriterError, match="moved into, or out of, partition cards, which b writes, too"):
        partitions.assign(two.by["a"], "cards", ["note"])
    two.level()
    with pytest.raises(NotWriterError, match="is written by a"):
        partitions.assign(two.by["b"], "DEFAULT", ["note"])


def test_only_who_shares_a_partition_has_its_tables_told_by_key(two: Suppliers) -> None:
    """A table that is made in it once the others have left is told by its rowid, whatever they say meanwhile: its
    owner may hold rows without a key."""
    shared_card(two)
    two.level()
    leave(two.by["b"], "9", timeout_s=30)
    two.level()
    run(two, "a", "CREATE TABLE later (id TEXT PRIMARY KEY, v)", "INSERT INTO later VALUES (NULL, 1)")
    partitions.assign(two.by["a"], "cards", ["later"])
    give(two.by["a"], "DEFAULT", "b", timeout_s=30)
    two.level()
    give(two.by["b"], "1", "a", timeout_s=30)
    two.level()
    run(two, "a", "INSERT INTO later VALUES (NULL, 2)")
    two.level()
    two.assert_converged()
    with pytest.raises(NotSupportedError, match="later: rows of it have no key"):
        share(two.by["a"], "cards", "b", keys_chosen=False, timeout_s=30)


def test_a_row_without_a_key_is_refused(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO card VALUES (NULL, 1)")
    with pytest.raises(NotSupportedError, match="card: rows of it have no key: id is NULL"):
        shared_card(two)
    run(two, "a", "UPDATE card SET id = 'was NULL'")
    share(two.by["a"], "cards", "b", keys_chosen=False, timeout_s=30)
    two.level()
    wrong = ("INSERT INTO card VALUES (NULL, 1)", "UPDATE card SET id = NULL", "REPLACE INTO card (v) VALUES (1)")
    for name in two.names:
        connection = two.connect(name)
        for statement in wrong:
            with pytest.raises(NotSupportedDbError, match=r"has no key: id is NULL.*UUID"):
                connection.execute(statement)
            connection.rollback()
        connection.close()
    two.assert_converged()
    assert two.rows("b")["card"] == [("was NULL", 1)]


def test_blobs_that_are_written_in_place_where_rows_are_told_by_key(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO card VALUES ('x', zeroblob(8)), ('y', zeroblob(8))")
    shared_card(two)
    two.level()
    connection = two.connect("b")
    (rowid,) = connection.execute("SELECT rowid FROM card WHERE id = 'y'").fetchone()
    with connection.blobopen("card", "v", rowid) as blob:
        blob.write(b"abc")
    connection.execute("UPDATE card SET id = 'z' WHERE id = 'y'")
    connection.commit()
    connection.close()
    two.level()
    two.assert_converged()
    assert two.rows("a")["card"] == [("x", bytes(8)), ("z", b"abc" + bytes(5))]


def test_a_column_that_no_hook_gives_is_refused_where_rows_are_told_by_key(two: Suppliers) -> None:
    shared_card(two)
    two.level()
    leave(two.by["b"], "9", timeout_s=30)
    two.level()
    run(two, "a", "ALTER TABLE card ADD COLUMN twice AS (v * 2)")
    with pytest.raises(NotSupportedDbError, match="VIRTUAL generated column and is written by several"):
        run(two, "a", "INSERT INTO card (id, v) VALUES ('x', 1)")


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


@pytest.mark.slow
@pytest.mark.parametrize(("call", "error", "told"), REFUSED)
def test_what_cannot_be_is_refused_by_name(
    two: Suppliers, call: Callable[[Suppliers], object], error: type[ReplicateError], told: str
) -> None:
    shared_note(two)
    two.level()
    with pytest.raises(error, match=told):
        call(two)


@pytest.mark.slow
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
    assert "notes: written by a, b; by row\n" in command(two.by["a"], "partition", "list").output
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET n = 7")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "old", 7)], "the later change stays whole"


def test_rows_of_one_table_that_are_merged_whole(tmp_path: Path) -> None:
    """Those of others in the partition are merged column by column."""
    three = Suppliers.create(tmp_path, 3, schema=["CREATE TABLE note (id TEXT PRIMARY KEY, v, n)"])
    first = three.by["a"]
    with pytest.raises(NotFoundError, match="--by-row-of tx: the partition has no table tx"):
        share(first, "DEFAULT", "b", keys_chosen=True, timeout_s=30, whole=["tx"])
    shared = command(first, "partition", "share", "DEFAULT", "b", "--keys-chosen", "--by-row-of", "ta")
    assert shared.exception is None, shared.output
    with pytest.raises(UsageError, match="with other sums, or tables by row") as told:
        share(first, "DEFAULT", "c", keys_chosen=True, timeout_s=30)
    assert "--by-row-of ta" in str(told.value.do)
    share(first, "DEFAULT", "c", keys_chosen=True, timeout_s=30, whole=["ta"])
    three.level()
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0)", "INSERT INTO note VALUES ('k', 'old', 0)")
    three.level()
    run(three, "a", "UPDATE ta SET v = 'of a'", "UPDATE note SET v = 'of a'")
    run(three, "b", "UPDATE ta SET n = 7", "UPDATE note SET n = 7")
    three.level()
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "old", 7)], "the later change stays whole"
    assert three.rows("c")["note"] == [("k", "of a", 7)]
    assert "too; by row: ta" in command(first, "journal", "show").output
    assert "written by a, b, c; by row: ta\n" in command(three.by["c"], "partition", "list").output
    listed = json.loads(command(first, "--json", "partition", "list").output)
    assert [one.get("by_row") for one in listed if one["name"] == "DEFAULT"] == [["ta"]]


def test_columns_that_are_sums(tmp_path: Path) -> None:
    three = Suppliers.create(tmp_path, 3)
    first = three.by["a"]

    def shares(to: str, *sums: str) -> None:
        share(first, "DEFAULT", to, keys_chosen=True, timeout_s=30, sums=sums)

    with pytest.raises(NotFoundError, match=r"--sum tx.n: the partition has no table tx"):
        shares("b", "tx.n")
    with pytest.raises(NotSupportedError, match=r"ta\.v: only an INTEGER.*; ta\.x: table ta has no column x"):
        shares("b", "ta.v", "ta.n", "ta.x")
    shares("b", "ta.n")
    with pytest.raises(UsageError, match="with other sums") as told:
        shares("c")
    assert "--sum ta.n" in str(told.value.do)
    shares("c", "ta.n")
    three.level()
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 100)")
    three.level()
    for name, more in (("a", 5), ("b", -2), ("c", 40)):
        run(three, name, f"UPDATE ta SET n = n + {more}, v = 'of {name}'")
    three.level()
    three.assert_converged()
    assert three.rows("b")["ta"] == [(1, "of c", 143)]
    assert "too; sums: ta.n" in command(first, "journal", "show").output
    assert "written by a, b, c; sums: ta.n" in command(first, "partition", "list").output
    listed = json.loads(command(first, "--json", "partition", "list").output)
    assert [one.get("sums") for one in listed if one["name"] == "DEFAULT"] == [["ta.n"]]
    for name in ("b", "c"):
        leave(three.by[name], "1", timeout_s=30)
    three.level()
    shares("b")
    three.level()
    for name, more in (("a", 5), ("b", -2)):
        run(three, name, f"UPDATE ta SET n = n + {more}")
    three.level()
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "of c", 141)], "the later value, as of any column"


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
