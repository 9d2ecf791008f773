"""Faults of the wall clock: it jumps under running processes, and is absurd at a boot.

The clock that is bent is the one that Python tells (time.time, time.time_ns), which is the only one that the product
asks for; monotonic clocks stay what they are, as they do on a real machine. Guarantees: no process of the machine
notices but those of the town. Refuses to know: how it is judged afterwards.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

from tests.faults.injections import DEAD_S, Place, injection
from tests.faults.town import DAEMONS

RATE: Final = 10
HOUR_NS: Final = 3_600_000_000_000
STEPS_NS: Final = (-2 * HOUR_NS, 24 * HOUR_NS, 0)
ABSURD_NS: Final = (-40 * 365 * 24 * HOUR_NS, 60 * 365 * 24 * HOUR_NS, 0)


def _restart_under(place: Place) -> mmap.mmap:
    """All processes anew, under a clock that we set."""
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
    """Two hours back and a day ahead, under running daemons and writers: no deadline cares."""
    clock = _restart_under(place)
    ends = len(place.ends("source")) + len(place.ends("receiver"))
    for offset_ns in STEPS_NS:
        _set(clock, offset_ns)
        with place.recovered("clock step"):
            pass
        time.sleep(0.2 * DEAD_S)
    assert len(place.ends("source")) + len(place.ends("receiver")) == ends, "a connection was given up"


@injection(72)
def a_clock_that_runs_ten_times_too_fast(place: Place) -> None:
    """Of all processes, for longer than a silent peer is given: nobody takes the other for dead."""
    clock = _restart_under(place)
    _set(clock, 0)
    ends = len(place.ends("source")) + len(place.ends("receiver"))
    began_s, told_ns = time.monotonic(), place.town.facts("source")["changed_wall_ns"]
    while (past_s := time.monotonic() - began_s) < 2 * DEAD_S:
        _set(clock, int((RATE - 1) * past_s * 1e9))
        time.sleep(0.005)
    with place.recovered("clock too fast"):
        pass
    passed_s = (place.town.facts("source")["changed_wall_ns"] - told_ns) / 1e9
    assert passed_s > RATE / 2 * 2 * DEAD_S, f"the source's clock went on by {passed_s:.1f} s only"
    assert len(place.ends("source")) + len(place.ends("receiver")) == ends, "a connection was given up"
    _set(clock, 0)


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
