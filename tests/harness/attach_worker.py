"""A player of a differential test with ATTACH in a process of its own: it runs statements as they are told, or all of
its transactions by itself, beside other processes that do the same.

Guarantees, and leaves to others: as tests/harness/attach_sides.py. As a program: serves requests, pickled, on the
standard streams.
"""

from __future__ import annotations

import os
from typing import Any

from tests.harness.attach_sides import Player, Side
from tests.harness.conversation import serve


class _Served:
    def __init__(self) -> None:
        self._side: Side | None = None
        self._number = 0

    def answer(self, request: str, argument: Any) -> Any:
        """One request."""
        side = self._side
        if request == "open":
            self._number, seat, instance, regions, paths, timeout_s, shm = argument
            os.environ["REPLICATE_SHM_DIR"] = shm
            self._side = seat.ours(instance, regions, paths, timeout_s)
            return None
        if side is None:
            raise AssertionError("nothing is open")
        if request == "run":
            return side.run(argument)
        if request == "last seqno":
            return side.connection.last_seqno
        if request == "play":
            player = Player(self._number, argument, side.run, lambda: int(side.connection.last_seqno))
            while not player.is_done:
                player.step()
            return player.committed, player.again, player.refused
        side.close()
        self._side = None
        return None


if __name__ == "__main__":
    serve(_Served().answer)
