"""Writers killed at every step of a commit: a live one finishes it, or recovery after the pool was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.primary import RegionSession
from replicate.errors import (
    NotFoundError,
    RegionReplacedError,
)
from replicate.model.transaction import Kind
from replicate.pool.journal_pool import LAPPED, InFiles, PoolReader
from tests.harness.instances import (
    Writer,
    begin_large,
    check,
    door_of,
    insert,
    lose_pool,
    make_primary,
    restore_region,
    save_region,
    session_of,
)

STEPS = (
    "commit.before_append",
    "append.before_write",
    "append.after_write",
    "commit.after_commit",
    "finish.before_publish",
    "publish.after_early",
    "publish.after_data",
    "publish.after_head",
    "publish.after_published",
    "publish.after_written",
    "sync.before",
    "sync.after",
)
APPENDED = STEPS[2:]


pytestmark = pytest.mark.usefixtures("shared_memory")


def read_pool(reader: PoolReader, last_seqno: int) -> list[int]:
    """The seqnos that a pool reader yields up to `last_seqno`; those in files count as read."""
    seen: list[int] = []
    while reader.next_seqno <= last_seqno:
        found = reader.poll(1 << 20)
        assert found is not LAPPED
        if found is None:
            continue
        assert not isinstance(found, type(LAPPED))
        seen.extend(range(found.first_seqno, found.last_seqno + 1))
        if isinstance(found, InFiles):
            reader.advance(found.last_seqno + 1)
    return seen


@pytest.mark.turns(4)
@pytest.mark.parametrize("step", STEPS)
def test_faults_1_to_6_a_live_writer_finishes_what_a_killed_one_left(tmp_path: Path, step: str) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as live, Writer(instance) as dying, door_of(instance) as door:
        assert live.ask("insert", "main", 1) == 3
        dying.ask("open", "main")
        reader = PoolReader(door.pool, 1)
        dying.ask("arm", f"{step}:1:kill")
        assert dying.ask("insert", "main", 2) is None
        assert dying.died()
        seqno = live.ask("insert", "main", 3)
        assert seqno == (5 if step in APPENDED else 4)
        assert read_pool(reader, seqno) == list(range(1, seqno + 1))
        reader.close()
        assert check(instance).rows["main"].keys() == ({1, 2, 3} if step in APPENDED else {1, 3})


@pytest.mark.turns(4)
@pytest.mark.parametrize("step", STEPS)
def test_faults_1_to_6_33_killed_then_the_pool_is_lost(tmp_path: Path, step: str) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as dying:
        dying.ask("insert", "main", 1)
        dying.ask("arm", f"{step}:1:kill")
        assert dying.ask("insert", "main", 2) is None
        assert dying.died()
    lose_pool(instance)
    with session_of(instance) as session:
        insert(session, 3)
    assert check(instance).rows["main"].keys() == ({1, 2, 3} if step in APPENDED else {1, 3})


@pytest.mark.turns(4)
@pytest.mark.parametrize("step", ["append.before_write", "append.after_write", "finish.before_publish"])
@pytest.mark.parametrize("second", ["mend.begin", "publish.after_early", "publish.after_written", "append.after_write"])
def test_fault_5_killed_twice_the_second_time_while_mending(tmp_path: Path, step: str, second: str) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as live, Writer(instance) as first, Writer(instance) as again:
        for number, writer in enumerate((live, first, again), 1):
            writer.ask("insert", "main", number)
        first.ask("arm", f"{step}:1:kill")
        assert first.ask("insert", "main", 10) is None
        again.ask("arm", f"{second}:1:kill")
        assert again.ask("insert", "main", 11) is None
        assert first.died()
        assert again.died()
        live.ask("insert", "main", 12)
    found = check(instance)
    assert (10 in found.rows["main"]) == (step != "append.before_write")
    assert 12 in found.rows["main"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["switch.before_create", "switch.after_create", "switch.between_words"])
@pytest.mark.parametrize("reboot", [False, True])
def test_fault_36_killed_in_a_segment_switch(tmp_path: Path, step: str, reboot: bool) -> None:
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    with Writer(instance) as live, Writer(instance, f"{step}:1:kill") as dying:
        live.ask("insert", "main", 1)
        assert dying.ask("many", "main", 10_000, 100_000, 3000) is None
        assert dying.died()
        if reboot:
            live.close()
            lose_pool(instance)
            with session_of(instance) as session:
                insert(session, 2, "x" * 3000)
        else:
            live.ask("many", "main", 2, 1, 3000)
    found = check(instance)
    assert len(list(instance.journal_directory.glob("*.journal"))) == 2
    assert 2 in found.rows["main"]


@pytest.mark.parametrize("step", ["switch.before_create", "switch.after_create", "switch.between_words"])
def test_fault_36_what_follows_a_killed_switch_would_still_fit_the_old_segment(tmp_path: Path, step: str) -> None:
    """The frame that asked for a new segment dies with its writer; smaller ones must not go on in the old one beside a
    segment that is there already: the chain would be broken for good at the next switch."""
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    with Writer(instance) as live, Writer(instance, f"{step}:1:kill") as dying:
        live.ask("many", "main", 1, 11, 90_000)
        assert dying.ask("many", "main", 1000, 5, 200_000) is None
        assert dying.died()
        live.ask("insert", "main", 2000)
        live.ask("many", "main", 3000, 12, 90_000)
    lose_pool(instance)
    with session_of(instance) as session:
        insert(session, 4000)
    assert {2000, 3011, 4000} <= check(instance).rows["main"].keys()


@pytest.mark.turns(4)
@pytest.mark.parametrize("step", ["adopt.before_rename", "adopt.after_rename", "commit.after_commit"])
@pytest.mark.parametrize("reboot", [False, True])
def test_fault_6_killed_around_the_adoption_of_a_large_transaction(tmp_path: Path, step: str, reboot: bool) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as live, Writer(instance, f"{step}:1:kill") as dying, door_of(instance) as door:
        live.ask("insert", "main", 1)
        reader = PoolReader(door.pool, 1)
        assert dying.ask("large", "main", 1000, 600) is None
        assert dying.died()
        if reboot:
            live.close()
            lose_pool(instance)
            with session_of(instance) as session:
                assert insert(session, 2) == (4 if step == "adopt.before_rename" else 5)
        else:
            seqno = live.ask("insert", "main", 2)
            assert read_pool(reader, seqno) == list(range(1, seqno + 1))
        reader.close()
    found = check(instance)
    assert len(found.rows["main"]) == (2 if step == "adopt.before_rename" else 602)
    with door_of(instance):
        assert not list(instance.journal_directory.glob("*.spool"))


def test_large_transactions_in_a_row_and_normal_ones_between(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        for number in range(3):
            session.commit(begin_large(session, 1000 * number, 300))
            if number != 1:
                insert(session, 1000 * number + 999)
        session.commit(begin_large(session, 9000, 300))
    lose_pool(instance)  # the newest segment is an adopted one
    with session_of(instance) as session:
        insert(session, 9999)
    assert check(instance).kinds()[-2:] == [Kind.LARGE, Kind.TRANSACTION]


def test_a_large_transaction_takes_the_place_of_a_segment_that_a_killed_switch_left(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    with Writer(instance, "switch.after_create:1:kill") as dying, session_of(instance) as session:
        assert dying.ask("many", "main", 10_000, 100_000, 3000) is None
        assert dying.died()
        session.commit(begin_large(session, 1, 300))
        insert(session, 500)
    assert check(instance).kinds()[-2:] == [Kind.LARGE, Kind.TRANSACTION]


def test_a_large_transaction_takes_the_place_of_the_empty_newest_segment(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", segment_bytes=1 << 20, durability="off")
    with Writer(instance, "switch.after_create:1:kill") as dying:
        assert dying.ask("many", "main", 10_000, 100_000, 3000) is None
        assert dying.died()
    lose_pool(instance)
    with Writer(instance) as other, session_of(instance) as session:
        other.ask("open", "main")
        session.commit(begin_large(session, 1, 300))
        other.ask("insert", "main", 500)
        insert(session, 501)
    assert check(instance).kinds()[-3:] == [Kind.LARGE, Kind.TRANSACTION, Kind.TRANSACTION]


@pytest.mark.turns(4)
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("step", ["append.after_write", "commit.after_commit", "finish.before_publish"])
def test_killed_in_a_schema_change(tmp_path: Path, step: str, reboot: bool) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as live, Writer(instance) as dying:
        dying.ask("insert", "main", 1)
        live.ask("insert", "main", 2)
        dying.ask("arm", f"{step}:1:kill")
        assert dying.ask("schema", "main", "CREATE TABLE u(a INTEGER PRIMARY KEY)", "u") is None
        assert dying.died()
        if reboot:
            live.close()
            lose_pool(instance)
            with session_of(instance) as session:
                insert(session, 3)
        else:
            live.ask("insert", "main", 3)
    check(instance)
    with door_of(instance) as door:
        assert {d.table for d in door.catalogue_now().definitions.values()} == {"t", "u"}


def test_fault_43_44_an_old_copy_or_another_file_in_a_regions_place(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "other"))
    path = instance.region("main").path
    with session_of(instance) as session:
        insert(session, 1)
    save_region(path, tmp_path / "aside")
    with session_of(instance) as session:
        insert(session, 2)
    save_region(path, tmp_path / "new")
    restore_region(path, tmp_path / "aside")
    with door_of(instance) as door:
        with pytest.raises(RegionReplacedError, match="old copy"):
            RegionSession(door, "main")
    lose_pool(instance)  # recovery rolls the old copy forward
    check(instance)
    (tmp_path / "aside" / path.name).write_bytes(instance.region("other").path.read_bytes())
    restore_region(path, tmp_path / "aside")
    with door_of(instance) as door, pytest.raises(RegionReplacedError):
        RegionSession(door, "main")
    lose_pool(instance)
    with pytest.raises(RegionReplacedError), door_of(instance):
        pass
    path.unlink()
    with pytest.raises(NotFoundError), door_of(instance):
        pass
