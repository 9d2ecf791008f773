"""The network changes bytes under TLS, between real daemons.

Fault 61 of the project's catalogue, where TLS is what finds it. After it both databases are equal row by row, nothing
has come twice, and no operator had to do anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.bad_network import BadNetwork
from tests.harness.bad_street import DEAD_AFTER_S, SETTINGS, BadStreet
from tests.harness.certificates import Authority
from tests.harness.memory import Memory, anonymous_mib
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

OVER_TLS = SETTINGS.replace("[receiver]", '[receiver]\n    allow = "primary"') + "    [tls]\n    loopback = true\n"
RECORD_OF_DATA = 0x17


@pytest.fixture(scope="module")
def one_street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadStreet]:
    made = BadStreet(tmp_path_factory.mktemp("street"), settings=OVER_TLS)
    try:
        certify(made)
        yield made.start()
    finally:
        made.close()


def certify(street: BadStreet) -> None:
    """Make the instances, and a certificate for each."""
    street.build()
    authority = Authority(street.directory)
    for side in (street.primary, street.secondary):
        shutil.copytree(authority.files(side.name), side / "tls")


@pytest.fixture
def street(one_street: BadStreet) -> BadStreet:
    one_street.begin()
    return one_street


@dataclass
class Flip:
    """Flips a bit at `at` in the first TLS record of data, once it is told to."""

    at: int
    is_wanted: bool = False
    is_done: bool = False
    wanted_after_bytes: int = 1 << 40
    seen_bytes: int = 0

    def __call__(self, record: bytes) -> Iterable[bytes]:
        self.seen_bytes += len(record)
        self.is_wanted |= self.seen_bytes > self.wanted_after_bytes
        if not self.is_wanted or self.is_done or record[0] != RECORD_OF_DATA:
            return [record]
        self.is_done = True
        changed = bytearray(record)
        changed[self.at] ^= 0x80  # a length becomes too long for TLS: what is possible would be waited for
        return [bytes(changed)]


@pytest.mark.parametrize("at", [0, 3, 20, -1], ids=["type", "length", "payload", "tag"])
@pytest.mark.parametrize("towards", ["receiver", "source"])
def test_fault_61_a_bit_changed_under_tls_closes_the_connection_and_is_counted(
    towards: str, at: int, street: BadStreet
) -> None:
    """It has passed TCP's checksum: TLS finds it, the side that receives it says so, and the stream goes on."""
    flip, network = Flip(at), street.network
    network.is_tls = True
    if towards == "receiver":
        network.mangle = flip
    else:
        network.mangle_back = flip
    network.lines[-1].close()  # records are told apart from a connection's first byte on
    street.applied(street.insert())
    lines = street.new_lines()
    side = street.secondary if towards == "receiver" else street.primary
    before = street.figure(side, "refused_connections_total", reason="PROTOCOL")
    ends = len(street.ends(side))
    flip.is_wanted = True
    street.insert(5)
    wait_until(lambda: flip.is_done, what="a changed record")
    named = "PROTOCOL: what has arrived is not what the peer has sent"
    wait_until(lambda: any(named in end for end in street.ends(side)[ends:]), what=f"{side.name} closes the connection")
    wait_until(lambda: street.figure(side, "refused_connections_total", reason="PROTOCOL") > before, what="it counts")
    assert street.figure(side, "refused_connections_total", reason="PROTOCOL") == before + 1
    street.prove_equal()
    assert street.new_lines() > lines
    assert street.duplicates() == 0


def test_a_seed_over_tls_in_which_a_bit_changes_goes_on_at_that_byte(tmp_path: Path) -> None:
    """The command waits, the source connects again and goes on; what arrives is verified whole before it is used."""
    street = BadStreet(tmp_path, settings=OVER_TLS.replace(f"dead_after_s = {DEAD_AFTER_S}", "dead_after_s = 60"))
    try:
        certify(street)
        street.start_receiver()
        street.network = network = BadNetwork(street.port())
        network.is_tls, network.mangle = True, (flip := Flip(-1, wanted_after_bytes=3_000_000))
        street.on(street.primary, "peer", "add", "secondary", f"127.0.0.1:{network.port}")
        street.insert(150, 100_000)
        street.start_source()
        pids = {side.name: street.pid(side, street.server(side)) for side in (street.primary, street.secondary)}
        before_mib = {name: anonymous_mib(pid) for name, pid in pids.items()}
        memory = Memory(pids)
        memory.start()
        assert "seeded at seqno" in street.on(street.secondary, "seed").stdout
        for name, most_mib in memory.stop().items():
            assert most_mib < before_mib[name] + 10, f"15 MB went through {name}: {most_mib - before_mib[name]} MiB"
        assert flip.is_done
        assert street.figure(street.secondary, "refused_connections_total", reason="PROTOCOL") == 1
        lines = street.log(street.primary, "source-secondary")
        first, second, *_ = (line["from_offset"] for line in lines if line["event"] == "sending the seed")
        assert first == 0 < second
        street.start_update()
        street.applied(street.insert())
        street.on(street.secondary, "compare", "--with", street.primary)
    finally:
        street.close()
