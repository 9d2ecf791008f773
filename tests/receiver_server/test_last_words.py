"""A source whose last word comes in the same bytes as its hello: the connection ends, and nothing else does.

A source that is started and ended by a failing disk at once says both before the receiver has read anything; found by
a fault campaign (tests/faults/io_servers.py), in which the Receiver Server ended as INTERNAL.
"""

from __future__ import annotations

import pytest

from replicate.wire.codec import encode
from replicate.wire.message import Bye, HeartbeatReply, Refuse, RefuseCode
from tests.harness.certificates import Authority, client_context
from tests.harness.openings import TLS, hello_of, over_tls, port_of, still_serves
from tests.harness.pair import Pair
from tests.harness.servers import servers

pytestmark = pytest.mark.trio

LAST_WORDS = {
    "bye": encode(Bye("the Source Server was stopped")),
    "refusal": encode(Refuse(RefuseCode.PROTOCOL, "never mind")),
    "out of turn": encode(HeartbeatReply(0, 0, 0, 0, 0, 0, 0, 0, 0)),
    "no message": [b"\xff" * 64],
}


async def test_a_last_word_that_comes_with_the_hello(pair: Pair, authority: Authority) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, **TLS)
        context = client_context(authority.files("east"))
        for last in LAST_WORDS.values():
            await over_tls(port_of(receiver), context, hello_of(pair.primary) + b"".join(last))
        assert len(receiver.log.events("connection closed")) >= 3, "a line for each reason"
        assert not receiver.log.events("source introduced")
        await still_serves(running, receiver, pair, **TLS)
