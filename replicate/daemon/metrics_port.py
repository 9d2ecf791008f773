"""Serves a daemon's figures, and whether it lives and is ready, on a loopback port: /metrics, /livez, /readyz.

Guarantees: at most CONNECTIONS_MAX at once, each over in DEADLINE_S, with a request of at most 4 KiB; one more closes
the oldest, so that slow ones keep nobody out. A scraper that hangs, floods or breaks off costs the daemon nothing. A
figure that cannot be read is an answer 500 and a line in the log, never the daemon's end. A disk that does not answer
costs the figures of the disk.
Leaves to others: which daemon it is, and what its figures mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from replicate.compare.last_compare import Compared, look_at_compared
from replicate.daemon.admission import Admission, Guest
from replicate.daemon.figures import CONTENT_TYPE, Figures, Measured, no_figures, page
from replicate.daemon.http import REQUEST_BYTES_MAX, Answer, read_request, render
from replicate.journal.space import JournalSpace, journal_space
from replicate.security.tls_files import certificate_ends
from replicate.settings.table import TlsConfig

CONNECTIONS_MAX: Final = 8
DEADLINE_S: Final = 5.0
DISK_PATIENCE_S: Final = 1.0
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Watched(Struct, frozen=True):
    """What is served of a daemon. `why_not_ready` gives "" when it is ready; `labels` go with every figure."""

    figures: Figures
    why_not_ready: Callable[[], str]
    labels: Mapping[str, str]
    instance_path: Path
    cap_bytes: int
    tls: TlsConfig
    log: FilteringBoundLogger
    from_files: Figures = no_figures
    """Those that may take as long as a disk does: asked in a thread."""


class _OnDisk(Struct, frozen=True):
    """What is to be read from disks: `space` is None where it could not be."""

    space: JournalSpace | None
    certificate_ends_s: Mapping[str, float]
    compared: Compared = field(default_factory=Compared)
    more: Measured = field(default_factory=dict)


class MetricsServer:
    """Answers scrapes until it is cancelled."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._admission = Admission(CONNECTIONS_MAX, CONNECTIONS_MAX)
        self._limiter = trio.CapacityLimiter(1)
        """A disk that hangs holds one thread, however often it is asked."""
        self._is_failing = False

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve on `listeners`, which are closed in the end."""
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        with trio.move_on_after(DEADLINE_S) as scope:
            guest = self._admission.enter("", scope.cancel)
            assert isinstance(guest, Guest)  # every one of them may go
            try:
                await self._converse(stream)
            except _GONE:
                pass
            finally:
                self._admission.leave(guest)
        await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        data = b""
        while (asked := read_request(data)) is None:
            more = await stream.receive_some(REQUEST_BYTES_MAX)
            if not more:
                return
            data += more
        answer = asked if isinstance(asked, Answer) else await self._answer(asked)
        await stream.send_all(render(answer))
        await stream.send_eof()
        while await stream.receive_some(REQUEST_BYTES_MAX):
            pass  # closed with bytes unread, the kernel would reset the connection, and the answer with it

    async def _answer(self, path: str) -> Answer:
        try:
            if path == "/livez":
                return Answer(200, b"alive\n")  # the event loop has come here
            if path == "/readyz":
                why_not = self._watched.why_not_ready()
                return Answer(503, f"{why_not}\n".encode()) if why_not else Answer(200, b"ready\n")
            found = await self._look_at_disk()
            made = page(self._watched.labels["daemon"], lambda: self._figures(found), self._watched.labels)
        except Exception as error:
            if not self._is_failing:
                self._watched.log.error("figures cannot be read", path=path, exc_info=error)
            self._is_failing = True
            return Answer(500, b"the figures cannot be read; see the daemon's log\n")
        self._is_failing = False
        return Answer(200, made, CONTENT_TYPE)

    async def _look_at_disk(self) -> _OnDisk:
        with trio.move_on_after(DISK_PATIENCE_S):
            return await trio.to_thread.run_sync(self._look, abandon_on_cancel=True, limiter=self._limiter)
        return _OnDisk(None, {})

    def _look(self) -> _OnDisk:
        """In a thread: a disk may be slow."""
        watched = self._watched
        try:
            space = journal_space(watched.instance_path / "journal")
        except OSError:
            space = None
        ends = certificate_ends(watched.instance_path, watched.tls)
        compared = look_at_compared(watched.instance_path)
        certificate_ends_s = {path.name: end_s for path, (_, end_s) in ends.items()}
        return _OnDisk(space, certificate_ends_s, compared, watched.from_files())

    def _figures(self, found: _OnDisk) -> dict[str, Any]:
        watched, space, compared = self._watched, found.space, found.compared.found
        made: dict[str, Any] = {"ready": not watched.why_not_ready(), **watched.figures()}
        made["journal_cap_bytes"] = watched.cap_bytes
        if space is not None:
            made |= {
                "journal_bytes": space.bytes,
                "journal_segments": space.segments,
                "disk_free_bytes": space.disk_free_bytes,
                "disk_fill": space.disk_percent / 100,
            }
        now_s = time.time()
        made["compared_s"] = {other: max(0.0, now_s - one.wall_ns / 1e9) for other, one in compared.items()}
        made["compared_equal"] = {other: one.is_equal for other, one in compared.items()}
        made |= found.more
        made["certificate_expires_s"] = {name: end_s - now_s for name, end_s in found.certificate_ends_s.items()}
        return made
