"""What `receiver start` and `receiver stop` do with the Update Process; tests/system/test_shutdown.py has processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.daemon import control
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import note_last_run, run_with
from replicate.daemon.receiver_and_update import StoppedBoth, as_it_ran, stop_both, why_not_start
from replicate.errors import TryAgainError
from replicate.instance.instance import Instance
from replicate.instance.settings_file import set_setting
from replicate.pool.receive_pool import ReceivePool
from tests.harness.instances import make_primary, make_secondary

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def secondary(tmp_path: Path) -> Instance:
    return make_secondary(tmp_path / "west", make_primary(tmp_path / "alpha"))


def test_it_is_started_where_it_can_be(secondary: Instance, tmp_path: Path) -> None:
    assert why_not_start(secondary) == ""
    lock = DaemonFiles(secondary.path, "update").lock
    fd = lock.acquire()
    assert why_not_start(secondary) == f"runs already (process {os.getpid()})"
    os.close(fd)
    with lock.kept_down("replay"):
        assert why_not_start(secondary) == f"a replay is under way (process {os.getpid()})"
    empty = Instance.create(tmp_path / "empty", role="secondary", network=secondary.content.network)
    assert why_not_start(empty) == f"starts after the first copy; next: replicate -i {empty.named} seed"
    assert why_not_start(Instance.create(tmp_path / "one", role="primary")) == ""  # it stands by


def test_it_comes_back_as_it_ran(secondary: Instance) -> None:
    assert as_it_ran(secondary) == {}
    given = {"log.level": "debug", "update.metrics_listen": "127.0.0.1:9"}
    note_last_run(DaemonFiles(secondary.path, "update"), run_with(secondary.config, given))
    assert as_it_ran(secondary) == given
    set_setting(secondary, "log.level", "warning")  # somebody's later word
    assert as_it_ran(Instance.open(secondary.path)) == {"update.metrics_listen": "127.0.0.1:9"}


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    asked: list[tuple[str, float]] = []

    def stop(files: DaemonFiles, *, timeout_s: float) -> control.Stopped:
        asked.append((files.name, timeout_s))
        if (files.instance_path / "run" / "hangs").exists() and files.name == "update":
            raise TryAgainError("update does not end")
        return control.Stopped(was_running=True)

    monkeypatch.setattr(control, "stop", stop)
    return asked


def test_first_the_update_process_then_the_receiver_server(
    secondary: Instance, stopped: list[tuple[str, float]]
) -> None:
    ended = control.Stopped(was_running=True)
    assert stop_both(secondary.path, timeout_s=7.0) == StoppedBoth({"update": ended, "receiver": ended}, 0)
    assert stopped == [("update", 7.0), ("receiver", 7.0)]
    stopped.clear()
    with DaemonFiles(secondary.path, "update").lock.kept_down("replay"):
        assert stop_both(secondary.path, timeout_s=7.0).stopped == {"receiver": ended}
    assert stopped == [("receiver", 7.0)]


def test_the_receiver_server_is_stopped_whatever_becomes_of_the_other(
    secondary: Instance, stopped: list[tuple[str, float]]
) -> None:
    secondary.run_directory.mkdir(exist_ok=True)
    (secondary.run_directory / "hangs").touch()
    with pytest.raises(TryAgainError, match="update does not end"):
        stop_both(secondary.path, timeout_s=0.0)
    assert [name for name, _ in stopped] == ["update", "receiver"]


def test_what_is_received_and_not_applied_is_counted(
    secondary: Instance, stopped: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ReceivePool.create(secondary.content.uuid, configured_bytes=4 * 1024 * 1024, last_seqno=5)
    pool.note_received(12)
    assert stop_both(secondary.path, timeout_s=0.0).left == 7
    stop: Callable[..., control.Stopped] = control.stop

    def applies(files: DaemonFiles, *, timeout_s: float) -> control.Stopped:
        pool.note_applied(11, 11)
        pool.note_received(20)  # a quick source: this came after the request
        return stop(files, timeout_s=timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(control, "stop", applies)
        assert stop_both(secondary.path, timeout_s=0.0).left == 1
    pool.note_received(12)
    pool.note_applied(12, 12)
    assert stop_both(secondary.path, timeout_s=0.0).left == 0
    pool.note_applied(14, 14)  # a receiver that was killed before it noted what came
    assert stop_both(secondary.path, timeout_s=0.0).left == 0
    pool.close()
    (secondary.path / "instance.json").write_text("{")
    assert stop_both(secondary.path, timeout_s=0.0).left == 0
    assert len(stopped) == 10
