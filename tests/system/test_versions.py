"""Two releases meet: on the wire between real servers, in pure links, and in every file and socket that one leaves for
the other. Fault 67 of the project's catalogue: negotiated, or refused by name; never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
import trio
from crc32c import crc32c
from msgspec.structs import replace

import replicate
from replicate.compare.compare import DIGEST_FORMAT, InstanceDigest
from replicate.compare.digest import parse_digest
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import FormatUnknownError, InternalError
from replicate.instance.consumers import FORMAT, Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.instance.file import decode, encode, read_file
from replicate.journal.durable import DURABLE_FORMAT, DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.limits import FORMAT_VERSION, SEGMENT_HEADER_BYTES
from replicate.pool import control
from replicate.pool.shared_memory import PoolKind, SharedMemory, pool_path
from replicate.region.sqlite.bookkeeping import read_identity
from replicate.settings.load import Config, load
from replicate.transfer.container import ROWS_FORMAT_VERSION, SEED
from replicate.transfer.seed.incoming import SOCKET_NAME
from replicate.transfer.seed.request import read_answer
from replicate.wire import codec
from replicate.wire.event import Closed
from replicate.wire.features import FEATURES, PROTOCOL, Protocol
from replicate.wire.frame import pack_wire_frame
from replicate.wire.message import Introduction, SeedRequest
from replicate.wire.state import State
from tests.harness.link_pair import PRIMARY, SECONDARY, ConnectionPair, Journal, LinkedSites
from tests.harness.openings import connected, heard, port_of, still_serves
from tests.harness.pair import Pair
from tests.harness.servers import point, prove_to, servers
from tests.harness.waiting import wait_until_async

ABOVE, BELOW = Protocol(PROTOCOL.major, PROTOCOL.minor + 1), Protocol(PROTOCOL.major, PROTOCOL.minor - 1)
SIDES = {"source": "source_server.link.PROTOCOL", "receiver": "receiver_server.link.PROTOCOL"}


@pytest.fixture
def pair(pair: Pair) -> Iterator[Pair]:
    """Open all the while."""
    door = open_door(pair.primary)
    yield pair
    close_door(door)


# The wire, in pure links.


@pytest.mark.parametrize("side", list(SIDES))
@pytest.mark.parametrize("says", [ABOVE, BELOW], ids=["minor+1", "minor-1"])
def test_fault_67_of_two_minor_versions_the_lower_one_is_spoken(
    side: str, says: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIDES[side], says)
    journal = Journal()
    journal.write(20)
    street = LinkedSites(journal)
    street.run(2)
    assert street.received == journal.frames
    assert street.ends == []
    assert street.pair.source.protocol == street.pair.receiver.protocol == min(says, PROTOCOL)


@pytest.mark.parametrize("side", list(SIDES))
@pytest.mark.parametrize("major", [PROTOCOL.major + 1, PROTOCOL.major - 1])
def test_fault_67_another_major_version_is_refused_on_both_sides(
    side: str, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIDES[side], Protocol(major, 9))
    pair = ConnectionPair()
    pair.settle()
    older = {"source": "paris", "receiver": "oslo"}[side] if major < PROTOCOL.major else None
    older = older or {"source": "oslo", "receiver": "paris"}[side]
    for events in (pair.source_events, pair.receiver_events):
        closed = events[-1]
        assert isinstance(closed, Closed)
        assert closed.error is not None
        assert closed.error.facts["reason"] == "VERSION"
        for words in (f"protocol {major}.9", f"protocol {PROTOCOL}", "paris runs release", f"upgrade {older}"):
            assert words in str(closed.error)


def introduced(primary: Introduction = PRIMARY, secondary: Introduction = SECONDARY) -> ConnectionPair:
    """Both have said hello."""
    pair = ConnectionPair(primary=primary, secondary=secondary)
    pair.settle()
    pair.receiver.accept(pair.now)
    pair.settle()
    assert pair.source.state is pair.receiver.state is State.WAITING_FOR_RESTART
    return pair


def test_fault_67_a_feature_is_used_only_when_both_know_it_and_its_minor_version_is_spoken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert introduced().receiver.can_request_seed
    new = ("teleport-9", *FEATURES)
    assert introduced(replace(PRIMARY, features=new), replace(SECONDARY, features=new)).receiver.can_request_seed
    assert not introduced(replace(PRIMARY, features=("zstd", "teleport-9"))).receiver.can_request_seed
    monkeypatch.setattr(SIDES["receiver"], Protocol(PROTOCOL.major, 0))
    pair = introduced()
    assert not pair.receiver.can_request_seed, "seeding came with minor version 1"
    request = SeedRequest(bytes(16), bytes(16), 0)
    with pytest.raises(InternalError):
        pair.receiver.request_seed(request)
    (closed,) = pair.source.receive(b"".join(codec.encode(request)), pair.now)
    assert isinstance(closed, Closed)
    assert "not in protocol 1.0" in str(closed.error)


# The wire, between real servers.


@pytest.mark.trio
@pytest.mark.parametrize("side", list(SIDES))
@pytest.mark.parametrize("says", [ABOVE, BELOW], ids=["minor+1", "minor-1"])
async def test_fault_67_real_servers_one_minor_version_apart_replicate(
    side: str, says: Protocol, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIDES[side], says)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        source = await still_serves(running, receiver, pair)
        with pair.connect() as connection:
            connection.execute("INSERT INTO entry VALUES ('now', 1.5, x'00')")
        last = connection.last_seqno
        connection.close()
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        assert source.log.events("peer introduced")[0]["protocol"] == str(min(says, PROTOCOL))
        assert receiver.log.events("source introduced")[0]["protocol"] == str(min(says, PROTOCOL))


@pytest.mark.trio
async def test_fault_67_real_servers_one_major_version_apart_say_who_is_to_be_upgraded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIDES["source"], Protocol(PROTOCOL.major + 1, 0))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: "upgrade west" in str(source.facts.get("last_error")))
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        release = f"runs release {replicate.__version__}"
        for text in (source.facts["last_error"], receiver.log.events("connection closed")[0]["error"]):
            for words in (f"east {release}", f"west {release}", f"protocol {PROTOCOL.major + 1}.0", "upgrade west"):
                assert words in text
        assert receiver.facts["is_connected"] is False
        monkeypatch.setattr(SIDES["source"], PROTOCOL)
        await wait_until_async(lambda: source.facts.get("state") == "sending", what="the upgrade")


@pytest.mark.trio
async def test_fault_67_a_message_of_an_unknown_type_is_refused_by_its_number(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        async with connected(port_of(receiver)) as stream:
            await prove_to(stream, pair.primary)
            await stream.send_all(b"".join(pack_wire_frame(99, b"from the future")))
            assert b"type 99" in await heard(stream)
        await still_serves(running, receiver, pair)


# Files, and what is said on one host.


def refused(*numbers: int) -> object:
    """What a reader of another release's words must raise: one error that names both versions."""
    return pytest.raises(FormatUnknownError, match=".*".join(map(str, numbers)))


def test_every_file_names_its_version_and_another_one_is_refused_by_name(pair: Pair) -> None:
    newer = FORMAT_VERSION + 98

    instance = json.loads(encode(pair.primary.content)) | {"format": newer}
    with refused(newer, FORMAT_VERSION):
        decode(json.dumps(instance).encode(), "instance.json")

    segment = next(pair.primary.journal_directory.glob("*.journal"))
    head = bytearray(segment.read_bytes()[:SEGMENT_HEADER_BYTES])
    assert SegmentHeader.unpack(bytes(head)).first_seqno >= 1
    at = head.index(FORMAT_VERSION.to_bytes(2, "big"))
    head[at : at + 2] = newer.to_bytes(2, "big")
    with refused(newer, FORMAT_VERSION):
        SegmentHeader.unpack(bytes(head))

    with refused(ROWS_FORMAT_VERSION + 1, ROWS_FORMAT_VERSION):
        SEED.check_prefix(SEED.pack_prefix(ROWS_FORMAT_VERSION + 1), "x.seed")

    copy = apsw.Connection(":memory:")
    region = apsw.Connection(str(pair.primary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    with copy.backup("main", region, "main") as backup:
        backup.step()
    region.close()
    copy.execute(f"UPDATE _replicate_region SET format = {newer}")
    with refused(newer, FORMAT_VERSION):
        read_identity(copy, where="app.db")
    copy.close()

    memory = SharedMemory.attach(PoolKind.JOURNAL, pair.primary.content.uuid)
    memory.words[control.POOL_FORMAT] = newer
    memory.close()
    with refused(newer, FORMAT_VERSION):
        SharedMemory.attach(PoolKind.JOURNAL, pair.primary.content.uuid)
    pool_path(PoolKind.JOURNAL, pair.primary.content.uuid).unlink()


@pytest.mark.parametrize("number", [0, DURABLE_FORMAT + 1])
def test_the_durable_mark_of_another_release_is_refused_even_beside_one_of_ours(number: int, tmp_path: Path) -> None:
    mark = DurableSidecar.create(tmp_path / "durable", 5)
    assert mark.read() == 5
    raw = bytearray((tmp_path / "durable").read_bytes())
    raw[3] = number
    raw[28:32] = crc32c(bytes(raw[:28])).to_bytes(4, "big")
    (tmp_path / "durable").write_bytes(raw)
    mark.close()
    with refused(number, DURABLE_FORMAT):
        DurableSidecar(tmp_path / "durable").read()


def test_what_a_consumer_has_of_another_release_is_refused_and_nothing_is_pruned_by_it(tmp_path: Path) -> None:
    write_consumer(tmp_path, Consumer("west", 7))
    write_hold(tmp_path, "west", 5)
    for name, read in (("west.json", read_consumer), ("west.hold", read_hold)):
        facts = json.loads((tmp_path / name).read_bytes())
        assert facts["format"] == FORMAT
        read(tmp_path, "west")
        (tmp_path / name).write_text(json.dumps(facts | {"format": FORMAT + 1}))
        (tmp_path / name).chmod(0o600)
        with refused(FORMAT + 1, FORMAT):
            read(tmp_path, "west")


def test_a_digest_of_another_release_is_refused() -> None:
    ours = {"instance": "east", "seqno": 7, "regions": [], "network": "n"}
    assert parse_digest(json.dumps(ours), where="x") == InstanceDigest("east", 7, (), "n")
    with refused(DIGEST_FORMAT + 1, DIGEST_FORMAT):
        parse_digest(json.dumps(ours | {"format": DIGEST_FORMAT + 1}), where="x")


@pytest.mark.trio
async def test_a_seed_command_of_another_release_is_told_so(pair: Pair) -> None:
    async with servers() as running:
        await running.receiver(pair.secondary)
        async with await trio.open_unix_socket(pair.secondary.run_directory / SOCKET_NAME) as stream:
            await stream.send_all(b'{"format": 4, "from": null}\n')
            with trio.fail_after(60):
                answer = read_answer((await stream.receive_some(4096)).splitlines()[0])
        assert "speaks format 4, this Receiver Server up to 3" in answer["error"]["what"]
        assert answer["error"]["code"] == "FORMAT_UNKNOWN"


OLDER_INSTANCE = """{
  "check": "7d6533e6560d0533",
  "format": 1,
  "network": "e393bc2c-26a8-4d6b-8a7e-ba1c0cd4c8f1",
  "uuid": "6c01f926-1f16-436d-899f-e011d23a0e35",
  "name": "primary",
  "incarnation": 1,
  "role": "primary",
  "created_wall_ns": 1795647504692172529,
  "journal_inode": "65024:2190041",
  "next_region_id": 1,
  "home": "/srv/home/primary",
  "regions": [
    {
      "id": 0,
      "name": "main",
      "uuid": "6471f013-b4fa-44cf-b28b-d72b33a6e43f",
      "path": "/srv/app.db"
    }
  ],
  "peers": [
    {
      "name": "secondary",
      "host": "127.0.0.1",
      "port": 7971
    }
  ]
}
"""
OLDER_CONSUMER = (
    '{"format": 1, "name": "secondary", "acknowledged_seqno": 102, "uuid": "4a5e79cb587a4cf6857b75516471f93f", '
    '"acknowledged_wall_ns": 1795647550368519716, "needs_seed": false}'
)
OLDER_SETTINGS = """
[journal]
durability = "durable"
sync_interval_s = 1.0
segment_bytes = "64 MiB"
cap_bytes = "10 GiB"
cap_policy = "keep"
archive = ""
archive_lag_bytes = "1 GiB"
pool_bytes = "64 MiB"
[source]
heartbeat_period_s = 15.0
dead_after_s = 60.0
hard_tries = 5
hard_period_s = 0.5
soft_period_s = 5.0
connect_timeout_s = 5.0
compression = "none"
batch_bytes = "256 KiB"
metrics_listen = ""
statistics_period_s = 300.0
[receiver]
listen = "127.0.0.1:7430"
allow = ""
connections_max = 32
connections_per_address_max = 16
pool_bytes = "128 MiB"
xoff_percent = 90
xon_percent = 80
heartbeat_period_s = 15.0
dead_after_s = 60.0
hello_timeout_s = 5.0
metrics_listen = ""
statistics_period_s = 300.0
[update]
batch_transactions = 250000
batch_bytes = "64 MiB"
lock_timeout_s = 5.0
metrics_listen = ""
statistics_period_s = 300.0
[tls]
ca = "tls/ca.pem"
certificate = "tls/certificate.pem"
key = "tls/key.pem"
warn_days = 30
loopback = false
[loopback]
key_file = ""
[daemon]
start_timeout_s = 30.0
stop_timeout_s = 120.0
[log]
level = "info"
row_values = false
[region]
init = ""
[application]
busy_timeout_s = 5.0
"""
"""All that the release before roles could be told, with its defaults."""


def test_what_the_release_before_roles_has_written_is_read_as_it_meant_it(tmp_path: Path) -> None:
    files = {"instance.json": OLDER_INSTANCE, "secondary.json": OLDER_CONSUMER, "replicate.toml": OLDER_SETTINGS}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    content = read_file(tmp_path / "instance.json")
    (peer,) = content.peers
    assert (content.name, content.role, [one.path for one in content.regions]) == (
        "primary",
        "primary",
        [Path("/srv/app.db")],
    )
    assert (peer.name, peer.host, peer.port, peer.passive) == ("secondary", "127.0.0.1", 7971, False)
    assert encode(content) == OLDER_INSTANCE.encode(), "and what is written again that release can read"
    found = read_consumer(tmp_path, "secondary")
    assert found == Consumer("secondary", 102, "4a5e79cb587a4cf6857b75516471f93f", 1795647550368519716)
    assert load(tmp_path / "replicate.toml") == Config()
