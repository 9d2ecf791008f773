"""A region in which nothing was written for long: its note saves a start the walk through the journal, and loses
nothing, whichever file is put beside or beneath it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.door import pruning
from replicate.door.pruning import prune_journal
from replicate.door.recovery import recovery, roll_forward
from replicate.door.recovery.opening import make_chain, open_door
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.region.sqlite import recovering
from replicate.region.sqlite.bookkeeping import HELD_AT, HELD_BELOW
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

BEHIND = 10


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_memory: Path) -> Instance:
    """With a region "two" that has one row, and a peer that keeps the journal from being pruned."""
    monkeypatch.setattr(recovery, "NOTE_BEHIND", BEHIND)
    monkeypatch.setattr(pruning, "NOTE_BEHIND", BEHIND)
    made = make_primary(tmp_path / "alpha", regions=("main", "two"), segment_bytes=1 << 20, durability="off")
    made.register_peer("west", "127.0.0.1", 7430)
    with session_of(made, "two") as session:
        insert(session, 1)
    return made


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where recovery has begun to read the journal for a region."""
    numbers: list[int] = []

    class Reader(ChainReader):
        def __init__(self, chain: Any, next_seqno: int = 1) -> None:
            numbers.append(next_seqno)
            super().__init__(chain, next_seqno)

    monkeypatch.setattr(roll_forward, "ChainReader", Reader)
    return numbers


def write(instance: Instance, first: int, count: int, region: str = "main", size: int = 100) -> int:
    with session_of(instance, region) as session:
        return [insert(session, row_id, "x" * size) for row_id in range(first, first + count)][-1]


def recover(instance: Instance) -> None:
    lose_pool(instance)
    with door_of(instance):
        pass


def state(instance: Instance, region: str = "two") -> dict[str, int]:
    connection = sqlite3.connect(instance.region(region).path)
    found = dict(connection.execute("SELECT key, value FROM _replicate_state"))
    connection.close()
    return found


def note(instance: Instance, below: int, at: int, region: str = "two") -> None:
    """As if this had come with a WAL of another file."""
    connection = sqlite3.connect(instance.region(region).path)
    facts = {HELD_BELOW: below, HELD_AT: at}
    connection.executemany("INSERT OR REPLACE INTO _replicate_state VALUES (?, ?)", facts.items())
    connection.commit()
    connection.close()


def test_the_journal_is_looked_through_once(instance: Instance, begun: list[int]) -> None:
    idle = write(instance, 100, 5) - 5
    recover(instance)
    assert begun == [idle + 1]
    assert HELD_BELOW not in state(instance)  # not worth it yet
    last = write(instance, 200, BEHIND)
    begun.clear()
    recover(instance)
    assert begun == [idle + 1]
    assert (state(instance)[HELD_BELOW], state(instance)[HELD_AT]) == (last + 1, idle)
    begun.clear()
    recover(instance)
    assert begun == []
    write(instance, 300, 2)
    recover(instance)
    assert begun == [last + 1]
    check(instance)


def test_pruning_notes_it_once_for_each_segment(instance: Instance, begun: list[int]) -> None:
    write(instance, 100, 30, size=100_000)
    newest = make_chain(instance).first_seqnos()[-1]
    with door_of(instance) as door:
        with session_of(instance, "two") as session:
            session.begin(timeout_s=1)
            assert prune_journal(door) == []
            session.rollback()
        assert HELD_BELOW not in state(instance)  # it was in somebody's hands
        assert prune_journal(door) == []
        assert state(instance)[HELD_BELOW] == newest
        note(instance, 0, 0)
        assert prune_journal(door) == []
        assert state(instance)[HELD_BELOW] == 0  # not written again


def test_what_cannot_be_noted_now_stops_no_pruning(instance: Instance, tmp_path: Path) -> None:
    write(instance, 100, 30, size=100_000)
    with door_of(instance) as door:
        instance.region("two").path.rename(tmp_path / "aside")
        assert prune_journal(door) == []
        (tmp_path / "aside").rename(instance.region("two").path)
        segments = list(instance.journal_directory.glob("*.journal"))
        for segment in segments:
            segment.rename(tmp_path / segment.name)
        assert prune_journal(door) == []
        for segment in segments:
            (tmp_path / segment.name).rename(segment)
    recover(instance)
    check(instance)


def test_what_is_written_after_the_note_is_redone(instance: Instance, tmp_path: Path) -> None:
    write(instance, 100, BEHIND)
    recover(instance)
    assert HELD_BELOW in state(instance)
    save_region(instance.region("two").path, tmp_path / "before")
    write(instance, 2, 1, "two")
    write(instance, 200, BEHIND)
    lose_pool(instance)
    restore_region(instance.region("two").path, tmp_path / "before")
    recover(instance)
    assert sorted(rows(instance.region("two").path)) == [1, 2]
    check(instance)


def test_a_note_beside_another_file_does_not_count(instance: Instance, tmp_path: Path) -> None:
    """A WAL that holds only the note tells nothing of what the file beneath it lacks."""
    save_region(instance.region("two").path, tmp_path / "before")
    held = write(instance, 2, 1, "two")
    last = write(instance, 100, BEHIND)
    lose_pool(instance)
    restore_region(instance.region("two").path, tmp_path / "before")
    note(instance, last + 1, held)
    recover(instance)
    assert sorted(rows(instance.region("two").path)) == [1, 2]
    check(instance)


def test_a_note_from_beyond_the_journal_s_end_is_taken_back(instance: Instance, tmp_path: Path) -> None:
    """An older journal was put back: other transactions will bear those numbers."""
    last = write(instance, 100, BEHIND)
    recover(instance)
    note(instance, last + 1_000, state(instance)[HELD_AT])
    recover(instance)
    assert state(instance)[HELD_BELOW] == last + 1
    save_region(instance.region("two").path, tmp_path / "before")
    write(instance, 2, 1, "two")
    lose_pool(instance)
    restore_region(instance.region("two").path, tmp_path / "before")
    open_door(instance).close()
    assert sorted(rows(instance.region("two").path)) == [1, 2]


@pytest.mark.parametrize("behind", [BEHIND, 1])
def test_an_old_copy_put_there_while_the_pool_lives_is_never_told_that_it_lacks_nothing(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """`behind` 1: as where segments are about to be removed. Recovery would pass over what the copy lacks."""
    lose_pool(instance)
    save_region(instance.region("two").path, tmp_path / "before")
    write(instance, 2, 1, "two")
    write(instance, 100, 30, size=100_000)
    monkeypatch.setattr(pruning, "NOTE_BEHIND", behind)
    with door_of(instance) as door:
        restore_region(instance.region("two").path, tmp_path / "before")
        assert prune_journal(door) == []
    assert HELD_BELOW not in state(instance)
    recover(instance)
    assert sorted(rows(instance.region("two").path)) == [1, 2]
    check(instance)


def test_what_is_taken_back_of_a_note_is_on_the_disk_before_its_numbers_are_given_again(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a foreign reader has the region open no checkpoint would bring it there."""
    levels = []
    forget = recovering.forget_held

    def forget_held(connection: apsw.Connection, last_seqno: int) -> None:
        levels.append(connection.pragma("synchronous"))
        forget(connection, last_seqno)

    monkeypatch.setattr(recovering, "forget_held", forget_held)

    def rolled_forward(*words: Any) -> int:
        levels.append(words[3].connection.pragma("synchronous"))
        return 0

    monkeypatch.setattr(recovery, "roll_forward", rolled_forward)
    monkeypatch.setattr(recovery, "note_region", lambda *_: None)
    recover(instance)
    assert levels == [2, 1] * 2  # FULL, and NORMAL again for what the journal can redo
