"""A daemon's end of an order: the command hears a sign of life. (Orders that are carried out, and what is none:
tests/source_server/test_mode.py.)"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replicate.daemon import order_socket


@pytest.mark.trio
async def test_the_daemon_says_that_it_is_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush may take longer than a command waits for a word."""
    monkeypatch.setattr(order_socket, "KEEP_ALIVE_S", 0.01)
    may = trio.Event()
    words: list[bytes] = []

    async def obey(_order: str) -> dict[str, object]:
        await may.wait()
        return {"mode": "passive"}

    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order_socket.answer, theirs, obey)
        await ours.send_all(b'{"format": 1, "order": "follow"}\n')
        while len(words) < 3:
            words += (await ours.receive_some()).splitlines()
        may.set()
        while not words[-1].startswith(b'{"done"'):
            words += (await ours.receive_some()).splitlines()
    assert [bytes(one) for one in words[:3]] == [b'{"working": true}'] * 3
