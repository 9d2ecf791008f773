"""seeing/page_client.py: addresses of pages; what is answered, and every way in which a page is not one."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.errors import (
    ConfigurationError,
    NotAuthenticatedError,
    PeerRefusedError,
    PeerUnreachableError,
    ReplicateError,
)
from replicate.security.certificate import issue
from replicate.security.identity import for_pages, load_identity
from replicate.security.tls_files import TlsFiles
from replicate.seeing import page_client as module
from replicate.seeing.page_client import ANSWER_BYTES_MAX, PageAddress, PageClient, is_page
from replicate.settings.load import Address
from tests.harness.certificates import Authority
from tests.harness.raw_page import answer, raw_page


def parsed(text: str) -> PageAddress:
    return PageAddress.parse(text, where="-i")


def test_an_address_names_a_page_and_perhaps_an_instance() -> None:
    assert parsed("https://db2.example.org#west") == PageAddress(Address("db2.example.org", 7480), True, "west")
    assert parsed("https://[fd00::1]:99/") == PageAddress(Address("fd00::1", 99), True)
    assert parsed("http://127.0.0.1:7481/#west") == PageAddress(Address("127.0.0.1", 7481), False, "west")
    assert parsed("https://[fd00::1]:99/#x").url == "https://[fd00::1]:99"
    assert is_page("https://x")
    assert not is_page("https")
    assert not is_page("/srv/http://x")


@pytest.mark.parametrize(
    "wrong",
    [
        "https://",
        "https://x:0",
        "https://x:99999",
        "https://x/y",
        "https://x?y",
        "https://u:p@x",
        "https://x#",
        "https://x y",
    ],
)
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address of a page"):
        parsed(wrong)


def test_in_the_clear_only_on_loopback() -> None:
    with pytest.raises(ConfigurationError, match=r"Use https://db2:7480; or have ssh carry it: ssh -L") as caught:
        parsed("http://db2#west")
    assert caught.value.where == "-i"


def client(url: str, token: str = "") -> PageClient:
    return PageClient(parsed(url), None, token)


def test_it_asks_as_a_page_wants_it() -> None:
    with raw_page(answer(b"{}")) as page:
        assert client(page.url, "t" * 20).get("/pictures?past=60") == b"{}"
        head = page.asked[0].decode().split("\r\n")
        assert head[0] == "GET /pictures?past=60 HTTP/1.1"
        assert f"Host: 127.0.0.1:{page.port}" in head
        assert f"Authorization: Bearer {'t' * 20}" in head
        client(page.url).get("/")
        assert b"Authorization" not in page.asked[1]


@pytest.mark.parametrize(
    ("said", "error", "what"),
    [
        (answer(b"x", status="401 No"), NotAuthenticatedError, "--pages-token-file FILE"),
        (answer(b"x", status="421 No"), PeerRefusedError, "There: replicate web --host 127.0.0.1"),
        (answer(b"x", status="404 No"), PeerRefusedError, "it answers 404"),
        (answer(b"x", status="302 No", more="Location: http://127.0.0.1:1/\r\n"), PeerRefusedError, "it answers 302"),
        (answer(b"x", kind="text/html"), PeerRefusedError, "it is no page of replicate web"),
        (answer(b"{}")[:-1], PeerRefusedError, "no whole HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n", PeerRefusedError, "no whole HTTP"),
        (b"", PeerRefusedError, "no whole HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, PeerRefusedError, "no whole HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", PeerRefusedError, "no whole HTTP"),
        (answer(b" " * ANSWER_BYTES_MAX), PeerRefusedError, "more than 8388608 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_page_is_one_error(said: bytes, error: type[ReplicateError], what: str) -> None:
    with raw_page(said) as page:
        with pytest.raises(error, match=what) as caught:
            client(page.url).get("/pictures")
        assert caught.value.where == page.url
        assert caught.value.do
        assert len(page.asked) == 1


def test_one_that_says_nothing_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.2)
    with raw_page(None) as page, pytest.raises(PeerUnreachableError, match="no answer within"):
        client(page.url).get("/pictures")


def test_one_that_says_a_byte_now_and_then_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.3)
    ours, theirs = socket.socketpair()
    is_over = threading.Event()

    def drip() -> None:
        while not is_over.wait(0.01):
            theirs.send(b"H")

    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: ours)
    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises(PeerUnreachableError, match="no answer within"):
            client("http://127.0.0.1:1").get("/pictures")
    finally:
        is_over.set()
        dripping.join()
        theirs.close()


def test_nobody_there_and_no_such_host_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_page(b"") as page:
        url = page.url
    with pytest.raises(PeerUnreachableError, match="Connection refused"):
        client(url).get("/")

    def unknown(*_: object, **__: object) -> socket.socket:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(PeerUnreachableError, match="nobody is reached: Name or service not known"):
        client("http://localhost:1").get("/")


# TLS.


class TlsPage:
    """One connection after another, each answered."""

    def __init__(self, files: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files / "certificate.pem", files / "key.pem")
        self.context.load_verify_locations(files / "ca.pem")
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.names: list[object] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        try:
            while True:
                plain, _ = self.listener.accept()
                try:
                    with self.context.wrap_socket(plain, server_side=True) as one:
                        self.names.append(one.getpeercert())
                        one.recv(65536)
                        one.sendall(answer(b"{}"))
                except ssl.SSLError:
                    plain.close()
        except OSError:
            pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def issued(authority: Authority, name: str, *hosts: str) -> Path:
    out = authority.directory / f"of-{name}"
    issue(name, ca=authority.ca, out=out, hosts=hosts, days=30, now_s=time.time() - 86_400)
    return out


def asked(port: int, host: str, context: Callable[[], ssl.SSLContext]) -> bytes:
    return PageClient(PageAddress(Address(host, port), True), context).get("/pictures")


def test_by_tls_the_certificate_has_to_be_of_the_ca_and_bear_the_name(authority: Authority, tmp_path: Path) -> None:
    page = TlsPage(issued(authority, "east", "localhost"))
    try:
        own = issued(authority, "west")
        files = TlsFiles(own / "ca.pem", own / "certificate.pem", own / "key.pem")
        assert asked(page.port, "localhost", lambda: for_pages(load_identity(files, "west"))) == b"{}"
        assert page.names[-1]
        assert asked(page.port, "localhost", lambda: for_pages(own / "ca.pem")) == b"{}"
        assert not page.names[-1]
        with pytest.raises(NotAuthenticatedError, match=r"not taken: .*127\.0\.0\.1.*--pages-ca FILE"):
            asked(page.port, "127.0.0.1", lambda: for_pages(own / "ca.pem"))
        other = Authority(tmp_path / "other")
        with pytest.raises(NotAuthenticatedError, match="its certificate is not taken"):
            asked(page.port, "localhost", lambda: for_pages(other.files("west") / "ca.pem"))
    finally:
        page.listener.close()


def test_a_page_in_the_clear_is_not_taken_for_one_of_tls(authority: Authority) -> None:
    ca = authority.files("west") / "ca.pem"
    with raw_page(answer(b"{}")) as page, pytest.raises(NotAuthenticatedError, match="TLS fails"):
        asked(page.port, "localhost", lambda: for_pages(ca))
