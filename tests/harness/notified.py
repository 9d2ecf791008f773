"""The socket of a service manager that a daemon tells how it stands: all that is told, as it comes.

Guarantees: no word is lost: it is taken off the socket at once, which holds ten datagrams, and a daemon does not wait
for room. `close` leaves no thread and no socket. Leaves to others: what daemons say, and who starts them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from tests.harness.waiting import wait_until


class Notified:
    """Bound to a path, for NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        """All words so far, or since a test has cleared it."""
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while word := self._socket.recv(4096):
                self.heard.append(word.decode())

    def hear(self, what: str) -> None:
        """Wait until a word has that in it; AssertionError where none comes."""
        wait_until(lambda: any(what in word for word in tuple(self.heard)), what=f"{what} is told")

    def close(self) -> None:
        """End the thread by an empty word, and close the socket."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
            self._reading.join(60)
        self._socket.close()
