"""Who is let in, over real sockets: names and certificates of both sides, renewal, the shared key, limits.

Faults 54, 62, 65 and I10 (trust): nothing of a peer that has not proven who it is reaches a link.
"""

from __future__ import annotations

import os
import ssl
import struct
from functools import partial
from pathlib import Path

import pytest
import trio

from replicate.daemon.own_introduction import introduction
from replicate.errors import ConfigurationError, PermissionRefusedError
from replicate.instance.instance import Instance
from replicate.security.authenticate import Authenticator
from replicate.security.shared_key import default_path, read_key
from replicate.wire.codec import encode
from replicate.wire.frame import pack_wire_frame
from replicate.wire.message import Heartbeat
from replicate.wire.proof import CHALLENGE_TYPE, Proof
from replicate.wire.state import Role
from source_server.link import SourceLink
from tests.harness.certificates import Authority, client_context, foreign_files
from tests.harness.counting import count_calls
from tests.harness.link_pair import link_settings
from tests.harness.openings import TLS, connected, heard, hello_of, over_tls, port_of, refused, still_serves
from tests.harness.pair import Pair
from tests.harness.servers import point, prove_to, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


async def test_the_hello_must_bear_the_name_of_the_certificate(pair: Pair, authority: Authority) -> None:
    """east's certificate, and the hello of another instance of the network."""
    other = Instance.create(
        pair.directory / "north", role="primary", name="north", network=pair.primary.content.network
    )
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        answer = await over_tls(port_of(receiver), client_context(authority.files("east")), hello_of(other))
        assert b"NAME_NOT_PROVEN" in answer
        (closed,) = receiver.log.events("connection closed")
        assert "the hello is that of north, and the peer has proven to be east" in closed["error"]
        await still_serves(running, receiver, pair, **TLS)


async def test_a_certificate_of_another_name_is_mapped(pair: Pair, authority: Authority) -> None:
    """Both directions: receiver.allow on the one side, the peer's entry on the other."""
    for name, of in ((pair.primary, "db1"), (pair.secondary, "db2")):
        tls = authority.install(name)
        context = foreign_files(authority, of)
        for file in ("certificate.pem", "key.pem", "ca.pem"):
            (tls / file).write_bytes((context / file).read_bytes())
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, tls__loopback=True, receiver__allow="east=db1.example.com")
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, **TLS)
        await wait_until_async(lambda: source.log.events("connection refused"))
        assert source.log.events("connection refused")[0]["reason"] == "CERTIFICATE_UNKNOWN"
        port = port_of(receiver)
        pair.primary.register_peer("west", "127.0.0.1", port, certificate="db2.example.com", replace_address=True)
        await wait_until_async(lambda: source.facts.get("state") == "sending")


async def test_the_source_refuses_a_receiver_that_is_not_its_peer(pair: Pair, authority: Authority) -> None:
    """The address leads to another instance, with a good certificate of the network: nothing is said to it."""
    other = Instance.create(
        pair.directory / "north", role="secondary", name="north", network=pair.primary.content.network
    )
    authority.install(other)
    async with servers() as running:
        receiver = await running.receiver(other, **TLS)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, **TLS)
        await wait_until_async(lambda: source.log.events("connection refused"))
        assert source.log.events("connection refused")[0]["reason"] == "CERTIFICATE_UNKNOWN"
        assert "west was expected there, it names north" in str(source.facts["last_error"])
        assert receiver.facts["is_connected"] is False


async def test_the_source_says_why_its_own_certificate_is_refused(pair: Pair, authority: Authority) -> None:
    """With TLS 1.3 it learns that after its handshake: that is no connection."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        foreign = Authority(pair.directory / "other")
        tls = foreign.install(pair.primary)
        (tls / "ca.pem").write_bytes((authority.ca / "ca.pem").read_bytes())
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, **TLS)
        await wait_until_async(lambda: source.log.events("connection refused"))
        event = source.log.events("connection refused")[0]
        assert (event["reason"], event["code"]) == ("CERTIFICATE_REFUSED", "NOT_AUTHENTICATED")
        assert "unknown ca" in event["error"]
        assert source.facts["state"] == "waiting for a connection"
        assert (await refused(receiver))[0] == "CERTIFICATE_UNTRUSTED"


@pytest.mark.parametrize("is_source_tls", [True, False])
async def test_one_side_speaks_tls_and_the_other_does_not(
    is_source_tls: bool, pair: Pair, authority: Authority
) -> None:
    del authority
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, tls__loopback=not is_source_tls, receiver__allow="east")
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary, tls__loopback=is_source_tls)
        await wait_until_async(lambda: source.log.events("connection refused"))
        reason = "TLS_NOT_EXPECTED" if is_source_tls else "PLAINTEXT"
        assert (await refused(receiver))[0] == reason
        await wait_until_async(lambda: f"127.0.0.1 was refused: {reason}" in receiver.context.text)  # of its status
        assert "tls.loopback" in str(source.facts["last_error"])


async def test_a_web_browser_at_a_plain_port_is_named(pair: Pair, links: list[str]) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        async with connected(port_of(receiver)) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await heard(stream)
        assert await refused(receiver) == ["PROTOCOL"]
        (event,) = receiver.log.events("connection refused")
        assert "not Dualsite Replicate, but a web browser" in event["error"]
        await still_serves(running, receiver, pair)
        assert len(links) == 1


@pytest.mark.parametrize(
    ("is_tls", "reason", "text"),
    [
        (False, "PROTOCOL", "not Dualsite Replicate, but a web server"),
        (True, "PLAINTEXT", "no Dualsite Replicate, such as a web server"),
    ],
)
async def test_a_web_server_at_the_peers_address_is_named(
    is_tls: bool, reason: str, text: str, pair: Pair, authority: Authority
) -> None:
    del authority

    async def web_server(stream: trio.SocketStream) -> None:
        await stream.receive_some(4096)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with servers() as running, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, web_server, 0, host="127.0.0.1"))
        pair.primary.register_peer("west", "127.0.0.1", listener.socket.getsockname()[1], replace_address=True)
        source = running.source(pair.primary, tls__loopback=is_tls)
        await wait_until_async(lambda: source.log.events("connection refused"))
        event = source.log.events("connection refused")[0]
        assert event["reason"] == reason
        assert text in event["error"]
        nursery.cancel_scope.cancel()


# What is refused at the start.


async def test_nothing_listens_without_certificate_or_sources(pair: Pair, tmp_path: Path) -> None:
    async with servers() as running:
        Authority(tmp_path).install(pair.secondary)
        with pytest.raises(ConfigurationError, match=r"receiver\.allow"):
            await running.receiver(pair.secondary, receiver__listen="0.0.0.0:0")
        (pair.secondary.path / "tls" / "key.pem").chmod(0o644)
        with pytest.raises(PermissionRefusedError, match="chmod 600"):
            await running.receiver(pair.secondary, receiver__listen="0.0.0.0:0", receiver__allow="east")
        (pair.secondary.path / "tls" / "key.pem").chmod(0o600)
        receiver = await running.receiver(pair.secondary, receiver__listen="0.0.0.0:0", receiver__allow="east")
        async with connected(port_of(receiver)) as stream:  # plain TCP, though it comes over loopback
            await stream.send_all(hello_of(pair.primary))
            await heard(stream)
        assert await refused(receiver) == ["PLAINTEXT"]


async def test_a_source_without_certificate_does_not_start_towards_another_host(pair: Pair) -> None:
    pair.primary.register_peer("west", "192.0.2.7", 7430, replace_address=True)
    async with servers() as running:
        source = running.source(pair.primary)
        error = await source.failed()
        assert isinstance(error, ConfigurationError)
        assert "192.0.2.7:7430 is not a loopback address" in str(error)


async def test_a_name_that_leads_off_loopback_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is what the machine says it is."""
    pair.primary.register_peer("west", "localhost", 7430, replace_address=True)
    real = trio.open_tcp_stream

    class Elsewhere:
        def __init__(self, socket: object) -> None:
            self._socket = socket

        def __getattr__(self, name: str) -> object:
            return getattr(self._socket, name)

        def getpeername(self) -> tuple[str, int]:
            return ("192.0.2.7", 7430)

    async with servers() as running:
        receiver = await running.receiver(pair.secondary)

        async def open_elsewhere(_host: str, _port: int) -> trio.SocketStream:
            stream = await real("127.0.0.1", port_of(receiver))
            stream.socket = Elsewhere(stream.socket)  # type: ignore[assignment]
            return stream

        monkeypatch.setattr(trio, "open_tcp_stream", open_elsewhere)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.log.events("connection refused"))
        assert "leads to 192.0.2.7, which is not a loopback" in source.log.events("connection refused")[0]["error"]


# Reload and expiry.


async def test_new_certificates_count_from_the_next_connection_on(pair: Pair, authority: Authority) -> None:
    async def shown(port: int) -> str:
        async with connected(port) as stream:
            context = client_context(authority.files("east"))
            context.load_verify_locations(authority.ca / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            tls = trio.SSLStream(stream, context)
            await tls.do_handshake()
            return str(tls.getpeercert()["serialNumber"])

    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        source = await still_serves(running, receiver, pair, **TLS)
        first = await shown(port_of(receiver))
        authority.install(pair.secondary, days=40)
        second = await shown(port_of(receiver))
        assert first != second
        assert len(receiver.log.events("certificate reloaded")) == 1
        (pair.secondary.path / "tls" / "key.pem").write_bytes(b"half of a renewal")
        assert await shown(port_of(receiver)) == second
        assert await shown(port_of(receiver)) == second
        (event,) = receiver.log.events("certificate not reloaded")
        assert "do not fit together" in event["error"]
        authority.install(pair.secondary, days=50)
        assert await shown(port_of(receiver)) not in (first, second)
        assert source.facts["state"] == "sending"
        assert len(source.log.events("connection made")) == 1


async def test_the_log_warns_before_a_certificate_ends(pair: Pair, authority: Authority) -> None:
    authority.install(pair.secondary, days=10)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        await wait_until_async(lambda: receiver.log.events("certificate expires"))
        (event,) = receiver.log.events("certificate expires")
        assert event["finding"] == "CERTIFICATE_EXPIRES"
        source = await still_serves(running, receiver, pair, tls__warn_days=31, **TLS)
        await wait_until_async(lambda: source.log.events("certificate expires"))


# Loopback: the shared key.


async def test_who_does_not_hold_the_key_is_refused(pair: Pair, links: list[str]) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__hello_timeout_s=60.0)
        key = read_key(default_path(pair.primary.content.network))
        network = pair.primary.content.network

        async def with_key(key: bytes) -> None:
            async with connected(port_of(receiver)) as stream:
                proof = Proof(Role.SOURCE, key, network, "east", os.urandom(32))
                await stream.send_all(proof.bytes_to_send())
                proof.receive(await stream.receive_some(4096))
                await stream.send_all(proof.bytes_to_send())
                assert b"KEY_WRONG" in await heard(stream)

        await with_key(b"x" * 32)
        await with_key(key[::-1])
        for first in (hello_of(pair.primary), b"GET / HTTP/1.1\r\n\r\n" * 100):
            async with connected(port_of(receiver)) as stream:
                await stream.send_all(first)
                assert len(await heard(stream)) < 4096
        assert set(await refused(receiver, 3)) == {"KEY_WRONG", "VERSION", "PROTOCOL"}
        assert links == []
        source = await still_serves(running, receiver, pair)
        await source.stop()
        await receiver.stop()
        receiver = await running.receiver(pair.secondary, receiver__hello_timeout_s=0.5)
        async with connected(port_of(receiver)) as stream:
            assert len(await heard(stream)) < 4096
        async with connected(port_of(receiver)) as stream:  # the first half of a challenge, and no more
            await stream.send_all(b"".join(pack_wire_frame(CHALLENGE_TYPE, b"\x01" + network + bytes(40)))[:30])
            await heard(stream)
        assert set(await refused(receiver)) == {"HELLO_TIMEOUT"}
        assert len(links) == 1
        await still_serves(running, receiver, pair)


async def test_the_hello_must_bear_the_proven_name(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        async with connected(port_of(receiver)) as stream:
            key = read_key(default_path(pair.primary.content.network))
            proof = Proof(Role.SOURCE, key, pair.primary.content.network, "north", os.urandom(32))
            while not proof.is_done:
                await stream.send_all(proof.bytes_to_send())
                proof.receive(await stream.receive_some(4096))
            link = SourceLink(link_settings(), introduction(pair.primary, 1.0), trio.current_time(), 0)
            await stream.send_all(b"".join(link.bytes_to_send()))
            assert b"NAME_NOT_PROVEN" in await heard(stream)


async def test_two_users_share_a_key_on_purpose(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user has another shared memory file; copies of one key in files of their own bring them together."""
    for instance, key in ((pair.primary, "one key that both have"), (pair.secondary, "one key that both have")):
        (instance.path / "loopback.key").write_text(key)
        (instance.path / "loopback.key").chmod(0o600)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        default_path(pair.primary.content.network).rename(tmp_path / "elsewhere")
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.log.events("connection refused"))
        assert source.log.events("connection refused")[0]["reason"] in ("KEY_MISSING", "KEY_WRONG")
        await source.stop()
        await receiver.stop()
        receiver = await running.receiver(pair.secondary, loopback__key_file="loopback.key")
        await still_serves(running, receiver, pair, loopback__key_file="loopback.key")


async def test_allow_counts_on_loopback_too(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__allow="north")
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: "receiver.allow names north" in str(source.facts.get("last_error")))
        assert receiver.facts["is_connected"] is False


async def test_the_key_goes_with_its_last_receiver(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        assert default_path(pair.primary.content.network).exists()
        await receiver.stop()
        assert not default_path(pair.primary.content.network).exists()


# Limits.


async def test_one_address_cannot_take_all_connections(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__listen="127.0.0.1:0", receiver__connections_per_address_max=3
        )
        streams = []
        for number in range(5):
            # Loopback has as many addresses as one likes: the last two come from another one.
            host = "127.0.0.1" if number < 4 else "127.0.0.2"
            streams.append(await trio.open_tcp_stream("127.0.0.1", port_of(receiver), local_address=host))
        await wait_until_async(lambda: receiver.log.events("closed unheard"))
        (event,) = receiver.log.events("closed unheard")
        assert (event["reason"], event["connections"]) == ("CONNECTIONS_PER_ADDRESS_MAX", 3)
        with trio.fail_after(60):
            assert await streams[0].receive_some(10) == b"", "the first one has gone for the fourth"
        for stream in streams:
            await trio.aclose_forcefully(stream)
        await still_serves(running, receiver, pair)


async def test_a_stop_does_not_wait_for_those_who_are_silent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__hello_timeout_s=600.0)
        listens = count_calls(monkeypatch, Authenticator, "source").since_now(1)
        async with connected(port_of(receiver)) as stream:
            await wait_until_async(listens, what="the receiver listens to us")
            with trio.fail_after(60):  # within 600 s it would by itself
                await receiver.stop()
            assert await heard(stream) == b"", "we were cut, and told nothing"


async def test_one_deadline_covers_tls_and_hello(pair: Pair, authority: Authority) -> None:
    """A handshake that takes its time leaves less for the hello."""
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__hello_timeout_s=4.0, receiver__dead_after_s=60.0, **TLS
        )
        for left in reversed(range(5)):  # a busy machine may be late, but not each time
            async with connected(port_of(receiver)) as stream:
                began = trio.current_time()
                await trio.sleep(2.0)  # the handshake takes its time
                tls = trio.SSLStream(stream, client_context(authority.files("east")))
                try:
                    await tls.do_handshake()
                except trio.BrokenResourceError:
                    assert left, "each time it stood still in its handshake"
                    continue
                await wait_until_async(lambda: receiver.log.events("connection made"))
                await heard(tls)
                took_s = trio.current_time() - began
                assert took_s > 3.9
                if took_s < 5.9:
                    break
        assert took_s < 5.9  # each with a deadline of its own: 6
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        assert "has not said who it is" in receiver.log.events("connection closed")[0]["error"]


async def test_a_source_that_dribbles_a_frame_is_cut(pair: Pair) -> None:
    """Fault 62's other side: bytes come, and the frame does not end. Heartbeats wait for its end: no life."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=1.0)
        async with connected(port_of(receiver)) as stream:
            await prove_to(stream, pair.primary)
            link = SourceLink(link_settings(), introduction(pair.primary, 0.2), trio.current_time(), 0)
            await stream.send_all(b"".join(link.bytes_to_send()))
            await wait_until_async(lambda: receiver.facts["is_connected"] is True)
            heartbeat = b"".join(encode(Heartbeat(1, 0, 0, 0, 0, 0)))
            began = trio.current_time()
            try:
                with trio.fail_after(90):
                    for byte in heartbeat * 20:
                        await stream.send_all(bytes((byte,)))
                        await trio.sleep(0.2)
            except trio.BrokenResourceError:
                pass
            assert trio.current_time() - began < 60  # all of it takes two minutes
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        assert "does not come to the end of a message" in receiver.log.events("connection closed")[0]["error"]
        await still_serves(running, receiver, pair)


@pytest.mark.parametrize("message_type", [1, 7, 10])
async def test_a_message_that_is_too_long_for_its_type_is_refused_from_its_head(pair: Pair, message_type: int) -> None:
    """Nine bytes are enough to say no; before the hello only a hello may come at all."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        async with connected(port_of(receiver)) as stream:
            await prove_to(stream, pair.primary)
            await stream.send_all(b"".join(pack_wire_frame(message_type, bytes(5000)))[:9])
            assert b"PROTOCOL" in await heard(stream)
        await wait_until_async(lambda: receiver.log.events("connection closed"))
        error = receiver.log.events("connection closed")[0]["error"]
        assert ("its limit is 4096" if message_type == 1 else "unknown, or not allowed yet") in error


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_peer_that_resets_at_once_ends_nobody(is_tls: bool, pair: Pair, authority: Authority) -> None:
    """Fault 54, before anything was said: neither end's daemon dies of it."""
    del authority
    settings = TLS if is_tls else {}
    resets = 0

    async def reset(stream: trio.SocketStream) -> None:
        nonlocal resets
        resets += 1
        stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(stream)

    async with servers() as running, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, reset, listeners)
        point(pair.primary, "west", listeners[0].socket.getsockname()[1])
        source = running.source(pair.primary, **settings)
        await wait_until_async(lambda: resets >= 15)
        assert source.failure is None
        receiver = await running.receiver(pair.secondary, **settings)
        for _ in range(50):
            await reset(await trio.open_tcp_stream("127.0.0.1", port_of(receiver)))
        pair.primary.register_peer("west", "127.0.0.1", port_of(receiver), replace_address=True)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        nursery.cancel_scope.cancel()
