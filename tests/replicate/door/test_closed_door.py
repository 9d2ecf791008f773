"""A closed door: nobody commits while it drains, and it opens again however that ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicate.door.barrier import Barrier
from replicate.door.closed_door import Drained, closed_door
from replicate.errors import BusyError, PoolReplacedError, TryAgainError
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from tests.harness.instances import ROOT, begin_insert, check, insert, make_primary, session_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("shared_memory")
HOLDER = """
import sys
from pathlib import Path
from replicate.door.closed_door import closed_door
from replicate.door.recovery.opening import open_door
from replicate.instance.instance import Instance
with closed_door(open_door(Instance.open(Path(sys.argv[1]))), timeout_s=3600) as closed:
    print(closed.seqno, flush=True)
    closed.drain(lambda: 0)
"""


def test_what_was_committed_is_drained_while_nobody_commits(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", durability="off")
    with session_of(instance) as session:
        last = insert(session, 1)
        asked: list[int] = []

        def acknowledged() -> int:
            with pytest.raises(BusyError, match=f"no commit beyond {last}"):
                session.commit(begin_insert(session, 2, timeout_s=0.05))
            assert session.door.words[word.LAST_DURABLE_SEQNO] == last  # before anybody is asked
            asked.append(last - 1 + len(asked))
            return asked[-1]

        with closed_door(session.door, timeout_s=60) as closed:
            assert closed.seqno == last
            assert closed.drain(acknowledged) == Drained(last, last)
            assert asked == [last - 1, last]
            assert closed.left_s > 0
        assert insert(session, 2) == last + 1
    check(instance)


def test_what_is_lacking_is_counted_and_the_door_opens(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = [insert(session, one) for one in (1, 2, 3)][-1]
        with closed_door(session.door, timeout_s=0.05) as closed:
            drained = closed.drain(lambda: last - 2)
            assert (drained.lacking, closed.left_s) == (2, 0.0)
        assert insert(session, 4) == last + 1

        def fails() -> int:
            raise TryAgainError("nobody can say")

        with pytest.raises(TryAgainError, match="nobody can say"), closed_door(session.door, timeout_s=60) as closed:
            closed.drain(fails)
        assert insert(session, 5) == last + 2
    assert Drained(3, 7).lacking == 0
    check(instance)


def test_a_door_that_opened_meanwhile_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = make_primary(tmp_path / "alpha")
    monkeypatch.setattr("replicate.door.closed_door.MORE_S", 0.0)
    with session_of(instance) as session:
        last = insert(session, 1)

        def late() -> int:
            assert insert(session, 2) == last + 1  # it has waited until the barrier expired
            return last

        with closed_door(session.door, timeout_s=0.2) as closed, pytest.raises(TryAgainError, match="opened again"):
            closed.drain(late)
        with closed_door(session.door, timeout_s=60) as closed:
            retire(PoolKind.JOURNAL, instance.content.uuid)
            with pytest.raises(PoolReplacedError):
                closed.check()


def test_it_waits_for_the_barrier_of_a_compare_but_not_for_ever(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session, Barrier(session.door, timeout_s=600) as barrier:
        barrier.hold()
        with pytest.raises(BusyError, match="another compare or digest"), closed_door(session.door, timeout_s=0.05):
            pytest.fail("it was let in")
        assert barrier.hold() == session.door.words[word.LAST_SEQNO]  # theirs stands as it did


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_opens_when_its_holder_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        last = insert(session, 1)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(instance.path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert holder.stdout is not None
        with holder:
            assert holder.stdout.readline() == f"{last}\n"
            wait_until(lambda: session.door.words[word.CLOSING], what="it is closed")
            holder.send_signal(number)
            holder.wait()
        assert insert(session, 2) == last + 1
    check(instance)
