"""Recovery: what simulated worlds (tests/simulation) have found, on real files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicate.door.opening import open_door
from replicate.errors import JournalIOError
from replicate.instance.instance import Instance
from replicate.journal import segment
from replicate.limits import RING_SLOTS
from replicate.pool import control as word
from tests.harness.instances import (
    check,
    door_of,
    insert,
    lose_pool,
    make_primary,
    newest_segment,
    power_loss,
    restore_region,
    save_region,
    session_of,
)


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))


def write(instance: Instance, first: int, count: int, region: str = "main") -> int:
    """Commit `count` rows; where the journal ends then."""
    with session_of(instance, region) as session:
        for row_id in range(first, first + count):
            insert(session, row_id)
        return int(session.door.words[word.END_OFFSET])


def test_what_is_taken_back_takes_no_older_number_of_the_region_with_it(tmp_path: Path) -> None:
    """It stood in the ring where the region's last commit before it had stood: that one was done once more, and met
    its own rows."""
    instance = make_primary(tmp_path / "alpha", durability="off", regions=("main", "two"))
    write(instance, 1, 2, "two")
    with door_of(instance) as door:
        stays = int(door.words[word.LAST_SEQNO])
        door.sync_to_end()
    hole = write(instance, 100, 200)
    save_region(instance.region("main").path, tmp_path / "aside")
    write(instance, 1000, RING_SLOTS - 201)
    write(instance, 3, 1, "two")
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
    write(instance, 1, 3)
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
