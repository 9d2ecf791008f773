"""Serves the page: HTTP/1.1 over TCP or TLS, one request a connection, pictures pushed as server-sent events.

Guarantees: at most CONNECTIONS_MAX at once, of which STREAMS_MAX are streams; a request comes whole within REQUEST_S,
and has a head of HEAD_BYTES_MAX at most; a client that does not read for SEND_S is closed. Nothing that is sent changes
anything. A hostile client costs its own connection, and no memory is left of one that has gone.
Leaves to others: who may see it (request.py), what is shown (seeing/, picture_json.py).
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Final

import trio

from replicate.daemon.admission import Admission, Guest, Standing
from replicate.daemon.listening import Callers
from replicate.errors import PrerequisiteMissingError
from replicate.seeing.instance_view import InstanceLooker
from replicate.seeing.picture_json import POINTS, told, told_tables
from replicate.web.request import ASSETS, EVENTS, PICTURES, SECURITY_HEADERS, Asked, PageGuard, TurnedAway

if TYPE_CHECKING:
    import h11

CONNECTIONS_MAX: Final = 128
STREAMS_MAX: Final = 48
REQUEST_S: Final = 10.0
SEND_S: Final = 10.0
HEAD_BYTES_MAX: Final = 16 * 1024
READ_BYTES: Final = 16 * 1024
TICK_S: Final = 0.1
"""What was looked at is pushed within it."""
KEEP_S: Final = 5.0
"""Records of an instance are read again after so long."""
LINGER_S: Final = 1.0
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_JSON: Final = "application/json"
_PLAIN: Final = "text/plain; charset=utf-8"


def check_page() -> None:
    """PrerequisiteMissingError where h11 is not there."""
    try:
        import h11  # noqa: F401
    except ImportError as error:
        raise PrerequisiteMissingError(
            "the Python package h11, which speaks HTTP, is not installed",
            where=sys.prefix,
            do=f"Run: {sys.executable} -m pip install 'dualsite[web]' (or 'h11>=0.14'); replicate watch needs nothing",
        ) from error


class PageServer:
    """Answers until it is cancelled."""

    def __init__(
        self, lookers: Sequence[InstanceLooker], guard: PageGuard, context: ssl.SSLContext | None = None
    ) -> None:
        """`context`: of TLS; None: plain, on loopback."""
        self._lookers = lookers
        self._guard = guard
        self._context = context
        self._admission = Admission(CONNECTIONS_MAX, CONNECTIONS_MAX)
        self._assets = _assets()
        self._streams = 0
        self._changed = trio.Event()
        self._looks: list[int] = []
        self._told: dict[int, bytes] = {}
        """By the time of the curves: what was told since the last look."""
        self._records: dict[int, tuple[float, bytes]] = {}
        self._limiter = trio.CapacityLimiter(2)
        """Disks that hang hold so many threads, however often they are asked."""

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve on `listeners`, which are closed in the end. Raises what has ended a looker."""
        callers = Callers(self._admission, self._hear, lambda *_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(trio.serve_listeners, callers.connected, listeners)

    async def _look(self) -> None:
        while True:
            looks = [looker.looks for looker in self._lookers]
            if looks != self._looks:
                self._looks = looks
                self._told.clear()
                self._changed.set()
                self._changed = trio.Event()
            await trio.sleep(TICK_S)

    # One connection.

    async def _hear(self, plain: trio.SocketStream, guest: Guest, _where: str) -> None:
        stream: trio.abc.Stream = plain
        asked: Asked | TurnedAway | None = None
        try:
            with trio.move_on_after(REQUEST_S):
                has_certificate = False
                if self._context is not None:
                    stream = tls = trio.SSLStream(plain, self._context, server_side=True, https_compatible=True)
                    await tls.do_handshake()
                    has_certificate = bool(tls.getpeercert())
                asked = await self._asked(stream, has_certificate)
            if isinstance(asked, Asked) and asked.path == EVENTS and not asked.is_head:
                await self._stream(stream, asked, guest)
            elif asked is not None:
                with trio.move_on_after(SEND_S):
                    await self._answer(stream, asked)
        except _GONE:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _asked(self, stream: trio.abc.Stream, has_certificate: bool) -> Asked | TurnedAway | None:
        """What is asked for, or why it is not answered; None where the client went."""
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            request = await _request(connection, stream)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            why = "the head of the request is too long" if status == 431 else "this is no HTTP/1.1 request"
            return TurnedAway(status, why)
        if request is None:
            return None
        return self._guard.judge(request.method, request.target, request.headers, has_certificate=has_certificate)

    async def _answer(self, stream: trio.abc.Stream, asked: Asked | TurnedAway) -> None:
        status, kind, body = 200, _PLAIN, b""
        more: tuple[tuple[str, str], ...] = ()
        if isinstance(asked, TurnedAway):
            status, body, more = asked.status, f"{asked.why}\n".encode(), asked.headers
        elif asked.path in ASSETS:
            kind, body = ASSETS[asked.path][1], self._assets[asked.path]
        elif asked.path in (PICTURES, EVENTS):
            kind, body = _JSON, self._pictures(asked.past_s)
        elif asked.instance < len(self._lookers):
            kind, body = _JSON, await self._records_of(asked.instance)
        else:
            status, body = 404, b"there is no such instance\n"
        is_head = isinstance(asked, Asked) and asked.is_head
        head = _head(status, kind, (("Content-Length", str(len(body))), *more))
        await stream.send_all(head + (b"" if is_head else body))
        await _end_well(stream)

    async def _stream(self, stream: trio.abc.Stream, asked: Asked, guest: Guest) -> None:
        """Pictures as they change, until one side goes."""
        if self._streams >= STREAMS_MAX:
            with trio.move_on_after(SEND_S):
                await self._answer(stream, TurnedAway(503, "too many look already", (("Retry-After", "10"),)))
            return
        guest.standing = Standing.SERVED
        self._streams += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_wait_for_end, stream, nursery.cancel_scope)
                nursery.start_soon(self._push, stream, asked.past_s, nursery.cancel_scope)
        finally:
            self._streams -= 1

    async def _push(self, stream: trio.abc.Stream, past_s: int, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            await _send(stream, _head(200, "text/event-stream", ()) + b"retry: 1000\n\n")
            while True:
                changed = self._changed
                await _send(stream, b"event: pictures\ndata: " + self._pictures(past_s) + b"\n\n")
                await changed.wait()
        scope.cancel()

    # What is told.

    def _pictures(self, past_s: int) -> bytes:
        known = self._told.get(past_s)
        if known is None:
            pictures = [looker.view.picture(past_s=past_s, columns=POINTS) for looker in self._lookers]
            known = self._told[past_s] = told(pictures, now_us=time.time_ns() // 1000, past_s=past_s)
        return known

    async def _records_of(self, number: int) -> bytes:
        known = self._records.get(number)
        if known is not None and trio.current_time() - known[0] < KEEP_S:
            return known[1]
        view = self._lookers[number].view
        tables = await trio.to_thread.run_sync(view.records, abandon_on_cancel=True, limiter=self._limiter)
        made = told_tables(view.name, tables)
        self._records[number] = (trio.current_time(), made)
        return made


def _assets() -> Mapping[str, bytes]:
    place = resources.files("replicate.web") / "page"
    return {path: (place / name).read_bytes() for path, (name, _) in ASSETS.items()}


async def _request(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Request | None:
    """None where the client went, or sent something else first."""
    import h11

    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        data = await stream.receive_some(READ_BYTES)
        if not data:
            return None
        connection.receive_data(bytes(data))


def _head(status: int, kind: str, more: Sequence[tuple[str, str]]) -> bytes:
    import h11

    headers = [("Content-Type", kind), ("Connection", "close"), *SECURITY_HEADERS, *more]
    made = h11.Response(status_code=status, headers=[(name.encode(), value.encode()) for name, value in headers])
    return h11.Connection(h11.SERVER).send(made) or b""


async def _send(stream: trio.abc.Stream, data: bytes) -> None:
    """BrokenResourceError where the client does not take it in time."""
    with trio.move_on_after(SEND_S) as scope:
        await stream.send_all(data)
    if scope.cancelled_caught:
        raise trio.BrokenResourceError


async def _wait_for_end(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """What a client says after its request is nothing to us; that it goes ends the stream."""
    with suppress(*_GONE):
        while await stream.receive_some(READ_BYTES):
            pass
    scope.cancel()


async def _end_well(stream: trio.abc.Stream) -> None:
    """Say that this was all, and let the client read it: closed with bytes unread, the kernel would reset the
    connection, and the answer with it."""
    if isinstance(stream, trio.SocketStream):
        await stream.send_eof()
        left = READ_BYTES * 64
        with trio.move_on_after(LINGER_S):
            while left > 0 and (more := await stream.receive_some(READ_BYTES)):
                left -= len(more)
    else:
        with trio.move_on_after(LINGER_S):
            await stream.aclose()
