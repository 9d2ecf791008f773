"""Rows that give way for a unique value: what a power loss leaves of it, and what a supplier does that was restored."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from replicate.door.recovery.opening import make_chain
from replicate.errors import NotSupportedError
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX
from replicate.pool.shared_memory import PoolKind
from replicate.pool.shared_memory import retire as retire_pool
from replicate.roles.restored import turn_back
from replicate.roles.supplier import convert
from replicate.transfer.seed.direct import seed
from tests.harness.suppliers import run, shared
from tests.update_process.test_merging import UNIQUE


@pytest.mark.slow
def test_what_was_to_be_said_of_a_row_that_gave_way_is_said_after_a_power_loss(tmp_path: Path) -> None:
    """It stands behind the transaction that was merged, and of both only that one came onto the disk."""
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


@pytest.mark.slow
def test_one_that_is_restored_has_no_row_give_way_and_is_copied_again(tmp_path: Path) -> None:
    """By its word now, what came into the place of that row in the meantime would go everywhere."""
    two = shared(tmp_path, schema=UNIQUE)
    two.level()
    kept = tmp_path / "kept"
    shutil.copytree(two.by["b"].path, kept)
    for name, key in (("a", "of a"), ("b", "of b")):
        run(two, name, f"INSERT INTO named VALUES ('{key}', 'x', 'a', 1)")
    two.level()
    run(two, "a", "DELETE FROM named", "INSERT INTO named VALUES ('of b', 'y', 'a', 2)")
    two.level()
    two.assert_converged()
    shutil.rmtree(two.by["b"].path)
    shutil.copytree(kept, two.by["b"].path)
    retire_pool(PoolKind.JOURNAL, two.by["b"].content.uuid)
    turn_back(two.by["b"])
    two.by["b"].reload()
    with pytest.raises(NotSupportedError, match="b is getting back what it had, and two rows want one unique"):
        two.carry("a", "b")
    convert(two.by["b"], "secondary", timeout_s=30)
    two.by["b"].reload()
    seed(two.by["a"], two.by["b"], restart=True)
    two.by["b"].reload()
    convert(two.by["b"], "supplier", timeout_s=30)
    two.level()
    two.assert_converged()
    assert two.rows("a")["named"] == two.rows("b")["named"] == [("of b", "y", "a", 2)]
