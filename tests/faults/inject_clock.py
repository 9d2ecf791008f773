"""Faults of the wall clock: it jumps under running processes, and is absurd at a boot.

The clock that is bent is the one that Python tells (time.time, time.time_ns). Monotonic clocks stay what they are, as
they do on a real machine, but for one whose timer runs wild: there every process of a site counts (trio's deadlines,
time.monotonic), and sleeps, ten times too fast. Guarantees: no process of the machine
notices but those of the town. Leaves to others: how it is judged afterwards.
"""

from __future__ import annotations

import contextlib
import datetime
import mmap
import re
import time
from collections.abc import Iterator
from typing import Final

import trio

from tests.faults.injections import DEAD_S, Place, injection
from tests.faults.town import DAEMONS
from tests.harness.waiting import wait_until

RATE: Final = 10
FAST_TRIES: Final = 5
FAST_SITES: Final = {"primary": ("source",), "secondary": ("receiver", "update"), "both": DAEMONS}
HOUR_NS: Final = 3_600_000_000_000
STEPS_NS: Final = (-2 * HOUR_NS, 24 * HOUR_NS, 0)
LAG_S_MAX: Final = 600.0
"""The lag of some seconds is never told as that, however slow the machine; an hour that the clock was set by would be
more."""
ABSURD_NS: Final = (-40 * 365 * 24 * HOUR_NS, 60 * 365 * 24 * HOUR_NS, 0)


def _restart_under(place: Place) -> mmap.mmap:
    """All processes again, under a clock that we set."""
    town = place.town
    if town.clock is None:
        town.clock = mmap.mmap(-1, mmap.PAGESIZE)
    town.kill_all()
    town.start_daemons()
    town.client(pause_s=0.005)
    place.wait_streaming()
    return town.clock


def _set(clock: mmap.mmap, offset_ns: int) -> None:
    clock[:8] = offset_ns.to_bytes(8, "little", signed=True)


@injection(70, short=True)
def a_clock_that_jumps(place: Place) -> None:
    """Two hours back and a day ahead, under running daemons and writers: no deadline cares, and no lag."""
    clock = _restart_under(place)
    with place.lives():
        for offset_ns in STEPS_NS:
            _set(clock, offset_ns)
            with place.recovered("clock step"):
                pass
            time.sleep(0.2 * DEAD_S)
        with _held_back(place):
            for offset_ns in STEPS_NS:
                lag_s = _told_lag_s(place)
                assert lag_s < LAG_S_MAX, f"a lag of {lag_s} s is told"
                _set(clock, offset_ns)
                _wait_lag(place, lag_s + 0.3)


@contextlib.contextmanager
def _held_back(place: Place) -> Iterator[None]:
    """Nothing is applied in the block, so that the lag grows."""
    place.freeze("update")
    try:
        _wait_lag(place, 0.001)
        yield
        lag_s = _told_lag_s(place)
        assert lag_s < LAG_S_MAX, f"a lag of {lag_s} s is told"
    finally:
        place.thaw("update")
    with place.recovered("clock step"):
        pass


def _told_lag_s(place: Place) -> float:
    """What the source says; 0 while it does not know."""
    return float(place.town.facts("source").get("lag_s") or 0.0)


def _wait_lag(place: Place, lag_s: float) -> None:
    wait_until(lambda: _told_lag_s(place) >= lag_s, what=f"a lag of {lag_s:.3f} s")


@injection(72)
def a_clock_that_runs_ten_times_too_fast(place: Place) -> None:
    """Of all processes, for longer than a silent peer is given: nobody takes the other for dead."""
    clock = _restart_under(place)
    _set(clock, 0)
    with place.lives():
        began_s, told_ns = time.monotonic(), place.town.facts("source")["changed_wall_ns"]
        while (past_s := time.monotonic() - began_s) < 2 * DEAD_S:
            _set(clock, int((RATE - 1) * past_s * 1e9))
            time.sleep(0.005)
        with place.recovered("clock too fast"):
            pass
        passed_s = (place.town.facts("source")["changed_wall_ns"] - told_ns) / 1e9
        assert passed_s > RATE / 2 * 2 * DEAD_S, f"the source's clock went on by {passed_s:.1f} s only"
    _set(clock, 0)


@injection(72)
def a_machine_whose_time_runs_ten_times_too_fast(place: Place) -> None:
    """The monotonic clock of one site, of the other, of both: what is committed arrives all the same, and a line
    with nothing but heartbeats is never given up more often than a silent peer would be: no storm. A sound one again
    leads on."""
    town = place.town
    for kind, roles in FAST_SITES.items():
        for role in roles:
            town.kill(role)
        for role in roles:
            town.start(role, before=_count_fast)
        made, began_s = len(place.lines("source", "connection made")), time.monotonic()
        with place.recovered(f"time too fast, {kind}"):
            pass
        town.stop_clients()  # now there is nothing to hear but heartbeats
        time.sleep(2 * DEAD_S)
        connections = len(place.lines("source", "connection made")) - made
        most = 3 + RATE / DEAD_S * (time.monotonic() - began_s)
        assert connections <= most, f"{kind}: {connections} connections, {most:.0f} at most"
        place.figures[f"connections, most: time too fast, {kind}"] = connections
        town.client(pause_s=0.005)
        if kind == "secondary":  # it waits for the other's heartbeats; the source has its own answered
            assert connections > 2, "nobody felt it"
        else:
            _silence_is_felt(place, "source", "receiver")
        for role in roles:
            town.kill(role)
        with place.recovered("time sound again"):
            town.start_daemons()


def _silence_is_felt(place: Place, fast: str, other: str) -> None:
    """By the clock of `fast` the other one was silent for much longer than it was stopped. However often it is tried,
    no sound clock counts so; and a fast one may not prove it where a busy machine is late to stop the other one."""
    tried = []
    for _ in range(FAST_TRIES):
        told_s, past_s = _one_silence(place, fast, other)
        if told_s > RATE / 2 * past_s:
            return
        tried.append(f"{told_s} s in {past_s:.3f} s")
        place.reach(place.goal())  # connected again
    raise AssertionError(f"{fast} did not count fast: {', '.join(tried)}")


def _one_silence(place: Place, fast: str, other: str) -> tuple[float, float]:
    """How long the other one was silent, as `fast` tells when it gives it up, and at most in truth, in seconds."""
    ends = len(place.ends(fast))
    stopped_s = time.time()
    place.freeze(other)
    wait_until(lambda: len(place.ends(fast)) > ends, what=f"{fast} gives {other} up")
    place.thaw(other)
    line = place.lines(fast, "connection closed")[-1]
    told = re.search(r"for ([0-9.]+) s", str(line["error"]))
    assert told, line
    return float(told[1]), datetime.datetime.fromisoformat(line["timestamp"]).timestamp() - stopped_s


def _count_fast() -> None:
    """In this process, from now on. It counts from the machine's boot, as the processes of one machine do."""
    monotonic, monotonic_ns = time.monotonic, time.monotonic_ns
    time.monotonic = lambda: RATE * monotonic()
    time.monotonic_ns = lambda: RATE * monotonic_ns()
    clock = trio._core._run.SystemClock
    clock.current_time = lambda self: self.offset + RATE * monotonic()
    clock.deadline_to_sleep_time = lambda self, deadline: (deadline - self.current_time()) / RATE


@injection(71)
def a_boot_with_an_absurd_clock(place: Place) -> None:
    """Decades off at each of three boots: what was given a time is never given it again."""
    town = place.town
    town.clock = mmap.mmap(-1, mmap.PAGESIZE)
    for offset_ns in ABSURD_NS:
        _set(town.clock, offset_ns)
        town.kill_all()
        town.reboot()
        _restart_under(place)
        with place.recovered("absurd clock"):
            pass
    assert set(DAEMONS) <= town.children.keys()
