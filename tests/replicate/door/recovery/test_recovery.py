"""Recovery: power losses that leave region and journal apart, torn tails and damage, copies, kills in its middle."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replicate.door.recovery.opening import open_door
from replicate.door.recovery.recovery import _csn_before
from replicate.errors import (
    ConfigurationError,
    DamagedError,
    JournalDamagedError,
    JournalIOError,
    JournalMissingError,
    OutcomeUnknownError,
    WrongInstanceError,
)
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import FILE_NAME, Instance
from replicate.journal.durable import DurableSidecar
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, Head, decode
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.transaction import History, Kind
from replicate.pool import control as word
from replicate.system.files import Directory
from tests.harness.instances import (
    MIXED,
    Writer,
    check,
    door_of,
    insert,
    insert_rows,
    lose_pool,
    make_primary,
    newest_segment,
    power_loss,
    restore_region,
    rows,
    save_region,
    session_of,
)
from tests.harness.journals import ToyJournal, flip

pytestmark = pytest.mark.usefixtures("shared_memory", "sections")


@pytest.fixture(params=["one section", "mixed"])
def sections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each journal once with transactions of one section, and once with such over several."""
    if request.param == "mixed":
        monkeypatch.setenv(MIXED, "1")


def unsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> Instance:
    """A primary under policy off, whose journal's durable mark is never raised by closing."""
    return make_primary(tmp_path / "alpha", durability="off", **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_fault_33_a_region_behind_the_journal_is_rolled_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    insert_rows(instance, 1, 5)
    save_region(path, tmp_path / "aside")
    insert_rows(instance, 100, 700)  # more than the ring holds
    restore_region(path, tmp_path / "aside")
    lose_pool(instance)
    assert len(check(instance).rows["main"]) == 705
    assert Instance.open(instance.path).content.incarnation == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 300])
def test_fault_33_a_journal_behind_the_region_is_completed_from_its_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    insert_rows(instance, 1, 5)
    end, _ = insert_rows(instance, 100, count)
    power_loss(instance, end)
    assert len(check(instance).rows["main"]) == 5 + count
    insert_rows(instance, 1000, 3)
    lose_pool(instance)
    assert len(check(instance).rows["main"]) == 8 + count


def test_fault_33_both_lose_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    insert_rows(instance, 1, 5)
    end, _ = insert_rows(instance, 100, 10)
    save_region(path, tmp_path / "aside")
    insert_rows(instance, 200, 10)
    restore_region(path, tmp_path / "aside")
    power_loss(instance, end)
    assert len(check(instance).rows["main"]) == 15  # what neither had durably is lost, as the policy allows


@pytest.mark.turns(4)
@pytest.mark.parametrize("cut", [1, 512 - 41, -1])
def test_fault_38_a_torn_frame_that_the_region_has_is_completed_from_its_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    insert_rows(instance, 1, 5)
    end, after = insert_rows(instance, 100, 20)
    power_loss(instance, (end if cut > 0 else after) + cut)
    assert len(check(instance).rows["main"]) == 25
    assert Instance.open(instance.path).content.incarnation == 1


@pytest.mark.slow
def test_fault_33_a_page_in_the_middle_of_what_was_not_synced_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    insert_rows(instance, 1, 5)
    end, _ = insert_rows(instance, 100, 200)
    page = -(-(end + 1) // 4096) * 4096
    with open(newest_segment(instance), "r+b") as file:
        file.seek(page)
        file.write(bytes(4096))
    lose_pool(instance)
    assert len(check(instance).rows["main"]) == 205


@pytest.mark.parametrize("rebooted", [True, False])
def test_fault_33_a_missing_page_that_no_ring_completes_ends_the_journal_after_a_reboot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebooted: bool
) -> None:
    """What was not synced may be missing in the middle, before what is there; without a power loss that is damage."""
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    insert_rows(instance, 1, 5)
    save_region(path, tmp_path / "aside")
    end, _ = insert_rows(instance, 100, 200)
    restore_region(path, tmp_path / "aside")
    page = -(-(end + 1) // 4096) * 4096
    with open(newest_segment(instance), "r+b") as file:
        file.seek(page)
        file.write(bytes(4096))
    lose_pool(instance)
    if not rebooted:
        with pytest.raises(JournalDamagedError, match="verifies after it"), door_of(instance):
            pass
        return
    monkeypatch.setattr("replicate.journal.durable._BOOT", 4711)
    there = check(instance).rows["main"].keys()
    assert there == {*range(1, 6), *range(100, 100 + len(there) - 5)}
    assert 5 < len(there) < 205
    assert Instance.open(instance.path).content.incarnation == 2
    mark = DurableSidecar(instance.journal_directory / "durable")
    assert mark.is_of_this_boot()  # from here on nothing can be missing
    mark.close()


@pytest.mark.parametrize("cut", [1, 60, -1])
def test_fault_38_a_torn_tail_is_cut_and_begins_a_new_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    old = instance.content.origin
    insert_rows(instance, 1, 5)
    save_region(path, tmp_path / "aside")
    end, after = insert_rows(instance, 100, 1)
    restore_region(path, tmp_path / "aside")
    power_loss(instance, (end if cut > 0 else after) + cut)
    insert_rows(instance, 200, 2)
    found = check(instance)
    assert found.rows["main"].keys() == {1, 2, 3, 4, 5, 200, 201}
    assert Instance.open(instance.path).content.incarnation == 2
    record = next(t for t in found.transactions.values() if t.kind == Kind.HISTORY and t.seqno > 1)
    history = record.content[0]
    assert isinstance(history, History)
    assert history.previous_origin == old.key
    assert history.base.last(old.key) == 6  # region add, and five rows
    with door_of(instance) as door, door.locked():
        position = door.position()
    assert position.chains[old.key][0] == 6
    assert position.chains[Instance.open(instance.path).content.origin.key][0] == 2


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "step", ["recovery.before_cut", "recovery.after_cut", "recovery.journal_done", "recovery.before_redo"]
)
def test_fault_35_killed_in_recovery_of_a_torn_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    insert_rows(instance, 1, 5)
    save_region(path, tmp_path / "aside")
    end, _ = insert_rows(instance, 100, 1)
    restore_region(path, tmp_path / "aside")
    power_loss(instance, end + 60)
    with Writer(instance, f"{step}:1:kill") as dying:
        assert dying.ask("recover") is None
        assert dying.died()
    assert check(instance).rows["main"].keys() == {1, 2, 3, 4, 5}
    assert Instance.open(instance.path).content.incarnation >= 2


def two_regions_with_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """Numbers …, then one of region two, which is lost, between those of main, which stay."""
    instance = unsynced(tmp_path, monkeypatch, regions=("main", "two"))
    insert_rows(instance, 1, 3)
    end, _ = insert_rows(instance, 10, 1, "two")
    save_region(instance.region("two").path, tmp_path / "aside")
    _, hole = insert_rows(instance, 100, 2)
    insert_rows(instance, 20, 1, "two")
    insert_rows(instance, 200, 3)
    insert_rows(instance, 30, 1, "two")
    insert_rows(instance, 300, 1)
    restore_region(instance.region("two").path, tmp_path / "aside")
    power_loss(instance, hole)
    assert end < hole
    return instance


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "step", ["", "recovery.before_take_back:1", "recovery.before_take_back:2", "recovery.journal_done:1"]
)
def test_faults_33_35_what_lies_after_a_hole_is_rolled_back_and_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    instance = two_regions_with_a_hole(tmp_path, monkeypatch)
    if step:
        with Writer(instance, f"{step}:kill") as dying:
            assert dying.ask("recover") is None
            assert dying.died()
    found = check(instance)
    assert found.rows["main"].keys() == {1, 2, 3, 100, 101}
    assert found.rows["two"].keys() == {10}
    assert found.transactions[found.last_seqno].kind == Kind.HISTORY
    kept = list(instance.conflict_directory.iterdir())
    assert len(kept) == 1
    data = kept[0].read_bytes()
    seqnos = [decode(data[offset : offset + head.frame_bytes]).seqno for offset, head in walk(data)]
    assert len(seqnos) == 4
    assert seqnos == sorted(set(seqnos))
    insert_rows(instance, 400, 3)
    lose_pool(instance)
    check(instance)


def test_fault_44_an_old_journal_does_not_make_us_roll_back_what_the_ring_cannot_prove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = unsynced(tmp_path, monkeypatch, regions=("main", "two"))
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    shutil.copytree(instance.journal_directory, tmp_path / "old")
    insert_rows(instance, 1000, 700)
    for path in (tmp_path / "old").iterdir():
        shutil.copy(path, instance.journal_directory / path.name)
    lose_pool(instance)
    with pytest.raises(JournalMissingError), door_of(instance):
        pass
    assert len(rows(instance.region("main").path)) == 703


@pytest.mark.parametrize("row", [2, 5])
def test_fault_39_a_flipped_bit_in_a_durable_record_is_named_and_nothing_changes(tmp_path: Path, row: int) -> None:
    instance = make_primary(tmp_path / "alpha")
    ends = [insert_rows(instance, number, 1) for number in range(1, 6)]
    lose_pool(instance)
    flip(newest_segment(instance), ends[row - 1][0] + 70)
    before = newest_segment(instance).read_bytes()
    with pytest.raises(JournalDamagedError, match=f"transaction {row + 2}"), door_of(instance):
        pass
    assert newest_segment(instance).read_bytes() == before
    assert Instance.open(instance.path).content.incarnation == 1


def test_fault_42_a_consumer_that_acknowledged_is_a_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    path = instance.region("main").path
    insert_rows(instance, 1, 1)
    save_region(path, tmp_path / "aside")
    end, _ = insert_rows(instance, 2, 1)
    restore_region(path, tmp_path / "aside")
    instance.register_peer("beta", "127.0.0.1", 7430)
    write_consumer(instance.consumers_directory, Consumer("beta", 4))
    power_loss(instance, end)
    with (
        pytest.raises(JournalDamagedError, match=r"acknowledged.*replicate -i \S+ region release NAME --force"),
        door_of(Instance.open(instance.path)),
    ):
        pass


def test_a_region_without_a_record_in_its_ring_is_a_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = unsynced(tmp_path, monkeypatch)
    with session_of(instance) as session:
        end = int(session.door.words[word.END_OFFSET])
        insert(session, 1, "w" * 9000)  # too large for a slot
    flip(newest_segment(instance), end + 5000)
    lose_pool(instance)
    with pytest.raises(JournalDamagedError), door_of(instance):
        pass


# Copies and what is missing.


def test_fault_44_a_copied_instance_begins_a_new_incarnation(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    assert os.system(f"cp -a {instance.path} {tmp_path}/copy") == 0
    shutil.rmtree(instance.path)
    copy = Instance.open(tmp_path / "copy")
    with door_of(copy):
        pass
    assert copy.content.incarnation == 2
    assert not copy.was_copied
    insert_rows(copy, 10, 1)
    check(copy)


def test_fault_23_a_copy_does_not_use_the_pool_of_the_original_that_runs(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        assert os.system(f"cp -a {instance.path} {tmp_path}/copy") == 0
        with pytest.raises(WrongInstanceError, match="a copy of the instance in"):
            Instance.open(tmp_path / "copy")
        # Where the original's directory was renamed while a writer of it runs, the pool still tells.
        instance.path.rename(tmp_path / "aside")
        with pytest.raises(ConfigurationError, match="another copy"), door_of(Instance.open(tmp_path / "copy")):
            pass
        (tmp_path / "aside").rename(instance.path)
        insert(session, 2)
    check(instance)


def test_fault_44_an_old_instance_file_is_refused(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    old = (instance.path / FILE_NAME).read_bytes()
    instance.raise_incarnation()
    lose_pool(instance)
    insert_rows(instance, 1, 40)
    with door_of(instance) as door, door.locked():
        door.words[word.SEGMENT_SEALED] = 1
    insert_rows(instance, 100, 1)
    (instance.path / FILE_NAME).write_bytes(old)
    lose_pool(instance)
    with pytest.raises(DamagedError, match="old copy"), door_of(Instance.open(instance.path)):
        pass


def test_fault_41_segments_that_are_gone(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    newest_segment(instance).unlink()
    with pytest.raises(JournalMissingError), door_of(instance):
        pass
    empty = Instance.create(tmp_path / "beta", role="primary")
    with door_of(empty):
        pass
    lose_pool(empty)
    newest_segment(empty).unlink()
    with pytest.raises(JournalDamagedError), door_of(empty):
        pass
    shutil.rmtree(empty.journal_directory)
    with pytest.raises(Exception, match="journal"):
        Instance.open(empty.path)


# Failing syncs.


def fail_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)


def test_faults_26_27_a_failed_fsync_is_fatal_for_every_process_until_recovery(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as other, session_of(instance) as session:
        other.ask("insert", "main", 1)
        insert(session, 2)
        with pytest.MonkeyPatch.context() as patch:
            fail_sync(patch)
            with pytest.raises(OutcomeUnknownError):
                insert(session, 3)
        with pytest.raises(JournalIOError, match="failed earlier"):
            insert(session, 4)
        assert other.ask("insert", "main", 5)[0] == "IO"
        with pytest.raises(OutcomeUnknownError):
            session.door.wait_durable(5)
        with session_of(Instance.open(instance.path)) as recovered:
            insert(recovered, 6)
            insert(session, 7)  # both went through the door of before, and go through the new one by themselves
        other.ask("insert", "main", 8)
    assert check(instance).rows["main"].keys() == {1, 2, 3, 6, 7, 8}


def test_a_sync_that_fails_in_recovery_changes_nothing(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    with pytest.MonkeyPatch.context() as patch:
        fail_sync(patch)
        with pytest.raises(JournalIOError):
            open_door(instance)
    check(instance)


def test_a_failing_directory_sync_at_a_switch_is_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        session.door.words[word.SEGMENT_SEALED] = 1

        def refuse(directory: Directory) -> None:
            raise JournalIOError("fsync of a directory failed")

        with monkeypatch.context() as patch:
            patch.setattr(Directory, "sync", refuse)
            with pytest.raises(JournalIOError):
                insert(session, 2)
        assert session.door.words[word.FATAL]
    with session_of(instance) as session:
        insert(session, 3)
    assert check(instance).rows["main"].keys() == {1, 3}


def test_the_csn_rises_although_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a power loss after a switch, when the newest segment tells no csn."""
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    with Writer(instance, "switch.after_create:1:kill") as dying:
        assert dying.ask("many", "main", 10_000, 100_000, 3000) is None
    lose_pool(instance)
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000)
    with session_of(instance) as session:
        insert(session, 1)
    csns = [t.csn for t in check(instance).transactions.values()]
    assert csns == sorted(set(csns))


def test_two_processes_recover_at_once(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    with Writer(instance) as one, Writer(instance) as two:
        one.send("insert", "main", 10)
        two.send("insert", "main", 11)
        assert {one.answer(), two.answer()} == {6, 7}
    check(instance)
    report = [json.loads(line) for line in (instance.log_directory / "recovery.log").read_text().splitlines()]
    assert all(line["event"] == "recovery" for line in report)


def test_fault_76_what_a_killed_change_of_role_has_renamed_is_durable_before_anything_is_written_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the file is the old one after a power loss, and the journal that of an incarnation which never was."""
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    lose_pool(instance)
    instance.raise_incarnation()  # as if it had been killed before the sync of the directory
    done: list[str] = []
    real_fsync, real_pwrite = os.fsync, os.pwrite

    def fsync(fd: int) -> None:
        done.append(f"sync {os.readlink(f'/proc/self/fd/{fd}')}")
        real_fsync(fd)

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        done.append(f"write {os.path.dirname(os.readlink(f'/proc/self/fd/{fd}'))}")
        return real_pwrite(fd, data, offset)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "pwrite", pwrite)
    open_door(Instance.open(instance.path)).close()
    assert f"write {instance.journal_directory}" in done
    before = done[: done.index(f"write {instance.journal_directory}")]
    assert f"sync {instance.path}" in before


@pytest.mark.parametrize("pruned", [0, 1, 2, 3])
def test_what_no_region_lacks_may_be_pruned_when_the_highest_csn_is_looked_for(tmp_path: Path, pruned: int) -> None:
    """A primary that has written no rows since could not be opened after a power loss."""
    toy = ToyJournal(tmp_path / "journal")
    begins = []
    for _ in range(4):
        begins.append(toy.last_seqno + 1)
        toy.write(2)
        toy.switch()
    csns = [head.csn for head in heads_of(toy)]
    toy.chain.prune(begins[pruned])
    region: Any = SimpleNamespace(seqno=1)
    found = _csn_before(toy.chain, toy.chain.last_segment(), [region])
    assert found == max(csns[max(1, 2 * pruned) :])
    toy.close()


def heads_of(toy: ToyJournal) -> list[Head]:
    with closing(ChainReader(toy.chain, 1)) as reader:
        found = []
        while (read := reader.read(BATCH_BYTES_MAX, toy.last_seqno)) is not None:
            assert isinstance(read, FrameBatch)
            found += [head for _, head in walk(read.data)]
    return found
