"""Every kind of stranger knocks, over real sockets: each is refused by name, and the right source never notices.

Fault 66 and I10 (trust): nothing of a peer that has not proven who it is reaches a link.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import trio

from tests.harness.certificates import Authority, client_context, foreign_context
from tests.harness.openings import TLS, connected, heard, hello_of, over_tls, port_of, refused, still_serves
from tests.harness.pair import Pair
from tests.harness.servers import servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


@dataclass
class Stranger:
    """`act` connects to the port; the receiver refuses with `reason`."""

    reason: str
    act: Callable[[int, Authority, Pair], Awaitable[object]]


async def wrong_ca(port: int, _authority: Authority, _pair: Pair) -> None:
    await over_tls(port, foreign_context("east"))


async def unknown_name(port: int, authority: Authority, _pair: Pair) -> None:
    assert b"CERTIFICATE_UNKNOWN" in await over_tls(port, client_context(authority.files("stranger")))


async def own_name(port: int, authority: Authority, _pair: Pair) -> None:
    assert b"CERTIFICATE_WRONG_ROLE" in await over_tls(port, client_context(authority.files("west")))


async def consumer_name(port: int, authority: Authority, pair: Pair) -> None:
    """One that we send to is no source of ours. It says hello at once, which is never read."""
    first = hello_of(pair.primary)
    assert b"CERTIFICATE_WRONG_ROLE" in await over_tls(port, client_context(authority.files("third")), first)


async def expired(port: int, authority: Authority, _pair: Pair) -> None:
    await over_tls(port, client_context(authority.files("east", days=1, age_days=5)))


async def not_yet_valid(port: int, authority: Authority, _pair: Pair) -> None:
    await over_tls(port, client_context(authority.files("east", days=30, age_days=-5)))


async def no_certificate(port: int, _authority: Authority, _pair: Pair) -> None:
    await over_tls(port, client_context(None))


async def tls_1_2(port: int, authority: Authority, _pair: Pair) -> None:
    context = client_context(authority.files("east"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await over_tls(port, context) == b""


async def plaintext(port: int, _authority: Authority, pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_all(hello_of(pair.primary))
        await heard(stream)


async def web_browser(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await heard(stream)


async def silent(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        assert await heard(stream) == b""


async def stops_half_way(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_all(client_hello()[:100])
        assert await heard(stream) == b""


async def ends_half_way(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_all(client_hello()[:100])
        await stream.send_eof()
        await heard(stream)


async def ends_at_once(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_eof()
        await heard(stream)


async def dribbles(port: int, _authority: Authority, _pair: Pair) -> None:
    """A byte now and then is no sign of life: one deadline over TLS and hello."""
    async with connected(port) as stream:
        with trio.fail_after(60):
            try:
                for byte in client_hello():
                    await stream.send_all(bytes((byte,)))
                    await trio.sleep(0.05)
            except trio.BrokenResourceError:
                return
    raise AssertionError("the receiver has waited for all of it")


async def rubbish_after_the_first_byte(port: int, _authority: Authority, _pair: Pair) -> None:
    async with connected(port) as stream:
        await stream.send_all(b"\x16" + bytes(8192))
        await heard(stream)


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(None).wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


STRANGERS = {
    "wrong CA": Stranger("CERTIFICATE_UNTRUSTED", wrong_ca),
    "unknown name": Stranger("CERTIFICATE_UNKNOWN", unknown_name),
    "own name": Stranger("CERTIFICATE_WRONG_ROLE", own_name),
    "wrong role": Stranger("CERTIFICATE_WRONG_ROLE", consumer_name),
    "expired": Stranger("CERTIFICATE_EXPIRED", expired),
    "not yet valid": Stranger("CERTIFICATE_NOT_YET_VALID", not_yet_valid),
    "no certificate": Stranger("CERTIFICATE_MISSING", no_certificate),
    "TLS 1.2": Stranger("TLS_VERSION", tls_1_2),
    "plaintext": Stranger("PLAINTEXT", plaintext),
    "web browser": Stranger("PLAINTEXT", web_browser),
    "silent": Stranger("HELLO_TIMEOUT", silent),
    "stops half way": Stranger("HELLO_TIMEOUT", stops_half_way),
    "dribbles": Stranger("HELLO_TIMEOUT", dribbles),
    "ends half way": Stranger("CUT", ends_half_way),
    "ends at once": Stranger("CUT", ends_at_once),
    "rubbish": Stranger("PLAINTEXT", rubbish_after_the_first_byte),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", list(STRANGERS))
async def test_a_stranger_is_refused_and_the_listener_unharmed(
    kind: str, pair: Pair, authority: Authority, links: list[str]
) -> None:
    stranger = STRANGERS[kind]
    pair.secondary.register_peer("third", "127.0.0.1", 1)
    async with servers() as running:
        patience_s = 0.5 if stranger.reason == "HELLO_TIMEOUT" else 60.0
        receiver = await running.receiver(pair.secondary, receiver__hello_timeout_s=patience_s, **TLS)
        await stranger.act(port_of(receiver), authority, pair)
        assert await refused(receiver) == [stranger.reason]
        assert links == []
        assert receiver.log.events("connection made") == []
        await still_serves(running, receiver, pair, **TLS)
        assert len(links) == 1


async def test_all_of_them_at_once_beside_a_stream(pair: Pair, authority: Authority, links: list[str]) -> None:
    """The stream that runs does not notice; nobody is accepted."""
    pair.secondary.register_peer("third", "127.0.0.1", 1)
    async with servers() as running:
        receiver = await running.receiver(
            pair.secondary, receiver__hello_timeout_s=3.0, receiver__connections_per_address_max=32, **TLS
        )
        source = await still_serves(running, receiver, pair, **TLS)
        async with trio.open_nursery() as nursery:
            for stranger in STRANGERS.values():
                nursery.start_soon(stranger.act, port_of(receiver), authority, pair)
        wanted = {stranger.reason for stranger in STRANGERS.values()}
        await wait_until_async(lambda: wanted <= {e["reason"] for e in receiver.log.events("connection refused")})
        assert len(links) == 1
        assert len(source.log.events("connection made")) == 1
        assert (source.facts["state"], receiver.facts["is_connected"]) == ("sending", True)
