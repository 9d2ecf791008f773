"""A closing barrier: writers stand at it for their patience and are refused, and it dies with its holder."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.door.barrier import WRITER_WAIT_S_MAX, Barrier
from replicate.errors import BusyError, InternalError, NotPrimaryError, TryAgainError
from replicate.instance.file import Successor
from replicate.pool import control as word
from replicate.roles.change_of_role import become_secondary
from tests.harness.instances import ROOT, begin_insert, check, insert, make_primary, session_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_memory")
HOLDER = """
import sys, time
from pathlib import Path
from replicate.door.barrier import Barrier
from replicate.door.recovery.opening import open_door
from replicate.instance.instance import Instance
barrier = Barrier(open_door(Instance.open(Path(sys.argv[1]))), timeout_s=3600, closing=True)
print(barrier.hold(), flush=True)
time.sleep(600)
"""


def test_no_writer_passes_a_closing_barrier(tmp_path: Path) -> None:
    """T10: a writer was held at 82, and committed 83 after a second."""
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        with Barrier(session.door, timeout_s=600, closing=True) as barrier:
            assert barrier.hold() == last
            began = time.monotonic()
            change = begin_insert(session, 2, timeout_s=2 * WRITER_WAIT_S_MAX)
            with pytest.raises(BusyError, match=f"no commit beyond {last}"):
                session.commit(change)
            assert time.monotonic() - began >= 2 * WRITER_WAIT_S_MAX
            assert not session.holds_region
            assert session.door.words[word.LAST_SEQNO] == last
        assert session.door.words[word.CLOSING] == 0
        assert insert(session, 2) == last + 1
        with Barrier(session.door, timeout_s=600) as barrier:  # one that is not closing
            barrier.hold()
            assert insert(session, 3) == last + 2
    check(instance)


def test_it_dies_with_its_holder_and_expires(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(instance.path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == f"{last}\n"
        change = begin_insert(session, 2)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        assert session.commit(change) == last + 1
        with Barrier(session.door, timeout_s=0.01, closing=True) as barrier:
            barrier.hold()
            assert insert(session, 3) == last + 2
    check(instance)


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_writers_that_are_turned_away_give_up_and_hear_that_nothing_has_changed(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        with Barrier(session.door, timeout_s=600, closing=True) as barrier:
            with pytest.raises(InternalError):
                barrier.turn_away()
            barrier.hold()
            change = begin_insert(session, 2)
            thread, raised = in_thread(lambda: session.commit(change))
            barrier.turn_away()
            wait_until(lambda: not session.holds_region, what="it has given its transaction up")
            assert thread.is_alive()
        thread.join()
        assert isinstance(raised[0], BusyError)
        assert "takes them again" in str(raised[0])
        assert insert(session, 2) == last + 1
        with Barrier(session.door, timeout_s=600) as open_one:
            open_one.hold()
            with pytest.raises(InternalError):
                open_one.turn_away()
    check(instance)


def test_writers_that_are_turned_away_hear_who_is_primary_now(tmp_path: Path) -> None:
    """The role can go only when they have given up the locks of their regions."""
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        with Barrier(session.door, timeout_s=600, closing=True) as barrier:
            barrier.hold()
            change = begin_insert(session, 2)
            thread, raised = in_thread(lambda: session.commit(change))
            barrier.turn_away()
            with pytest.raises(TryAgainError, match=f"is {last}, and both sites have all up to {last + 1}"):
                become_secondary(instance, successor=Successor("beta", last + 1, is_pending=True))
            assert instance.role == "primary"
            assert become_secondary(instance, successor=Successor("beta", last, is_pending=True)) == last
        thread.join()
        assert isinstance(raised[0], NotPrimaryError)
        assert f"handed over to beta, after transaction {last}" in str(raised[0])
        instance.successor_is_primary()
        with pytest.raises(NotPrimaryError, match="Write on beta") as refused:
            insert(session, 3)
    assert refused.value.facts["primary"] == "beta"
    assert '"format": 3' in (instance.path / "instance.json").read_text()
    check(instance)
