"""The reader: every transaction once, from the pool and from the files, whatever the pool has lost meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.door.door import Door
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import JournalDamagedError, JournalMissingError
from replicate.instance.instance import Instance
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch
from replicate.journal.spool import Spool
from replicate.journal.walk import walk
from replicate.pool import control as word
from source_server.reader import FILES, POOL, StreamReader
from tests.harness.servers import commit


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A primary with the smallest pool and segments."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    Instance.create(tmp_path / "east", role="primary", name="east")
    settings = "[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\ndurability = 'off'\n"
    (tmp_path / "east" / "replicate.toml").write_text(settings)
    made = open_door(Instance.open(tmp_path / "east"))
    yield made
    close_door(made)


def seqnos(batch: FrameBatch) -> list[int]:
    return [head.seqno for _, head in walk(batch.data)]


def drain(reader: StreamReader, taken: list[int], limit: int = 64 * 1024) -> None:
    """Read until there is nothing more."""
    while True:
        found = reader.read(limit) if reader.needs_files else reader.poll(limit)
        if found is not None:
            assert isinstance(found, FrameBatch)
            numbers = seqnos(found)
            assert numbers == list(range(found.first_seqno, found.last_seqno + 1))
            taken += numbers
        elif not reader.needs_files:
            return


def test_lapped_and_back_twenty_times(door: Door) -> None:
    switches: list[tuple[str, int]] = []
    reader = StreamReader(door, 1, lambda place, seqno: switches.append((place, seqno)))
    taken: list[int] = []
    drain(reader, taken)
    for turn in range(22):
        commit(door, 100, count=30)  # in the pool
        drain(reader, taken)
        assert reader.place == POOL
        commit(door, 40_000, count=30 + turn % 5)  # more than the pool holds
        drain(reader, taken)
        drain(reader, taken)
    last = door.words[word.LAST_SEQNO]
    assert taken == list(range(1, last + 1))
    assert reader.next_seqno == last + 1
    assert reader.transactions_from_pool + reader.transactions_from_files == last
    assert reader.transactions_from_pool >= 22 * 30
    assert [place for place, _ in switches].count(FILES) >= 21
    assert [place for place, _ in switches].count(POOL) >= 21
    assert reader.switches == len(switches)
    reader.close()


def test_a_steady_reader_stays_in_the_pool(door: Door) -> None:
    reader = StreamReader(door, 1)
    taken: list[int] = []
    for _ in range(200):
        commit(door, 200, count=10)
        drain(reader, taken)
    assert taken == list(range(1, door.words[word.LAST_SEQNO] + 1))
    assert reader.transactions_from_pool >= 0.99 * len(taken)
    reader.close()


def test_beside_a_writer_nothing_is_lost_or_doubled(door: Door) -> None:
    dice = random.Random(5)
    done = threading.Event()

    def write() -> None:
        for _ in range(4000):
            commit(door, dice.choice((40, 200, 3000)))
        done.set()

    writer = threading.Thread(target=write)
    reader = StreamReader(door, 1)
    taken: list[int] = []
    writer.start()
    while not done.is_set():
        drain(reader, taken, dice.choice((4096, 65536, 262144)))
        if dice.random() < 0.01:
            done.wait(0.05)  # falls behind, and is lapped
    writer.join()
    drain(reader, taken)
    assert taken == list(range(1, door.words[word.LAST_SEQNO] + 1))
    reader.close()


def test_a_large_transaction_comes_from_its_file(door: Door) -> None:
    reader = StreamReader(door, 1)
    taken: list[int] = []
    commit(door, count=3)
    drain(reader, taken)
    spool = Spool.create(door.instance.journal_directory, door.words[word.OWN_ORIGIN])
    spool.write(bytes([0]) * 1_000_000)
    with door.locked():
        allotted = door.adopt(spool, (1,), 0, lambda _seqno: None)
        head = next(walk(allotted.frame))[1]
        door.finish_adopted(head)
    commit(door, count=3)
    assert reader.poll(1 << 16) is None
    assert reader.needs_files
    large = reader.read(1 << 16)
    assert isinstance(large, LargeTransaction)
    assert (large.seqno, large.part_count) == (taken[-1] + 1, 4)
    assert len(list(large.parts(2))) == 2
    rest: list[int] = []
    drain(reader, rest)
    assert rest == [large.seqno + n for n in (1, 2, 3)]
    reader.close()


def test_it_begins_in_the_middle(door: Door) -> None:
    commit(door, 20_000, count=200)
    reader = StreamReader(door, 77)
    taken: list[int] = []
    drain(reader, taken)
    assert taken == list(range(77, door.words[word.LAST_SEQNO] + 1))
    reader.close()


def test_damage_raises_and_nothing_is_skipped(door: Door) -> None:
    commit(door, 30_000, count=100)
    reader = StreamReader(door, 1)
    path = reader._files._chain.segment(reader._files._chain.first_seqnos()[1]).path
    with open(path, "r+b") as file:
        file.seek(200_000)
        file.write(b"\xff" * 16)
    taken: list[int] = []
    with pytest.raises(JournalDamagedError):
        drain(reader, taken)
    assert taken == list(range(1, taken[-1] + 1))
    with pytest.raises(JournalDamagedError):
        drain(reader, taken)
    reader.close()


def test_pruned_is_said(door: Door) -> None:
    commit(door, 30_000, count=150)
    reader = StreamReader(door, 1)
    door.chain.prune(100)
    with pytest.raises(JournalMissingError):
        drain(reader, [])
    reader.close()
