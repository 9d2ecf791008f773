"""The lock of the positions: one process at a time, whatever becomes of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from replicate.errors import BusyError
from replicate.instance import consumer_positions
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.instance import Instance


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the positions, where nobody has patience."""
    monkeypatch.setattr(consumer_positions, "LOCK_TIMEOUT_S", 0.0)
    return Instance.create(tmp_path / "west", role="primary", name="west", network=os.urandom(16)).consumers_directory


def test_one_process_at_a_time(directory: Path) -> None:
    with positions_locked(directory):
        with (
            pytest.raises(BusyError, match="the lock of the consumers' positions was held"),
            positions_locked(directory),
        ):
            pytest.fail("two have them")
    with positions_locked(directory):
        pass


def test_an_error_gives_it_up(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError), positions_locked(directory):
        raise ZeroDivisionError
    with positions_locked(directory):
        pass


def test_it_dies_with_its_holder(directory: Path) -> None:
    has_it, tell = os.pipe()
    child = os.fork()
    if not child:
        with positions_locked(directory):
            os.write(tell, b"!")
            signal.pause()
    os.close(tell)
    try:
        assert os.read(has_it, 1) == b"!"
        with pytest.raises(BusyError), positions_locked(directory):
            pytest.fail("two have them")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(has_it)
    with positions_locked(directory):
        pass
