"""The regions of a session: the order of their locks, and what is said of each that is not as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replicate.door.primary import RegionSession
from replicate.door.region_part import bits_of, in_order_of_locks, release, wait_for
from replicate.errors import BusyError, RegionReplacedError, SnapshotStaleError
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_lock
from replicate.pool import control as word
from replicate.region.sqlite.open import region_facts
from tests.harness.instances import insert, make_primary, session_of

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def primary(tmp_path: Path) -> Instance:
    return make_primary(tmp_path / "p", regions=("main", "two", "three"))


@contextmanager
def session_over_all(primary: Instance, home: str) -> Iterator[RegionSession]:
    with session_of(primary, home) as session:
        for entry in primary.regions:
            if entry.name != home:
                session.attach(entry, f"r_{entry.name}", region_facts(entry.path), session.connection.execute)
        yield session


def test_locks_are_taken_by_rising_number_whatever_the_order_of_attaching(primary: Instance) -> None:
    with session_over_all(primary, "three") as session:
        assert [part.entry.name for part in session.parts] == ["three", "main", "two"]
        assert [part.entry.name for part in in_order_of_locks(session.parts)] == ["main", "two", "three"]
        assert bits_of(session.parts) == 0b111
        assert bits_of(session.parts[:1]) == 1 << primary.region("three").region_id


def test_a_region_that_is_held_by_another_is_named_and_no_lock_stays(primary: Instance) -> None:
    two = primary.region("two")
    with session_over_all(primary, "three") as session, closing(region_lock(primary, two)) as other:
        assert other.try_acquire()
        with pytest.raises(BusyError, match="region two was held"):
            session.begin(timeout_s=0)
        assert not session.holds_region
        with pytest.raises(BusyError, match="region two was held"):
            wait_for(in_order_of_locks(session.parts), 0)
        assert [part.entry.name for part in session.parts if part.lock.held] == ["main"]
        release(session.parts)
        assert not session.holds_region
        other.release()
        session.begin(timeout_s=0)
        assert all(part.lock.held for part in session.parts)


def test_what_a_region_held_before_and_does_not_hold_is_said(primary: Instance) -> None:
    with session_of(primary) as session:
        (part,) = session.parts
        last = insert(session, 1)
        words = session.door.words
        assert not part.is_behind(words)
        part.prove(words)
        words[part.done_word] += 1
        assert part.is_behind(words)
        with pytest.raises(RegionReplacedError, match=f"up to {last}, it held {last + 1} before"):
            part.prove(words)
        words[part.done_word] -= 1
        assert words[word.REGION_DONE + part.entry.region_id] == last


def test_a_file_that_was_put_in_its_place_is_refused(primary: Instance) -> None:
    with session_of(primary) as session:
        (part,) = session.parts
        part.check_place()
        os.rename(part.where, part.where + ".away")
        with pytest.raises(RegionReplacedError, match="is gone"):
            part.check_place()
        os.rename(part.where + ".away", part.where)
        part.check_place()


def test_a_reader_that_lacks_a_transaction_is_told_before_it_takes_a_write_lock(primary: Instance) -> None:
    with session_of(primary) as session, session_of(primary) as other:
        (part,) = session.parts
        session.connection.execute("BEGIN")
        part.region.seqno()
        part.check_snapshot(session.door, is_unproved=False)
        insert(other, 1)
        with pytest.raises(SnapshotStaleError):
            part.check_snapshot(session.door, is_unproved=False)
        with pytest.raises(SnapshotStaleError):
            part.take_write_lock(session.door)
        session.rollback()
