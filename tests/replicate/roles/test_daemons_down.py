"""Keeping the daemons of an instance down: those that run are named, or stand aside for the one that does it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.daemon.standing_aside import asked_aside, is_asked_aside
from replicate.errors import AlreadyRunningError, BusyError
from replicate.instance.instance import Instance
from replicate.roles.daemons_down import daemons_down
from tests.harness.sites import Sites
from tests.harness.waiting import wait_until
from tests.replicate.daemon.test_daemon import start


def of_patience(instance: Instance, seconds: float) -> Instance:
    """The same, opened again: settings are read once."""
    (instance.path / "replicate.toml").write_text(f"[daemon]\nstop_timeout_s = {seconds}\n")
    return Instance.open(instance.path)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    sites = Sites.create(tmp_path)
    yield of_patience(sites.primary, 5.0)
    running = DaemonFiles(sites.primary.path, "toy").lock.probe()
    if running is not None and running.pid:
        os.kill(running.pid, signal.SIGKILL)


def test_one_that_runs_is_named(instance: Instance) -> None:
    files = DaemonFiles(instance.path, "update")
    fd_of = files.lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError, match="update runs") as raised, daemons_down(instance, "rollback"):
            raise AssertionError
        assert f"replicate -i {instance.named} update stop" in raised.value.do
    finally:
        os.close(fd_of)
    with daemons_down(instance, "rollback"), pytest.raises(AlreadyRunningError, match=r"a rollback .* is under way"):
        files.lock.acquire()


def test_they_stand_aside_for_the_one_that_does_it(instance: Instance) -> None:
    toy, receiver = DaemonFiles(instance.path, "toy"), DaemonFiles(instance.path, "receiver")
    pid = start(toy).pid
    with receiver.lock.kept_down(""), daemons_down(instance, "rollback", by="receiver"):
        assert is_asked_aside(instance.path, "update")
        with pytest.raises(AlreadyRunningError, match="a rollback"):
            toy.lock.acquire()
    wait_until(lambda: (running := toy.lock.probe()) is not None and running.pid == pid, what="it is back")


def test_one_that_does_not_end_in_time_is_named(instance: Instance) -> None:
    start(DaemonFiles(instance.path, "toy"), "deaf")
    instance = of_patience(instance, 1.0)
    with pytest.raises(AlreadyRunningError, match="toy runs"), daemons_down(instance, "rollback", by="receiver"):
        raise AssertionError
    assert not is_asked_aside(instance.path, "update")


def test_two_at_once(instance: Instance) -> None:
    instance = of_patience(instance, 0.5)
    with asked_aside(instance.path, 1.0), pytest.raises(BusyError), daemons_down(instance, "x", by="receiver"):
        raise AssertionError
