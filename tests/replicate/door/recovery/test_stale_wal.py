"""door/recovery/stale_wal.py: an old copy of a region beside a newer `-wal` is refused; a healthy region never is,
whatever was done to it and wherever it was killed.

Fault 48. A *photo* is what a kill would leave of a region at a moment: its database and its WAL.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from msgspec import Struct
from msgspec.structs import replace

from replicate.door.primary import RegionSession
from replicate.door.recovery.stale_wal import refuse_stale_file
from replicate.door.secondary import open_apply_session
from replicate.errors import BusyError, RegionDamagedError, RegionReplacedError
from replicate.instance.instance import Instance
from replicate.journal.record import FrameBatch
from replicate.region.sqlite.bookkeeping import region_seqno
from replicate.region.sqlite.open import open_region
from tests.harness.applying import apply_batch, batches
from tests.harness.instances import (
    MIXED,
    ROOT,
    begin_large,
    change_schema,
    door_of,
    insert,
    lose_pool,
    make_primary,
    make_secondary,
    rows,
    session_of,
)

CHECKPOINTS = (
    apsw.SQLITE_CHECKPOINT_PASSIVE,
    apsw.SQLITE_CHECKPOINT_FULL,
    apsw.SQLITE_CHECKPOINT_RESTART,
    apsw.SQLITE_CHECKPOINT_TRUNCATE,
)
NO_WAL = b""


pytestmark = pytest.mark.usefixtures("shared_memory", "sections")


@pytest.fixture(params=["one section", "mixed"])
def sections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each history once with transactions of one section, and once with such over several."""
    if request.param == "mixed":
        monkeypatch.setenv(MIXED, "1")


class Photo(Struct):
    """A region's files at a moment. `is_whole`: no checkpoint of this WAL has been at work."""

    database: bytes
    wal: bytes
    held: int
    """The last transaction of the region."""
    is_whole: bool

    @property
    def salts(self) -> bytes:
        return self.wal[16:24]

    def frames(self) -> list[tuple[int, int]]:
        """(page, where its content begins) of every frame of this WAL that is in force."""
        (page,) = struct.unpack_from(">I", self.wal, 8) if self.wal else (0,)
        found = []
        for at in range(32, len(self.wal) - 24 - page + 1, 24 + page) if page else ():
            if self.wal[at + 8 : at + 16] != self.salts:
                break
            found.append((int.from_bytes(self.wal[at : at + 4], "big"), at + 24))
        return found

    def torn(self, dice: random.Random) -> Photo:
        """The same, killed at some page of a checkpoint that went up to some frame."""
        (page,) = struct.unpack_from(">I", self.wal, 8)
        frames = self.frames()
        newest = dict(frames[: dice.randrange(len(frames) + 1)])
        numbers = sorted(newest)
        database = bytearray(self.database)
        for number in numbers[: dice.randrange(len(numbers) + 1)]:
            begin = (number - 1) * page
            database.extend(bytes(max(0, begin + page - len(database))))
            database[begin : begin + page] = self.wal[newest[number] : newest[number] + page]
        return replace(self, database=bytes(database), is_whole=False)


@dataclass
class Album:
    """The photos of one region, and what its database held when each of its WALs was begun."""

    instance: Instance
    name: str
    copies: Path
    photos: list[Photo] = field(default_factory=list)
    based_on: dict[bytes, int] = field(default_factory=dict)
    first_is_small: dict[bytes, bool] = field(default_factory=dict)
    """Whether the first commit of a WAL has its record in its slot: what has not may pass."""
    last: int = 0
    is_whole: bool = True
    _salts: bytes = NO_WAL

    def step(self, held: int, *, checkpointed: bool, is_small: bool = True) -> None:
        """Take a photo after something was done."""
        path = self.instance.region(self.name).path
        wal = Path(f"{path}-wal")
        photo = Photo(path.read_bytes(), wal.read_bytes() if wal.exists() else NO_WAL, held, is_whole=True)
        if photo.salts != self._salts:
            self._salts, self.is_whole = photo.salts, True
            self.based_on[photo.salts] = self.last
            self.first_is_small[photo.salts] = is_small
        self.is_whole &= not checkpointed
        self.last = held
        self.photos.append(replace(photo, is_whole=self.is_whole))

    def is_refused(self, database: Photo, wal: Photo) -> bool:
        """Whether the database of one photo beside the WAL of another is refused; nothing is written in any case."""
        self.copies.mkdir(exist_ok=True)
        path = self.copies / "copy.db"
        Path(f"{path}-shm").unlink(missing_ok=True)
        path.write_bytes(database.database)
        Path(f"{path}-wal").write_bytes(wal.wal)
        entry = replace(self.instance.region(self.name), path=path)
        try:
            refuse_stale_file(self.instance, entry)
        except (RegionReplacedError, RegionDamagedError):  # some mixtures SQLite itself finds to be nonsense
            return True
        finally:
            assert path.read_bytes() == database.database
            assert Path(f"{path}-wal").read_bytes() == wal.wal
        return False

    def judge(self, dice: random.Random, pairs: int) -> tuple[int, int, int]:
        """(healthy ones looked at, old copies, of these refused); AssertionError if a healthy one is refused."""
        healthy = old_copies = refused = 0
        for photo in self.photos:
            assert not self.is_refused(photo, photo)
            healthy += 1
            if photo.frames():
                assert not self.is_refused(photo.torn(dice), photo)
                healthy += 1
        for _ in range(pairs):
            older, newer = sorted(dice.sample(range(len(self.photos)), 2))
            old, new = self.photos[older], self.photos[newer]
            if not new.frames():
                continue
            if old.salts == new.salts:
                assert not self.is_refused(old, new)  # of one WAL: that has all that the database lacks
                healthy += 1
            elif 0 < old.held < self.based_on[new.salts] and new.is_whole and self._has_known_first(new):
                beneath = self._beneath(old)
                if 0 < beneath < self.based_on[new.salts] and old.is_whole and self.first_is_small[new.salts]:
                    old_copies += 1
                    refused += self.is_refused(old, new)
        return healthy, old_copies, refused

    def _has_known_first(self, photo: Photo) -> bool:
        return photo.held > self.based_on[photo.salts]

    def _beneath(self, photo: Photo) -> int:
        """What the database of a photo holds without its WAL."""
        path = self.copies / "alone.db"
        path.write_bytes(photo.database)
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
        connection = open_region(path, readonly=True, bare=True)
        try:
            return region_seqno(connection)
        except apsw.SQLError:
            return 0  # no region yet
        finally:
            connection.close(True)


def commits(session: RegionSession, dice: random.Random, row_id: int) -> tuple[int, bool]:
    """The last number, and whether it is small."""
    if dice.random() < 0.04:
        change_schema(session, f"CREATE TABLE made_{row_id} (a INTEGER PRIMARY KEY)", f"made_{row_id}")
    if dice.random() < 0.03:
        return session.commit(begin_large(session, row_id, 4)), False
    size = dice.choice((10, 10, 300, 3900, 9000))
    return insert(session, row_id, "x" * size), size < 4000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("regions", [("main",), ("main", "two")], ids=["alone", "two"])
def test_fault_48_random_histories_of_a_primary(tmp_path: Path, seed: int, regions: tuple[str, ...]) -> None:
    dice = random.Random(seed)
    instance = make_primary(tmp_path / "alpha", regions=regions)
    albums = {name: Album(instance, name, tmp_path / "copies") for name in regions}
    with door_of(instance) as door, ExitStack() as stack:
        sessions: dict[str, RegionSession] = {}

        def reopen(name: str) -> None:
            if name in sessions:
                sessions.pop(name).close()
            sessions[name] = RegionSession(door, name)
            stack.callback(sessions[name].close)

        for name in regions:
            reopen(name)
        for row_id in range(10, 700, 10):
            name = dice.choice(regions)
            held, is_small = commits(sessions[name], dice, row_id)
            chance = dice.random()
            if chance < 0.12:
                with_checkpoint = open_region(instance.region(name).path, busy_timeout_ms=0)
                try:
                    with_checkpoint.wal_checkpoint(mode=dice.choice(CHECKPOINTS))
                finally:
                    with_checkpoint.close()
            elif chance < 0.15:
                reopen(name)  # the last one out checkpoints, and removes the WAL
            albums[name].step(held, checkpointed=chance < 0.15, is_small=is_small)
        for album in albums.values():
            healthy, old_copies, refused = album.judge(dice, 40)
            assert healthy > 20
            assert old_copies
            assert refused == old_copies


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_fault_48_random_histories_of_a_secondary(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    primary = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with session_of(primary) as session:
        insert(session, 1)
    secondary = make_secondary(tmp_path / "beta", primary)
    albums = [Album(secondary, name, tmp_path / "copies") for name in ("main", "two")]
    with session_of(primary) as main, session_of(primary, "two") as two:
        applying = open_apply_session(secondary)
        for row_id in range(10, 200):
            insert(dice.choice((main, two)), row_id, "x" * dice.choice((10, 300, 5000)))
        for batch in batches(primary, applying.position.last_seqno + 1, 4000):
            assert isinstance(batch, FrameBatch)
            apply_batch(applying, batch)
            chance = dice.random()
            if chance < 0.2:
                connection = open_region(dice.choice(secondary.regions).path, busy_timeout_ms=0)
                try:
                    connection.wal_checkpoint(mode=dice.choice(CHECKPOINTS))
                finally:
                    connection.close()
            for album in albums:
                album.step(batch.last_seqno, checkpointed=chance < 0.2)
        for album in albums:
            healthy, old_copies, refused = album.judge(dice, 40)
            assert healthy > 20
            assert old_copies
            assert refused == old_copies
        applying.close()
        applying.door.close()


@pytest.mark.parametrize("loses_pool", [False, True], ids=["attached", "recovered"])
def test_fault_48_a_primary_is_refused_before_anything_is_written(tmp_path: Path, loses_pool: bool) -> None:
    instance = make_primary(tmp_path / "alpha")
    path = instance.region("main").path
    old, mixed = mix(instance, path, lambda number: commit_one(instance, number))
    if loses_pool:
        lose_pool(instance)
    with pytest.raises(RegionReplacedError, match="an old copy, beside the -wal of a newer one"):
        commit_one(instance, 4)
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == mixed
    path.write_bytes(old.database)  # the right one
    commit_one(instance, 4)
    assert sorted(rows(path)) == [1, 2, 3, 4]


def commit_one(instance: Instance, row_id: int) -> None:
    with session_of(instance) as session:
        insert(session, row_id)


@pytest.mark.parametrize("loses_pool", [False, True], ids=["attached", "recovered"])
def test_fault_48_a_secondary_is_refused_before_anything_is_written(tmp_path: Path, loses_pool: bool) -> None:
    primary = make_primary(tmp_path / "alpha")
    commit_one(primary, 90)
    instance = make_secondary(tmp_path / "beta", primary)
    path = instance.region("main").path
    numbers = iter(range(1, 10))

    def apply_one(_: int) -> None:
        with session_of(primary) as session:
            insert(session, next(numbers))
        applying = open_apply_session(instance)
        try:
            for batch in batches(primary, applying.position.last_seqno + 1):
                assert isinstance(batch, FrameBatch)
                apply_batch(applying, batch)
        finally:
            applying.close()
            applying.door.close()

    old, mixed = mix(instance, path, apply_one)
    if loses_pool:
        lose_pool(instance)
    with pytest.raises(RegionReplacedError, match="an old copy, beside the -wal of a newer one"):
        apply_one(4)
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == mixed
    path.write_bytes(old.database)
    apply_one(4)
    assert sorted(rows(path)) == [1, 2, 3, 4, 5, 90]


def mix(instance: Instance, path: Path, write: Callable[[int], None]) -> tuple[Photo, tuple[bytes, bytes]]:
    """Three transactions; the database of the first beside the WAL of the third. The right one, and the mixture."""
    write(1)
    copy = path.read_bytes()  # nobody has it open: all of it is in this one file
    write(2)
    keeper = open_region(path)  # keeps the WAL from going with the last connection
    try:
        write(3)
        right = Photo(path.read_bytes(), Path(f"{path}-wal").read_bytes(), 0, is_whole=True)
    finally:
        keeper.close()
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    Path(f"{path}-wal").write_bytes(right.wal)
    path.write_bytes(copy)
    return right, (copy, right.wal)


COMMITTER = """
import apsw, random, sys
from pathlib import Path
from replicate.region.sqlite.open import open_region
from replicate.instance.instance import Instance
from tests.harness.instances import insert, session_of
instance, dice = Instance.open(Path(sys.argv[1])), random.Random(5)
for round in range(12):
    with session_of(instance) as session:  # the last one out removes the WAL
        for number in range(30):
            insert(session, 1000 * round + number, "x" * dice.choice((10, 300, 5000)))
            if dice.random() < 0.2:
                checkpoint = open_region(session.where, busy_timeout_ms=0)
                try:
                    checkpoint.wal_checkpoint(mode=dice.randrange(4))
                except apsw.BusyError:
                    pass  # the other process is looking just now
                finally:
                    checkpoint.close()
"""


@pytest.mark.slow
def test_a_healthy_region_is_never_refused_while_another_process_commits_and_checkpoints(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    entry = instance.region("main")
    looks = 0
    with subprocess.Popen([sys.executable, "-c", COMMITTER, str(instance.path)], cwd=ROOT) as process:
        while process.poll() is None:
            with suppress(BusyError):  # the last connection to a WAL goes, or the first comes
                refuse_stale_file(instance, entry)
                looks += 1
    assert process.returncode == 0
    assert looks
    refuse_stale_file(instance, entry)
