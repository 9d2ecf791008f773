"""tls.py: a record whose length was changed on its way to another possible one is named, not taken for silence."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from replicate.errors import ConfigurationError, NotAuthenticatedError, PeerUnreachableError, ProtocolViolationError
from replicate.security.authenticate import Authenticated
from replicate.security.certificate import Described
from replicate.security.identity import Identity
from replicate.security.tls import RECORD_PROGRESS_S, Records, TlsStream, handshake, require_identity
from replicate.security.tls_files import TlsFiles
from replicate.settings.load import Address, Config
from replicate.wire.event import Closed, CloseReason
from tests.harness.certificates import Authority, client_context

BEAT_S = 15.0
BEAT = b"a heartbeat"


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


class Wire(trio.abc.Stream):
    """The peer's end of the TCP connection. Once `is_flipping`, its next record says that it is 16 KiB long."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.is_flipping = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        if self.is_flipping:
            self.is_flipping = False
            data = data[:3] + b"\x40" + data[4:]
        await self._stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def connected(directory: Path) -> tuple[TlsStream, trio.SSLStream[Wire], Wire]:
    """Our end, the peer's end, and the wire between."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0
    files = Authority(directory).files("one")
    server.load_cert_chain(files / "certificate.pem", files / "key.pem")
    ours, theirs = trio.testing.memory_stream_pair()
    wire, records = Wire(theirs), Records(ours)
    peer = trio.SSLStream(wire, server, server_side=True)
    stream = TlsStream(ours, records, trio.SSLStream(records, client_context(None)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.do_handshake)
        nursery.start_soon(stream.tls.do_handshake)
    return stream, peer, wire


async def beats(peer: trio.SSLStream[Wire]) -> None:
    with trio.move_on_after(600):
        while True:
            await trio.sleep(BEAT_S)
            await peer.send_all(BEAT)


def test_fault_61_a_record_that_does_not_come_to_its_end_is_named_and_ends_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        stream, peer, wire = await connected(tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beats, peer)
            assert await stream.receive_some(100) == BEAT
            wire.is_flipping = True
            began_s = trio.current_time()
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(100)
            assert RECORD_PROGRESS_S < trio.current_time() - began_s < RECORD_PROGRESS_S + 2 * BEAT_S
            nursery.cancel_scope.cancel()
        lost = Closed(CloseReason.CONNECTION_LOST, PeerUnreachableError("the connection was lost"))
        judged = Authenticated(stream, frozenset()).judged(lost)
        assert judged.reason is CloseReason.WE_REFUSED
        assert isinstance(judged.error, ProtocolViolationError)
        assert "has not come to its end" in str(judged.error)

    run(test)


@pytest.mark.parametrize("arriving", [True, False], ids=["bytes go on arriving", "silence"])
def test_a_peer_that_the_link_takes_for_dead_was_not_silent_while_its_bytes_arrive(
    tmp_path: Path, arriving: bool
) -> None:
    async def test() -> None:
        stream, peer, wire = await connected(tmp_path)
        dead = Closed(CloseReason.PEER_DEAD, PeerUnreachableError("the peer has been silent"))
        assert Authenticated(stream, frozenset()).judged(dead) is dead
        wire.is_flipping = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some, 100)
            await peer.send_all(BEAT)
            for _ in range(2):
                await trio.sleep(10)
                if arriving:
                    await peer.send_all(BEAT)
            await trio.testing.wait_all_tasks_blocked()
            judged = Authenticated(stream, frozenset()).judged(dead)
            nursery.cancel_scope.cancel()
        assert (judged.reason is CloseReason.WE_REFUSED) is arriving
        assert arriving or judged is dead

    run(test)


def test_a_record_that_arrives_in_pieces_around_an_outage_is_whole(tmp_path: Path) -> None:
    async def test() -> None:
        stream, peer, wire = await connected(tmp_path)
        data = bytearray()

        async def keep(piece: bytes | bytearray | memoryview) -> None:
            data.extend(piece)

        carry = wire.send_all
        wire.send_all = keep  # type: ignore[method-assign]
        await peer.send_all(BEAT)

        async def send_in_pieces() -> None:
            for pause_s, begin, end in ((0, 0, 7), (30, 7, 12), (1, 12, len(data))):
                await trio.sleep(pause_s)
                await carry(bytes(data[begin:end]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_in_pieces)
            assert await stream.receive_some(100) == BEAT

    run(test)


@pytest.mark.trio
@pytest.mark.parametrize("ended", [ssl.SSLEOFError(8, "EOF occurred"), ssl.SSLZeroReturnError(6, "closed (EOF)")])
async def test_a_connection_that_ends_amid_tls_is_cut_however_the_interpreter_calls_it(
    ended: ssl.SSLError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(*_: object) -> None:
        raise trio.BrokenResourceError from ended

    context = client_context(None)
    identity = Identity(context, context, cast("Described", None))
    ours, theirs = trio.socket.socketpair()
    stream = trio.SocketStream(ours)
    monkeypatch.setattr(trio.SSLStream, "do_handshake", ends)
    theirs.close()
    with pytest.raises(NotAuthenticatedError) as caught:
        await handshake(stream, identity, is_server=False)
    assert caught.value.facts["reason"] == "CUT"
    await trio.aclose_forcefully(stream)

    monkeypatch.setattr(trio.SSLStream, "receive_some", ends)
    tls = TlsStream(stream, Records(stream), trio.SSLStream(Records(stream), context))
    with pytest.raises(trio.BrokenResourceError):
        await tls.receive_some()
    assert tls.damage is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (Address("192.0.2.2", 7430), "192.0.2.2:7430 is not a loopback address, and plain TCP does not leave"),
        (Address("127.0.0.1", 7430), "tls.loopback is set, so that 127.0.0.1:7430 is for TLS: "),
    ],
)
def test_why_certificates_are_needed_is_said_of_loopback_as_well(tmp_path: Path, address: Address, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        require_identity(TlsFiles.of(tmp_path, Config().tls), "east", where="here", wanted_for=address)
