"""A page that answers whatever a test gives: plain bytes from a thread, as no real page would.

Guarantees: it ends with the `with` block. Leaves to others: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def answer(body: bytes, *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """An answer of HTTP/1.1 with that body."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body


class RawPage:
    """What is answered, and what was asked."""

    def __init__(self, answers: bytes | None) -> None:
        self.answers = answers
        """None: it hears, and says nothing."""
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one = self._listener.accept()[0]
                self.asked.append(one.recv(65536))
                if self.answers is None:
                    self._held.append(one)
                    continue
                with one, contextlib.suppress(OSError):
                    one.sendall(self.answers)

    def close(self) -> None:
        """Nobody is answered any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for one in (self._listener, *self._held):
            one.close()


@contextmanager
def raw_page(answers: bytes | None) -> Iterator[RawPage]:
    made = RawPage(answers)
    try:
        yield made
    finally:
        made.close()
