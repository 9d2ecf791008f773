"""Peers that are not what they should be, between real daemons: out of order, damaged, doubled, too many, strangers.

Faults 24, 60, 61, 65, 66 and 69 of the project's catalogue. After each the right stream goes on (or has never
stopped), and both databases are equal row by row.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from replicate.wire.codec import decode, encode
from replicate.wire.message import Data, MessageType
from tests.harness.bad_network import Mangle
from tests.harness.bad_street import SETTINGS, BadStreet, bad_street
from tests.harness.memory import Memory, anonymous_mib
from tests.harness.street import SCHEMA, make_database
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

COMPRESSED = SETTINGS.replace("[source]", '[source]\n    compression = "zstd"')


@pytest.fixture(scope="module")
def one_street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadStreet]:
    with bad_street(tmp_path_factory.mktemp("street"), settings=COMPRESSED) as made:
        yield made


@pytest.fixture
def street(one_street: BadStreet) -> BadStreet:
    one_street.begin()
    return one_street


@pytest.mark.parametrize("first", range(3), ids=["receiver first", "source first", "update first"])
def test_fault_24_the_first_to_come_waits_for_the_others(first: int, street: BadStreet) -> None:
    """While all are stopped, commits go on and wait in the journal. (Two sources to one secondary: fault 65.)"""
    sides = {"receiver": street.secondary, "source": street.primary, "update": street.secondary}
    starts: dict[str, Callable[[], None]] = {
        "receiver": lambda: street.start_receiver(f"127.0.0.1:{street.network.target_port}"),
        "source": street.start_source,
        "update": street.start_update,
    }
    for name, side in sides.items():
        assert street.on(side, name, "stop").returncode == 0
    last = street.insert(10)
    names = list(starts)
    for name in names[first:] + names[:first]:
        starts[name]()
    street.applied(last)
    street.prove_equal()
    assert street.duplicates() == 0


# Frames that are not what they were.


def once(change: Callable[[bytes], Iterable[bytes]]) -> tuple[Mangle, list[bytes]]:
    """Changes the first DATA frame of a connection's stream, and notes it."""
    met: list[bytes] = []

    def mangle(frame: bytes) -> Iterable[bytes]:
        if frame[8] != MessageType.DATA or met:
            return [frame]
        met.append(frame)
        return change(frame)

    return mangle, met


def through(street: BadStreet, mangle: Mangle, met: list[bytes]) -> None:
    """Make a new connection with the change, and commit until it has been met (commits may share a frame)."""
    lines = len(street.network.lines)
    street.network.mangle = mangle
    street.network.forget()
    wait_until(lambda: len(street.network.lines) > lines, what="a new connection")
    street.wait_for_stream()
    street.insert(3)
    wait_until(lambda: met or (street.insert(1) and met), what="a changed frame")


def test_fault_60_doubled_frames_are_dropped(street: BadStreet) -> None:
    mangle, met = once(lambda frame: [frame, frame])
    through(street, mangle, met)
    street.prove_equal()
    assert not any("GAP" in text for text in street.ends(street.secondary))
    assert street.duplicates() == 0, "the Update Process never saw them"


def test_fault_60_frames_out_of_order_are_a_gap_and_come_again(street: BadStreet) -> None:
    held: list[bytes] = []
    met: list[bytes] = []

    def swap(frame: bytes) -> Iterable[bytes]:
        if frame[8] == MessageType.HELLO:
            held.clear()  # another connection: what was held back belonged to the one before
        if frame[8] != MessageType.DATA or met:
            return [frame]
        held.append(frame)
        if len(held) < 2:
            return []
        met.extend(held)
        return [held[1], held[0]]

    before = street.figure(street.secondary, "refused_connections_total", reason="GAP")
    through(street, swap, met)
    street.prove_equal()
    assert any("next should be transaction" in text for text in street.ends(street.secondary))
    assert street.figure(street.secondary, "refused_connections_total", reason="GAP") == before + 1
    assert street.duplicates() == 0


@pytest.mark.parametrize("at", [4, 8, 30, -1], ids=["check", "type", "head", "last byte"])
def test_fault_61_a_changed_bit_closes_the_connection_and_is_counted(at: int, street: BadStreet) -> None:
    """It has passed TCP's checksum: the frame's own finds it."""

    def flip(frame: bytes) -> list[bytes]:
        changed = bytearray(frame)
        changed[at] ^= 0x10
        return [bytes(changed)]

    before = street.figure(street.secondary, "refused_connections_total", reason="PROTOCOL")
    mangle, met = once(flip)
    through(street, mangle, met)
    street.prove_equal()
    assert street.figure(street.secondary, "refused_connections_total", reason="PROTOCOL") == before + 1
    assert any("PROTOCOL" in text for text in street.ends(street.primary)), "the source is told"


def rubbish(data: Data) -> bytes:
    return os.urandom(len(data.data))


def cut_short(data: Data) -> bytes:
    import zstandard  # ours leaves a short batch as it is

    return zstandard.ZstdCompressor().compress(bytes(data.raw_bytes))[:-3]


def bomb(_data: Data) -> bytes:
    """256 MiB of nothing, in a few KiB."""
    import zstandard

    return zstandard.ZstdCompressor().compress(bytes(256 << 20))


@pytest.mark.parametrize("packed", [rubbish, cut_short, bomb])
def test_fault_69_what_does_not_decompress_is_refused_and_comes_again(
    packed: Callable[[Data], bytes], street: BadStreet
) -> None:
    def change(frame: bytes) -> list[bytes]:
        data = decode(frame[8], frame[9:])
        assert isinstance(data, Data)
        made = Data(data.first_seqno, data.last_seqno, data.count, data.raw_bytes, True, packed(data))
        return [b"".join(encode(made))]

    pid = street.pid(street.secondary, "receiver")
    before_mib = anonymous_mib(pid)
    memory = Memory({"receiver": pid})
    memory.start()
    before = street.figure(street.secondary, "refused_connections_total", reason="PROTOCOL")
    mangle, met = once(change)
    through(street, mangle, met)
    street.prove_equal()
    assert memory.stop()["receiver"] < before_mib + 20
    assert street.figure(street.secondary, "refused_connections_total", reason="PROTOCOL") == before + 1


# Others.


def test_fault_65_a_second_source_of_the_same_name_is_refused_and_the_first_is_untouched(
    street: BadStreet, tmp_path: Path
) -> None:
    other = second_instance(street, tmp_path / "primary", "primary")
    street.on(other, "region", "add", tmp_path / "second.db")
    street.on(other, "peer", "add", "secondary", f"127.0.0.1:{street.port()}")
    street.on(other, "source", "start", "--peer", "secondary")
    try:
        told: list[str] = []  # the facts come a moment after the start, and each attempt begins with none of this

        def refused() -> bool:
            told.append(str(street.daemon(other, "source-secondary")["facts"].get("last_error")))
            return "REFUSED" in told[-1]

        def refuses() -> None:
            wait_until(refused)
            error = told[-1]
            assert "SECOND_SOURCE" in error
            assert "takes the stream of primary already" in error
            street.prove_equal()

        street.lives(refuses)
    finally:
        street.on(other, "source", "stop", check=False)


def test_fault_65_a_second_receiver_of_the_same_name_is_refused_and_the_first_keeps_its_place(
    street: BadStreet, tmp_path: Path
) -> None:
    other = second_instance(street, tmp_path / "secondary", "secondary", role="secondary")
    street.on(other, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
    try:
        street.network.target_port = int(street.daemon(other, "receiver")["facts"]["listen"].rpartition(":")[2])
        street.network.forget()
        told: list[str] = []  # each attempt begins with none of this

        def refuses() -> bool:
            told.append(str(street.source().get("last_error")))
            return "WRONG_INSTANCE" in told[-1]

        wait_until(refuses, what="the source refuses it")
        assert "another one than before" in told[-1]
        street.network.target_port = street.port()
        street.wait_for_stream()
        street.prove_equal()
    finally:
        street.on(other, "receiver", "stop", "--keep-update", check=False)


def second_instance(street: BadStreet, path: Path, name: str, role: str = "primary") -> Path:
    """Another instance of that name in the street's network."""
    make_database(path.parent / "second.db", SCHEMA)
    network = street.on(street.primary, "instance", "show").stdout
    uuid = next(line.split()[-1] for line in network.splitlines() if line.strip().startswith("network"))
    street.run("instance", "create", path, "--role", role, "--name", name, "--network", uuid)
    (path / "replicate.toml").write_text((street.primary / "replicate.toml").read_text())
    street.others.append(path)
    return path


def test_fault_66_a_storm_of_connections_takes_no_descriptors_and_does_not_reach_the_stream(street: BadStreet) -> None:
    pid = street.pid(street.secondary, "receiver")
    descriptors = Path(f"/proc/{pid}/fd")
    log = street.secondary / "log" / "receiver.log"

    def storm() -> None:
        log_bytes, most, open_now = log.stat().st_size, 0, []
        writer = street.writer(1, 30)
        try:
            for _ in range(400):
                open_now.append(socket.create_connection(("127.0.0.1", street.port()), timeout=60))
                most = max(most, len(list(descriptors.iterdir())))
        finally:
            for one in open_now:
                one.close()
        street.finish([writer])
        street.prove_equal()
        assert most < 100
        assert log.stat().st_size - log_bytes < 40_000, "a storm does not fill the disk"

    street.lives(storm)  # the stream does not notice
    wait_until(lambda: len(list(descriptors.iterdir())) < 40, what="descriptors are given back")


def test_fault_66_a_source_that_is_refused_backs_off(street: BadStreet) -> None:
    """Not in a storm of its own: hard tries, then soft ones, each later by chance."""
    tried = street.network.tried

    def waits() -> list[float]:
        lines = street.log(street.primary, "source-secondary")
        return [line["next_in_s"] for line in lines if "attempt failed" in line["event"]]

    street.network.is_refusing = True
    street.network.forget()
    wait_until(lambda: street.network.tried >= tried + 8, what="tries again")
    wait_until(lambda: len(set(waits())) > 2, what="jitter")
    assert min(waits()) > 0.02
    street.network.is_refusing = False
    street.wait_for_stream()
    street.prove_equal()
