"""A barrier that holds beginnings: a writer begins nothing, and all that has begun goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from replicate.door.barrier import NOWHERE, WRITER_WAIT_S_MAX, Barrier, BarrierWatch
from replicate.errors import BusyError, InternalError
from replicate.pool import control as word
from tests.harness.instances import begin_insert, check, insert, make_primary, session_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_memory")


def test_what_has_begun_is_committed_and_the_next_one_begins_when_it_is_lifted(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session, session_of(instance) as other:
        last = insert(session, 1)
        change = begin_insert(session, 2)
        began = threading.Event()

        def begin_and_commit() -> None:
            began.set()
            insert(other, 3)

        with Barrier(session.door, timeout_s=600) as barrier:
            barrier.hold_beginnings()
            watch = BarrierWatch(session.door)
            assert watch.seqno() == NOWHERE, "whatever arrives is applied"
            watch.close()
            assert session.commit(change) == last + 1
            thread = threading.Thread(target=begin_and_commit)
            thread.start()
            began.wait()
            assert not other.holds_region
            assert session.door.words[word.LAST_SEQNO] == last + 1
        thread.join(60)
        assert session.door.words[word.LAST_SEQNO] == last + 2
        assert session.door.words[word.CLOSING] == session.door.words[word.BARRIER_SEQNO] == 0
    check(instance)


@pytest.mark.parametrize("how", ["stands", "expires"])
def test_a_writer_waits_for_a_while_only(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicate.door.barrier.WRITER_WAIT_S_MAX", 0.2 if how == "stands" else 600)
    assert WRITER_WAIT_S_MAX == 1.0
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        with Barrier(session.door, timeout_s=600 if how == "stands" else 0.2) as barrier:
            barrier.hold_beginnings()
            assert insert(session, 2) == last + 1
    check(instance)


def test_one_barrier_at_a_time_and_none_of_two_kinds(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session, Barrier(session.door, timeout_s=600) as barrier:
        barrier.hold_beginnings()
        with pytest.raises(InternalError):
            barrier.turn_away()
        with Barrier(session.door, timeout_s=600) as second, pytest.raises(BusyError):
            second.hold()
        barrier.lift()
        with Barrier(session.door, timeout_s=600, closing=True) as closing, pytest.raises(InternalError):
            closing.hold_beginnings()
        wait_until(lambda: session.door.words[word.BARRIER_SEQNO] == 0)
