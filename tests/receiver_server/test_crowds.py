"""Peers without end: what they say, and how many they are, fills no table, no log, no metric, and keeps no source out.

Fault 91. The tables of one connection are tested where they are (links, reader, seeds, repetitions).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio

from receiver_server.connection import SEED_EVENTS_MAX, ReceiverConnection
from receiver_server.process import ReceiverServer
from receiver_server.seed import AskedSeed, Wish
from replicate.daemon.admission import Standing
from replicate.daemon.figures import page
from replicate.daemon.own_introduction import introduction
from replicate.daemon.repeated_lines import Repetitions
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX
from replicate.transfer.seed.incoming import IncomingFile
from replicate.wire.codec import encode
from replicate.wire.event import SendingResumed, SendingStopped
from replicate.wire.introduction import PEER_SAID
from replicate.wire.message import Refuse, SeedChunk, SeedStart, UpdateState
from replicate.wire.state import State
from source_server.connection import SourceConnection
from source_server.link import SourceLink
from tests.harness.certificates import Authority, client_context
from tests.harness.frames import Writer
from tests.harness.link_pair import link_settings
from tests.harness.openings import TLS, connected, heard, hello_of, over_tls, port_of, still_serves
from tests.harness.pair import Pair
from tests.harness.servers import prove_to, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


T = TypeVar("T")


def watch(monkeypatch: pytest.MonkeyPatch, kind: type[T]) -> list[T]:
    """Those of a class that are made."""
    made: list[T] = []
    init = kind.__init__

    def watched(self: T, *args: object) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", watched)
    return made


@pytest.fixture
def receivers(monkeypatch: pytest.MonkeyPatch) -> list[ReceiverServer]:
    """The Receiver Servers that were made."""
    return watch(monkeypatch, ReceiverServer)


@pytest.fixture
def outgoing(monkeypatch: pytest.MonkeyPatch) -> list[SourceConnection]:
    """The Source Servers' connections."""
    return watch(monkeypatch, SourceConnection)


async def crowd(port: int, count: int, first: bytes = b"") -> list[trio.SocketStream]:
    """So many connections from one address that say `first`, and wait."""
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(count)]
    for stream in streams:
        try:
            await stream.send_all(first)
        except trio.BrokenResourceError:  # it had to go already
            pass
    return streams


class After(trio.abc.Stream):
    """A connection over which something happens after the first that is heard."""

    def __init__(self, stream: trio.SocketStream, happens: Callable[[object], Awaitable[None]]) -> None:
        self.stream = stream
        self.happens: Callable[[object], Awaitable[None]] | None = happens

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self.stream.receive_some(max_bytes)
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


async def wait_for_ever(_: object) -> None:
    """Of one that holds its connection."""
    await trio.sleep_forever()


@pytest.mark.parametrize("kind", ["plain", "TLS"])
async def test_slow_ones_do_not_keep_a_new_source_out(
    pair: Pair, authority: Authority, kind: str, receivers: list[ReceiverServer]
) -> None:
    """From its own address, while the slow ones would be heard for ten minutes."""
    settings = {"receiver__hello_timeout_s": 600.0, **(TLS if kind == "TLS" else {})}
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **settings)
        slow = await crowd(port_of(receiver), 200, b"\x16\x03" if kind == "TLS" else b"\x00")
        await still_serves(running, receiver, pair, **(TLS if kind == "TLS" else {}))
        (server,) = receivers
        assert server._admission.connections <= 16
        assert set(server.source.refused) == {"CONNECTIONS_PER_ADDRESS_MAX"}
        assert len(receiver.log.events("closed unheard")) == 1, "then one a period, with a count"
        for stream in slow:
            await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("kind", ["plain", "TLS"])
async def test_a_source_that_is_answered_is_not_pushed_out_by_a_crowd_from_its_own_address(
    pair: Pair, authority: Authority, kind: str
) -> None:
    """However many come before it has proven who it is: over a slow line that takes a while."""
    is_tls = kind == "TLS"
    settings = {"receiver__hello_timeout_s": 600.0, **(TLS if is_tls else {})}
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **settings)
        slow: list[trio.SocketStream] = []

        async def come(_: object) -> None:
            slow.extend(await crowd(port_of(receiver), 60, b"\x16\x03" if is_tls else b"\x00"))

        async with connected(port_of(receiver)) as stream:
            if is_tls:
                line = After(stream, come)
                with trio.fail_after(60):
                    await trio.SSLStream(line, client_context(authority.files("east"))).do_handshake()
            else:
                with trio.fail_after(60):
                    await prove_to(After(stream, come), pair.primary)
            assert len(slow) == 60
            await wait_until_async(lambda: receiver.log.events("connection made"))
        for one in slow:
            await trio.aclose_forcefully(one)


@pytest.mark.parametrize("kind", ["plain", "TLS"])
async def test_a_crowd_that_begins_as_sources_do_keeps_no_source_of_its_own_address_out(
    pair: Pair, authority: Authority, kind: str, receivers: list[ReceiverServer]
) -> None:
    """All places are taken by ones that were answered; more come before the source's first word, and before its
    second."""
    is_tls = kind == "TLS"
    settings = {"receiver__hello_timeout_s": 600.0, **(TLS if is_tls else {})}
    async with servers() as running, trio.open_nursery() as nursery:
        receiver = await running.receiver(pair.secondary, **settings)
        (server,) = receivers

        def standing(kind: Standing) -> int:
            return sum(guest.standing is kind for guest in server._admission)

        async def stop_after_the_answer(stream: trio.SocketStream) -> None:
            never = After(stream, wait_for_ever)
            if is_tls:
                await trio.SSLStream(never, client_context(authority.files("east"))).do_handshake()
            else:
                await prove_to(never, pair.primary)

        async def come(count: int) -> None:
            for stream in await crowd(port_of(receiver), count):
                nursery.start_soon(stop_after_the_answer, stream)

        await come(16)
        await wait_until_async(lambda: standing(Standing.ANSWERED) == 16)
        async with connected(port_of(receiver)) as stream:
            await wait_until_async(lambda: standing(Standing.STRANGER) == 1)
            await come(7)
            closed = server.source.refused
            await wait_until_async(lambda: closed["CONNECTIONS_PER_ADDRESS_MAX"] == 8)
            await wait_until_async(lambda: standing(Standing.ANSWERED) == 15)
            line = After(stream, lambda _: come(7))
            with trio.fail_after(60):
                if is_tls:
                    await trio.SSLStream(line, client_context(authority.files("east"))).do_handshake()
                else:
                    await prove_to(line, pair.primary)
            await wait_until_async(lambda: receiver.log.events("connection made"))
        nursery.cancel_scope.cancel()


async def test_those_that_have_proven_themselves_and_say_nothing_keep_nobody_out(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__hello_timeout_s=600.0, receiver__connections_per_address_max=4
        )
        slow = await crowd(port_of(receiver), 4)
        for stream in slow:
            await prove_to(stream, pair.primary)
        await wait_until_async(lambda: receiver.log.events("connection made"))
        await still_serves(running, receiver, pair)
        for stream in slow:
            await trio.aclose_forcefully(stream)


async def test_a_crowd_costs_the_source_that_streams_nothing(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__hello_timeout_s=600.0, receiver__connections_per_address_max=3
        )
        source = await still_serves(running, receiver, pair)
        slow = await crowd(port_of(receiver), 20)
        await wait_until_async(lambda: receiver.log.events("closed unheard"))
        last = await trio.to_thread.run_sync(lambda: pair.write(5))
        await wait_until_async(lambda: receiver.facts["last_received_seqno"] == last)
        assert len(source.log.events("connection made")) == 1
        for stream in slow:
            await trio.aclose_forcefully(stream)


async def test_reasons_are_ours_alone(pair: Pair, receivers: list[ReceiverServer]) -> None:
    """What an unproven peer says stands in the text of its line; no table, label or reason has it."""
    dice = random.Random(91)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        for number in range(100):
            code = f"{number} " + "".join(dice.choices("abcdefgh\N{SNOWMAN}", k=300))
            async with connected(port_of(receiver)) as stream:
                await stream.send_all(b"".join(encode(Refuse(code, "never mind", ((code, code),)))))
                await heard(stream)
        (server,) = receivers
        await wait_until_async(lambda: sum(server.source.refused.values()) == 100)
        assert dict(server.source.refused) == {PEER_SAID: 100}
        (line,) = receiver.log.events("connection refused")
        assert line["reason"] == PEER_SAID
        assert "0 " in line["error"]
        assert len(page("receiver", receiver.context.figures, {})) < 8192
        assert len(receiver.context.text) < 200
        await still_serves(running, receiver, pair)


async def test_a_proven_peer_invents_no_reasons_either(
    pair: Pair, authority: Authority, receivers: list[ReceiverServer]
) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        context = client_context(authority.files("east"))
        for number in range(20):
            last = b"".join(encode(Refuse(f"CODE {number}", "never mind")))
            await over_tls(port_of(receiver), context, hello_of(pair.primary) + last)
        (server,) = receivers
        await wait_until_async(lambda: sum(server.source.refused.values()) == 20)
        assert dict(server.source.refused) == {PEER_SAID: 20}
        assert len(receiver.log.events("connection closed")) == 1


async def test_strangers_from_everywhere_get_few_lines(pair: Pair, receivers: list[ReceiverServer]) -> None:
    """Loopback has as many addresses as one likes."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        count = 2 * Repetitions.REASONS_MAX
        for number in range(count):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", port_of(receiver), local_address=f"127.0.{1 + number // 250}.{1 + number % 250}"
            )
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await heard(stream)
            await trio.aclose_forcefully(stream)
        (server,) = receivers
        await wait_until_async(lambda: sum(server.source.refused.values()) == count)
        assert len(receiver.log.events("connection refused")) == Repetitions.REASONS_MAX
        await still_serves(running, receiver, pair)
        assert receiver.log.events("connection made"), "a source's lines are not among those that are kept back"


def watch_fullness(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What connections say when they are asked whether they may read on, as it comes."""
    looks: list[bool] = []
    is_full = ReceiverConnection._is_full.fget
    assert is_full is not None

    def looked(connection: ReceiverConnection) -> bool:
        looks.append(is_full(connection))
        return looks[-1]

    monkeypatch.setattr(ReceiverConnection, "_is_full", property(looked))
    return looks


async def conversation(stream: trio.SocketStream, pair: Pair, state: State) -> SourceLink:
    """A source, by hand, that has come so far."""
    await prove_to(stream, pair.primary)
    link = SourceLink(link_settings(expected_peer="west"), introduction(pair.primary, 600.0), trio.current_time(), 0)
    while link.state is not state:
        await stream.send_all(b"".join(link.bytes_to_send()))
        link.receive(await stream.receive_some(65536), trio.current_time())
    return link


async def test_a_seed_in_crumbs_waits_in_the_line_and_not_in_memory(
    pair: Pair, receivers: list[ReceiverServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window counts bytes; of one byte each, 4 million words fit it."""
    goes_on = threading.Event()
    monkeypatch.setattr(IncomingFile, "write", lambda _file, offset, data: goes_on.wait(200) and offset + len(data))
    looks = watch_fullness(monkeypatch)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=600.0)
        (server,) = receivers
        server.seeds._wish = Wish(AskedSeed(None))
        async with connected(port_of(receiver)) as stream:
            link = await conversation(stream, pair, State.SEEDING)
            connection = server.source.active
            assert connection is not None
            crumbs = 60_000
            link.start_seed(SeedStart(b"s" * 16, 0, crumbs, 9))
            words = [*link.bytes_to_send(), *(piece for n in range(crumbs) for piece in encode(SeedChunk(n, b"x")))]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, b"".join(words))
                await wait_until_async(lambda: looks[-10:] == [True] * 10, what="it does not read on")
                assert SEED_EVENTS_MAX < server.seeds.waiting(connection) < crumbs / 2
                nursery.cancel_scope.cancel()
            connection.drive.take(connection.link.bye("enough"))
            goes_on.set()
            await connection.gone.wait()
        server.seeds._wish = None


async def test_a_source_that_sends_on_through_xoff_waits_in_the_line(
    pair: Pair, receivers: list[ReceiverServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is its own word; nothing is applied, and the pool never overwrites."""
    looks = watch_fullness(monkeypatch)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__dead_after_s=600.0)
        (server,) = receivers
        async with connected(port_of(receiver)) as stream:
            link = await conversation(stream, pair, State.SEARCHING_FOR_RESTART)
            connection = server.source.active
            assert connection is not None
            assert link.restart is not None
            journal = Writer(seqno=link.restart.next_seqno - 1)
            link.start(journal.seqno + 1, 0, b"")
            link._window_bytes = 2**60

            async def send() -> None:
                for _ in range(60):
                    while pieces := link.bytes_to_send():
                        await stream.send_all(b"".join(pieces))
                    first, frames = journal.seqno + 1, [journal.insert(9, 1, bytes(200_000)) for _ in range(5)]
                    link.send_batch(FrameBatch(first, journal.seqno, len(frames), b"".join(frames)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await wait_until_async(lambda: looks[-10:] == [True] * 10, what="it does not read on")
                assert connection._waiting_bytes < connection._waiting_bytes_max + 2 * BATCH_BYTES_MAX
                nursery.cancel_scope.cancel()
            connection.drive.take(connection.link.bye("enough"))
            await connection.gone.wait()


async def test_a_receiver_that_goes_to_and_fro_fills_no_log(pair: Pair, outgoing: list[SourceConnection]) -> None:
    """XOFF and XON, applying and not, as quickly as it likes: a line of each, then one a period."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        source = await still_serves(running, receiver, pair)
        connection = outgoing[-1]
        for number in range(200):
            connection._event(SendingStopped(f"reason {number}", number))
            connection._event(SendingResumed(number))
            for state in UpdateState:
                connection.consumer._note_update_process(state)
        events = [event for _, event, _ in source.log.lines]
        assert [events.count(text) for text in ("XOFF received", "XON received")] == [1, 1]
        assert events.count("the peer applies nothing") <= 1
        assert events.count("the peer applies again") <= 1
