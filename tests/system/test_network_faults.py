"""The network fails between real daemons: parted, one way only, gone without a word, cut, slow, in single bytes.

Faults 51 to 57, 62 and 89 of the project's catalogue. After each both databases are equal row by row, nothing has come
twice, and no operator had to do anything.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.bad_street import DEAD_AFTER_S, HEARTBEAT_S, NOTICED_WITHIN_S, SETTINGS, BadStreet, bad_street
from tests.harness.memory import Memory, anonymous_mib
from tests.harness.street import is_alive
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one_street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadStreet]:
    with bad_street(tmp_path_factory.mktemp("street")) as made:
        yield made


@pytest.fixture
def street(one_street: BadStreet) -> BadStreet:
    one_street.begin()
    return one_street


SECOND: Final = "is a second source"
"""The receiver's refusal of a source that has noticed the silence first and connects again: until its own limit has
passed the receiver takes the old connection for a living one, and another of the same name must not end that (fault
65)."""
DEAD: Final = "UNREACHABLE: the peer "
"""What a side says when its own limit has passed; that the connection was lost is said when the other side ends it."""


def losses(street: BadStreet, side: Path) -> list[str]:
    """How the streams of a side have ended since the test began: its ends without refused second connections."""
    return [end for end in street.ends(side) if SECOND not in end]


def both_end(street: BadStreet, within_s: float = NOTICED_WITHIN_S) -> None:
    """Each side has noticed by itself that its connection is no more."""
    began = time.monotonic()
    for side in (street.primary, street.secondary):
        wait_until(
            lambda side=side: losses(street, side),  # type: ignore[misc]
            timeout_s=within_s - (time.monotonic() - began),
            what=f"{side.name} notices",
        )


def test_fault_51_a_full_partition_hurts_no_writer_and_is_caught_up_from_files(street: BadStreet) -> None:
    files, tried = street.source()["transactions_from_files"], street.network.tried
    street.network.part()
    street.insert(100, 20_000)  # twice what the journal pool holds, and commits wait for nobody
    both_end(street)
    wait_until(lambda: street.network.tried >= tried + 2, what="tries again and again")
    street.network.forget()
    street.network.heal()
    last = street.prove_equal()
    wait_until(lambda: street.source()["last_applied_seqno"] == last, what="backlog 0")
    assert street.source()["transactions_from_files"] > files
    assert street.duplicates() == 0


@pytest.mark.parametrize("deaf", ["receiver", "source"])
def test_fault_52_a_one_way_line_is_noticed_on_both_sides_in_time(deaf: str, street: BadStreet) -> None:
    street.insert(5)
    street.network.part(there=deaf == "receiver", back=deaf == "source")
    street.insert(5)
    both_end(street)
    hears_nothing = street.primary if deaf == "source" else street.secondary
    # The end of a connection does not reach it either, so that its own limit is what comes first.
    assert DEAD in street.ends(hears_nothing)[0]
    street.network.heal()
    street.prove_equal()
    assert street.duplicates() == 0


def test_fault_53_a_peer_that_lost_power_is_dead_within_the_heartbeat_limit(street: BadStreet) -> None:
    """No FIN, no RST, and TCP at either end waits on."""
    street.insert(5)
    street.network.forget()
    street.insert(5)
    both_end(street)
    # A source has one connection at a time: nothing can end before the one that was forgotten. The receiver may have to
    # refuse the source's next one before it has noticed itself.
    assert DEAD in street.ends(street.primary)[0]
    assert DEAD in losses(street, street.secondary)[0]
    street.prove_equal()
    assert street.new_lines() >= 2
    assert street.duplicates() == 0


@pytest.mark.parametrize("reset", [True, False], ids=["fault_54_rst", "fault_55_fin"])
def test_cut_in_the_middle_of_a_frame_it_goes_on_where_it_was(reset: bool, street: BadStreet) -> None:
    """Half a frame is dropped: nothing of it is applied, nothing comes twice, and the rest comes by itself."""
    street.insert(20)
    for _ in range(3):
        done = street.network.cut_next(reset=reset)
        street.insert(30, 400)
        assert done.wait(60), "the connection is cut in mid-stream"
        street.wait_for_stream()
    street.prove_equal()
    assert street.new_lines() >= 4
    assert any("the connection was lost" in text for text in street.ends(street.secondary))
    if not reset:
        assert any("in the middle of a message" in text for text in street.ends(street.secondary))
    assert street.duplicates() == 0


def test_fault_56_a_peer_that_never_reads_costs_no_memory_and_is_found_dead(street: BadStreet) -> None:
    pid = street.pid(street.primary, "source-secondary")
    before_mib = anonymous_mib(pid)
    memory = Memory({"source": pid})
    memory.start()
    street.network.part(there=True, back=False)
    street.insert(800, 60_000)  # 48 MB
    wait_until(lambda: street.ends(street.primary), timeout_s=NOTICED_WITHIN_S, what="the source notices")
    street.network.forget()
    street.network.heal()
    street.prove_equal()
    assert memory.stop()["source"] < before_mib + 20
    assert is_alive(pid)


def test_fault_56_xoff_stops_no_heartbeat(street: BadStreet) -> None:
    def pause() -> None:
        street.on(street.secondary, "update", "stop")
        try:
            street.insert(100, 60_000)
            wait_until(lambda: street.source()["state"] == "waiting for XON", what="XOFF")
            paused_s = time.monotonic()
            while time.monotonic() - paused_s < 2 * DEAD_AFTER_S:
                for side in (street.primary, street.secondary):
                    wait_until(
                        lambda side=side: (  # type: ignore[misc]
                            street.figure(side, "last_contact_seconds") < DEAD_AFTER_S / 2 or street.new_lines() > 1
                        ),
                        what="a heartbeat",
                    )
                time.sleep(0.3)
            assert street.source()["state"] == "waiting for XON"
            assert street.new_lines() == 1
        finally:
            street.start_update()
        street.prove_equal()

    street.lives(pause)


def test_fault_57_on_a_line_of_64_kbit_a_batch_of_many_seconds_kills_no_connection(street: BadStreet) -> None:
    """28 KB take three and a half seconds, longer than a silent peer is given."""

    def send() -> None:
        street.network.bytes_per_s = 8000
        began = time.monotonic()
        last = street.insert(1, 28_000)
        street.applied(last)
        assert time.monotonic() - began > 1.2 * DEAD_AFTER_S
        wait_until(lambda: street.source()["last_applied_seqno"] == last, what="the acknowledgement is back")
        assert street.ends(street.primary) == street.ends(street.secondary) == []
        street.network.bytes_per_s = 0
        street.prove_equal()

    street.lives(send)


def test_fault_62_single_bytes_on_the_wire(street: BadStreet) -> None:
    street.network.piece_bytes = 1
    street.network.forget()  # the opening too, byte by byte
    wait_until(lambda: street.new_lines() >= 2, what="a new connection")
    street.insert(20, 300)
    street.prove_equal()
    assert sum(line.there_bytes for line in street.network.lines[street.lines_before + 1 :]) > 6000
    assert street.duplicates() == 0


SILENT_LINE: Final = SETTINGS.replace(f"dead_after_s = {DEAD_AFTER_S}", "dead_after_s = 600")


def readiness(street: BadStreet, instance: Path, daemon: str) -> int:
    address = street.daemon(instance, daemon)["facts"]["metrics_listen"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_fault_89_a_line_that_swallows_everything_and_a_killed_source_leave_nothing_called_level(
    tmp_path: Path,
) -> None:
    """While the primary is written; and heard again, both sides are well without an operator."""
    with bad_street(tmp_path, settings=SILENT_LINE) as street:
        sides, daemons = (street.primary, street.secondary), ("receiver", "update")

        def codes(side: Path) -> set[str]:
            done = street.on(side, "--json", "status", check=False)
            found = {one["code"] for one in json.loads(done.stdout)["findings"] if one["severity"] != "info"}
            assert done.returncode == (1 if found else 0)
            return found

        def receiving() -> dict[str, Any]:
            return dict(street.status(street.secondary)["receiving"])

        def is_level() -> bool:
            found = receiving()
            return not any(map(codes, sides)) and (found["backlog"], found["lag_s"]) == (0, 0.0)

        street.applied(street.insert(5))
        wait_until(is_level, what="all is well")
        street.network.part()
        street.insert(5)
        for side, code in zip(sides, ("PEER_SILENT", "SOURCE_SILENT"), strict=True):
            wait_until(lambda side=side, code=code: codes(side) == {code}, what=code)  # type: ignore[misc]
        found = receiving()
        assert (found["is_connected"], found["backlog"], found["lag_s"]) == (True, None, None)
        assert found["lag_at_least_s"] > HEARTBEAT_S
        assert found["backlog_unknown_since"] is not None
        assert all(street.status(side)["bottleneck"] for side in sides)
        for daemon in daemons:
            wait_until(lambda daemon=daemon: readiness(street, street.secondary, daemon) == 503)  # type: ignore[misc]
            assert street.figure(street.secondary, "known_state", daemon=daemon) == 0
            assert street.figure(street.secondary, "lag_at_least_seconds", daemon=daemon) > HEARTBEAT_S
        street.network.heal()
        wait_until(is_level, what="all is well again")
        for daemon in daemons:
            wait_until(lambda daemon=daemon: readiness(street, street.secondary, daemon) == 200)  # type: ignore[misc]
        street.kill(street.primary, "source-secondary")
        wait_until(lambda: codes(street.secondary) == {"NO_SOURCE"}, what="no source")
        found = receiving()
        assert (found["is_connected"], found["backlog"], found["lag_s"]) == (False, None, None)
        assert found["lag_at_least_s"] > 0
        assert "unknown since" in street.on(street.secondary, "status", check=False).stdout
        street.start_source()
        wait_until(is_level, what="all is well in the end")
        street.prove_equal()
