"""Asks the page of `replicate web` on another host for what it tells, one request a connection.

Guarantees: only the host that was named is asked, and no other that it points to; an answer comes whole within ASK_S,
and has ANSWER_BYTES_MAX bytes at most; in the clear only on loopback; else by TLS 1.3, to a certificate of the CA that
bears the host's name. What goes wrong is one error that says what to do.
Leaves to others: what the answer means (read_picture.py), how often it is asked (other_host.py).
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from replicate.errors import (
    ConfigurationError,
    NotAuthenticatedError,
    PeerRefusedError,
    PeerUnreachableError,
    ReplicateError,
)
from replicate.settings.load import Address

PORT_USUAL: Final = 7480
ASK_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 << 20
_READ_BYTES: Final = 1 << 16
_ADDRESS: Final = re.compile(
    r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?/?(?:#([^\s/#]{1,64}))?"
)
_OTHER: Final = "Look at the address: it has to be that of a replicate web, of this release"


def is_page(named: str) -> bool:
    """Whether it is meant as an address of a page, and not as an instance of this host."""
    return named.startswith(("http://", "https://"))


class PageAddress(Struct, frozen=True):
    """A page of another host; `name`: the one instance that is meant; "" for all that it shows."""

    at: Address
    is_tls: bool
    name: str = ""

    @classmethod
    def parse(cls, text: str, *, where: str) -> PageAddress:
        """http[s]://HOST[:PORT][#NAME]. ConfigurationError naming `where`."""
        found = _ADDRESS.fullmatch(text)
        port = PORT_USUAL if found is None or found[4] is None else int(found[4])
        if found is None or not 0 < port < 65536:
            raise ConfigurationError(
                f"{text!r} is no address of a page",
                where=where,
                do=f"Write it like https://db2.example.org:{PORT_USUAL}#NAME; without #NAME all that it shows is meant",
            )
        made = cls(Address(found[2] or found[3], port), found[1] == "https", found[5] or "")
        if not made.is_tls and not made.at.is_loopback:
            raise ConfigurationError(
                f"{made.at} is not on loopback, and http shows everything to all that listen",
                where=where,
                do=f"Use https://{made.at}; or have ssh carry it: ssh -L PORT:127.0.0.1:{port} {made.at.host}, then "
                "http://127.0.0.1:PORT",
            )
        return made

    @property
    def url(self) -> str:
        """Without the name."""
        return f"http{'s' if self.is_tls else ''}://{self.at}"


TlsContexts = Callable[[], ssl.SSLContext]
"""TLS, as it is to be at the next connection."""


class PageClient:
    """Asks one page. From any thread."""

    def __init__(self, address: PageAddress, contexts: TlsContexts | None, token: str = "") -> None:
        """`contexts`: None where the address is one of http. `token`: "" where none is asked for."""
        self.address = address
        self._contexts = contexts
        self._token = token

    def of(self, name: str) -> PageClient:
        """The same, for the instance of that name."""
        return PageClient(replace(self.address, name=name), self._contexts, self._token)

    def get(self, target: str) -> bytes:
        """What is answered. PeerUnreachableError, NotAuthenticatedError, PeerRefusedError."""
        try:
            answer = http.client.HTTPResponse(cast(socket.socket, _Received(self._exchanged(target))))
            answer.begin()
            body = answer.read()
        except http.client.HTTPException as error:
            raise self._refused(f"what is answered is no whole HTTP: {error!r}", _OTHER) from error
        if answer.status == 200 and answer.headers.get_content_type() == "application/json":
            return body
        host = self.address.at.host
        if answer.status == 401:
            raise NotAuthenticatedError(
                "it asks for a token, or a certificate of its CA",
                where=self.address.url,
                do="Name the token: --pages-token-file FILE; or an instance of this host that has a certificate: -i",
            )
        if answer.status == 421:
            raise self._refused(f"it is not reached by the name {host}", f"There: replicate web --host {host}")
        raise self._refused(f"it is no page of replicate web: it answers {answer.status}", _OTHER)

    def _refused(self, what: str, do: str) -> ReplicateError:
        return PeerRefusedError(what, where=self.address.url, do=do)

    def _exchanged(self, target: str) -> bytes:
        until_s = time.monotonic() + ASK_S
        authorization = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
        request = f"GET {target} HTTP/1.1\r\nHost: {self.address.at}\r\nConnection: close\r\n{authorization}\r\n"
        try:
            with self._connected() as stream:
                stream.sendall(request.encode())
                return self._all_of(stream, until_s)
        except ssl.SSLCertVerificationError as error:
            raise NotAuthenticatedError(
                f"its certificate is not taken: {error.verify_message}",
                where=self.address.url,
                do=f"It has to be of the CA that this side knows (--pages-ca FILE), and to bear the name "
                f"{self.address.at.host}: replicate help seeing",
            ) from error
        except ssl.SSLError as error:
            raise NotAuthenticatedError(
                f"TLS fails: {error.reason or error}",
                where=self.address.url,
                do="Both sides need certificates of one CA; a page on loopback is asked by http://",
            ) from error
        except TimeoutError as error:
            raise self._unreachable(f"no answer within {ASK_S:.0f} s") from error
        except OSError as error:
            raise self._unreachable(error.strerror or str(error)) from error

    def _unreachable(self, why: str) -> PeerUnreachableError:
        return PeerUnreachableError(
            f"nobody is reached: {why}",
            where=self.address.url,
            do=f"See there whether replicate web runs, and listens at port {self.address.at.port}",
        )

    def _connected(self) -> socket.socket:
        plain = socket.create_connection((self.address.at.host, self.address.at.port), timeout=ASK_S)
        if not self.address.is_tls or self._contexts is None:
            return plain
        try:
            return self._contexts().wrap_socket(plain, server_hostname=self.address.at.host)
        except BaseException:
            plain.close()
            raise

    def _all_of(self, stream: socket.socket, until_s: float) -> bytes:
        data = bytearray()
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            stream.settimeout(left_s)
            more = stream.recv(_READ_BYTES)
            if not more:
                return bytes(data)
            data += more
            if len(data) > ANSWER_BYTES_MAX:
                raise self._refused(f"it answers more than {ANSWER_BYTES_MAX} bytes", _OTHER)


class _Received:
    """What has come, for a parser that reads from a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)
