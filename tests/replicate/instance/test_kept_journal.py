"""A journal that is kept for as long as the process lives that asked for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from replicate.errors import BusyError
from replicate.instance.instance import Instance
from replicate.instance.kept_journal import NAME, journal_kept, kept_after


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "west", role="secondary", name="west", network=os.urandom(16))


def kept(instance: Instance) -> int | None:
    return kept_after(instance.locks_directory, instance.run_directory)


def test_it_is_kept_for_a_block(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(instance) is None
    with journal_kept(instance, 7):
        assert kept(instance) == 7
        assert kept(instance) == 7
        (instance.run_directory / NAME).write_text("{")
        assert kept(instance) == 0, "what cannot be read keeps all"
        monkeypatch.setattr("replicate.instance.kept_journal.WAIT_S", 0.05)
        with pytest.raises(BusyError, match="the keeping of the journal"), journal_kept(instance, 9):
            pass
        assert kept(instance) == 0
    assert kept(instance) is None
    assert not (instance.run_directory / NAME).exists()


def test_what_a_killed_process_asked_for_holds_nothing(instance: Instance) -> None:
    pid = os.fork()
    if pid == 0:
        with journal_kept(instance, 7):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (instance.run_directory / NAME).exists()
    assert kept(instance) is None
    assert not (instance.run_directory / NAME).exists()
