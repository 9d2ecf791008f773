"""Pruning: never below what a consumer or a region needs, never the newest two, and what happens at the cap."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.pruning import _Pruning, durable_in_regions, prune_journal
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import DamagedError
from replicate.instance.archive_mark import look_at_archive, note_archived
from replicate.instance.consumers import Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.roles.change_of_role import become_secondary
from replicate.system.locks import FileLock
from tests.harness.pair import Pair
from tests.harness.servers import commit

Make = Callable[[str], Door]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    doors = []

    def make_door(settings: str = "") -> Door:
        """A primary with segments of 1 MiB, ten of them, and the peers west and south."""
        Instance.create(tmp_path / "east", role="primary", name="east")
        (tmp_path / "east" / "replicate.toml").write_text(
            f"[journal]\nsegment_bytes = 1048576\ndurability = 'off'\n{settings}"
        )
        instance = Instance.open(tmp_path / "east")
        for name in ("west", "south"):
            instance.register_peer(name, "127.0.0.1", 7430)
        door = open_door(instance)
        doors.append(door)
        commit(door, 50_000, count=200)
        return door

    yield make_door
    for door in doors:
        close_door(door)


def acknowledge(door: Door, name: str, seqno: int) -> None:
    write_consumer(door.instance.consumers_directory, Consumer(name, seqno))


def test_a_consumer_that_has_applied_nothing_counts(make: Make) -> None:
    door = make("")
    assert prune_journal(door) == []
    acknowledge(door, "west", 200)
    assert prune_journal(door) == []


def test_only_whole_segments_below_the_slowest_go(make: Make) -> None:
    door = make("")
    numbers = door.chain.first_seqnos()
    acknowledge(door, "west", 200)
    acknowledge(door, "south", numbers[3])  # into the fourth
    assert prune_journal(door) == numbers[:3]
    assert door.chain.first_seqnos() == numbers[3:]
    assert prune_journal(door) == []
    acknowledge(door, "south", numbers[4] - 1)  # all of the fourth
    assert prune_journal(door) == [numbers[3]]


def test_the_newest_two_stay(make: Make) -> None:
    door = make("")
    numbers = door.chain.first_seqnos()
    last = door.words[word.LAST_SEQNO]
    acknowledge(door, "west", last)
    acknowledge(door, "south", last)
    prune_journal(door)
    assert door.chain.first_seqnos() == numbers[-2:]
    commit(door, count=3)


def test_without_consumers_only_the_regions_count(make: Make) -> None:
    door = make("")
    for name in ("west", "south"):
        door.instance.unregister_peer(name)
    prune_journal(door)
    assert len(door.chain.first_seqnos()) == 2


def test_a_secondary_keeps_what_a_rollback_may_want(make: Make) -> None:
    """As many of the newest files as fit, and no more than the cap."""
    door = make("")
    for name in ("west", "south"):
        door.instance.unregister_peer(name)
    become_secondary(door.instance)
    door = open_door(door.instance)
    numbers = door.chain.first_seqnos()
    size = door.chain.size_bytes() // len(numbers) + 4096

    def keep(rollback_bytes: int, cap_bytes: int = 1 << 40) -> None:
        config = door.instance.config
        door.instance.config = replace(
            config, journal=replace(config.journal, rollback_bytes=rollback_bytes, cap_bytes=cap_bytes)
        )

    keep(100 * size)
    assert prune_journal(door) == []
    keep(7 * size)
    assert prune_journal(door) == numbers[:-7]
    keep(100 * size, 5 * size)
    assert prune_journal(door) == numbers[-7:-5]
    keep(0)
    assert prune_journal(door) == numbers[-5:-2]
    close_door(door)


def test_keep_keeps_at_the_cap(make: Make) -> None:
    door = make("cap_bytes = 2097152\n")
    acknowledge(door, "west", 200)
    assert prune_journal(door) == []


def test_drop_consumer_gives_up_the_slowest_as_far_as_it_takes(make: Make) -> None:
    door = make("cap_bytes = 8388608\ncap_policy = 'drop-consumer'\n")
    numbers = door.chain.first_seqnos()
    directory = door.instance.consumers_directory
    acknowledge(door, "west", 199)
    acknowledge(door, "south", numbers[1])
    dropped: list[Consumer] = []
    assert prune_journal(door, dropped.append)
    assert [consumer.name for consumer in dropped] == ["south"]
    south, west = read_consumer(directory, "south"), read_consumer(directory, "west")
    assert south is not None
    assert south.needs_seed
    assert west is not None
    assert not west.needs_seed  # dropping it would free nothing more
    assert door.chain.first_seqnos() == numbers[-2:]


def test_drop_consumer_gives_up_all_that_need_the_same_segment(make: Make) -> None:
    """Giving up either alone would free nothing, and so the journal would grow beyond its cap for good."""
    door = make("cap_bytes = 8388608\ncap_policy = 'drop-consumer'\n")
    door.instance.register_peer("north", "127.0.0.1", 7430)
    numbers = door.chain.first_seqnos()
    acknowledge(door, "north", 199)
    acknowledge(door, "west", 1)  # south has never been heard of: its segment is the same
    dropped: list[Consumer] = []
    assert prune_journal(door, dropped.append) == numbers[:-2]
    assert sorted(consumer.name for consumer in dropped) == ["south", "west"]
    assert door.chain.first_seqnos() == numbers[-2:]
    assert prune_journal(door, dropped.append) == []
    assert len(dropped) == 2


@pytest.mark.parametrize("how", ["it went on", "it was seeded"])
def test_drop_consumer_drops_nobody_who_needs_it_no_more(make: Make, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Since it was read; what a seed has written, or kept, must not be taken back."""
    door = make("cap_bytes = 8388608\ncap_policy = 'drop-consumer'\n")
    numbers, directory = door.chain.first_seqnos(), door.instance.consumers_directory
    acknowledge(door, "west", 199)
    acknowledge(door, "south", numbers[1])
    real = _Pruning._note_idle

    def others_write(self: _Pruning, below: int, *, behind: int = 1) -> bool:
        if how == "it went on":
            acknowledge(door, "south", 199)
        else:
            write_consumer(directory, Consumer("south", numbers[1], needs_seed=True))
            write_hold(directory, "south", 199)
        return real(self, below, behind=behind)

    monkeypatch.setattr(_Pruning, "_note_idle", others_write)
    dropped: list[Consumer] = []
    assert prune_journal(door, dropped.append)
    assert dropped == []
    assert read_hold(directory, "south") == (199 if how == "it was seeded" else None)
    assert door.chain.first_seqnos() == numbers[-2:]


def test_drop_consumer_drops_nobody_where_nothing_would_become_free(make: Make) -> None:
    door = make("cap_bytes = 2097152\ncap_policy = 'drop-consumer'\narchive = '/nowhere'\n")
    acknowledge(door, "west", 1)
    dropped: list[Consumer] = []
    assert prune_journal(door, dropped.append) == []  # nothing is in the archive
    assert dropped == []


def test_what_is_not_in_the_archive_stays(make: Make) -> None:
    door = make("archive = '/srv/archive'\n")
    numbers = door.chain.first_seqnos()
    for name in ("west", "south"):
        acknowledge(door, name, 200)
    assert prune_journal(door) == []
    note_archived(door.instance, numbers[2] - 1)
    assert prune_journal(door) == numbers[:2]
    found = look_at_archive(door.instance)
    assert found is not None
    assert found.last_seqno == numbers[2] - 1
    assert found.waiting_bytes == sum(os.stat(door.chain.path_of(n)).st_blocks * 512 for n in numbers[2:-1])
    # Another archive has got nothing of it yet, and what makes no sense is no permission to remove anything.
    path = door.instance.consumers_directory / "_archive.json"
    text = path.read_text()
    for harm, error in (
        (text.replace("srv", "mnt"), None),
        ("{}", DamagedError),
        (text.replace("1", "9", 1), DamagedError),
    ):
        path.write_text(harm)
        with pytest.raises(error) if error else contextlib.nullcontext():
            assert prune_journal(door) == []
    assert door.chain.first_seqnos() == numbers[2:]
    path.write_text(text)
    note_archived(door.instance, 200)
    assert prune_journal(door) == numbers[2:-2]


def test_prune_archived_keeps_within_the_cap_what_a_consumer_needs(make: Make) -> None:
    door = make("archive = '/srv/archive'\ncap_policy = 'prune-archived'\ncap_bytes = 8388608\n")
    numbers = door.chain.first_seqnos()
    acknowledge(door, "west", 200)
    assert door.chain.size_bytes() > 8388608
    assert prune_journal(door) == []  # nothing is archived
    note_archived(door.instance, numbers[1] - 1)
    assert prune_journal(door) == numbers[:1]  # no further than that, though it is not enough
    note_archived(door.instance, 200)
    removed = prune_journal(door)
    assert removed == numbers[1 : 1 + len(removed)]
    assert 8388608 - 2 * 1048576 < door.chain.size_bytes() <= 8388608
    south = read_consumer(door.instance.consumers_directory, "south")
    assert south is None or not south.needs_seed


def test_unfinished_work_of_a_region_is_kept(tmp_path: Path) -> None:
    pair = Pair.create(tmp_path)
    door = open_door(pair.primary)
    try:
        regions = pair.primary.regions
        last = door.words[word.LAST_SEQNO]
        assert durable_in_regions(door.words, regions) == last
        region = regions[0].region_id
        door.words[word.REGION_DONE + region] -= 1
        assert durable_in_regions(door.words, regions) < last
        door.words[word.REGION_DONE + region] += 1
    finally:
        close_door(door)


def test_what_only_the_wal_holds_is_synced_before_its_journal_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is what completes a region after a power loss: it may go only once the region needs it no more."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    synced: list[str] = []
    real = os.fsync

    def noting(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    with contextlib.closing(pair.connect()) as connection:
        connection.execute("INSERT INTO account VALUES (1, 'a', 1, 1)")
        connection.commit()
        door = open_door(pair.primary)
        monkeypatch.setattr(os, "fsync", noting)
        assert durable_in_regions(door.words, pair.primary.regions) == door.words[word.LAST_SEQNO]
        close_door(door)
    assert synced[0] == f"{pair.primary.region('main').path.name}-wal"


def test_syncing_a_wal_keeps_the_locks_of_sqlite(tmp_path: Path) -> None:
    """Locks belong to the process: closing the database file's descriptor would drop them, that of the WAL does not."""
    pair = Pair.create(tmp_path)
    connection = pair.connect()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO account(owner) VALUES ('o')")
    door = open_door(pair.primary)
    durable_in_regions(door.words, pair.primary.regions)
    close_door(door)
    other = apsw.Connection(str(pair.primary.regions[0].path))
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    other.close()
    connection.commit()
    connection.close()


def test_one_at_a_time(make: Make) -> None:
    door = make("")
    acknowledge(door, "west", 200)
    acknowledge(door, "south", 200)
    lock = FileLock(door.instance.locks_directory / "prune.lock")
    assert lock.try_acquire()
    assert prune_journal(door) == []
    lock.close()
    assert prune_journal(door)


def test_a_damaged_position_prunes_nothing(make: Make) -> None:
    door = make("")
    acknowledge(door, "west", 200)
    (door.instance.consumers_directory / "south.json").write_text("{")
    with pytest.raises(DamagedError):
        prune_journal(door)
    assert len(door.chain.first_seqnos()) > 5
