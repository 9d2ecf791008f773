"""The little HTTP of a scrape: a GET of a known path, whole; anything else is refused, and nothing of it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.daemon.http import PATHS, REQUEST_BYTES_MAX, Answer, read_request, render


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_served(path: str) -> None:
    request = f"GET {path}?x=1 HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n".encode()
    assert read_request(request) == path
    assert read_request(f"GET {path} HTTP/1.0\n\n".encode()) == path
    assert all(read_request(request[:end]) is None for end in range(len(request) - 1))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /met\xffrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * REQUEST_BYTES_MAX, 431),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_scrape_is_refused(request_bytes: bytes, status: int) -> None:
    answer = read_request(request_bytes)
    assert isinstance(answer, Answer)
    head, _, body = render(answer).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    assert (b"Allow: GET" in head) == (status == 405)
    assert b"yyy" not in body


@given(st.binary(max_size=300), st.sampled_from((b"", b"GET ", b"GET /metrics HTTP/1.1", b"GET /livez HTTP/1.0\r\n")))
def test_whatever_comes_it_is_a_known_path_or_a_refusal_that_tells_nothing_of_it(rest: bytes, begin: bytes) -> None:
    found = read_request(begin + rest + b"\r\n\r\n")
    if isinstance(found, Answer):
        assert found.status in (400, 404, 405)
        assert found == read_request(
            {400: b"x", 404: b"GET /x HTTP/1.1", 405: b"X / HTTP/1.1"}[found.status] + b"\r\n\r\n"
        )
    else:
        assert found in PATHS
