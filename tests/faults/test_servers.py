"""The soak and the I/O errors of servers in their short forms; the long ones are `deploy/test --faults`.

Faults 26, 28, 29 and 45, and I8: descriptors and memory stay bounded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import io_servers, soak
from tests.faults.injections import make_place
from tests.faults.oracle import ZERO, read_told
from tests.faults.region_disk import Counted
from tests.faults.settling import count_told, settle
from tests.faults.soak import Series

FAILS = (
    ("fdatasync", "EIO"),
    ("pwrite", "ENOSPC"),
    ("region write", "ENOSPC"),
    ("region sync", "EIO"),
    ("rename", "EROFS"),
)


@pytest.mark.slow
def test_calls_of_the_update_process_fail(tmp_path: Path) -> None:
    """The first one of some kinds, each in a run of its own: it goes on or ends by a name, and then leads on."""
    sweep = io_servers.Sweep("update", 3, tmp_path)
    try:
        for call, error in FAILS:
            assert sweep.fail(call, 1, error), f"{call} did not come"
        settle(sweep.town, sweep.figures)
        count_told(read_told(sweep.town.told), sweep.figures)
    finally:
        sweep.close()
    zero = {name: sweep.figures[name] for name in io_servers.SERVERS_ZERO}
    assert zero == dict.fromkeys(zero, 0), sweep.figures
    assert sweep.figures["ended by a named error"] >= 2  # an error of the journal or region is no matter of going on
    assert sweep.figures["digests compared"]


def test_a_call_is_chosen_by_the_place_that_it_comes_from() -> None:
    counted = Counted()
    for what in "abba":
        counted.next(what)
    assert list(counted.places().values()) == [1, 2]
    chosen = Counted(list(counted.places())[1])
    assert not chosen.has_come(0)
    assert [chosen.is_due(chosen.next(what), 0) for what in "aabb"] == [False, False, True, False]
    assert chosen.has_come(0)


@pytest.mark.slow
def test_connections_that_end_leave_nothing_behind() -> None:
    with make_place(7, "interval") as place:
        place.begin()
        soak.short(place)
        settle(place.town, place.figures)
        count_told(read_told(place.town.told), place.figures)
    zero = {name: place.figures[name] for name in ZERO}
    assert zero == dict.fromkeys(zero, 0), place.figures
    assert place.figures["digests compared"]


def test_what_grows_is_told_from_what_only_moves() -> None:
    assert Series([10, 9, 30, 11, 10, 35, 9, 12, 31, 10, 9, 33]).grown(1) is False
    assert Series([10, 9, 30, 11, 10, 35, 12, 12, 31, 12, 13, 33]).grown(1) is True
    assert Series([22, 22, 22, 22, 20, 22, 22, 23, 22, 22, 22, 22]).grown(1) is False  # one look without a connection
