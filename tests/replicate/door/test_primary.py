"""Committing on a primary: failing COMMITs, full disks, interrupts, groups of writers."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import apsw
import pytest

from replicate.door.primary import RegionSession
from replicate.errors import (
    BusyError,
    DiskFullError,
    JournalIOError,
    NotFoundError,
    NotPrimaryError,
    OutcomeUnknownError,
    ReplicateError,
    SchemaChangedError,
    SnapshotStaleError,
)
from replicate.instance.instance import Instance
from replicate.journal.segment import SegmentFile
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.region.sqlite.open import open_region
from replicate.system import failpoint
from tests.harness.descriptors import open_descriptors
from tests.harness.instances import (
    Writer,
    begin_insert,
    begin_large,
    captured,
    change_schema,
    check,
    door_of,
    insert,
    insert_change,
    lose_pool,
    make_primary,
    make_secondary,
    newest_segment,
    rows,
    session_of,
)

pytestmark = pytest.mark.usefixtures("shared_memory")


# COMMIT fails.


def fail_commit(session: RegionSession) -> None:
    """The next COMMIT of the session fails as if the disk were full, before SQLite has done anything."""
    commit = session.writer.commit

    def refuse() -> object:
        session.writer.commit = commit
        raise apsw.FullError("database or disk is full")

    session.writer.commit = refuse


@pytest.mark.parametrize("reboot", [False, True])
def test_fault_28_a_commit_that_fails_after_its_append_becomes_a_null_record(tmp_path: Path, reboot: bool) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        length = session.door.words[word.END_OFFSET]
        fail_commit(session)
        with pytest.raises(DiskFullError):
            insert(session, 2)
        assert session.door.words[word.END_OFFSET] > length
        assert not session.holds_region
        assert insert(session, 3) == 5
    if reboot:
        lose_pool(instance)
    found = check(instance)
    assert found.kinds() == [Kind.HISTORY, *[Kind.TRANSACTION] * 2, Kind.NULL, Kind.TRANSACTION]
    assert found.rows["main"].keys() == {1, 3}


@pytest.mark.parametrize("empty", [False, True])
def test_a_large_commit_that_fails_leaves_no_segment_behind(tmp_path: Path, empty: bool) -> None:
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    if empty:
        with Writer(instance, "switch.after_create:1:kill") as dying:
            assert dying.ask("many", "main", 10_000, 100_000, 3000) is None
        lose_pool(instance)
    with Writer(instance) as other, session_of(instance) as session:
        other.ask("open", "main")
        if not empty:
            insert(session, 1)
        before = sorted(instance.journal_directory.glob("*.journal"))
        fail_commit(session)
        with pytest.raises(DiskFullError):
            session.commit(begin_large(session, 2000, 300))
        assert sorted(instance.journal_directory.glob("*.journal")) == before
        insert(session, 2)
        other.ask("insert", "main", 3)
        session.door.sync_to_end()
    lose_pool(instance)
    assert {2, 3} <= check(instance).rows["main"].keys()


def test_a_commit_whose_checkpoint_fails_is_still_a_success(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        commit = session.writer.commit

        def commit_then_raise() -> object:
            commit()
            raise apsw.IOError("checkpoint")

        session.writer.commit = commit_then_raise
        assert insert(session, 1) == 3
        session.writer.commit = commit
        insert(session, 2)
    check(instance)


def test_a_void_that_fails_is_outcome_unknown_and_fatal_until_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        changes = begin_insert(session, 2)
        fail_commit(session)
        monkeypatch.setattr(SegmentFile, "sync", lambda self: (_ for _ in ()).throw(JournalIOError("no")))
        with pytest.raises(OutcomeUnknownError):
            session.commit(changes)
        monkeypatch.undo()
        monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
        with pytest.raises(JournalIOError):
            insert(session, 3)
    with session_of(instance) as session:
        insert(session, 4)
    check(instance)


def test_fault_28_a_full_disk_at_segment_growth_is_a_clean_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        session.door.words[word.ZEROED_OFFSET] = session.door.words[word.END_OFFSET]

        def full(self: SegmentFile, upto: int) -> int:
            raise DiskFullError("growing the journal segment failed")

        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "ensure_zeroed", full)
            with pytest.raises(DiskFullError):
                insert(session, 2)
        assert insert(session, 3) == 4
    assert check(instance).rows["main"].keys() == {1, 3}


@pytest.mark.parametrize("failing", ["grow", "switch"])
def test_fault_28_a_real_full_disk(tmp_path: Path, failing: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    assert os.system(f"mount -t tmpfs -o size=13m tmpfs {mount}") == 0
    try:
        instance = make_primary(mount / "alpha", segment_bytes=(1 << 20) if failing == "switch" else 64 << 20)
        refused = 0
        with session_of(instance) as session:
            for number in range(1, 20_000):
                try:
                    insert(session, number, "z" * 3000)
                except DiskFullError:
                    refused = number
                    break
                except apsw.FullError:
                    session.rollback()
                    refused = number
                    break
            assert refused
            assert os.system(f"mount -o remount,size=64m {mount}") == 0
            insert(session, 30_000)
        found = check(instance)
        assert refused not in found.rows["main"]
        lose_pool(instance)
        check(instance)
    finally:
        os.system(f"umount {mount}")


# Interrupts, schema, snapshots, definitions.


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "step", ["append.before_write", "append.after_write", "commit.after_commit", "finish.before_publish"]
)
def test_an_interrupt_between_append_and_commit_leaves_nothing_half_done(tmp_path: Path, step: str) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as other, session_of(instance) as session:
        other.ask("open", "main")
        insert(session, 1)
        failpoint.watch(step, 1, raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            insert(session, 2)
        assert not session.holds_region
        # What is in the journal is in the region before the application hears of the interrupt.
        assert (2 in rows(session.entry.path)) == (step != "append.before_write")
        other.ask("insert", "main", 3)
        insert(session, 4)
    check(instance)


def test_a_schema_change_of_a_stranger_is_noticed_also_after_a_redo(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as dying, session_of(instance) as session:
        dying.ask("open", "main")
        dying.ask("arm", "append.after_write:1:kill")
        assert dying.ask("insert", "main", 1) is None
        assert dying.died()
        stranger = apsw.Connection(str(session.entry.path))
        stranger.execute("CREATE INDEX foreign_index ON t(v)")
        stranger.close()
        with pytest.raises(SchemaChangedError):
            insert(session, 2)
        assert not session.holds_region


@pytest.mark.slow
def test_the_64th_definition_switches_segments(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        for number in range(70):
            change_schema(session, f"CREATE TABLE u{number}(a INTEGER PRIMARY KEY)", f"u{number}")
        assert session.door.words[word.DEFINITION_COUNT] < 64
        for number in range(100):
            insert(session, number, b"\x05\xce" * 10)  # looks like a definition, and is none
    assert len(list(instance.journal_directory.glob("*.journal"))) == 2
    lose_pool(instance)
    with door_of(instance) as door:
        assert len(door.catalogue_now().definitions) == 71
        assert door.words[word.DEFINITION_COUNT] < 64
    check(instance)


def test_a_reader_whose_snapshot_is_old_is_told_so_and_holds_nothing(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session, session_of(instance) as other:
        session.connection.execute("BEGIN")
        session.connection.execute("SELECT * FROM t").fetchall()
        insert(other, 1)
        with pytest.raises(SnapshotStaleError):
            session.upgrade(timeout_s=1)
        session.rollback()
        session.connection.execute("BEGIN")
        session.connection.execute("SELECT * FROM t").fetchall()
        session.upgrade(timeout_s=1)
        session.connection.execute("INSERT INTO t VALUES (2, 'x')")
        session.commit(captured(*insert_change(session, 2, "x")))
    check(instance)


def test_fault_5_a_reader_that_meets_unfinished_work_succeeds_at_its_second_try(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as dying, session_of(instance) as session:
        dying.ask("open", "main")
        dying.ask("arm", "append.after_write:1:kill")
        assert dying.ask("insert", "main", 1) is None
        assert dying.died()
        session.connection.execute("BEGIN")
        session.connection.execute("SELECT * FROM t").fetchall()
        with pytest.raises(SnapshotStaleError):
            session.upgrade(timeout_s=1)
        session.rollback()
        session.connection.execute("BEGIN")
        assert session.connection.execute("SELECT id FROM t").fetchall() == [(1,)]
        session.upgrade(timeout_s=1)
        session.rollback()
    check(instance)


def test_nothing_captured_is_a_plain_commit(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        session.begin(timeout_s=1)
        assert session.commit(captured(b"", 0)) == last
        assert not session.holds_region
    check(instance)


def test_a_secondary_refuses_to_write(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    secondary = make_secondary(tmp_path / "beta", instance)
    with session_of(secondary) as session:
        with pytest.raises(NotPrimaryError):
            session.begin(timeout_s=1)


# Many at once.


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["durable", "off"])
def test_several_processes_switch_segments_together(tmp_path: Path, policy: str) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"), segment_bytes=1 << 20, durability=policy)
    count = 400 if policy == "durable" else 6000
    with Writer(instance) as a, Writer(instance) as b, Writer(instance) as c:
        a.send("many", "main", 0, count)
        b.send("many", "main", 100_000, count)
        c.send("many", "two", 0, count)
        assert all(isinstance(writer.answer(), int) for writer in (a, b, c))
    found = check(instance)
    assert len(found.rows["main"]) == 2 * count
    assert len(found.rows["two"]) == count
    assert policy == "durable" or len(list(instance.journal_directory.glob("*.journal"))) >= 2


def test_many_threads_each_with_its_own_connection(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with session_of(instance) as session:
                for row_id in range(number * 1000, number * 1000 + 60):
                    insert(session, row_id, timeout_s=60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(check(instance).rows["main"]) == 480


def test_fault_14_a_stopped_holder_is_waited_for_and_never_robbed(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with Writer(instance) as stopped, session_of(instance) as session, session_of(instance, "two") as other:
        stopped.ask("open", "main")
        stopped.ask("arm", "append.after_write:1:stop")
        stopped.send("insert", "main", 1)
        stopped.stands_still()
        with pytest.raises(BusyError, match="region main"):
            insert(session, 2, timeout_s=0.2)
        with pytest.raises(BusyError, match="commit lock"):
            insert(other, 3, timeout_s=0.2)
        assert not other.holds_region
        os.kill(stopped.process.pid, 18)
        assert stopped.answer() == 4
        assert insert(session, 2) == 5
        assert insert(other, 3) == 6
    check(instance)


def test_errors_of_open_are_named_and_leave_nothing_open(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    before = open_descriptors()
    with door_of(instance) as door:
        with pytest.raises(NotFoundError):
            RegionSession(door, "nowhere")
    assert open_descriptors() == before


def test_a_child_of_a_fork_cannot_harm_its_parents_transaction(tmp_path: Path) -> None:
    """Fault 21."""
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        changes = begin_insert(session, 2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                session.rollback()
                session.close()
                try:
                    session.begin(timeout_s=0.1)
                except ReplicateError as error:
                    code = 0 if error.code == "FORKED" else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with session_of(instance) as second, pytest.raises(BusyError):
            second.begin(timeout_s=0.1)
        session.commit(changes)
    check(instance)


def test_ring_slots_are_not_overwritten_before_the_journal_is_durable(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    with session_of(instance) as session:
        words = session.door.words
        for number in range(1200):
            insert(session, number)
            assert words[word.LAST_SEQNO] - words[word.LAST_DURABLE_SEQNO] <= 512
    check(instance)


def test_a_frame_too_large_for_a_slot_is_synced_before_commit(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    with session_of(instance) as session:
        seqno = insert(session, 1, "w" * 9000)
        assert session.door.words[word.LAST_DURABLE_SEQNO] == seqno
    assert newest_segment(instance).exists()
    Instance.open(instance.path)
    connection = open_region(instance.region("main").path, readonly=True)
    assert connection.execute("SELECT record FROM _replicate_ring WHERE seqno = ?", (seqno,)).fetchall() == [(None,)]
    connection.close()
    check(instance)
