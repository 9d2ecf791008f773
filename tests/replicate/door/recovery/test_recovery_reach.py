"""A primary's region that lacks what the journal no longer has is refused; one in which nothing was written is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import make_chain, open_door
from replicate.errors import JournalMissingError, NotFoundError, RegionReplacedError, ReplicateError
from replicate.instance.instance import Instance
from tests.harness.instances import (
    check,
    door_of,
    insert,
    lose_pool,
    make_primary,
    restore_region,
    rows,
    save_region,
    session_of,
)
from tests.harness.regions import make_database

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return make_primary(tmp_path / "alpha", regions=("main", "two"), segment_bytes=1 << 20, durability="off")


def write_much(instance: Instance, first: int, count: int = 40) -> None:
    with session_of(instance) as session:
        for row_id in range(first, first + count):
            insert(session, row_id, "x" * 100_000)


def everything(directory: Path) -> dict[str, bytes]:
    """All files of databases and journal: what a refusal must not change."""
    found = [*directory.glob("*.db"), *directory.glob("*.db-wal"), *(directory / "alpha" / "journal").iterdir()]
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize("which", ["main", "two"])
def test_a_region_from_a_backup_older_than_the_journal_is_refused_and_nothing_changes(
    instance: Instance, tmp_path: Path, which: str
) -> None:
    path = instance.region(which).path
    with session_of(instance, which) as session:
        held = insert(session, 1)
    save_region(path, tmp_path / "backup")
    with session_of(instance, which) as session:
        insert(session, 2)
    write_much(instance, 100)
    with door_of(instance) as door:
        assert prune_journal(door)
    save_region(path, tmp_path / "right")
    oldest = make_chain(instance).oldest_seqno()
    restore_region(path, tmp_path / "backup")
    lose_pool(instance)
    before = everything(tmp_path)
    for _ in range(2):
        expected = rf"holds transactions up to {held}, the journal begins with {oldest}.*put the right file"
        with pytest.raises(JournalMissingError, match=expected) as caught:
            open_door(instance)
        assert (caught.value.facts["last_seqno"], caught.value.facts["first_seqno"]) == (held, oldest)
    after = everything(tmp_path)
    assert {name: data for name, data in after.items() if name in before and data} == {
        name: data for name, data in before.items() if data
    }
    restore_region(path, tmp_path / "right")
    write_much(instance, 300, 1)
    assert sorted(rows(instance.region("two").path)) == ([1, 2] if which == "two" else [])


def test_a_region_in_which_nothing_was_written_for_long_is_not_refused(instance: Instance) -> None:
    with session_of(instance, "two") as session:
        held = insert(session, 1)
    for round_ in range(2):
        write_much(instance, 100 + 100 * round_)
        with door_of(instance) as door:
            assert prune_journal(door)
        assert make_chain(instance).oldest_seqno() > held + 1
        lose_pool(instance)
        with session_of(instance, "two") as session:
            insert(session, 2 + round_)
    assert rows(instance.region("two").path) == {1: "x", 2: "x", 3: "x"}
    check(instance, first_seqno=make_chain(instance).oldest_seqno())


def test_pruning_waits_for_nobody_who_has_an_idle_region_in_hands(instance: Instance) -> None:
    write_much(instance, 100)
    with door_of(instance) as door:
        with session_of(instance, "two") as session:
            session.begin(timeout_s=1)
            assert prune_journal(door) == []
            session.rollback()
        assert prune_journal(door)


def test_a_plain_database_in_the_place_of_a_region_is_a_replaced_one(instance: Instance, tmp_path: Path) -> None:
    entry = instance.region("main")
    save_region(entry.path, tmp_path / "right")
    for ending in ("", "-wal", "-shm"):
        Path(f"{entry.path}{ending}").unlink(missing_ok=True)
    make_database(entry.path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    for lost in (False, True):
        if lost:
            lose_pool(instance)
        with pytest.raises(RegionReplacedError, match=rf"no bookkeeping.*{entry.uuid.hex()}.*[Pp]ut the right file"):
            session_of(instance).__enter__()
    other = make_primary(tmp_path / "gamma")
    os.replace(other.region("main").path, entry.path)
    connection = make_plain_mode(entry.path)
    assert connection == "delete"
    with pytest.raises(RegionReplacedError, match=rf"{other.region('main').uuid.hex()}.*{entry.uuid.hex()}"):
        session_of(instance).__enter__()
    restore_region(entry.path, tmp_path / "right")
    write_much(instance, 1, 1)


def make_plain_mode(path: Path) -> str:
    """Another client takes the database out of WAL mode."""
    import apsw

    connection = apsw.Connection(str(path))
    mode = str(connection.pragma("journal_mode", "delete"))
    connection.close()
    return mode


def test_a_region_file_that_is_gone_says_what_to_do(instance: Instance, tmp_path: Path) -> None:
    path = instance.region("main").path
    path.rename(tmp_path / "aside")
    with pytest.raises(NotFoundError, match=r"no such database file.*Put the right file") as caught:
        session_of(instance).__enter__()
    assert str(path) in caught.value.where
    assert not path.exists()


@pytest.mark.parametrize("name", ["journal", "run", "locks", "log", "regions", "consumers", "conflict"])
def test_a_missing_directory_of_an_instance_says_what_to_do(instance: Instance, name: str) -> None:
    (instance.path / name).rename(instance.path / "aside")
    with pytest.raises(ReplicateError, match=f"{name}.*is missing") as caught:
        Instance.open(instance.path)
    assert ("Put it back" if name in ("journal", "regions") else "mkdir -m 700") in caught.value.do


def test_no_consumer_is_given_up_for_a_region_that_somebody_has_in_hands(tmp_path: Path) -> None:
    made = make_primary(
        tmp_path / "alpha",
        regions=("main", "two"),
        segment_bytes=1 << 20,
        cap_bytes=3 << 20,
        cap_policy="drop-consumer",
        durability="off",
    )
    made.register_peer("west", "127.0.0.1", 7430)
    dropped: list[str] = []
    with door_of(made) as door:
        with session_of(made, "two") as session:
            session.begin(timeout_s=1)
            write_much(made, 100, 80)  # writers prune, too
            assert prune_journal(door, lambda consumer: dropped.append(consumer.name)) == []
            session.rollback()
        assert dropped == []
        assert prune_journal(door, lambda consumer: dropped.append(consumer.name))
    assert dropped == ["west"]
