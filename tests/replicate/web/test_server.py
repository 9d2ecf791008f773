"""web/server.py: answers over real sockets; hostile clients are refused, and hurt nobody."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from replicate.cli.screen import TICK_MS
from replicate.daemon.daemon import STATUS_PERIOD_S
from replicate.security.certificate import issue, make_ca
from replicate.security.identity import for_browsers, for_pages, load_identity
from replicate.security.tls_files import TlsFiles
from replicate.seeing.instance_view import InstanceLooker, InstanceView
from replicate.seeing.other_host import ElsewhereView
from replicate.seeing.page_client import PageAddress, PageClient
from replicate.seeing.picture_json import POINTS
from replicate.settings.load import Address
from replicate.web import server as module
from replicate.web.request import SECURITY_HEADERS, PageGuard
from replicate.web.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, STREAMS_MAX, PageServer
from tests.harness.certificates import Authority, client_context
from tests.harness.pair import Pair
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio

HEAD = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path)
    made.write(3)
    return made


class Served:
    """A page that is served."""

    def __init__(self, port: int, server: PageServer) -> None:
        self.port = port
        self.server = server

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> bytes:
        """Everything that comes until the end."""
        stream = await self.connect()
        async with stream:
            await stream.send_all(request)
            return await read_all(stream)

    async def get(self, path: str) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        answer = await self.ask(HEAD % path.encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head, body


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    try:
        while more := await stream.receive_some(65536):
            data += more
    except trio.BrokenResourceError:
        pass
    return data


async def read_until(stream: trio.abc.ReceiveStream, wanted: bytes) -> bytes:
    data = b""
    with trio.fail_after(60):
        while wanted not in data:
            data += await stream.receive_some(65536)
    return data


@asynccontextmanager
async def served(
    pair: Pair, guard: PageGuard | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Served]:
    lookers = [InstanceLooker(InstanceView(str(one.path))) for one in (pair.primary, pair.secondary)]
    await wait_until_async(lambda: all(looker.looks for looker in lookers))
    server = PageServer(lookers, guard or PageGuard({"localhost"}), context)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, listeners)
        try:
            yield Served(listeners[0].socket.getsockname()[1], server)
        finally:
            nursery.cancel_scope.cancel()
    for looker in lookers:
        looker.close()


async def test_every_answer_bears_the_headers_that_keep_it_safe(pair: Pair) -> None:
    async with served(pair) as page:
        for path, kind in (
            ("/", b"text/html"),
            ("/page.css", b"text/css"),
            ("/page.js", b"text/javascript"),
            ("/pictures", b"application/json"),
            ("/records?instance=1", b"application/json"),
            ("/nowhere", b"text/plain"),
        ):
            status, head, body = await page.get(path)
            assert status == (404 if path == "/nowhere" else 200)
            assert b"Content-Type: " + kind in head
            assert body
            for name, value in SECURITY_HEADERS:
                assert f"{name}: {value}".encode() in head
        status, head, body = await page.get("/records?instance=9")
        assert (status, body) == (404, b"there is no such instance\n")


async def test_pictures_are_those_of_the_status(pair: Pair) -> None:
    async with served(pair) as page:
        _, _, body = await page.get("/pictures?past=300")
        told = json.loads(body)
        assert [one["name"] for one in told["instances"]] == ["east", "west"]
        assert told["instances"][0]["rows"][0]["ways"][0]["seqno"] == pair.last_seqno()
        head = await page.ask(b"HEAD /pictures HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert head.endswith(b"\r\n\r\n")


async def test_pictures_are_pushed_as_they_change(pair: Pair) -> None:
    async with served(pair) as page, await page.connect() as stream:
        await stream.send_all(HEAD % b"/events")
        first = await read_until(stream, b"event: pictures\n")
        assert b"Content-Type: text/event-stream" in first
        last = await trio.to_thread.run_sync(pair.write, 5)
        await read_until(stream, f'"seqno":{last},'.encode())
        assert page.server._streams == 1
        await stream.aclose()
        await wait_until_async(lambda: page.server._streams == 0, what="who has gone is forgotten")
        assert page.server._admission.connections == 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd", b"400"),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 9999 + b"\r\n", b"431"),
    ],
    ids=["host", "no-host", "path", "body", "method", "tls", "header-1-MiB", "target-1-MiB", "9999-headers"],
)
async def test_a_hostile_request_is_refused_and_the_next_one_answered(
    pair: Pair, request_bytes: bytes, status: bytes
) -> None:
    async with served(pair) as page:
        stream = await page.connect()
        async with stream, trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await stream.send_all(request_bytes)
                except trio.BrokenResourceError:
                    pass  # it was refused before its end

            nursery.start_soon(send)
            answer = await read_all(stream)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"evil" not in answer
            assert b"passwd" not in answer
            nursery.cancel_scope.cancel()
        assert (await page.get("/"))[0] == 200


async def test_slow_clients_are_closed_and_keep_nobody_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 1.0)
    async with served(pair) as page:
        slow = [await page.connect() for _ in range(2 * CONNECTIONS_MAX)]
        for stream in slow[-CONNECTIONS_MAX:]:
            try:
                await stream.send_all(b"GET / HT")
            except trio.BrokenResourceError:
                pass
        assert (await page.get("/"))[0] == 200
        assert page.server._admission.connections <= CONNECTIONS_MAX
        await wait_until_async(lambda: page.server._admission.connections == 0, what="the slow ones are closed")
        for stream in slow:
            await trio.aclose_forcefully(stream)


async def test_a_client_that_does_not_read_is_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_S", 0.5)
    monkeypatch.setattr(PageServer, "_pictures", lambda _self, _past_s: b"x" * (8 << 20))
    async with served(pair) as page, await page.connect() as stream:
        await stream.send_all(HEAD % b"/events")
        await wait_until_async(lambda: page.server._streams == 1)
        await wait_until_async(lambda: page.server._streams == 0, what="it is closed")


async def test_there_are_no_more_streams_than_may_be(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    async with served(pair) as page:
        streams = [await page.connect() for _ in range(2)]
        for stream in streams:
            await stream.send_all(HEAD % b"/events")
            await read_until(stream, b"event: pictures\n")
        assert (await page.get("/events"))[0] == 503
        assert (await page.get("/pictures"))[0] == 200
        for stream in streams:
            await stream.aclose()
        await wait_until_async(lambda: page.server._streams == 0)
    assert STREAMS_MAX < CONNECTIONS_MAX
    assert HEAD_BYTES_MAX < 1 << 20


async def test_elsewhere_it_is_tls_for_those_with_a_certificate_or_the_token(pair: Pair, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.install(pair.primary)
    identity = load_identity(TlsFiles.of(pair.primary.path, pair.primary.config.tls), "east")
    guard = PageGuard({"localhost"}, "t" * 20, wants_certificate=True)
    async with served(pair, guard, for_browsers(identity)) as page:

        async def ask(files: Path | None, more: bytes = b"") -> bytes:
            plain = await page.connect()
            tls = trio.SSLStream(plain, client_context(files), server_hostname="localhost", https_compatible=True)
            async with tls:
                await tls.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
                return await read_all(tls)

        assert (await ask(None)).startswith(b"HTTP/1.1 401")
        assert b'WWW-Authenticate: Basic realm="replicate web"' in await ask(None)
        assert (await ask(authority.files("west"))).startswith(b"HTTP/1.1 200")
        assert (await ask(None, b"Authorization: Bearer " + b"t" * 20 + b"\r\n")).startswith(b"HTTP/1.1 200")
        plain = await page.connect()  # not TLS
        async with plain:
            await plain.send_all(HEAD % b"/")
            assert b"HTTP" not in await read_all(plain)


async def test_a_page_of_another_host_shows_the_same(pair: Pair, tmp_path: Path) -> None:
    certificates = tmp_path / "certificates"
    make_ca(certificates, name="CA", days=30, now_s=time.time() - 60)
    for one, hosts in ((pair.primary, ["localhost"]), (pair.secondary, [])):
        issue(one.name, ca=certificates, out=one.path / "tls", hosts=hosts, days=30, now_s=time.time() - 30)
    east, west = (
        load_identity(TlsFiles.of(one.path, one.config.tls), one.name) for one in (pair.primary, pair.secondary)
    )
    guard = PageGuard({"localhost"}, wants_certificate=True)
    async with served(pair, guard, for_browsers(east)) as page:
        address = PageAddress(Address("localhost", page.port), True, "east")
        view = ElsewhereView(PageClient(address, lambda: for_pages(west)), past_s=60)
        await trio.to_thread.run_sync(view.look)
        with open_looker(view, pair.primary.path) as (elsewhere, own):
            await wait_until_async(lambda: own.looks and elsewhere.looks)
            there, here = own.view.picture(past_s=60, columns=POINTS), view.picture(past_s=60)
            assert not here.error
            assert here.path == f"https://localhost:{page.port}: {there.path}"
            assert (here.rows, here.findings, here.role) == (there.rows, there.findings, there.role)
            assert [one.key for one in here.curves] == [one.key for one in there.curves]
            tables = await trio.to_thread.run_sync(view.records)
            assert tables == own.view.records()
        stranger = ElsewhereView(PageClient(address, lambda: for_pages(pair.primary.path / "tls" / "ca.pem")))
        await trio.to_thread.run_sync(stranger.look)
        assert "it asks for a token, or a certificate of its CA" in stranger.picture(past_s=60).error
    await trio.to_thread.run_sync(view.look)
    assert view.picture(past_s=60).error.startswith("not reached since")


@contextmanager
def open_looker(view: ElsewhereView, path: Path) -> Iterator[list[InstanceLooker]]:
    """What looks there, and what looks here."""
    lookers = [InstanceLooker(view), InstanceLooker(InstanceView(str(path)))]
    try:
        yield lookers
    finally:
        for looker in lookers:
            looker.close()


async def test_what_happens_is_pushed_within_two_seconds() -> None:
    """By the periods of those who write, look, push and draw; how long it takes, tests/benchmarks/bench_seeing.py
    measures."""
    seen_s = STATUS_PERIOD_S + InstanceView.period_s
    assert seen_s + module.TICK_S < 2
    assert seen_s + module.TICK_S + ElsewhereView.period_s + module.TICK_S < 2
    assert seen_s + module.TICK_S + ElsewhereView.period_s + TICK_MS / 1000 < 2


async def test_reloads_leave_nothing_behind(pair: Pair) -> None:
    async with served(pair) as page:
        for _ in range(100):
            stream = await page.connect()
            await stream.send_all(HEAD % b"/events")
            await stream.receive_some(10)
            await stream.aclose()
            await page.get("/")
        await wait_until_async(lambda: (page.server._streams, page.server._admission.connections) == (0, 0))
        assert len(page.server._told) <= 1
