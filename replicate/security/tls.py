"""Mutual TLS 1.3 over a TCP connection: which certificate counts now, the handshake, and why one failed.

Guarantees: nothing below TLS 1.3; both sides show a certificate of the CA, and no session is resumed, so that every
connection is verified by what the files say now; files that were changed count from the next connection on, and files
that do not fit together (a renewal half done) leave the old ones in force; keys and certificates pass
security/guarded_file.py. Host names are not compared: the certificate's name is judged by peer_authority.py.
Leaves to others: who may do what, and what is said on the connection.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from replicate.errors import (
    ConfigurationError,
    NotAuthenticatedError,
    NotFoundError,
    ProtocolViolationError,
    ReplicateError,
)
from replicate.security.identity import Identity, load_identity
from replicate.security.tls_files import TlsFiles
from replicate.settings.load import Address
from replicate.settings.peer_authority import Reason, refused, tls_refusal

if TYPE_CHECKING:
    pass

LAST_WORD_S: Final = 1.0
"""How long a peer that is refused may take to read why."""
READ_BYTES: Final = 4096
_DAMAGE_DO: Final = "Nothing is lost, it is sent again; if this repeats, look at the network between"
HANDSHAKE_BYTE: Final = b"\x16"
"""The first byte of every TLS connection."""
RECORD_PROGRESS_S: Final = 20.0 + 16
"""So long may bytes arrive without a whole TLS record among them: what a link allows a message that is as long as the
longest record, 16 KiB (wire/connection.py)."""


class Credentials:
    """The identity of a daemon's connections, always that of the files as they are now."""

    def __init__(
        self,
        files: TlsFiles,
        instance: str,
        on_change: Callable[[Identity], None],
        on_trouble: Callable[[ReplicateError], None],
    ) -> None:
        """Nothing is read yet. `on_change` is told of what was loaded after the first; `on_trouble`, once for every
        change, what is wrong with changed files, while the old ones stay in force."""
        self.files = files
        self._instance = instance
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._identity: Identity | None = None
        self._stamps: tuple[tuple[int, ...], ...] = ()

    @property
    def loaded(self) -> Identity | None:
        """What was loaded last; None before the first time."""
        return self._identity

    def identity(self) -> Identity:
        """What the next connection shows. Errors as `load_identity`, but only as long as nothing was ever loaded."""
        stamps = self.files.stamps()
        if self._identity is not None and stamps == self._stamps:
            return self._identity
        try:
            made = load_identity(self.files, self._instance)
        except ReplicateError as error:
            if self._identity is None:
                raise
            self._stamps = stamps  # the same files are not tried, and told of, again
            self._on_trouble(error)
            return self._identity
        is_first = self._identity is None
        self._identity, self._stamps = made, stamps
        if not is_first:
            self._on_change(made)
        return made


def _why(address: Address) -> str:
    if address.is_loopback:
        return f"tls.loopback is set, so that {address} is for TLS"
    return f"{address} is not a loopback address, and plain TCP does not leave the machine"


def require_identity(files: TlsFiles, instance: str, *, where: str, wanted_for: Address) -> Identity:
    """The identity, for a use that cannot do without. ConfigurationError when there are no files; else as
    `load_identity`. `wanted_for`: the address; `where`: the setting or argument that names it."""
    try:
        return load_identity(files, instance)
    except NotFoundError as error:
        raise ConfigurationError(
            f"{_why(wanted_for)}: {error.what} ({error.where})",
            where=where,
            do=f"Make certificates: replicate certificate init DIR, then replicate -i INSTANCE certificate issue "
            f"{instance} --ca DIR (replicate help two-hosts)",
        ) from error


class Records(trio.abc.Stream):
    """The TCP connection below TLS. It breaks when bytes go on arriving, and a record does not come to its end.

    A length that was changed on its way to another possible one makes TLS wait for bytes that nobody sends; the peer's
    heartbeats go into that hole, and to the link that looks like silence.
    """

    def __init__(self, stream: trio.abc.Stream, answers: Callable[[], object] | None = None) -> None:
        """`answers` is called once, before the first bytes are sent: a server sends some as soon as the client's first
        words are whole, and such as it can answer."""
        self.stream = stream
        self.is_stuck = False
        self._answers = answers
        self._began: float | None = None
        self._last = 0.0

    def begin(self) -> None:
        """A record is awaited from now on, for as long as it takes to begin."""
        self._began = None

    def unfinished_s(self) -> float:
        """For how long bytes have arrived that make no whole record; 0.0: none is begun, or its bytes have ceased."""
        if self._began is None:
            return 0.0
        since_s = trio.current_time() - self._began
        return since_s if self._last - self._began > since_s / 2 else 0.0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's. TLS asks again only while the record is not whole."""
        if self.unfinished_s() > RECORD_PROGRESS_S:
            self.is_stuck = True
            raise trio.BrokenResourceError("no TLS record comes to its end")
        data = await self.stream.receive_some(max_bytes)
        self._last = trio.current_time()
        if self._began is None:
            self._began = self._last
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        if self._answers is not None:
            self._answers()
            self._answers = None
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As trio's."""
        await self.stream.aclose()


_ENDED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a connection that ends in the midst of TLS shows: as the second one by Debian 12's Python 3.11.2."""


class TlsStream(trio.abc.HalfCloseableStream):
    """A TLS connection whose sending direction can be ended, as that of plain TCP can."""

    def __init__(self, transport: trio.abc.HalfCloseableStream, records: Records, tls: trio.SSLStream[Records]) -> None:
        self.transport = transport
        self.tls = tls
        self._records = records
        self.alert: NotAuthenticatedError | None = None
        """Why the peer refused our certificate: with TLS 1.3 a client learns that only after its handshake."""
        self.damage: ProtocolViolationError | None = None
        """What has arrived is not what the peer has sent; nothing of it, and nothing after it, was handed on."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's."""
        await self.tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As trio's."""
        await self.tls.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As trio's."""
        self._records.begin()
        try:
            return await self.tls.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            if self._records.is_stuck:
                self.damage = self.unfinished()
            elif isinstance(cause, ssl.SSLError) and not isinstance(cause, _ENDED):
                if "_ALERT_" in (cause.reason or ""):
                    self.alert = tls_refusal(cause.reason, None, str(cause))
                else:
                    self.damage = ProtocolViolationError(
                        f"what has arrived is not what the peer has sent: {cause.reason or cause}",
                        do=_DAMAGE_DO,
                    )
            raise

    def unfinished(self) -> ProtocolViolationError | None:
        """What is to be said of a record that the bytes which go on arriving do not end; None: there is none."""
        began_s = self._records.unfinished_s()
        if not began_s:
            return None
        return ProtocolViolationError(
            f"a TLS record that began {began_s:.1f} s ago has not come to its end, though bytes went on arriving: its "
            "length was changed on its way, or the line stands still in its midst",
            do=_DAMAGE_DO,
        )

    async def send_eof(self) -> None:
        """End the sending direction. The peer knows by our last word, not by TLS, that nothing is missing."""
        with contextlib.suppress(trio.BusyResourceError):  # TLS itself is just answering: the peer ends then
            await self.transport.send_eof()

    async def aclose(self) -> None:
        """Close the socket at once; the conversation has ended by a last word, or is lost."""
        await trio.aclose_forcefully(self.transport)


async def first_byte(stream: trio.SocketStream) -> bytes:
    """The first byte that the peer sends, which stays there to be read; b"" when it ends without one."""
    try:
        return await stream.socket.recv(1, trio.socket.MSG_PEEK)
    except OSError:
        return b""


async def _send_alert(stream: trio.SocketStream, tls: trio.SSLStream[Records]) -> None:
    """Tell the peer why: trio leaves TLS's own last word unsent when a handshake fails. A courtesy, no more."""
    outgoing = getattr(tls, "_outgoing", None)
    data = outgoing.read() if isinstance(outgoing, ssl.MemoryBIO) else b""
    if data:
        await say_last(stream, data)


async def say_last(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    """The last word: leaves, and is read, as far as the peer takes it within LAST_WORD_S. What it sends is dropped:
    closing a socket with unread bytes would destroy the last word on its way."""
    with trio.move_on_after(LAST_WORD_S):
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while await stream.receive_some(READ_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def handshake(
    stream: trio.SocketStream,
    identity: Identity,
    *,
    is_server: bool,
    answers: Callable[[], object] | None = None,
) -> TlsStream:
    """Both sides have shown and verified their certificates, as far as this side can know. The caller sets a deadline,
    and closes `stream` after a failure. `answers`: see Records. NotAuthenticatedError, with its reason."""
    if is_server:
        first = await first_byte(stream)
        if not first:
            raise refused(Reason.CUT, "the connection ended before it began")
        if first != HANDSHAKE_BYTE:
            raise refused(
                Reason.PLAINTEXT,
                "the peer speaks plain TCP, and this side TLS only",
                do="There: a non-loopback address, or tls.loopback = true",
            )
    context = identity.server if is_server else identity.client
    records = Records(stream, answers)
    tls = trio.SSLStream(records, context, server_side=is_server)
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        await _send_alert(stream, tls)
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise tls_refusal(cause.reason, cause.verify_code, cause.verify_message) from error
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _ENDED):
            raise tls_refusal(cause.reason, None, cause.reason or str(cause)) from error
        raise refused(
            Reason.CUT,
            "the connection was lost in the middle of the TLS handshake",
            do="The other side's log says why: plain TCP there (tls.loopback, on both sides), another CA, or a stop",
        ) from error
    return TlsStream(stream, records, tls)
