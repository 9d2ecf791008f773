"""Jobs of a part beside one another: their figures, their time, and how they end."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.faults.beside import run_beside

LONG_S = 4000.0
_LIBC = ctypes.CDLL(None)


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_job_has_its_share_of_the_time_and_the_last_all_that_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    def job(name: str, deadline_s: float, found: Counter[str]) -> None:
        found["jobs"] += 1
        found[f"seconds, most: {name}"] = round(deadline_s - time.monotonic())
        print(f"{name} was here")

    figures: Counter[str] = Counter()
    run_beside({"one": 1, "two": 3}, job, figures, deadline_s=time.monotonic() + LONG_S, at_once=1)
    assert figures["jobs"] == 2
    assert 0.2 * LONG_S < figures["seconds, most: one"] <= 0.25 * LONG_S
    assert 0.9 * LONG_S < figures["seconds, most: two"] <= LONG_S
    assert capfd.readouterr().out == "one was here\ntwo was here\n"


def test_a_job_that_fails_fails_the_part_and_its_figures_count() -> None:
    def job(name: str, _deadline_s: float, found: Counter[str]) -> None:
        found["jobs"] += 1
        assert name != "two", "this one fails"

    figures: Counter[str] = Counter()
    with pytest.raises(AssertionError, match="this one fails"):
        run_beside({"one": 1, "two": 1}, job, figures, deadline_s=time.monotonic() + LONG_S, at_once=1)
    assert figures["jobs"] == 2


def test_an_interrupt_ends_the_jobs_and_what_they_had_found_counts(handler: None) -> None:
    def job(_name: str, _deadline_s: float, found: Counter[str]) -> None:
        found["jobs"] += 1
        # To its main thread: the timer of pytest-timeout is a thread, too, and blocks nothing while a job is started.
        assert _LIBC.tgkill(os.getppid(), os.getppid(), signal.SIGTERM) == 0
        while True:
            time.sleep(1)

    figures: Counter[str] = Counter()
    with pytest.raises(KeyboardInterrupt):
        run_beside({"one": 1, "two": 1}, job, figures, deadline_s=time.monotonic() + LONG_S, at_once=1)
    assert figures["jobs"] == 1
