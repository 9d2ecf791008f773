"""Doors of a process: shared, given back, opened again; histories; regions that are added in steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from replicate import connect
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import begin_journal, close_door, is_seeded, make_chain, open_door, require_seeded
from replicate.door.secondary import open_apply_session
from replicate.errors import (
    AlreadyExistsError,
    NotFoundError,
    PermissionRefusedError,
    PoolReplacedError,
    SchemaChangedError,
)
from replicate.instance.instance import Instance
from replicate.journal.spool import Spool, spool_path
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, pool_path
from replicate.region.sqlite.bookkeeping import is_region
from replicate.region.sqlite.open import open_region
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.descriptors import open_descriptors
from tests.harness.instances import (
    ROOT,
    SCRIPT,
    Writer,
    check,
    configure,
    door_of,
    insert,
    lose_pool,
    make_primary,
    make_secondary,
    newest_segment,
    read_journal,
    rows,
    session_of,
)
from tests.harness.regions import make_database

pytestmark = pytest.mark.usefixtures("shared_memory")


def test_a_process_has_one_door_and_its_last_user_closes_it(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    one, two = open_door(instance), open_door(Instance.open(instance.path))
    assert one is two
    close_door(one)
    assert two.sync_to_end() >= 2
    close_door(two)
    old = open_door(instance)
    assert old is not one
    lose_pool(instance)
    new = open_door(instance)
    with pytest.raises(PoolReplacedError), old.locked():
        pass
    old.close()
    new.close()


def test_who_comes_after_a_killed_process_finds_the_pool_that_it_left(tmp_path: Path) -> None:
    """No recovery, and no pool made again: that is for a boot."""
    instance = make_primary(tmp_path / "alpha")
    pool, report = pool_path(PoolKind.JOURNAL, instance.content.uuid), instance.log_directory / "recovery.log"
    with Writer(instance) as killed:
        assert killed.ask("insert", "main", 1) == 3
        inode = pool.stat().st_ino
        told = report.read_bytes() if report.exists() else b""
        killed.process.kill()
        assert killed.died()
    with session_of(instance) as session:
        assert insert(session, 2) == 4
    assert pool.stat().st_ino == inode
    assert (report.read_bytes() if report.exists() else b"") == told


def test_threads_open_one_door(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    lose_pool(instance)
    doors: list[object] = []
    threads = [threading.Thread(target=lambda: doors.append(open_door(instance))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, doors))) == 1
    for door in doors:
        close_door(door)  # type: ignore[arg-type]


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with door_of(instance) as door:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                own = open_door(instance)
                with own.locked(5):
                    code = 0 if own is not door else 2
                own.close()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with door.locked():
            pass


@pytest.mark.parametrize("step", ["append.before_write", "append.after_write", "finish.before_publish"])
def test_killed_while_the_history_record_is_written(tmp_path: Path, step: str) -> None:
    Instance.create(tmp_path / "alpha", role="primary")
    configure(tmp_path / "alpha", pool_bytes=1 << 20)
    instance = Instance.open(tmp_path / "alpha")
    with Writer(instance, f"{step}:1:kill") as dying:
        assert dying.ask("recover") is None
        assert dying.died()
    add_region(instance, make_database(tmp_path / "a.db", SCRIPT))
    assert check(instance).kinds() == [Kind.HISTORY, Kind.TRANSACTION]


def test_a_failed_opening_leaves_nothing_open(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary")
    before = open_descriptors()
    failpoint.arm("append.before_write:1:raise")
    with pytest.raises(FailpointError):
        open_door(instance)
    assert open_descriptors() == before
    open_door(instance).close()


def test_a_secondary_is_seeded_first(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "alpha")
    bare = Instance.create(tmp_path / "gamma", role="secondary", network=primary.content.network)
    assert not is_seeded(bare)
    with pytest.raises(NotFoundError, match="seeded"):
        require_seeded(bare)
    with pytest.raises(NotFoundError, match="seeded"):
        open_door(bare)
    secondary = make_secondary(tmp_path / "beta", primary)
    require_seeded(secondary)
    with door_of(secondary) as door:
        assert door.words[word.LAST_SEQNO] == 2
        with door.locked():
            position, catalogue = door.position(), door.catalogue()
    begin_journal(secondary, position, catalogue)  # once more: what was there is replaced
    assert make_chain(secondary).first_seqnos() == [3]


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("step", ["commit.before_append", "append.after_write", "commit.after_commit"])
def test_an_interrupted_add_is_finished_by_running_it_again(tmp_path: Path, step: str, reboot: bool) -> None:
    instance = make_primary(tmp_path / "alpha")
    path = make_database(tmp_path / "b.db", SCRIPT)
    failpoint.arm(f"{step}:1:raise")
    with pytest.raises(FailpointError):
        add_region(instance, path, name="two")
    if reboot:
        lose_pool(instance)
    instance = Instance.open(instance.path)
    if step == "commit.before_append":
        with door_of(instance) as door, pytest.raises(NotFoundError, match="completely"):
            RegionSession(door, "two")
        add_region(instance, path, name="two")
    with pytest.raises(AlreadyExistsError):
        add_region(instance, path, name="two")
    with session_of(Instance.open(instance.path), "two") as session:
        insert(session, 1)
    assert check(instance).rows["two"] == {1: "x"}


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
def test_a_region_is_released_and_added_again_while_a_connection_keeps_the_door_open(
    tmp_path: Path, elsewhere: bool
) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    again = instance.region("two").path
    with closing(connect(instance.path)) as connection, closing(connect(instance.path, "two")) as released:
        if elsewhere:
            command = [sys.executable, "-m", "replicate.cli.main", "-i", str(instance.path), "region"]
            for arguments in (["release", "two"], ["add", str(again), "--name", "two"]):
                subprocess.run([*command, *arguments], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        else:
            release_region(Instance.open(instance.path), "two", timeout_s=5)
            add_region(Instance.open(instance.path), again, name="two")
        with closing(connect(instance.path, "two")) as added, added:
            added.execute("INSERT INTO t VALUES (1, 'added')")
        connection.execute("ATTACH ? AS two", (str(again),))
        with connection:
            connection.execute("INSERT INTO two.t VALUES (2, 'attached')")
        with pytest.raises(SchemaChangedError):
            released.execute("INSERT INTO t VALUES (3, 'by the region that is gone')")
    assert check(instance).rows["two"] == {1: "added", 2: "attached"}


def test_rows_that_a_region_had_before_are_not_journalled(tmp_path: Path) -> None:
    """Load first, replicate later: the journal has what is written from then on, and a seed carries the rest."""
    instance = make_primary(tmp_path / "alpha")
    path = make_database(tmp_path / "b.db", SCRIPT + "; INSERT INTO t VALUES (1, 'before'), (2, 'before')")
    add_region(instance, path, name="two")
    with session_of(Instance.open(instance.path), "two") as session:
        insert(session, 3)
    assert rows(path) == {1: "before", 2: "before", 3: "x"}
    assert read_journal(instance).rows["two"] == {3: "x"}


def test_what_cannot_be_added(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with pytest.raises(AlreadyExistsError):
        add_region(instance, make_database(tmp_path / "b.db", SCRIPT), name="main")
    connection = open_region(tmp_path / "b.db", plain=True)
    assert not is_region(connection)
    connection.close()
    secondary = make_secondary(tmp_path / "beta", instance)
    with pytest.raises(PermissionRefusedError, match="secondary"):
        add_region(secondary, tmp_path / "b.db", name="two")


def test_what_a_killed_update_process_left_is_removed(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "alpha")
    secondary = make_secondary(tmp_path / "beta", primary)
    directory = secondary.journal_directory
    script = """
import os, signal, sys
from replicate.journal.spool import Spool, spool_path
Spool.receiving(spool_path(sys.argv[1], 1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, os.fspath(directory)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    dead = Path(spool_path(directory, 1))
    assert dead.exists()
    alive = Spool.receiving(spool_path(directory, 2))
    session = open_apply_session(secondary)
    try:
        assert not dead.exists()
        assert Path(alive.path).exists()
    finally:
        session.close()
        session.door.close()
        alive.abort()


@pytest.mark.parametrize("segment_bytes", [1 << 20, 8 << 20])
def test_segments_grow_in_steps_no_larger_than_they_are_to_be(tmp_path: Path, segment_bytes: int) -> None:
    step = min(segment_bytes, 4 << 20)
    primary = make_primary(tmp_path / "alpha", segment_bytes=segment_bytes, durability="off")
    with session_of(primary) as session:
        assert newest_segment(primary).stat().st_size == step
        for row_id in range(1, 8):
            insert(session, row_id, "x" * 300_000)
    sizes = {path.stat().st_size for path in primary.journal_directory.glob("*.journal")}
    assert sizes == {step}
    assert len(list(primary.journal_directory.glob("*.journal"))) == (3 if segment_bytes == 1 << 20 else 1)
    lose_pool(primary)
    with session_of(primary) as session:
        insert(session, 8)
    secondary = make_secondary(tmp_path / "beta", primary, segment_bytes=segment_bytes)
    assert newest_segment(secondary).stat().st_size == step


def test_fault_35_who_read_the_instance_before_it_was_recovered_opens_no_origin_twice(tmp_path: Path) -> None:
    """A recovery that was killed before the history record was written, and another one after it: who still knows
    the incarnation between them must neither open it nor begin segments in its name."""
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20)
    Instance.open(instance.path).raise_incarnation()
    stale = Instance.open(instance.path)
    Instance.open(instance.path).raise_incarnation()
    lose_pool(instance)
    with door_of(Instance.open(instance.path)):
        pass
    with session_of(stale) as session:
        for row_id in range(8):
            insert(session, row_id, "x" * 200_000)
        assert session.door.segment().header.incarnation == 3
    found = check(instance)
    origins = [one.origin for one in found.transactions.values() if one.kind == Kind.HISTORY]
    assert len(origins) == len(set(origins)) == 2
    assert Instance.open(instance.path).content.origin.key == origins[-1]
