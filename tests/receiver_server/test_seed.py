"""What the Receiver Server tells a command that waits for a seed."""

from __future__ import annotations

import json
from typing import Any, cast

import trio
from trio.testing import MockClock

from receiver_server.seed import AskedSeed, Seeds, Wish
from replicate.errors import TryAgainError


class Settling:
    """A stream to the command; while the first line is sent, what it waits for comes."""

    def __init__(self, settle: Any) -> None:
        self.lines: list[dict[str, Any]] = []
        self._settle = settle

    async def send_all(self, data: bytes) -> None:
        self.lines += [json.loads(line) for line in data.splitlines()]
        if self._settle is not None:
            self._settle()
            self._settle = None
        await trio.lowlevel.checkpoint()


def test_what_comes_while_a_line_is_sent_is_told() -> None:
    """Else the command waits for an answer that nobody gives any more, and ends by that."""
    for error in (None, TryAgainError("no")):
        wish = Wish(AskedSeed(None))

        def settle(wish: Wish = wish, error: TryAgainError | None = error) -> None:
            wish.is_received, wish.error = error is None, error

        stream = Settling(settle)
        seeds = Seeds(cast(Any, None))
        trio.run(seeds._tell, cast(Any, stream), wish, clock=MockClock(autojump_threshold=0))
        first, last = stream.lines
        assert "state" in first
        if error is None:
            assert last == {"received": True}
        else:
            assert last["error"]["code"] == error.code
