"""The little of HTTP/1.1 that a scrape needs: one GET, one answer, then the connection is closed.

Guarantees: what is not a GET of a known path is refused with its proper status; nothing of the request comes back in an
answer; a request is never longer than REQUEST_BYTES_MAX.
Leaves to others: sockets and clocks (daemon/metrics_port.py), and what the answers say. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

REQUEST_BYTES_MAX: Final = 4096
PATHS: Final = ("/metrics", "/livez", "/readyz")
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.[01]\r?\n")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
PLAIN: Final = "text/plain; charset=utf-8"


class Answer(Struct, frozen=True):
    """A status, and a body that explains it."""

    status: int
    body: bytes
    content_type: str = PLAIN


def read_request(data: bytes) -> str | Answer | None:
    """The path that is asked for, one of PATHS; the refusal of anything else; None: not whole yet."""
    end = re.search(rb"\r?\n\r?\n", data)
    if end is None:
        if len(data) >= REQUEST_BYTES_MAX:
            return Answer(431, b"the request is too long\n")
        return None
    if end.end() > REQUEST_BYTES_MAX:
        return Answer(431, b"the request is too long\n")
    line = _REQUEST_LINE.match(data)
    if line is None:
        return Answer(400, b"this is no HTTP/1.1 request\n")
    if line[1] != b"GET":
        return Answer(405, b"only GET is served here\n")
    path = line[2].partition(b"?")[0].decode("ascii")
    if path not in PATHS:
        return Answer(404, f"there are {', '.join(PATHS)}\n".encode())
    return path


def render(answer: Answer) -> bytes:
    """The answer as it goes over the wire."""
    head = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status == 405:
        head.append("Allow: GET")
    return "\r\n".join([*head, "", ""]).encode("ascii") + answer.body
