"""A stop with a proof of zero backlog: what is refused before anything is held, and how what is lacking is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.daemon import control, zero_backlog
from replicate.daemon.files import DaemonFiles
from replicate.daemon.source_progress import SentProgress
from replicate.daemon.zero_backlog import stop_level
from replicate.errors import NotFoundError, TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from tests.harness.instances import begin_insert, insert, make_primary, session_of

pytestmark = pytest.mark.usefixtures("shared_memory")
NAMES = ("source-east", "source-west")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = make_primary(tmp_path / "alpha")
    for peer in ("east", "west"):
        made.register_peer(peer, "127.0.0.1", 1)
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What each Source Server says that its peer has acknowledged; those that are stopped are taken out."""
    acknowledged: dict[str, int] = {}

    def progress_of(_: Instance, name: str) -> SentProgress:
        if name not in acknowledged:
            raise NotFoundError(f"{name} does not run")
        return SentProgress(0, 0, 0, 0, acknowledged[name], True, "running")

    def stop(files: DaemonFiles, *, timeout_s: float) -> control.Stopped:
        assert timeout_s >= 0
        del acknowledged[files.name]
        return control.Stopped(was_running=True, last_word=f"{files.name} has ended")

    monkeypatch.setattr(zero_backlog, "progress_of", progress_of)
    monkeypatch.setattr(control, "stop", stop)
    return acknowledged


def test_all_are_level_and_the_door_is_closed_until_they_have_ended(
    instance: Instance, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with session_of(instance) as session:
        last = insert(session, 1)
        told.update(dict.fromkeys(NAMES, last))
        stop: Callable[..., control.Stopped] = control.stop
        closed: list[int] = []

        def noted(files: DaemonFiles, *, timeout_s: float) -> control.Stopped:
            closed.append(session.door.words[word.CLOSING])
            return stop(files, timeout_s=timeout_s)

        monkeypatch.setattr(control, "stop", noted)
        made = stop_level(instance, NAMES, timeout_s=60)
        assert (made.is_zero, made.seqno, made.lacking) == (True, last, {})
        assert {name: one.last_word for name, one in made.stopped.items()} == {n: f"{n} has ended" for n in NAMES}
        assert (closed, session.door.words[word.CLOSING], told) == ([1, 1], 0, {})
        assert insert(session, 2) == last + 1


def test_what_each_peer_lacks_is_counted_and_all_are_stopped(instance: Instance, told: dict[str, int]) -> None:
    with session_of(instance) as session:
        last = [insert(session, one) for one in (1, 2, 3)][-1]
        told.update({"source-east": last, "source-west": last - 2})
        made = stop_level(instance, NAMES, timeout_s=0.05)
        assert (made.is_zero, made.seqno, made.lacking) == (False, last, {"source-west": 2})
        assert (list(made.stopped), told) == (list(NAMES), {})
        assert insert(session, 4) == last + 1


def test_one_that_does_not_run_stops_none_and_opens_the_door(instance: Instance, told: dict[str, int]) -> None:
    with session_of(instance) as session:
        last = insert(session, 1)
        told.update({"source-east": last, "source-west": 0})
        instance.register_peer("north", "127.0.0.1", 1)
        with pytest.raises(NotFoundError, match="source-north does not run"):
            stop_level(instance, (*NAMES, "source-north"), timeout_s=60)
        assert set(told) == set(NAMES)  # nothing was stopped
        assert session.commit(begin_insert(session, 2)) == last + 1


def test_a_door_that_did_not_stay_closed_proves_nothing(
    instance: Instance, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with session_of(instance) as session:
        told.update(dict.fromkeys(NAMES, insert(session, 1)))

        def stop(*_: object, **__: object) -> control.Stopped:
            session.door.words[word.CLOSING] = 0
            return control.Stopped(was_running=True)

        monkeypatch.setattr(control, "stop", stop)
        with pytest.raises(TryAgainError, match="opened again"):
            stop_level(instance, NAMES, timeout_s=60)


def test_no_peer_and_a_passive_one_are_refused_by_name(instance: Instance, told: dict[str, int]) -> None:
    told.update(dict.fromkeys(NAMES, 0))
    instance.set_mode("west", passive=True)
    with pytest.raises(UsageError, match=r"source-west is passive.*source activate --peer west"):
        stop_level(instance, NAMES, timeout_s=60)
    with pytest.raises(UsageError, match="no peer is registered"):
        stop_level(instance, (), timeout_s=60)
    assert set(told) == set(NAMES)
