"""Packets where a disk is really full: of the outbox, or of the secondary, before an import or in the middle of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from replicate.errors import DiskFullError, JournalIOError
from replicate.instance.instance import Instance
from replicate.system.failpoint import hit
from replicate.transfer.packet.epochs_file import read_epochs
from tests.faults.small_disk import SmallDisk
from tests.harness.packets import export, take
from tests.harness.pair import Pair
from tests.harness.replaying import assert_equal
from update_process.replay.apply import Progress
from update_process.replay.packets import import_packets

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")

ROWS = 20
"""A transaction each."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        made = SmallDisk(tmp_path, "tmpfs")
    except AssertionError:
        pytest.skip("cannot mount a small tmpfs")
    try:
        yield made
    finally:
        made.unmount()


@pytest.fixture
def pair(tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The secondary stands on that disk, and keeps no room there."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE p (id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    network = made.primary.content.network
    west = Instance.create(disk.where / "west", role="secondary", name="west", network=network)
    (west.path / "replicate.toml").write_text("[journal]\nreserve_bytes = 0\n")
    made.secondary = Instance.open(west.path)
    made.seed()
    return made


def write(pair: Pair, first: int) -> None:
    with pair.connect() as connection:
        for number in range(first, first + ROWS):
            connection.execute("INSERT INTO p VALUES (?, ?)", (number, os.urandom(50_000)))
            connection.commit()


def rows_of(instance: Instance) -> int:
    (region,) = instance.regions
    connection = apsw.Connection(str(region.path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        (found,) = connection.execute("SELECT count(*) FROM p")
    finally:
        connection.close()
    return int(found[0])


def test_an_outbox_without_room_has_no_packet_and_no_row_moves(pair: Pair, disk: SmallDisk) -> None:
    outbox = disk.where / "out"
    write(pair, 0)
    disk.fill()
    with pytest.raises(DiskFullError) as caught:
        export(pair.primary, outbox, "west")
    assert caught.value.do
    assert list(outbox.iterdir()) == []
    assert read_epochs(pair.primary.consumers_directory).exports == ()
    disk.give_room()
    take(pair.secondary, *(one.path for one in export(pair.primary, outbox, "west")))
    assert_equal(pair)


@pytest.mark.parametrize("when", ["before", "unpacking", "unpacked"])
def test_a_secondary_without_room_applies_whole_transactions_or_none(
    pair: Pair, disk: SmallDisk, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command finishes when there is room again."""
    for number in range(3):
        write(pair, number * ROWS)
        export(pair.primary, pair.directory / "out", "west")
    paths, stands = sorted((pair.directory / "out").iterdir()), pair.last_seqno(pair.secondary)

    def unpacking(progress: Progress) -> None:
        if (progress.what, when) == ("unpacking", "unpacking") and progress.done < progress.whole:
            disk.fill()

    if when == "before":
        disk.fill()
    if when == "unpacked":
        monkeypatch.setattr("update_process.replay.packets.hit", lambda name: disk.fill() if when in name else None)
    with pytest.raises((DiskFullError, JournalIOError)) as caught:
        import_packets(pair.secondary, paths, now_s=time.time(), told=unpacking)
    monkeypatch.setattr("update_process.replay.packets.hit", hit)
    assert caught.value.exit_code == 74
    assert caught.value.do
    disk.give_room()
    reached = pair.last_seqno(pair.secondary)
    assert stands <= reached < pair.last_seqno()
    assert rows_of(pair.secondary) == reached - stands
    assert not (pair.secondary.path / "replay").exists()
    take(pair.secondary, *paths)
    assert_equal(pair)
