"""Large transactions in tables that several suppliers write; the test itself carries what one lacks."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, read_head
from replicate.journal.walk import walk
from replicate.model.transaction import Kind
from replicate.pool.shared_memory import PoolKind
from replicate.pool.shared_memory import retire as retire_pool
from replicate.roles.partition_writers import share
from replicate.roles.supplier import convert
from replicate.transfer.packet.export import PACKET_BYTES_MIN
from replicate.transfer.seed.direct import seed
from tests.harness.instances import with_settings
from tests.harness.merging_worlds import BY_KEY, folded
from tests.harness.packets import get_packets, sent, take
from tests.harness.pair import SMALL, Pair
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, carry_between, run, shared
from tests.update_process.test_merging import merged_at
from update_process.merging import Merging

ROWS = 60
TEXT = "x" * 15_000


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path)


COUNT = f"WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {ROWS})"
FILL = f"INSERT INTO ta {COUNT} SELECT i, '{TEXT}', 0 FROM c"
NAMED = f"INSERT INTO named {COUNT} SELECT 'a' || i, 'name ' || i, 'mail ' || i || '{TEXT}', i FROM c"
CHANGE = "UPDATE ta SET v = v || 'of ' || id, n = n + 1"


def larges(made: Suppliers, name: str) -> list[LargeTransaction]:
    """Those of its journal."""
    chain = make_chain(made.by[name])
    reader, found = ChainReader(chain, chain.oldest_seqno()), list[LargeTransaction]()
    while (one := reader.read(1 << 20, made.last_seqno(name))) is not None:
        if isinstance(one, LargeTransaction):
            found.append(one)
    reader.close()
    return found


def kinds_from(made: Suppliers, name: str, seqno: int) -> list[int]:
    """Of the frames of its journal from that number on, up to the first large one."""
    last = made.last_seqno(name)
    with closing(ChainReader(make_chain(made.by[name]), seqno)) as reader:
        found = reader.read(1 << 20, last)
    return [head.kind for _, head in walk(found.data)] if isinstance(found, FrameBatch) else []


def test_one_that_nobody_wrote_beside_stands_as_it_was_written(two: Suppliers) -> None:
    run(two, "b", "INSERT INTO ta VALUES (1000, 'of b', 0)")
    run(two, "a", FILL)
    two.level()
    two.assert_converged()
    assert two.rows("b")["ta"] == folded(two)
    assert [read_head(one.commit_frame).kind for one in larges(two, "b")] == [Kind.LARGE]


def test_one_beside_small_ones_is_merged(two: Suppliers) -> None:
    run(two, "a", FILL)
    two.level()
    run(two, "b", "UPDATE ta SET n = 100 WHERE id = 1", "DELETE FROM ta WHERE id = 30")
    run(two, "a", CHANGE)
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id = 59")
    two.level()
    two.assert_converged()
    rows = two.rows("a")["ta"]
    assert rows == folded(two)
    assert [row for row in rows if row[0] == 59] == [(59, "of b", 1)]
    assert len(rows) == ROWS, "the update is later than the delete"
    assert [read_head(one.commit_frame).kind for one in larges(two, "b")] == [Kind.LARGE, Kind.RESTATED_LARGE]


def test_each_loss_is_kept_once(two: Suppliers) -> None:
    run(two, "a", FILL)
    two.level()
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id IN (2, 59)")
    run(two, "a", CHANGE)
    two.level()
    two.assert_converged()
    for name in two.names:
        assert sorted(one.merged.key for one in merged_at(two, name)) == [(2,), (59,)]


@pytest.mark.slow
def test_two_large_ones_at_once(tmp_path: Path) -> None:
    three = shared(tmp_path, 3, sums=["ta.n"])
    run(three, "a", FILL)
    three.level()
    for name in three.names:
        run(three, name, CHANGE, "DELETE FROM ta WHERE id = 7")
    run(three, "c", "UPDATE ta SET n = n + 10")
    three.level()
    three.assert_converged()
    rows = three.rows("b")["ta"]
    assert rows == folded(three, sums=["n"])
    assert {row[2] for row in rows} == {13}


@pytest.mark.slow
def test_a_line_of_three_passes_on_what_was_written(tmp_path: Path) -> None:
    three = shared(tmp_path, 3)
    run(three, "a", FILL)
    three.level()
    run(three, "a", CHANGE)
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id < 20")
    run(three, "c", "UPDATE ta SET n = 9 WHERE id > 40")
    three.carry("a", "b")
    assert read_head(larges(three, "b")[-1].commit_frame).kind == Kind.RESTATED_LARGE
    three.carry("b", "c")
    three.carry("c", "b")
    three.carry("b", "a")
    three.assert_converged()
    assert three.rows("c")["ta"] == folded(three)


@pytest.mark.slow
def test_rows_that_give_way_to_a_large_one_and_in_it(tmp_path: Path) -> None:
    """Those that somebody has had for longer keep their value; each other one is kept aside, and gone everywhere."""
    three = shared(tmp_path, 3, schema=BY_KEY)
    run(three, "b", "INSERT INTO named VALUES ('of b', 'name 3', NULL, 1)")
    run(three, "a", NAMED)
    run(three, "c", "INSERT INTO named VALUES ('of c', 'name 59', NULL, 1)")
    three.level()
    three.assert_converged()
    names = [str(row[0]) for row in three.rows("b")["named"]]
    assert "of b" in names
    assert "a3" not in names
    assert "a59" in names
    assert "of c" not in names
    assert len(names) == ROWS


def carry_and_die(source: Instance, consumer: Instance, pieces: int) -> None:
    """Bring what one lacks; the process dies once it has taken so many pieces of a large transaction."""
    left = itertools.count(pieces, -1)
    kept = Merging.take_piece

    def take_piece(self: Merging, head: Any, changes: Any, told: Any, *, removes: bool) -> Any:
        done = kept(self, head, changes, told, removes=removes)
        if next(left) <= 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Merging.take_piece = take_piece  # type: ignore[method-assign]
    carry_between(source, consumer)


def change_at(instance: Instance) -> None:
    """The large transaction of that supplier; for `sites.kill_at`."""
    made = Suppliers(instance.path.parent, (instance.name,))
    made.by = {instance.name: instance}
    run(made, instance.name, CHANGE)


def met(directory: Path) -> Suppliers:
    """b is about to get a large transaction of a, and has written beside it."""
    made = shared(directory, sums=["ta.n"])
    run(made, "a", FILL)
    made.level()
    run(made, "a", CHANGE)
    run(made, "b", "UPDATE ta SET n = n + 100", "DELETE FROM ta WHERE id = 5")
    run(made, "b", "UPDATE ta SET v = 'of b' WHERE id IN (2, 31, 60)")
    return made


def assert_met(made: Suppliers) -> None:
    made.level()
    made.assert_converged()
    rows = made.rows("b")["ta"]
    assert rows == folded(made, sums=["n"])
    assert [row[1] for row in rows if row[0] in (2, 31, 60)] == ["of b"] * 3
    for name in made.names:
        assert {one.merged.key[0] for one in merged_at(made, name)} == {2, 5, 31, 60}


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_a_merger_that_is_killed_within_a_large_one_begins_it_again(tmp_path: Path, pieces: int) -> None:
    two = met(tmp_path)
    sites = [two.by[name].path for name in ("a", "b")]
    before = two.last_seqno("b")
    done = kill_at("", "tests.update_process.test_merging_large:carry_and_die", *sites, pieces)
    assert done == -signal.SIGKILL
    assert two.last_seqno("b") == before
    run(two, "b", "UPDATE ta SET n = n + 1000 WHERE id = 9")
    assert_met(two)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["adopt.before_rename", "adopt.renamed", "adopt.after_rename", "apply.after_commit"])
def test_a_merger_that_is_killed_at_the_end_of_a_large_one_goes_on(tmp_path: Path, place: str) -> None:
    """Its region is rolled forward by what stands in its journal, and its stamps are made from there."""
    two = met(tmp_path)
    sites = [two.by[name].path for name in ("a", "b")]
    assert kill_at(f"{place}:1", "tests.harness.suppliers:carry_between", *sites) == -signal.SIGKILL
    run(two, "b", "UPDATE ta SET n = n + 1000 WHERE id = 9")
    assert_met(two)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["adopt.before_rename", "adopt.renamed", "adopt.after_rename", "commit.after_commit"])
def test_a_writer_that_is_killed_at_the_end_of_a_large_one(tmp_path: Path, place: str) -> None:
    """It is there as a whole, or not at all; what others had written is told either way."""
    two = shared(tmp_path)
    run(two, "a", FILL)
    run(two, "b", "INSERT INTO ta VALUES (1000, 'of b', 0)")
    two.level()
    run(two, "b", "UPDATE ta SET v = 'of b' WHERE id < 5")
    killed = kill_at(f"{place}:1", "tests.update_process.test_merging_large:change_at", two.by["a"].path)
    assert killed == -signal.SIGKILL
    run(two, "a", "UPDATE ta SET n = 77 WHERE id = 4")
    two.level()
    two.assert_converged()
    rows = {row[0]: row for row in two.rows("b")["ta"]}
    assert list(rows.values()) == folded(two)
    assert rows[50][2] == (0 if place == "adopt.before_rename" else 1)
    assert rows[4][2] == 77


@pytest.mark.slow
@pytest.mark.parametrize("place", ["append.before_write", "append.after_write", "apply.after_commit", "adopt.renamed"])
def test_a_merger_that_is_killed_between_what_gives_way_and_the_large_one(tmp_path: Path, place: str) -> None:
    two = shared(tmp_path, schema=BY_KEY)
    run(two, "b", "INSERT INTO named VALUES ('of b', 'name 3', NULL, 1)")
    run(two, "a", NAMED)
    run(two, "b", "INSERT INTO named VALUES ('later', 'name 44', NULL, 1)")
    sites = [two.by[name].path for name in ("a", "b")]
    assert kill_at(f"{place}:1", "tests.harness.suppliers:carry_between", *sites) == -signal.SIGKILL
    run(two, "b", "UPDATE named SET n = n + 1")
    two.level()
    two.assert_converged()
    names = {str(row[0]) for row in two.rows("a")["named"]}
    assert {"of b", "a44", "a1", "a60"} <= names
    assert not {"a3", "later"} & names
    told = {str(one.merged.key[0]) for name in two.names for one in merged_at(two, name)}
    assert {"a3", "later"} <= told


@pytest.mark.slow
def test_a_third_site_gets_what_gives_way_before_the_large_one(tmp_path: Path) -> None:
    """And a row of the large one that is gone before it comes there does not come back."""
    three = shared(tmp_path, 3, schema=BY_KEY)
    run(three, "b", "INSERT INTO named VALUES ('of b', 'name 3', NULL, 1)")
    run(three, "a", NAMED)
    three.carry("a", "b")
    gives_way = three.last_seqno("b") - 1
    with door_of(three.by["c"]) as door, door.locked():
        begin = door.position().last_seqno
    three.carry("b", "c", most=gives_way - begin)
    assert [row[0] for row in three.rows("c")["named"]] == ["of b"]
    run(three, "c", "UPDATE named SET mail = 'm' WHERE id = 'of b'")
    three.level()
    three.assert_converged()
    names = {str(row[0]) for row in three.rows("c")["named"]}
    assert len(names) == ROWS
    assert "a3" not in names


@pytest.mark.slow
def test_a_secondary_of_a_supplier_has_what_that_one_has(tmp_path: Path) -> None:
    """It follows in step what large ones came to, and can become a supplier then."""
    made = met(tmp_path)
    first = made.by["b"]
    second = Instance.create(tmp_path / "s", role="secondary", name="s", network=first.content.network)
    second = with_settings(second, SMALL)
    first.register_peer("s", "127.0.0.1", 7431)
    seed(first, second)
    second.reload()
    assert_met(made)
    Pair(tmp_path, first, second).catch_up()
    made.by["s"] = second
    assert made.rows("s")["ta"] == made.rows("b")["ta"]
    assert merged_at(made, "s") == merged_at(made, "b")
    convert(second, "supplier", timeout_s=30)
    made.names = ("a", "b", "s")
    made.level()
    share(made.by["a"], "DEFAULT", "s", keys_chosen=True, timeout_s=30, sums=["ta.n"])
    made.level()
    run(made, "s", CHANGE)
    run(made, "a", "UPDATE ta SET v = 'of a' WHERE id = 17")
    made.level()
    made.assert_converged()
    assert [row[1] for row in made.rows("s")["ta"] if row[0] == 17] == ["of a"]


@pytest.mark.slow
@pytest.mark.parametrize("most", [PACKET_BYTES_MIN, 64 * PACKET_BYTES_MIN])
def test_packets_pass_on_what_was_written(tmp_path: Path, most: int) -> None:
    three = get_packets(shared(tmp_path, 3, sums=["ta.n"]))
    run(three, "a", FILL)
    three.level()
    run(three, "a", CHANGE)
    run(three, "b", "UPDATE ta SET v = 'of b' WHERE id < 20", "UPDATE ta SET n = n + 5")
    run(three, "c", "UPDATE ta SET n = 9 WHERE id > 40")
    three.carry("a", "b")
    assert read_head(larges(three, "b")[-1].commit_frame).kind == Kind.RESTATED_LARGE
    paths = list[Path]()
    while more := sent(three, "b", "c", max_bytes=most):
        paths += more
    take(three.by["c"], *paths)
    three.level()
    three.assert_converged()
    assert three.rows("c")["ta"] == folded(three, sums=["n"])


@pytest.mark.slow
def test_an_audit_of_a_merged_one(tmp_path: Path) -> None:
    two = met(tmp_path)
    assert_met(two)
    journal = CliRunner().invoke(root, ["-i", str(two.by["b"].path), "journal", "verify"], standalone_mode=False)
    assert journal.exception is None, journal.output
    seqno = str(larges(two, "b")[-1].seqno)
    words = ["-i", str(two.by["b"].path), "audit", "show", "--from", seqno, "--to", seqno]
    shown = CliRunner().invoke(root, words, standalone_mode=False)
    assert shown.exception is None, shown.output
    assert "RESOLVED" in shown.output
    assert "main.ta [60]" in shown.output


@pytest.mark.slow
def test_memory_holds_a_piece(two: Suppliers) -> None:
    """What was stamped is written between two pieces, so at no time more than a piece's rows are at hand."""
    run(two, "a", FILL)
    two.level()
    run(two, "b", "UPDATE ta SET n = 3 WHERE id = 1")
    run(two, "a", CHANGE)
    most = list[int]()
    kept = Merging.take_piece

    def take_piece(self: Merging, head: Any, changes: Any, told: Any, *, removes: bool) -> Any:
        done = kept(self, head, changes, told, removes=removes)
        most.append(len(self._rows._stamps._cached))  # type: ignore[attr-defined]
        return done

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(Merging, "take_piece", take_piece)
        two.carry("a", "b")
    assert len(most) > 3
    assert 0 < max(most) < ROWS // 2


def test_what_a_large_one_tells_is_known_from_then_on(two: Suppliers) -> None:
    """It tells after its changes what its writer had seen, so that what it changes was not written beside."""
    run(two, "a", FILL)
    two.level()
    run(two, "b", "UPDATE ta SET v = 'of b'")
    two.level()
    run(two, "a", CHANGE.replace("v ||", f"'{TEXT}' ||"))
    done = two.carry("a", "b")
    assert (done.transactions, done.merged) == (1, 0)
    assert [read_head(one.commit_frame).kind for one in larges(two, "b")] == [Kind.LARGE] * 3
    run(two, "b", "UPDATE ta SET n = 9 WHERE id = 1")
    two.level()
    two.assert_converged()
    assert two.rows("a")["ta"] == folded(two)
    assert all(not merged_at(two, name) for name in two.names)


@pytest.mark.slow
def test_one_that_becomes_large_as_it_is_merged_and_rows_give_way_to_it(tmp_path: Path) -> None:
    """What gives way is said first."""
    two = shared(tmp_path, schema=BY_KEY)
    half = "y" * 300_000
    run(two, "a", f"INSERT INTO named VALUES ('big', NULL, '{half}', 0)")
    two.level()
    run(two, "b", "UPDATE named SET n = 1 WHERE id = 'big'")
    run(
        two,
        "a",
        f"UPDATE named SET mail = 'z' || '{half}' WHERE id = 'big'",
        "INSERT INTO named VALUES ('a', 'x', '', 0)",
    )
    run(two, "b", "INSERT INTO named VALUES ('b', 'x', NULL, 0)")
    two.carry("a", "b")
    assert read_head(larges(two, "b")[-1].commit_frame).kind == Kind.RESTATED_LARGE
    two.level()
    two.assert_converged()
    assert [(row[0], row[3]) for row in two.rows("b")["named"]] == [("a", 0), ("big", 1)]
    assert ("b",) in {one.merged.key for one in merged_at(two, "b")}


@pytest.mark.slow
def test_more_rows_give_way_than_one_transaction_holds(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=BY_KEY)
    run(two, "a", NAMED)
    run(
        two,
        "b",
        f"INSERT INTO named {COUNT} SELECT 'b' || i, 'name ' || i, 'm' || i || '{TEXT}', i FROM c WHERE i < 30",
    )
    before = two.last_seqno("b")
    two.carry("a", "b")
    assert two.last_seqno("b") > before + 3
    two.level()
    two.assert_converged()
    assert sorted(str(row[0]) for row in two.rows("a")["named"]) == sorted(f"a{at}" for at in range(1, ROWS + 1))


@pytest.mark.slow
def test_what_gives_way_stays_said_after_a_power_loss_that_took_the_large_one(tmp_path: Path) -> None:
    """It stands alone in the journal, and not in the region: it is no word that something before it waits for."""
    two = shared(tmp_path, schema=BY_KEY)
    run(two, "a", NAMED)
    run(two, "b", "INSERT INTO named VALUES ('later', 'name 44', NULL, 1)")
    here, last = two.by["b"].path, two.last_seqno("b")
    shutil.copytree(here, tmp_path / "before")
    chain = make_chain(two.by["b"])
    ordinary = chain.path_of(chain.first_seqnos()[-1])
    two.carry("a", "b")
    assert two.last_seqno("b") == last + 2
    written = Path(ordinary).read_bytes()
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "before", here)
    Path(ordinary).write_bytes(written)
    retire_pool(PoolKind.JOURNAL, two.by["b"].content.uuid)
    assert kinds_from(two, "b", last + 1)[0] == Kind.RESTATED
    run(two, "a", "INSERT INTO named VALUES ('more', 'other', NULL, 1)")
    two.level()
    two.assert_converged()
    names = {str(row[0]) for row in two.rows("a")["named"]}
    assert names == {"more", *(f"a{at}" for at in range(1, ROWS + 1))}
    assert ("later",) in {one.merged.key for one in merged_at(two, "b")}
