"""Real full disks, and disks that the kernel makes read-only, below one site. As root.

Guarantees: each puts back what it has changed. Leaves to others: how it is judged afterwards.
"""

from __future__ import annotations

import re
import time
from typing import Final

from tests.faults.injections import Place, injection
from tests.faults.small_disk import SmallDisk
from tests.faults.town import DAEMONS, Child
from tests.harness.waiting import wait_until

NAMED: Final = frozenset({69, 74, 75})
"""Exit codes of what the surroundings did to a daemon."""
ROOM_NS: Final = 1_000_000_000
"""Anybody who has told something so long after there was room again has not met a full disk."""
POOLFUL: Final = 200
"""Transactions of a filler that fill a receive pool several times over, and a small disk by a third."""


def _small(place: Place) -> SmallDisk:
    assert place.small is not None
    return place.small


def _daemons(place: Place) -> dict[str, Child]:
    """Those that run before the fault; who has ended is forgotten by the town."""
    return {role: place.town.children[role] for role in DAEMONS}


def _refused(place: Place) -> set[str]:
    """The codes with which clients were refused so far."""
    text = b"".join(path.read_bytes() for path in place.town.told.glob("client-*.jsonl"))
    return {code.decode() for code in re.findall(rb'"error": "([A-Z_]+):', text)}


def _commit_until(place: Place, codes: set[str]) -> None:
    """Clients try until one is refused by one of these names."""
    town = place.town
    deadline = time.monotonic() + 60
    while not _refused(place) & codes:
        assert time.monotonic() < deadline, f"nobody was refused by {codes}: {_refused(place)}"
        client = town.client("filler", count=30, pause_s=0.0)
        assert client.wait(120), "a client hangs on a disk that takes nothing"
        town.reap()


def _ended_by_name(place: Place, daemons: dict[str, Child]) -> None:
    """Daemons that have ended did so by a named error of their surroundings."""
    town = place.town
    for role, child in daemons.items():
        if child.poll():
            assert child.status in NAMED, f"{role}: exit code {child.status}: {town.errors.read_text()[-2000:]}"
            place.figures[f"disk lost: {role} ended"] += 1
    town.reap()
    town.strange.clear()


@injection(28, needs="mount", disk=("primary", "tmpfs"))
def the_primarys_disk_is_full(place: Place) -> None:
    """Commits are refused by name, what is there can be read and is replicated; with room again all goes on."""
    town, daemons = place.town, _daemons(place)
    _small(place).fill()
    _commit_until(place, {"DISK_FULL"})
    _ended_by_name(place, daemons)
    town.stop_clients()
    _small(place).give_room()
    town.client(pause_s=0.005)
    _source_has_room(place)
    with place.recovered("disk full"):
        pass


def _source_has_room(place: Place) -> None:
    """The source goes on, or what it met before there was room ends it only now: it is started again then."""
    town, given_ns = place.town, time.time_ns()

    def goes_on() -> bool:
        _ended_by_name(place, {role: town.children[role] for role in DAEMONS if role in town.children})
        town.start_daemons()
        told = town.facts("source")
        is_new = told.get("changed_wall_ns", 0) > given_ns + ROOM_NS
        return is_new and told.get("pid") == town.children["source"].pid and told.get("state") == "sending"

    wait_until(goes_on, timeout_s=120, what="the source goes on, or is started again")


@injection(29, needs="mount", disk=("secondary", "tmpfs"))
def the_secondarys_disk_is_full(place: Place) -> None:
    """The Update Process stops by name, nothing half done; the source pauses; with room again all goes on."""
    town, daemons = place.town, _daemons(place)
    _small(place).fill()
    town.client("filler", count=POOLFUL, pause_s=0.0)
    child = town.children["update"]
    assert child.wait(120), "it goes on without a byte to write to"
    held = place.held()
    _ended_by_name(place, daemons)
    wait_until(lambda: "XON" in town.facts("source").get("state", ""), timeout_s=120, what="XOFF")
    town.stop_clients()
    assert place.held() == held
    _small(place).give_room()
    town.client(pause_s=0.005)
    with place.recovered("disk full"):
        town.start_daemons()


def _read_only(place: Place, site: str) -> None:
    town, small, daemons = place.town, _small(place), _daemons(place)
    small.fail()
    if site == "primary":
        _commit_until(place, {"IO", "OUTCOME_UNKNOWN", "FATAL", "NOT_ALLOWED", "READ_ONLY"})
    else:
        assert town.children["update"].wait(120), "it goes on without a disk to write to"
    _ended_by_name(place, daemons)
    town.kill_all()  # what the operator has to do before the file system can be mended
    town.strange.clear()
    small.mend()
    town.start_daemons()
    town.client(pause_s=0.005)
    with place.recovered("disk read-only"):
        pass


@injection(45, needs="mount", disk=("primary", "ext4"))
def the_primarys_disk_becomes_read_only(place: Place) -> None:
    """As the kernel does it on an error: everybody is told by name, and a mended disk leads on."""
    _read_only(place, "primary")


@injection(45, needs="mount", disk=("secondary", "ext4"))
def the_secondarys_disk_becomes_read_only(place: Place) -> None:
    """The same on the other side."""
    _read_only(place, "secondary")
