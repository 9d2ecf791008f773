"""Rows that give way for a unique value: what a power loss leaves of it, and what a supplier does that was restored."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.door.recovery.opening import make_chain
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX
from replicate.pool.shared_memory import PoolKind
from replicate.pool.shared_memory import retire as retire_pool
from replicate.roles.restored_supplier import settle, turn_back
from tests.harness.instances import lose_pool, restore_region, save_region
from tests.harness.merging_worlds import BY_KEY, UNIQUE
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run, shared
from tests.update_process.test_merging import merged_at
from tests.update_process.test_merging_large import NAMED, ROWS


@pytest.mark.slow
def test_what_was_to_be_said_of_a_row_that_gave_way_is_said_after_a_power_loss(tmp_path: Path) -> None:
    """It stands after the transaction that was merged, and of both only that one came onto the disk."""
    two = shared(tmp_path, schema=UNIQUE)
    run(two, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(two, "b", "INSERT INTO named VALUES ('of b', 'x', 'b', 2)")
    before = tmp_path / "before"
    shutil.copytree(two.by["b"].path, before)
    last = two.last_seqno("b")
    two.carry("a", "b")
    assert two.last_seqno("b") == last + 2
    segment, offset = last_frame_of(two.by["b"])
    written = segment.read_bytes()
    shutil.rmtree(two.by["b"].path)
    shutil.copytree(before, two.by["b"].path)
    segment.write_bytes(written[:offset].ljust(len(written), b"\0"))
    retire_pool(PoolKind.JOURNAL, two.by["b"].content.uuid)
    assert two.last_seqno("b") == last + 1
    run(two, "a", "UPDATE named SET name = 'still here'")
    two.level()
    two.assert_converged()
    assert [row[0] for row in two.rows("a")["named"]] == ["of a"]


def last_frame_of(instance: Instance) -> tuple[Path, int]:
    """The newest segment, and where its last frame begins."""
    chain = make_chain(instance)
    segment, scan = chain.scan_last()
    with closing(ChainReader(chain, scan.last_seqno)) as reader:
        read = reader.read(BATCH_BYTES_MAX, scan.last_seqno)
    assert isinstance(read, FrameBatch)
    return Path(segment.path), Path(segment.path).read_bytes().index(bytes(read.data))


def copied(one: Instance, kept: Path) -> None:
    """Its files as they are."""
    shutil.copytree(one.path, kept)


def turned_back(one: Instance, kept: Path) -> None:
    """It is restored from that copy, and has found that out."""
    shutil.rmtree(one.path)
    shutil.copytree(kept, one.path)
    retire_pool(PoolKind.JOURNAL, one.content.uuid)
    turn_back(one)
    one.reload()


def waiting(one: Instance) -> int:
    """Rows that wait beside their tables there."""
    with closing(apsw.Connection(str(one.regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return int(connection.execute("SELECT count(*) FROM _replicate_version WHERE origin = -1").get)


def names(made: Suppliers, name: str) -> list[object]:
    return [row[0] for row in made.rows(name)["named"]]


def gave_way_at(made: Suppliers, name: str) -> list[object]:
    return [one.merged.key[0] for one in merged_at(made, name) if one.merged.lost.what == "unique"]


@pytest.mark.slow
def test_one_that_is_restored_takes_the_word_of_others_for_who_gave_way(tmp_path: Path) -> None:
    """By its own word, what came into the place of that row in the meantime would go everywhere."""
    two = shared(tmp_path, schema=UNIQUE)
    two.level()
    copied(two.by["b"], tmp_path / "kept")
    for name, key in (("a", "of a"), ("b", "of b")):
        run(two, name, f"INSERT INTO named VALUES ('{key}', 'x', 'a', 1)")
    two.level()
    run(two, "a", "DELETE FROM named", "INSERT INTO named VALUES ('of b', 'y', 'a', 2)")
    two.level()
    two.assert_converged()
    turned_back(two.by["b"], tmp_path / "kept")
    while not waiting(two.by["b"]):
        two.carry("a", "b", most=1)
    assert names(two, "b") == ["of a"]
    two.carry("a", "b")
    assert waiting(two.by["b"]) == 0
    settle(two.by["b"])
    two.level()
    two.assert_converged()
    assert two.rows("a")["named"] == two.rows("b")["named"] == [("of b", "y", "a", 2)]
    assert gave_way_at(two, "b") == ["of b"], "it is kept once, though its own list was restored, too"
    run(two, "b", "UPDATE named SET n = 5")
    two.level()
    two.assert_converged()


@pytest.fixture
def three(tmp_path: Path) -> Suppliers:
    """b is restored, and has a row of c's from before. a has written another one of its name, and each has renamed its
    own before it heard of the other's: nobody has ever removed a row. b has only heard of the first two so far."""
    three = shared(tmp_path, 3, schema=UNIQUE)
    run(three, "c", "INSERT INTO named VALUES ('of c', 'x', 'c', 1)")
    three.carry("c", "b")
    copied(three.by["b"], tmp_path / "kept")
    run(three, "c", "UPDATE named SET name = 'w'")
    run(three, "a", "INSERT INTO named VALUES ('of a', 'x', 'a', 1)")
    run(three, "a", "UPDATE named SET name = 'z' WHERE id = 'of a'")
    three.carry("c", "a")
    turned_back(three.by["b"], tmp_path / "kept")
    save_region(three.by["b"].regions[0].path, tmp_path / "aside")
    while not waiting(three.by["b"]):
        three.carry("a", "b", most=1)
    assert names(three, "b") == ["of c"]
    return three


@pytest.mark.slow
def test_a_row_that_waits_is_back_once_nobody_has_its_value(three: Suppliers) -> None:
    three.carry("a", "b")
    assert waiting(three.by["b"]) == 0
    settle(three.by["b"])
    three.level()
    three.assert_converged()
    assert three.rows("b")["named"] == [("of a", "z", "a", 1), ("of c", "w", "c", 1)]
    assert gave_way_at(three, "b") == []


@pytest.mark.slow
def test_a_row_waits_still_after_a_power_loss(three: Suppliers, tmp_path: Path) -> None:
    """The region is older than the journal: it is made by redo, and who waits is found by the journal."""
    restore_region(three.by["b"].regions[0].path, tmp_path / "aside")
    lose_pool(three.by["b"])
    run(three, "a", "UPDATE named SET n = 7 WHERE id = 'of a'")
    three.carry("a", "b")
    settle(three.by["b"])
    three.level()
    three.assert_converged()
    assert three.rows("b")["named"] == [("of a", "z", "a", 7), ("of c", "w", "c", 1)]


@pytest.mark.slow
def test_who_waits_still_goes_before_it_writes_again(three: Suppliers) -> None:
    """What the others have is not waited for: `replica restore --force`. An application does not see a row that waits,
    and might give another one its key."""
    settle(three.by["b"])
    assert waiting(three.by["b"]) == 0
    run(three, "b", "INSERT INTO named VALUES ('of a', 'of b', 'b', 3)")
    three.level()
    three.assert_converged()
    assert three.rows("a")["named"] == [("of a", "of b", "b", 3), ("of c", "w", "c", 1)]
    assert gave_way_at(three, "b") == ["of a"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["append.before_write", "append.after_write", "apply.after_commit"])
@pytest.mark.parametrize("count", [1, 2], ids=["first", "second"])
def test_one_that_is_killed_as_it_settles_does_it_again(three: Suppliers, place: str, count: int) -> None:
    """First it says who it is, then which rows go; and then it takes writes."""
    call = "replicate.roles.restored_supplier:settle"
    is_killed = kill_at(f"{place}:{count}", call, three.by["b"].path) == -signal.SIGKILL
    assert is_killed or (place, count) == ("apply.after_commit", 2), "rows are removed once"
    assert kill_at("", call, three.by["b"].path) == 0
    assert waiting(three.by["b"]) == 0
    three.by["b"].reload()
    run(three, "b", "INSERT INTO named VALUES ('of a', 'of b', 'b', 3)")
    three.level()
    three.assert_converged()
    assert gave_way_at(three, "b") == ["of a"]


@pytest.mark.slow
def test_a_row_of_a_large_transaction_waits(tmp_path: Path) -> None:
    two = shared(tmp_path, schema=BY_KEY)
    run(two, "b", "INSERT INTO named VALUES ('b', 'name 7', NULL, 0)")
    copied(two.by["b"], tmp_path / "kept")
    run(two, "a", NAMED)
    two.level()
    assert names(two, "a").count("b") == 1
    turned_back(two.by["b"], tmp_path / "kept")
    two.carry("a", "b", most=two.last_seqno("a") - 2)
    two.carry("a", "b")
    assert waiting(two.by["b"]) == 0
    settle(two.by["b"])
    two.level()
    two.assert_converged()
    assert len(names(two, "b")) == ROWS
