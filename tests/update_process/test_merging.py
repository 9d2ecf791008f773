"""Rows that several suppliers write at once, merged on each of them; the test itself carries what one lacks."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from replicate.admin import partitions
from replicate.dbapi import NotSupportedError as NotSupportedDbError
from replicate.dbapi import OperationalError
from replicate.door.writer_check import WriterCheck
from replicate.errors import ConflictError, NotWriterError
from replicate.instance.instance import Instance
from replicate.region.protocol import MergedRow
from replicate.region.sqlite.digest import RegionDigest, digest_region
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.own_counters import BLOCK_BITS, is_in_own_block
from replicate.region.sqlite.row_stamps import read_merged
from replicate.roles.partition_writers import give, leave, share
from replicate.roles.retiring import retire
from replicate.roles.supplier import convert
from replicate.transfer.seed.direct import seed
from tests.harness.instances import with_settings
from tests.harness.merging_worlds import BY_KEY, UNIQUE, folded
from tests.harness.pair import SMALL, Pair
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared

PLACES = ("append.before_write", "append.after_write", "apply.after_commit")


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


def test_two_columns_of_one_row_keep_both_values(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'new' WHERE id = 1")
    run(two, "b", "UPDATE ta SET n = 7 WHERE id = 1")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "new", 7)]


def test_of_one_column_the_later_value_stays_and_the_other_is_kept(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'of a' WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "of b", 0)]


def test_a_delete_and_an_update_at_once_leave_what_is_later(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'one', 0), (2, 'two', 0)")
    two.level()
    run(two, "a", "DELETE FROM ta WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'changed' WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'changed' WHERE id = 2")
    run(two, "a", "DELETE FROM ta WHERE id = 2")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "changed", 0)], "the row that was deleted earlier is back with every value"


def test_two_rows_of_one_key_are_one_row(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'of a', 1)")
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 2)")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "of b", 2)]


def test_a_key_that_changes_beside_an_update(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET id = 9 WHERE id = 1")
    run(two, "b", "UPDATE ta SET v = 'new' WHERE id = 1")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "new", 0), (9, "old", 0)], "nothing that was typed is lost"


def test_what_nobody_wrote_beside_is_still_checked(two: Suppliers) -> None:
    """A row that was changed past the suppliers stops the Update Process."""
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)")
    two.level()
    with two.session("b") as session:
        session.begin()
        session._open[0].region.connection.execute("UPDATE ta SET v = 'by hand' WHERE id = 1")
        session._open[0].region.commit()
        session.rollback()
    run(two, "b", "UPDATE ta SET n = 1 WHERE id = 2")
    run(two, "a", "UPDATE ta SET v = 'new' WHERE id = 2", "UPDATE ta SET v = 'new' WHERE id = 1")
    with pytest.raises(ConflictError, match="differs from its before-image"):
        two.carry("a", "b")


def test_all_come_back_to_one_writer_who_changes_the_schema(two: Suppliers) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    with pytest.raises(OperationalError, match="b writes here, too"):
        run(two, "a", "ALTER TABLE ta ADD COLUMN more")
    leave(two.by["b"], "1", timeout_s=30)
    with pytest.raises(OperationalError, match="partition DEFAULT is written by a"):
        run(two, "b", "INSERT INTO ta VALUES (2, 'of b', 0)")
    two.level()
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    run(two, "a", "ALTER TABLE ta ADD COLUMN more", "UPDATE ta SET more = 1")
    two.level()
    two.assert_converged()
    share(two.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    two.level()
    run(two, "a", "UPDATE ta SET more = 2")
    run(two, "b", "UPDATE ta SET v = 'again'")
    two.level()
    two.assert_converged()
    assert two.rows("b")["ta"] == [(1, "again", 0, 2)]


def test_what_its_owner_wrote_before_it_saw_another_leave_is_merged_still(two: Suppliers) -> None:
    """b has left, and knows that nobody else writes; what a had written beside b's last changes comes after that."""
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)")
    two.level()
    run(two, "b", "UPDATE ta SET v = 'of b'")
    leave(two.by["b"], "1", timeout_s=30)
    run(two, "a", "UPDATE ta SET n = 5 WHERE id = 1", "UPDATE ta SET v = 'of a' WHERE id = 2")
    for _ in range(2):
        two.tend("b")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == folded(two) == [(1, "of b", 5), (2, "of a", 0)]


def test_what_is_shared_once_more_begins_with_no_stamps_of_before(two: Suppliers) -> None:
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    run(two, "b", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    leave(two.by["b"], "1", timeout_s=30)
    two.level()
    run(two, "a", "DELETE FROM ta")
    share(two.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    two.level()
    run(two, "a", "INSERT INTO ta VALUES (1, 'of a', 0)")
    run(two, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == folded(two) == [(1, "of b", 0)]


@pytest.mark.slow
def test_a_line_of_three_passes_on_what_was_written_not_what_it_came_to(tmp_path: Path) -> None:
    """b merges what a wrote; c has not seen what it was merged with, and gets it from b."""
    three = shared(tmp_path, 3)
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    three.level()
    run(three, "a", "UPDATE ta SET v = 'of a', n = 1 WHERE id = 1")
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    run(three, "c", "UPDATE ta SET n = 3 WHERE id = 1")
    three.carry("a", "b")
    three.carry("b", "c")
    three.carry("c", "b")
    three.carry("b", "a")
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "of b", 3)]


@pytest.mark.slow
def test_rows_with_a_hidden_rowid_are_told_by_their_primary_key(tmp_path: Path) -> None:
    """Two sites give one rowid to different rows, and different ones to the same row."""
    three = shared(tmp_path, 3, schema=BY_KEY)
    run(three, "a", "INSERT INTO named VALUES ('a1', 'p', NULL, 1), ('a2', 'q', NULL, 2)")
    run(three, "b", "INSERT INTO named VALUES ('b1', 'r', NULL, 3)", "INSERT INTO named VALUES ('a2', 's', NULL, 4)")
    three.level()
    run(three, "c", "UPDATE named SET n = 9 WHERE id = 'a2'", "UPDATE named SET id = 'c1' WHERE id = 'b1'")
    run(three, "a", "UPDATE named SET name = 'z' WHERE id = 'a2'", "DELETE FROM named WHERE id = 'a1'")
    three.level()
    three.assert_converged()
    assert three.rows("b")["named"] == folded(three, "named") == [("a2", "z", None, 9), ("c1", "r", None, 3)]
    assert len({digests(three, name) for name in three.names}) == 1, "rowids are not compared"


@pytest.mark.slow
def test_of_two_rows_that_want_one_value_the_earlier_one_keeps_it_everywhere(tmp_path: Path) -> None:
    three = shared(tmp_path, 3, schema=UNIQUE)
    run(three, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(three, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    three.level()
    three.assert_converged()
    assert three.rows("c")["named"] == [("of a", "x", "a", 1)]
    run(three, "c", "INSERT INTO named VALUES ('of c', 'y', 'b', 3)")
    three.level()
    three.assert_converged()
    assert [row[0] for row in three.rows("b")["named"]] == ["of a", "of c"]


def test_what_else_is_written_to_a_row_makes_its_unique_value_no_younger(tmp_path: Path) -> None:
    """Who has had the value longer keeps it, though the row as a whole is the one that was written last."""
    two = shared(tmp_path, schema=UNIQUE)
    run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    run(two, "a", "UPDATE named SET n = 3")
    two.level()
    two.assert_converged()
    assert two.rows("b")["named"] == [("of a", "x", "a", 3)]


def test_of_two_rows_that_one_transaction_wrote_last_one_keeps_the_value_on_every_site(tmp_path: Path) -> None:
    """None has had its values longer: all sites choose the same one, so that one is left."""
    three = shared(tmp_path, 3, schema=UNIQUE)
    run(three, "a", "INSERT INTO named VALUES ('k1', 'p', 'm1', 1)", "INSERT INTO named VALUES ('k2', 'q', 'm2', 2)")
    three.level()
    run(three, "a", "UPDATE named SET name = 'x' WHERE id = 'k1'")
    run(three, "b", "UPDATE named SET name = 'x' WHERE id = 'k2'")
    run(three, "c", "UPDATE named SET mail = 'of c ' || id")
    for source, consumer in ("ca", "cb", "ba", "ab"):  # each of them meets the other one's after c's
        three.carry(source, consumer)
    three.level()
    three.assert_converged()
    assert three.rows("b")["named"] == [("k1", "x", "of c k1", 1)]


def test_what_removes_a_row_is_later_than_that_row_however_slow_this_clock_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = shared(tmp_path, schema=UNIQUE)
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    now_ns = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now_ns() + 3_600_000_000_000)
        run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    two.carry("a", "b")
    two.level()
    two.assert_converged()
    assert [row[0] for row in two.rows("a")["named"]] == ["of b"]


def test_a_row_that_gave_way_is_kept_with_the_one_that_it_gave_way_to(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=UNIQUE)
    run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    two.level()
    found = [one.merged for name in two.names for one in merged_at(two, name)]
    assert {(one.lost.what, one.key, one.lost.values, one.left) for one in found} == {
        ("unique", ("of b",), ("of b", "x", "b", 2), ("of a",))
    }


def merged_at(made: Suppliers, name: str) -> list[MergedRow]:
    connection = open_region(made.by[name].regions[0].path, readonly=True)
    try:
        return list(read_merged(connection))
    finally:
        connection.close()


@pytest.mark.slow
def test_a_supplier_that_joins_knows_who_wrote_what_before_its_seed(tmp_path: Path) -> None:
    """b's change comes to c after c was seeded by a, which wrote beside it before that."""
    three = shared(tmp_path, 3)
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)")
    three.level()
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id = 1", "DELETE FROM ta WHERE id = 2")
    run(three, "a", "UPDATE ta SET v = 'of a'")
    convert(three.by["c"], "secondary", timeout_s=30)
    seed(three.by["a"], three.by["c"], restart=True)
    three.by["c"].reload()
    convert(three.by["c"], "supplier", timeout_s=30)
    three.carry("b", "c")
    three.level()
    three.assert_converged()
    assert three.rows("c")["ta"] == [(1, "of a", 0), (2, "of a", 0)]


@pytest.mark.slow
def test_a_secondary_of_a_supplier_has_what_that_one_has(tmp_path: Path) -> None:
    """It follows in step what was merged there, and can become a supplier then."""
    made = shared(tmp_path, 2)
    run(made, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    made.level()
    first = made.by["a"]
    second = Instance.create(tmp_path / "s", role="secondary", name="s", network=first.content.network)
    second = with_settings(second, SMALL)
    first.register_peer("s", "127.0.0.1", 7431)
    seed(first, second)
    second.reload()
    run(made, "a", "UPDATE ta SET v = 'of a'", "INSERT INTO ta VALUES (2, 'two', 0)")
    run(made, "b", "UPDATE ta SET v = 'of b', n = 2", "INSERT INTO ta VALUES (2, 'zwei', 0)")
    made.level()
    Pair(tmp_path, first, second).catch_up()
    made.by["s"] = second
    assert made.rows("s")["ta"] == made.rows("a")["ta"] == folded(made)
    convert(second, "supplier", timeout_s=30)
    made.names = ("a", "b", "s")
    made.level()
    share(first, "DEFAULT", "s", keys_chosen=True, timeout_s=30)
    made.level()
    run(made, "s", "UPDATE ta SET v = 'of s' WHERE id = 2")
    run(made, "b", "UPDATE ta SET n = 9 WHERE id = 2")
    made.level()
    made.assert_converged()
    assert made.rows("b")["ta"] == folded(made)


@pytest.mark.slow
def test_rows_that_a_frame_cannot_hold_twice(tmp_path: Path) -> None:
    """What a change of one comes to is spooled; others get what its writer wrote, and a killed site goes on."""
    three = shared(tmp_path, 3)
    big = "x" * 300_000
    run(three, "a", f"INSERT INTO ta VALUES (1, '{big}', 0), (2, 'small', 0)")
    three.level()
    run(three, "b", "UPDATE ta SET n = 2 WHERE id = 1", "UPDATE ta SET v = 'of b' WHERE id = 2")
    run(three, "a", "UPDATE ta SET n = 1 WHERE id = 1", "UPDATE ta SET v = 'of a' WHERE id = 2")
    run(three, "c", "UPDATE ta SET v = 'short' WHERE id = 1")
    run(three, "b", "INSERT INTO ta VALUES (3, 'more', 0)")
    ours = [three.by[name].path for name in ("a", "b")]
    assert kill_at("adopt.after_rename:1", "tests.harness.suppliers:carry_between", *ours) == -signal.SIGKILL
    three.carry("a", "b")
    three.carry("b", "c")
    three.level()
    three.assert_converged()
    assert three.rows("a")["ta"] == folded(three)
    assert three.rows("a")["ta"][0] == (1, "short", 1)


COUNTED = "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v)"


def test_a_table_that_several_have_counted_goes_to_a_partition_that_one_alone_has(tmp_path: Path) -> None:
    """The counters of the sites differ then, and the next insert tells all of them the writer's."""
    two = shared(tmp_path, schema=(COUNTED,))
    run(two, "b", "INSERT INTO counted (v) VALUES (0)")
    two.level()
    leave(two.by["b"], "1", timeout_s=30)
    two.level()
    partitions.create(two.by["a"], "goods")
    partitions.assign(two.by["a"], "goods", ["counted"])
    two.level()
    two.assert_converged_but_for("sqlite_sequence")
    assert digests(two, "a").digest == digests(two, "b").digest, "counters are no difference yet"
    give(two.by["a"], "goods", "b", timeout_s=30)
    two.level()
    for _ in range(2):
        run(two, "b", "INSERT INTO counted (v) VALUES ('of b')")
        two.level()
        two.assert_converged()  # their counters, too
    assert digests(two, "a").digest == digests(two, "b").digest


@pytest.mark.slow
def test_each_site_counts_from_a_number_of_its_own(tmp_path: Path) -> None:
    three = shared(tmp_path, 3, schema=[COUNTED])
    for _ in range(3):
        for name in three.names:
            run(three, name, f"INSERT INTO counted (v) VALUES ('{name}')")
        three.level()
    three.assert_converged_but_for("sqlite_sequence")
    rows = three.rows("b")["counted"]
    assert sorted(name for _, name in rows) == sorted(three.names * 3), "nobody has given a key twice"
    for key, name in rows:
        assert is_in_own_block(int(str(key)), three.names.index(str(name)))
    for name in three.names:
        digest = [one.digest for one in (digests(three, name), digests(three, "a"))]
        assert digest[0] == digest[1], "counters are no difference"


def digests(made: Suppliers, name: str) -> RegionDigest:
    connection = open_region(made.by[name].regions[0].path, readonly=True)
    try:
        return digest_region(connection)
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_supplier_that_was_killed_while_it_merged_goes_on_as_if_it_had_not(tmp_path: Path, place: str) -> None:
    """Its region is rolled forward by what stands in its journal; its counter stays in its range."""
    two = shared(tmp_path, schema=[COUNTED], sums=["ta.n"])
    run(two, "b", "INSERT INTO ta VALUES (1, 'old', 0)", "INSERT INTO counted (v) VALUES ('b')")
    two.level()
    for name in ("a", "b"):
        run(two, name, f"UPDATE ta SET v = 'of {name}'", f"INSERT INTO counted (v) VALUES ('{name}')")
    run(two, "b", "UPDATE ta SET n = n + 1")
    run(two, "a", "UPDATE ta SET n = n + 10", "INSERT INTO ta VALUES (2, 'more', 0)")
    ours = [two.by[name].path for name in ("a", "b")]
    assert kill_at(f"{place}:1", "tests.harness.suppliers:carry_between", *ours) == -signal.SIGKILL
    run(two, "b", "INSERT INTO counted (v) VALUES ('b')", "UPDATE ta SET v = 'again' WHERE id = 1")
    two.level()
    two.assert_converged_but_for("sqlite_sequence")
    assert two.rows("a")["ta"] == folded(two, sums=["n"]) == [(1, "again", 11), (2, "more", 0)]
    keys = [int(str(key)) for key, name in two.rows("a")["counted"] if name == "b"]
    assert len(keys) == 3
    assert all(is_in_own_block(key, 1) for key in keys)


def test_a_key_of_another_site_is_refused_and_named(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=[COUNTED])
    with pytest.raises(NotSupportedDbError, match="another supplier's to give"):
        run(two, "b", f"INSERT INTO counted VALUES ({5 << BLOCK_BITS}, 'chosen')")
    run(two, "b", "INSERT INTO counted (v) VALUES ('b')")
    two.level()
    two.assert_converged_but_for("sqlite_sequence")


def without_c(three: Suppliers) -> Suppliers:
    """The same, but for c, which a retires."""
    retire(three.by["a"], "c", timeout_s=0)
    left = Suppliers(three.directory, ("a", "b"))
    left.by = three.by
    left.level()
    left.level()
    return left


@pytest.mark.slow
def test_one_that_is_gone_for_good_is_waited_for_no_longer(tmp_path: Path) -> None:
    """What it writes later is refused by the others, however it comes to them."""
    three = shared(tmp_path, 3)
    run(three, "c", "INSERT INTO ta VALUES (1, 'of c', 0)")
    three.level()
    without_c(three)
    run(three, "c", "INSERT INTO ta VALUES (2, 'too late', 0)")
    with pytest.raises(NotWriterError, match="goes on writing, and is retired"):
        three.carry("c", "a")
    run(three, "a", "INSERT INTO ta VALUES (3, 'goes on', 0)")
    three.carry("a", "b")
    assert three.rows("a")["ta"] == three.rows("b")["ta"]


@pytest.mark.slow
def test_an_application_that_was_killed_after_its_append_is_still_seen_as_a_writer(tmp_path: Path) -> None:
    """What it had committed is in the journal: the next merge there knows that this site wrote beside the other."""
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "b", "INSERT INTO ta VALUES (5, 'x', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET n = 5 WHERE id = 1")
    assert kill_at("append.after_write:1", "tests.harness.suppliers:update_at", two.by["b"].path) == -signal.SIGKILL
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "of killed", 5), (5, "x", 0)]


@pytest.mark.slow
def test_rows_that_give_way_at_a_site_that_may_not_write_there(tmp_path: Path) -> None:
    """It removes them as any other does, and the others take that from it."""
    three = Suppliers.create(tmp_path, 3, schema=UNIQUE)
    share(three.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    three.level()
    run(three, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(three, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    three.carry("a", "c")
    three.carry("b", "c")
    three.level()
    three.assert_converged()
    assert three.rows("c")["named"] == [("of a", "x", "a", 1)]


@pytest.mark.slow
def test_who_removes_rows_may_write_nothing_else_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the same window, either: what it writes there beside all rules stops the others by name."""
    three = Suppliers.create(tmp_path, 3, schema=UNIQUE)
    share(three.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    three.level()
    run(three, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(three, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    three.carry("a", "c")
    three.carry("b", "c")
    with monkeypatch.context() as changed:
        changed.setattr(WriterCheck, "refuse_others", lambda *_: None)
        run(three, "c", "INSERT INTO ta VALUES (7, 'not for c', 0)")
    with pytest.raises(NotWriterError, match="has changed partition DEFAULT"):
        three.carry("c", "a")
    assert three.rows("a")["named"] == three.rows("c")["named"]
    assert three.rows("a")["ta"] == []


def test_rows_that_give_way_at_a_site_that_has_left(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=UNIQUE)
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    leave(two.by["b"], "1", timeout_s=30)
    run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    two.carry("a", "b")
    two.level()
    two.assert_converged()
    assert two.rows("a")["named"] == [("of b", "x", "b", 2)]


def test_what_is_under_way_is_merged_when_another_partition_is_shared_before_it_comes(tmp_path: Path) -> None:
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id = 1")
    leave(two.by["b"], "1", timeout_s=30)
    run(two, "a", "UPDATE ta SET n = 5 WHERE id = 1")
    share(two.by["b"], "2", "a", keys_chosen=True, timeout_s=30)
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "of b", 5)]


_COUNT_TO = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 20000)"


@pytest.mark.slow
def test_a_large_transaction_of_one_that_writes_alone_leaves_no_stamps_of_before(tmp_path: Path) -> None:
    """Else a row that it deleted would come back where the table is shared once more."""
    two = shared(tmp_path, schema=["CREATE TABLE big (id INTEGER PRIMARY KEY, v)"])
    share(two.by["b"], "2", "a", keys_chosen=True, timeout_s=30)  # so that stamps are made all the time
    two.level()
    run(two, "b", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET v = 'of b'")
    two.level()
    leave(two.by["b"], "1", timeout_s=30)
    two.level()
    run(two, "a", "DELETE FROM ta WHERE id = 1", f"INSERT INTO big {_COUNT_TO} SELECT i, 'x' FROM c")
    two.level()
    share(two.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    two.level()
    run(two, "a", "UPDATE ta SET n = 7 WHERE id = 2")
    run(two, "b", "UPDATE ta SET v = 'x' WHERE id = 2", "INSERT INTO ta VALUES (1, 'again', 0)")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == [(1, "again", 0), (2, "x", 7)]


def test_keys_beyond_an_integer_are_one_key(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=["CREATE TABLE m (p REAL PRIMARY KEY, v) WITHOUT ROWID"])
    run(two, "a", "INSERT INTO m VALUES (1e30, 1), (9e999, 1), (-0.0, 1)")
    run(two, "b", "INSERT INTO m VALUES (1e30, 2), (9e999, 2), (0.0, 2)")
    two.level()
    two.assert_converged()
    assert [value for _key, value in two.rows("a")["m"]] == [2, 2, 2]


@pytest.mark.slow
def test_a_merger_that_was_killed_after_its_append_knows_what_was_lost(tmp_path: Path) -> None:
    two = shared(tmp_path)
    run(two, "a", "INSERT INTO ta VALUES (1, 'old', 0)")
    two.level()
    run(two, "a", "UPDATE ta SET v = 'of a'")
    run(two, "b", "UPDATE ta SET v = 'of b'")
    paths = [two.by[name].path for name in ("a", "b")]
    assert kill_at("append.after_write:1", "tests.harness.suppliers:carry_between", *paths) == -signal.SIGKILL
    two.level()
    two.assert_converged()
    assert [len(merged_at(two, name)) for name in two.names] == [1, 1]
