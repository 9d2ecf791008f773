"""Answering a restart: a secondary that is level is answered from what is known, one behind it from the journal."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import ReplicateError
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, decode, read_head
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.system.locks import FileLock
from replicate.wire.message import Restart
from source_server.restart import agree
from tests.harness.instances import insert, make_primary, session_of


def asked(position: Position) -> Restart:
    return Restart(position.last_seqno + 1, position.vector, position.chains, 0, 0, (), False, 1 << 20)


def test_a_level_secondary_costs_no_walk_and_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    walks: list[int] = []
    real = ChainReader.catalogue_at

    def catalogue_at(reader: ChainReader, seqno: int) -> Catalogue:
        walks.append(seqno)
        return real(reader, seqno)

    with session_of(instance) as session, door_of(instance) as door:
        positions = []
        for number in range(4):
            insert(session, number)
            with door.locked():
                positions.append(door.position())
        monkeypatch.setattr(ChainReader, "catalogue_at", catalogue_at)
        for position in positions:
            agreed = agree(door, asked(position))
            assert agreed.from_seqno == position.last_seqno + 1
            walked = real(ChainReader(make_chain(instance)), agreed.from_seqno)
            (told,) = decode(agreed.catalogue).content
            assert told == walked
            assert len(told.definitions) == 2
        assert walks == [position.last_seqno + 1 for position in positions[:-1]]
        # Level by number only is no common past.
        last = positions[-1]
        false = {origin: (place, chain ^ 1) for origin, (place, chain) in last.chains.items()}
        with pytest.raises(ReplicateError, match="with chain"):
            agree(door, asked(Position(last.last_seqno, last.vector, false)))


def test_who_reads_on_need_not_look_for_the_place_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session, door_of(instance) as door:
        for number in range(3):
            insert(session, number, "x" * 400_000)
        with door.locked():
            position = door.position()
        for number in range(3, 6):
            insert(session, number, "x" * 400_000)
        agreed = agree(door, asked(position))
        (index,) = agreed.index.values()
        assert index[0][-1] == agreed.from_seqno
        with closing(ChainReader(make_chain(instance), agreed.from_seqno, agreed.index)) as reader:
            monkeypatch.setattr(ChainReader, "_measured", None)  # no frame is looked at to find the place
            found = reader._position()
            assert read_head(found.read_frame(index[1][-1])).seqno == agreed.from_seqno
            monkeypatch.undo()
            batch = reader.read(1, position.last_seqno + 3)
            assert isinstance(batch, FrameBatch)
            assert batch.first_seqno == agreed.from_seqno


def test_end_and_catalogue_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between them would answer for a journal that there never was: both are read under one hold of the
    commit lock."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    instance = make_primary(tmp_path / "alpha")
    said: list[str] = []

    def told(name: str) -> None:
        real = getattr(Door, name)

        def call(door: Door, *arguments: object) -> object:
            with closing(FileLock(instance.locks_directory / "commit.lock")) as other:
                said.append(f"{name}, lock {'free' if other.try_acquire() else 'held'}")
            return real(door, *arguments)

        monkeypatch.setattr(Door, name, call)

    with session_of(instance) as session, door_of(instance) as door:
        insert(session, 1)
        with door.locked():
            position = door.position()
        for name in ("enter", "position", "catalogue"):
            told(name)
        agree(door, asked(position))
    assert said == ["enter, lock free", "position, lock held", "catalogue, lock held"]
