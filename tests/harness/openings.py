"""Openings of connections by hand: what a peer, good or bad, says before its hello, and what it hears.

Guarantees: nothing waits for ever. Leaves to others: what a receiver should make of it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from receiver_server import process
from replicate.daemon.own_introduction import introduction
from replicate.instance.instance import Instance
from replicate.wire.codec import encode
from replicate.wire.features import PROTOCOL
from replicate.wire.message import Hello
from tests.harness.pair import Pair
from tests.harness.servers import Daemon, Servers, point
from tests.harness.waiting import PATIENCE_S, wait_until_async

TLS: dict[str, object] = {"tls__loopback": True, "receiver__allow": "east"}
"""Settings of both daemons, for TLS on loopback."""


def port_of(receiver: Daemon) -> int:
    return int(receiver.facts["listen"].rpartition(":")[2])


async def heard(stream: trio.abc.ReceiveStream) -> bytes:
    """All that the other side says before it ends."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        try:
            while piece := await stream.receive_some(4096):
                data += piece
        except trio.BrokenResourceError:
            pass
    return data


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[trio.SocketStream]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def over_tls(port: int, context: ssl.SSLContext, first: bytes = b"") -> bytes:
    """Shake hands, say `first`, and hear the answer out; b"" when it does not come so far."""
    async with connected(port) as stream:
        tls = trio.SSLStream(stream, context)
        try:
            with trio.fail_after(PATIENCE_S):
                await tls.do_handshake()
                await tls.send_all(first)
        except trio.BrokenResourceError:
            return b""
        return await heard(tls)


async def refused(receiver: Daemon, count: int = 1) -> list[str]:
    """The reasons of the events, once there are `count`."""
    await wait_until_async(lambda: len(receiver.log.events("connection refused")) >= count)
    return [str(event["reason"]) for event in receiver.log.events("connection refused")]


async def still_serves(running: Servers, receiver: Daemon, pair: Pair, **settings: object) -> Daemon:
    point(pair.primary, "west", receiver)
    source = running.source(pair.primary, **settings)
    await wait_until_async(lambda: source.facts.get("state") == "sending")
    return source


def hello_of(instance: Instance) -> bytes:
    return b"".join(encode(Hello(*PROTOCOL, introduction(instance, 1.0))))


def watch_links(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The address of every peer whose bytes could reach a link of a Receiver Server, as they come."""
    made: list[str] = []

    class Watched(process.ReceiverConnection):
        def __init__(self, *given: Any) -> None:
            made.append(next(one for one in given if isinstance(one, str)))  # where it came from
            super().__init__(*given)

    monkeypatch.setattr(process, "ReceiverConnection", Watched)
    return made
