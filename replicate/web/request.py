"""What is asked of the page, and whether it is answered: the paths that there are, hosts, tokens.

Guarantees: only GET and HEAD of a path of this table are answered; a request for a host that is not ours is refused, so
that a page of elsewhere cannot have a browser ask us under its own name; a token is compared in constant time; nothing
of a request comes back in an answer.
Leaves to others: sockets (server.py), certificates, what the answers say. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from replicate.seeing.picture_json import PAST_S, PAST_USUAL_S

ASSETS: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""Files that come with the program, by path."""
PICTURES: Final = "/pictures"
EVENTS: Final = "/events"
RECORDS: Final = "/records"
PATHS: Final = frozenset({*ASSETS, PICTURES, EVENTS, RECORDS})
TOKEN_LEAST: Final = 16
SECURITY_HEADERS: Final[tuple[tuple[str, str], ...]] = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?")
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_BASIC: Final = "basic"
_BEARER: Final = "bearer"


class Asked(Struct, frozen=True):
    """A request that is answered. `past_s`: of the curves; `instance`: the number of one."""

    path: str
    is_head: bool = False
    past_s: int = PAST_USUAL_S
    instance: int = 0


class TurnedAway(Struct, frozen=True):
    """A request that is not: the status, and why, in words of ours."""

    status: int
    why: str
    headers: tuple[tuple[str, str], ...] = ()


class PageGuard(Struct, frozen=True):
    """Who may see the page. `hosts`: the names by which it is reached, lower case; `token`: "" where none is asked."""

    hosts: Collection[str]
    token: str = ""
    wants_certificate: bool = False

    def judge(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], *, has_certificate: bool = False
    ) -> Asked | TurnedAway:
        """What a request asks for, or why it is turned away. `headers`: with names in lower case."""
        found: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            found.setdefault(name, []).append(value)
        hosts = found.get(b"host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return TurnedAway(421, "this is not a host by which this page is reached")
        if b"transfer-encoding" in found or found.get(b"content-length", [b"0"]) != [b"0"]:
            return TurnedAway(400, "a request here has no body")
        if not self._may(found.get(b"authorization", []), has_certificate):
            return TurnedAway(401, "a token is asked for", (("WWW-Authenticate", 'Basic realm="replicate web"'),))
        if method not in (b"GET", b"HEAD"):
            return TurnedAway(405, "this page only shows", (("Allow", "GET, HEAD"),))
        return _asked(target, method == b"HEAD")

    def _is_ours(self, host: bytes) -> bool:
        named = _HOST.fullmatch(host.decode("ascii", "replace"))
        return named is not None and named[1].lower() in self.hosts

    def _may(self, authorization: list[bytes], has_certificate: bool) -> bool:
        if has_certificate or not (self.token or self.wants_certificate):
            return True
        if not self.token or len(authorization) != 1:
            return False
        scheme, _, given = authorization[0].partition(b" ")
        if scheme.lower() == _BASIC.encode():
            try:
                given = base64.b64decode(given.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return False
        elif scheme.lower() != _BEARER.encode():
            return False
        return hmac.compare_digest(given.strip(), self.token.encode())


def _asked(target: bytes, is_head: bool) -> Asked | TurnedAway:
    path, _, query = target.decode("ascii", "replace").partition("?")
    if path not in PATHS:
        return TurnedAway(404, "there is no such page")
    given = {"past": str(PAST_USUAL_S), "instance": "0"}
    for one in query.split("&") if query else ():
        name, _, value = one.partition("=")
        if name not in given or _NUMBER.fullmatch(value) is None:
            return TurnedAway(400, "this is no question that is answered here")
        given[name] = value
    past_s = int(given["past"])
    if past_s not in PAST_S:
        return TurnedAway(400, "this is no question that is answered here")
    return Asked(path, is_head, past_s, int(given["instance"]))
