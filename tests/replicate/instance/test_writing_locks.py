"""The locks of regions and journal: which they are, their order, and that none is kept."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from replicate.errors import BusyError
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import all_locks, commit_locked, region_lock, region_locked, regions_locked


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    """Its regions were added as 0, 1, 2; the first was released, and another one came: it has the number 3."""
    made = Instance.create(tmp_path / "west", role="primary", name="west", network=os.urandom(16))
    for name in ("a", "b", "c"):
        made.register_region(name, uuid.uuid4().bytes, tmp_path / f"{name}.db")
    made.unregister_region("a")
    made.register_region("d", uuid.uuid4().bytes, tmp_path / "d.db")
    return made


def free(instance: Instance) -> list[str]:
    """The locks that nobody holds."""
    found = []
    for lock in all_locks(instance):
        with closing(lock):
            if lock.try_acquire():
                found.append(lock.path.stem)
    return found


def test_their_order(instance: Instance) -> None:
    """Processes of two releases meet in these files: neither a name nor the order may change."""
    assert free(instance) == ["region-1", "region-2", "region-3", "commit"]


def test_one_is_held_for_a_block(instance: Instance) -> None:
    with region_locked(instance, instance.region("c"), 0):
        assert free(instance) == ["region-1", "region-3", "commit"]
    with commit_locked(instance, 0):
        assert free(instance) == ["region-1", "region-2", "region-3"]
    assert len(free(instance)) == 4


def test_all_regions_are_held_and_commits_go_on_elsewhere(instance: Instance) -> None:
    with regions_locked(instance, 0):
        assert free(instance) == ["commit"]
    assert len(free(instance)) == 4


def test_where_one_is_held_none_is_kept(instance: Instance) -> None:
    with closing(region_lock(instance, instance.region("d"))) as other:
        assert other.try_acquire()
        with pytest.raises(BusyError, match="region d was held"), regions_locked(instance, 0.01):
            pytest.fail("it has all locks")
        assert free(instance) == ["region-1", "region-2", "commit"]


def test_an_error_in_the_block_gives_them_up(instance: Instance) -> None:
    for block in (regions_locked(instance, 0), commit_locked(instance, 0)):
        with pytest.raises(ZeroDivisionError), block:
            raise ZeroDivisionError
    assert len(free(instance)) == 4
