"""What was lost in merges: looked at, written once more, settled."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.errors import AlreadyExistsError, ConflictError, NotFoundError, UsageError
from replicate.instance.instance import Instance
from replicate.roles.merge_losses import ShownMerge, merge_of, merges, orphans, purge, settle
from replicate.roles.merge_losses import take as take_back
from tests.harness.fences import change
from tests.harness.suppliers import Suppliers, run, shared

SCHEMA = (
    "CREATE TABLE named (id TEXT PRIMARY KEY, name TEXT UNIQUE, n INTEGER) WITHOUT ROWID",
    "CREATE TABLE child (id TEXT PRIMARY KEY, of TEXT REFERENCES named(id)) WITHOUT ROWID",
)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = shared(tmp_path, schema=SCHEMA)
    run(made, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0), (3, 'old', 0)")
    made.level()
    return made


def lost_at(made: Suppliers, name: str) -> ShownMerge:
    """The one value that was lost there."""
    (one,) = merges(made.by[name])
    return one


def test_both_sites_tell_the_value_that_was_written_over(two: Suppliers) -> None:
    run(two, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    two.level()
    for name in two.names:
        one = lost_at(two, name)
        assert (one.table, one.key, one.lost, one.left) == (
            "ta",
            {"id": 1},
            {"v": "of a"},
            {"id": 1, "v": "of b", "n": 0},
        )
        assert (one.loser, one.winner, one.state) == ("a", "b", "open")
        assert one.loser_time < one.winner_time


def test_what_is_taken_back_comes_to_all(two: Suppliers) -> None:
    run(two, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    two.level()
    take(two, "b", lost_at(two, "b").id, {})
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"][0] == (1, "of a", 0)
    assert merges(two.by["b"]) == []
    assert merge_of(two.by["b"], "m1").state == "settled"
    with pytest.raises(UsageError, match="settled already"):
        take(two, "b", "m1", {})


def test_a_delete_that_came_to_nothing_is_done_once_more(two: Suppliers) -> None:
    run(two, "a", "DELETE FROM ta WHERE id = 2")
    run(two, "b", "UPDATE ta SET n = 5 WHERE id = 2")
    two.level()
    one = lost_at(two, "a")
    assert one.what == "delete"
    take(two, "a", one.id, {})
    two.level()
    two.assert_converged()
    assert [row[0] for row in two.rows("b")["ta"]] == [1, 3]


def test_a_change_of_a_row_that_was_deleted_later_puts_the_row_back(two: Suppliers) -> None:
    run(two, "b", "UPDATE ta SET n = 5 WHERE id = 2")
    run(two, "a", "DELETE FROM ta WHERE id = 2")
    two.level()
    one = lost_at(two, "a")
    assert (one.what, one.lost, one.left) == ("update", {"n": 5}, None)
    take(two, "a", one.id, {})
    two.level()
    two.assert_converged()
    assert (2, "old", 5) in two.rows("b")["ta"]


def test_a_row_that_gave_way_comes_back_under_another_name(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 1)")
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 2)")
    two.level()
    where = next(name for name in two.names if merges(two.by[name]))
    one = merges(two.by[where])[0]
    assert (one.what, one.key, one.left) == ("unique", {"id": "of b"}, {"id": "of a"})
    with pytest.raises(ConflictError, match="cannot be put back as it was"):
        take(two, where, one.id, {})
    with pytest.raises(UsageError, match="no column nome"):
        take(two, where, one.id, {"nome": "y"})
    take(two, where, one.id, {"name": "y"})
    two.level()
    two.assert_converged()
    assert two.rows("a")["named"] == [("of a", "x", 1), ("of b", "y", 2)]


def test_settled_ones_are_kept_until_they_are_purged(two: Suppliers) -> None:
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET v = 'of b'")
    two.level()
    site = two.by["a"]
    with pytest.raises(NotFoundError, match="number m9"):
        settle(site, ["m1", "m9"])
    assert len(merges(site)) == 3
    assert settle(site, ["m1", "m2"]) == 2
    assert settle(site, ["m1", "m2"]) == 0
    assert [one.id for one in merges(site)] == ["m3"]
    assert [one.id for one in merges(site, all_of_them=True)] == ["m1", "m2", "m3"]
    assert purge(site) == 2
    assert [one.id for one in merges(site, all_of_them=True)] == ["m3"]


def test_a_child_whose_parent_was_deleted_meanwhile_is_found(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO named VALUES ('parent', 'x', 1)")
    two.level()
    run(two, "a", "DELETE FROM named")
    run(two, "b", "INSERT INTO child VALUES ('child', 'parent')")
    two.level()
    two.assert_converged()
    for name in two.names:
        assert [(one.table, one.parent) for one in orphans(two.by[name])] == [("child", "named")]


def test_a_value_that_another_row_has_by_now_is_refused_with_the_way_out(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO named VALUES ('p', 'x', 1), ('q', 'y', 1)")
    two.level()
    run(two, "a", "UPDATE named SET name = 'lost' WHERE id = 'p'")
    run(two, "b", "UPDATE named SET name = 'kept' WHERE id = 'p'")
    two.level()
    run(two, "a", "UPDATE named SET name = 'lost' WHERE id = 'q'")
    site = two.by["a"]
    with pytest.raises(ConflictError, match=r"UNIQUE constraint failed: named.name.*--value COLUMN=VALUE"):
        take(two, "a", "m1", {})
    assert [one.id for one in merges(site)] == ["m1"], "it is open still"
    take(two, "a", "m1", {"name": "another"})
    assert ("p", "another", 1) in two.rows("a")["named"]


def test_what_was_lost_has_no_place_after_a_change_of_the_schema(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO named VALUES ('p', 'x', 1)", "INSERT INTO child (id) VALUES ('c')")
    two.level()
    for name in two.names:
        run(two, name, f"UPDATE child SET of = '{name}'", f"UPDATE named SET n = {len(name)}, name = '{name}'")
        run(two, name, f"UPDATE ta SET v = '{name}' WHERE id = 1")
    two.level()
    change(two, "DROP TABLE child; ALTER TABLE named RENAME name TO called; ALTER TABLE ta ADD more DEFAULT 'new'")
    two.level()
    lost = {one.table: one.id for one in merges(two.by["b"])}
    with pytest.raises(ConflictError, match="table child is not there any more: the schema has changed since"):
        take(two, "b", lost["child"], {})
    with pytest.raises(ConflictError, match="column name of table named is not there any more"):
        take(two, "b", lost["named"], {})
    take(two, "b", lost["ta"], {"more": "given"})
    assert two.rows("b")["ta"][0] == (1, "a", 0, "given")
    shown = command(two.by["b"], "take", lost["child"])
    assert isinstance(shown.exception, ConflictError)
    assert f"conflict settle {lost['child']}" in shown.exception.do


def take(made: Suppliers, name: str, merge_id: str, values: dict[str, object]) -> None:
    with closing(made.connect(name)) as connection:
        take_back(made.by[name], connection, merge_id, values)


# By command.


def command(site: Instance, *words: str) -> Result:
    return CliRunner().invoke(root, ["-i", str(site.path), "conflict", *words])


def test_by_command(two: Suppliers, tmp_path: Path) -> None:
    run(two, "a", "UPDATE ta SET v = 'of a', n = 1")
    run(two, "b", "UPDATE ta SET v = 'of b'")
    two.level()
    site = two.by["b"]
    listed = command(site, "list")
    assert listed.exit_code == 0
    assert "m1  open  ta (id 1): a value was written over: v = 'of a' of a" in listed.output
    shown = command(site, "show", "m1")
    assert "instead of it: by b at" in shown.output
    assert command(site, "take", "m1", "--value", "v=mine").exit_code == 0
    assert two.rows("b")["ta"][0] == (1, "mine", 1)
    file = tmp_path / "lost.jsonl"
    assert command(site, "export", str(file), "--all").exit_code == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["id"], one["state"]) for one in lines] == [("m1", "settled"), ("m2", "open"), ("m3", "open")]
    assert isinstance(command(site, "export", str(file)).exception, AlreadyExistsError)
    as_json = CliRunner().invoke(root, ["-i", str(site.path), "--json", "conflict", "list"])
    for one in json.loads(as_json.output)["merges"]:
        assert f"{one['id']}, open" in command(site, "show", one["id"]).output, "a script gives it back as it is"
    assert "2 settled" in command(site, "settle", "--all").output
    assert "3 purged" in command(site, "purge").output
    assert command(site, "list").output == "there is none\n"
    assert isinstance(command(site, "settle").exception, UsageError)
    assert isinstance(command(site, "take", "7").exception, UsageError)
    assert isinstance(command(site, "show", "m7").exception, NotFoundError)
