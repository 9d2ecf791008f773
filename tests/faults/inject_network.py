"""Faults of the network: forgotten, one way only, slow, cut in a pause, flapping.

Guarantees: the line is well again at the end. Leaves to others: how it is judged afterwards.
"""

from __future__ import annotations

import itertools
import time

from tests.faults.injections import DEAD_S, Place, injection
from tests.faults.lossy import LossyLine
from tests.harness.waiting import wait_until

_LOSSES = itertools.cycle((0.01, 0.1, 0.3))
"""Of the packets, in turn."""


@injection(53)
def a_peer_without_power(place: Place) -> None:
    """No FIN and no RST: both sides notice by themselves."""
    with place.noticed("cut off", "source", "receiver"):
        place.line.tell("forget")
    with place.recovered("cut off"):
        pass


@injection(52)
def one_way_only(place: Place) -> None:
    for kind, there, back in (("deaf receiver", True, False), ("deaf source", False, True)):
        with place.noticed(kind, "source", "receiver"):
            place.line.tell("part", there, back)
        with place.recovered(kind):
            place.line.tell("heal")


@injection(63)
def a_connection_that_dies_in_a_pause(place: Place) -> None:
    """XOFF is in force, or XON on its way, when the connection ends: what was said on it does not hold on the next."""
    town = place.town
    for when in ("in the pause", "at its end"):
        place.freeze("update")
        town.client("filler", pause_s=0.0)
        wait_until(lambda: "XON" in town.facts("source").get("state", ""), timeout_s=120, what="XOFF")
        town.stop_clients()
        town.client(pause_s=0.005)
        if when == "at its end":
            place.thaw("update")
        place.line.tell("cut", place.dice.random() < 0.5)
        with place.recovered("cut in a pause"):
            place.thaw("update")


@injection(63)
def pauses_that_flap(place: Place) -> None:
    """A pool at its level: XOFF and XON in turns."""
    town = place.town
    town.client("filler", pause_s=0.0)
    town.client("filler", pause_s=0.0)
    for _ in range(12):
        place.freeze("update")
        time.sleep(place.dice.random() * 0.4)
        place.thaw("update")
        time.sleep(place.dice.random() * 0.1)
    town.stop_clients()
    town.client(pause_s=0.005)
    with place.recovered("flapping pauses"):
        pass


@injection(64, short=True)
def an_apply_that_takes_longer_than_the_limit(place: Place) -> None:
    """Heartbeats are answered by the receiver, with what is applied and not what has arrived."""
    with place.lives():
        place.freeze("update")
        applied = place.held()  # more it cannot have: it is stopped
        frozen_s = time.monotonic()
        while time.monotonic() - frozen_s < 1.4 * DEAD_S:
            assert place.applied() <= applied, "what has only arrived is called applied"
            time.sleep(0.1)
        wait_until(
            lambda: (place.town.facts("source").get("last_received_seqno") or 0) > applied, what="more has arrived"
        )
        with place.recovered("slow apply"):
            place.thaw("update")


@injection(59)
def far_away(place: Place) -> None:
    """A quarter of a second each way and jitter: the window keeps it full, and the status says how far."""
    place.line.tell("set", "jitter_s", 0.05)
    place.line.tell("set", "delay_s", 0.25)
    town = place.town
    town.client(pause_s=0.0)
    began_s, first = time.monotonic(), place.applied()
    wait_until(lambda: place.applied() > first + 600, timeout_s=120, what="600 transactions far away")
    assert time.monotonic() - began_s < 600 * 0.25, "one transaction a round trip"
    wait_until(
        lambda: (town.facts("source").get("round_trip_s") or 0.0) >= 0.5, timeout_s=120, what="the status says it"
    )
    place.line.tell("set", "delay_s", 0.0)


@injection(73, 54)
def cut_again_and_again(place: Place) -> None:
    """What comes twice after a reconnection is skipped; an end of the connection is noticed at once."""
    for kind, reset in (("reset", True), ("ended", False)):
        with place.noticed(kind, "source", "receiver"):
            place.line.tell("cut", reset)
        with place.recovered(kind):
            pass
    for _ in range(8):
        time.sleep(place.dice.random() * 0.3)
        place.line.tell("cut", place.dice.random() < 0.5)
    with place.recovered("cut"):
        pass


@injection(58, needs="tun")
def a_line_that_loses_packets(place: Place) -> None:
    """TCP has to send again and again: only slower, and nobody is taken for dead."""
    loss = next(_LOSSES)
    place.figures[f"packet loss, percent: {100 * loss:.0f}"] += 1
    lossy = LossyLine(place.town.port, loss, place.town.errors, place.dice.randrange(1 << 30))
    try:
        made = place.line.tell("set", "target_port", lossy.port)
        place.line.tell("cut", True)
        wait_until(lambda: place.line.tell("lines") > made, timeout_s=120, what="a connection through the mirror")
        for _ in range(3):
            with place.recovered("packets lost"):
                pass
        wait_until(lambda: lossy.sent_again() > 0, timeout_s=120, what="a packet that is lost and sent again")
    finally:
        place.line.tell("set", "target_port", place.town.port)
        place.line.tell("cut", True)
        lossy.close()
