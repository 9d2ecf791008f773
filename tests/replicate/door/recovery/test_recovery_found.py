"""Recovery: what simulated worlds (tests/simulation) have found, on real files."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicate.door import door as door_module
from replicate.door.recovery.opening import open_door
from replicate.door.recovery.region_rings import Region, _last_csn
from replicate.errors import JournalIOError
from replicate.instance.file import RegionEntry
from replicate.journal import durable, segment
from replicate.journal.record import pack_frame
from replicate.limits import RING_SLOTS
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.region.protocol import RingSlot, ScrRow
from tests.harness.instances import (
    check,
    door_of,
    insert_rows,
    lose_pool,
    make_primary,
    newest_segment,
    power_loss,
    restore_region,
    save_region,
)
from tests.harness.pair import Pair, assert_equal

pytestmark = pytest.mark.usefixtures("shared_memory")


def test_what_is_taken_back_takes_no_older_number_of_the_region_with_it(tmp_path: Path) -> None:
    """It stood in the ring where the region's last commit before it had stood: that one was done once more, and met
    its own rows."""
    instance = make_primary(tmp_path / "alpha", durability="off", regions=("main", "two"))
    insert_rows(instance, 1, 2, "two")
    with door_of(instance) as door:
        stays = int(door.words[word.LAST_SEQNO])
        door.sync_to_end()
    _, hole = insert_rows(instance, 100, 200)
    save_region(instance.region("main").path, tmp_path / "aside")
    insert_rows(instance, 1000, RING_SLOTS - 201)
    insert_rows(instance, 3, 1, "two")
    with door_of(instance) as door:
        assert door.words[word.LAST_SEQNO] == stays + RING_SLOTS
    restore_region(instance.region("main").path, tmp_path / "aside")
    power_loss(instance, hole)
    found = check(instance)
    assert found.rows["two"].keys() == {1, 2}
    assert len(found.rows["main"]) == 200
    lose_pool(instance)
    check(instance)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails_in_recovery_takes_nothing_back(tmp_path: Path, number: int) -> None:
    """What is written once more was durable before: a write that failed erased it."""
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    path = newest_segment(instance)
    before = path.read_bytes()
    real = segment.write_all

    def refuse(fd: int, data: bytes, offset: int) -> None:
        if any(data):  # zeros can be written: a disk fails when it likes
            raise OSError(number, os.strerror(number))
        real(fd, data, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "write_all", refuse)
        with pytest.raises(JournalIOError, match="once more"):
            open_door(instance)
    assert path.read_bytes() == before
    assert check(instance).rows["main"].keys() == {1, 2, 3}


def test_a_secondary_is_not_told_by_its_primarys_marks_what_its_own_disk_should_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A received batch that was not synced is there with a hole after a power loss (found by a review): every start
    called it damage, since frames after the hole tell what was durable at the primary."""
    (tmp_path / "sites").mkdir()
    pair = Pair.create(tmp_path / "sites")
    pair.seed()
    secondary = pair.secondary
    with door_of(secondary) as door:
        door.sync_to_end()
    lose_pool(secondary)
    saved = tmp_path / "before"
    save_region(secondary.region("main").path, saved)
    shutil.copytree(secondary.journal_directory, saved / "journal")
    with pair.connect() as connection:
        for number in range(1, 41):
            connection.execute("INSERT INTO account VALUES (?, ?, 0, NULL)", (number, "x" * 2000))
            connection.commit()
    connection.close()
    with door_of(pair.primary) as door:
        door.sync_to_end()
    with pair.connect() as connection:  # its MARK tells that those before are durable: there
        connection.execute("INSERT INTO account VALUES (1000, 'y', 0, NULL)")
        connection.commit()
    connection.close()
    pair.catch_up()
    lose_pool(secondary)
    # The power is lost before the sync: the region has nothing of it, the journal all but one page, no mark of ours.
    journal = newest_segment(secondary)
    data = bytearray(journal.read_bytes())
    end = data.rstrip(b"\0")
    hole = (len(end) - 20_000) // 4096 * 4096
    data[hole : hole + 4096] = bytes(4096)
    restore_region(secondary.region("main").path, saved)
    shutil.rmtree(secondary.journal_directory)
    shutil.copytree(saved / "journal", secondary.journal_directory)
    newest_segment(secondary).write_bytes(data)
    monkeypatch.setattr(durable, "_BOOT", durable._BOOT + 1)
    pair.catch_up()
    assert_equal(pair)
    assert pair.last_seqno(secondary) == pair.last_seqno()


def test_after_a_power_loss_nothing_is_written_before_what_the_journal_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest segment was empty, and the region older than the one before it: the time of what is written went back
    to that of the region. So of two changes of a row, the later of which had seen the other, the earlier one stayed."""
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 1)
    save_region(instance.region("main").path, tmp_path / "aside")
    with monkeypatch.context() as patch:
        ahead_ns = time.time_ns() + 3600 * 10**9
        patch.setattr(door_module.time, "time_ns", lambda: ahead_ns)
        insert_rows(instance, 2, 3)
    with door_of(instance) as door, door.locked():
        csn = door.words[word.LAST_CSN]
        door._switch(door.words[word.LAST_SEQNO] + 1)
    lose_pool(instance)
    restore_region(instance.region("main").path, tmp_path / "aside")
    with door_of(instance) as door:
        assert door.words[word.LAST_CSN] == csn
    assert check(instance).rows["main"].keys() == {1, 2, 3, 4}


def test_what_others_wrote_last_does_not_hide_the_time_of_what_was_written_here() -> None:
    """On a supplier a batch of others' stands in the ring without a record, after a record of its own."""
    own, _ = pack_frame(Kind.TRANSACTION, 1, 0, 0, 7, 1, 100, b"", 0)
    there: Any = SimpleNamespace(checkpoint=lambda: [ScrRow(8, 0, 1, 0, 50, 2)])
    region = Region(RegionEntry(0, "main", b"m" * 16, Path("main.db")), there)
    region.ring = [RingSlot(1, own), RingSlot(2, None)]
    assert _last_csn(region) == 100
