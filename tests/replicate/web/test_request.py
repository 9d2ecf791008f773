"""web/request.py: what is answered, and every way to be turned away."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as some

from replicate.web.request import ASSETS, PATHS, Asked, PageGuard, TurnedAway

TOKEN = "0123456789abcdef0123456789abcdef"
LOOPBACK = PageGuard({"localhost", "127.0.0.1", "[::1]"})
HOST = (b"host", b"127.0.0.1:7480")


def judged(*headers: tuple[bytes, bytes], target: bytes = b"/", method: bytes = b"GET", guard: PageGuard = LOOPBACK,
           has_certificate: bool = False) -> Asked | int:  # fmt: skip
    found = guard.judge(method, target, headers, has_certificate=has_certificate)
    return found.status if isinstance(found, TurnedAway) else found


def test_each_path_is_answered() -> None:
    for path in PATHS:
        assert judged(HOST, target=path.encode()) == Asked(path)
    assert judged(HOST, target=b"/events?past=3600") == Asked("/events", past_s=3600)
    assert judged(HOST, target=b"/records?instance=2") == Asked("/records", instance=2)
    assert judged(HOST, method=b"HEAD") == Asked("/", is_head=True)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/../../etc/passwd", 404), (b"//etc/passwd", 404), (b"/page.css/..", 404), (b"/%2e%2e/x", 404),
        (b"http://127.0.0.1/", 404), (b"*", 404), (b"/page.js\x00", 404), (b"/PAGE.JS", 404), (b"/\xff", 404),
        (b"/events?past=7", 400), (b"/events?past=soon", 400), (b"/events?past=9" + b"9" * 5000, 400),
        (b"/records?instance=-1", 400), (b"/?x=1", 400), (b"/?" + b"a=1&" * 100, 400),
    ],
)  # fmt: skip
def test_another_path_or_question_is_not(target: bytes, status: int) -> None:
    assert judged(HOST, target=target) == status


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([b"localhost"], 200), ([b"LOCALHOST:7480"], 200), ([b"[::1]:7480"], 200),
        ([], 421), ([b"localhost", b"localhost"], 421), ([b"evil.example"], 421), ([b"127.0.0.1.evil.example"], 421),
        ([b"localhost@evil.example"], 421), ([b"localhost:7480:7480"], 421), ([b"\xff"], 421), ([b""], 421),
    ],
)  # fmt: skip
def test_another_host_is_not(hosts: list[bytes], status: int) -> None:
    found = judged(*((b"host", host) for host in hosts))
    assert (200 if isinstance(found, Asked) else found) == status


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE", b"get"])
def test_nothing_can_be_changed(method: bytes) -> None:
    assert judged(HOST, method=method) == 405


def test_a_request_has_no_body() -> None:
    assert judged(HOST, (b"content-length", b"5")) == 400
    assert judged(HOST, (b"content-length", b"0")) == Asked("/")
    assert judged(HOST, (b"transfer-encoding", b"chunked")) == 400


def basic(password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"me:{password}".encode())


@pytest.mark.parametrize(
    ("authorization", "is_let_in"),
    [
        ([basic(TOKEN)], True), ([b"bearer " + TOKEN.encode()], True),
        ([], False), ([basic("x")], False), ([basic("")], False), ([b"Basic !!!"], False), ([b"Basic"], False),
        ([b"Bearer "], False), ([b"Digest " + TOKEN.encode()], False), ([basic(TOKEN), basic(TOKEN)], False),
    ],
)  # fmt: skip
def test_a_token_lets_in(authorization: list[bytes], is_let_in: bool) -> None:
    guard = PageGuard({"h"}, TOKEN, wants_certificate=True)
    found = judged((b"host", b"h"), *((b"authorization", one) for one in authorization), guard=guard)
    assert found == (Asked("/") if is_let_in else 401)


def test_a_certificate_lets_in_and_without_a_token_nothing_else_does() -> None:
    guard = PageGuard({"h"}, wants_certificate=True)
    assert judged((b"host", b"h"), guard=guard, has_certificate=True) == Asked("/")
    for one in (b"", b"Bearer ", basic("")):
        assert judged((b"host", b"h"), (b"authorization", one), guard=guard) == 401


def test_who_is_not_let_in_learns_of_no_path() -> None:
    guard = PageGuard({"h"}, TOKEN)
    assert judged((b"host", b"h"), guard=guard, target=b"/nowhere") == 401
    assert judged((b"host", b"h"), guard=guard, method=b"POST") == 401


@given(some.binary(max_size=60), some.binary(max_size=60), some.binary(max_size=60))
def test_no_bytes_raise(target: bytes, host: bytes, authorization: bytes) -> None:
    guard = PageGuard({"localhost"}, TOKEN)
    found = guard.judge(b"GET", target, [(b"host", host), (b"authorization", authorization)])
    assert isinstance(found, TurnedAway)
    assert target.decode("latin-1") not in found.why or not target.strip() or target in found.why.encode()


def test_the_files_of_the_page_ask_no_other_host() -> None:
    from importlib import resources

    for name, _ in ASSETS.values():
        text = (resources.files("replicate.web") / "page" / name).read_text(encoding="utf-8")
        assert not [word for word in text.split() if "://" in word and "http://www.w3.org/2000/svg" not in word]
        assert "innerHTML" not in text
        assert "eval(" not in text
