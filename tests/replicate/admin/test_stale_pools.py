"""Pools whose instance is gone are removed, and no others; removing an instance."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.admin.instance_removal import remove_instance
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.admin.stale_pools import is_used, remove_stale_pools
from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyExistsError, AlreadyRunningError
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool
from replicate.pool.shared_memory import PoolKind, pool_path

SEED_ROOM = 4 * 2**20


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    made = Instance.create(tmp_path / "east", role="primary")
    database = apsw.Connection(str(tmp_path / "shop.db"))
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    database.close()
    add_region(made, tmp_path / "shop.db")
    return Instance.open(made.path)


def pools(instance: Instance) -> list[bool]:
    return [pool_path(kind, instance.content.uuid).exists() for kind in PoolKind]


def make_receive_pool(instance: Instance) -> ReceivePool:
    pool = ReceivePool.create(instance.content.uuid, configured_bytes=SEED_ROOM, last_seqno=0)
    pool.memory.note_home(instance.path)
    return pool


def test_pools_of_a_removed_directory_go(instance: Instance) -> None:
    make_receive_pool(instance).close()
    assert pools(instance) == [True, True]
    assert remove_stale_pools() == ()
    shutil.rmtree(instance.path)
    assert len(remove_stale_pools()) == 2
    assert pools(instance) == [False, False]


def test_pools_go_when_another_instance_is_in_the_directory(instance: Instance) -> None:
    shutil.rmtree(instance.path)
    other = Instance.create(instance.path, role="primary")
    make_receive_pool(other).close()
    assert remove_stale_pools() == (pool_path(PoolKind.JOURNAL, instance.content.uuid),)
    assert pools(other) == [False, True]


def test_a_pool_in_use_stays(instance: Instance) -> None:
    """Used by another process, whose directory was removed under it."""
    code = "import replicate, sys; c = replicate.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(instance.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert is_used(instance.content.uuid)
        with pytest.raises(AlreadyExistsError, match="region release main"):
            remove_instance(instance)
        receiving = make_receive_pool(instance)
        shutil.rmtree(instance.path)
        assert remove_stale_pools() == ()
        receiving.close()
        assert remove_stale_pools() == (pool_path(PoolKind.RECEIVE, instance.content.uuid),)
    finally:
        process.communicate(b"")
    assert not is_used(instance.content.uuid)
    assert remove_stale_pools() == (pool_path(PoolKind.JOURNAL, instance.content.uuid),)


def test_what_is_not_known_to_be_stale_stays(instance: Instance) -> None:
    """A pool that does not say whose it is, one of another user by name, a file that is no pool, a link."""
    shm = pool_path(PoolKind.JOURNAL, instance.content.uuid).parent
    ReceivePool.create(b"u" * 16, configured_bytes=SEED_ROOM, last_seqno=0).close()
    (shm / f"dualsite-{os.geteuid()}-{'0' * 32}-journal").write_bytes(bytes(10000))
    (shm / f"dualsite-{os.geteuid() + 1}-{'1' * 32}-journal").write_bytes(b"x")
    (shm / f"dualsite-{os.geteuid()}-{'2' * 32}-journal").symlink_to(instance.path / "instance.json")
    before = sorted(os.listdir(shm))
    assert remove_stale_pools() == ()
    assert sorted(os.listdir(shm)) == before


def test_a_moved_instance_keeps_its_pool(instance: Instance) -> None:
    moved = instance.path.with_name("moved")
    instance.path.rename(moved)
    replicate.connect(str(moved)).close()
    assert remove_stale_pools() == ()
    assert pools(instance)[0]


def test_remove(instance: Instance) -> None:
    with pytest.raises(AlreadyExistsError, match="still has regions: main"):
        remove_instance(instance)
    release_region(instance, "main", timeout_s=5)
    released = Instance.open(instance.path)
    lock = DaemonFiles(released.path, "source-west").lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError, match="source-west runs"):
            remove_instance(released)
    finally:
        os.close(lock)
    (released.path / "regions" / "main.db").write_bytes(b"rows")
    with pytest.raises(AlreadyExistsError, match=r"still holds regions/main\.db"):
        remove_instance(released)
    (released.path / "regions" / "main.db").unlink()
    pool = make_receive_pool(released)
    with pytest.raises(AlreadyRunningError, match="a process uses the instance"):
        remove_instance(released)
    pool.close()
    assert remove_instance(released).path == instance.path
    assert not instance.path.exists()
    assert sorted(os.listdir(instance.path.parent)) == ["shm", "shop.db"]
    assert pools(instance) == [False, False]
