"""What comes before the hello: who is at the other end of a connection? TLS between hosts, a shared key on one host.

Guarantees: plain TCP is spoken on loopback addresses only, whatever a host name leads to; what comes out is a stream
whose other end has proven one of the names in `names`; a peer that is not let in is told why, as far as it can be, and
its connection is closed; all of it ends by the deadline, before a byte of the peer was taken as a message.
Leaves to others: messages (the links), listeners, what a refusal means for the next attempt (the servers).
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import trio
from msgspec import Struct

from replicate.errors import (
    ConfigurationError,
    NotAuthenticatedError,
    NotFoundError,
    PeerError,
    PeerRefusedError,
    ReplicateError,
)
from replicate.instance.file import PeerEntry
from replicate.instance.instance import Instance
from replicate.security.identity import Identity, load_identity
from replicate.security.shared_key import SharedKey, default_path, read_key
from replicate.security.tls import (
    HANDSHAKE_BYTE,
    READ_BYTES,
    Credentials,
    TlsStream,
    first_byte,
    handshake,
    require_identity,
    say_last,
)
from replicate.security.tls_files import DAY_S, TlsFiles, certificate_findings
from replicate.settings.load import Address, Config, parse_address
from replicate.settings.peer_authority import (
    Reason,
    certificate_names,
    judge_receiver,
    judge_source,
    parse_allow,
    refused,
)
from replicate.wire.codec import encode
from replicate.wire.event import Closed, CloseReason
from replicate.wire.introduction import as_refuse
from replicate.wire.proof import NONCE_BYTES, Proof
from replicate.wire.state import Role

LISTEN: Final = "--listen, or receiver.listen"
"""What names the address of a Receiver Server, for errors."""
_LOST: Final = "the connection was lost while both sides proved their key"
_LOST_DO: Final = "The other side's log says why: another key, TLS there (tls.loopback, on both sides), or a stop"


class Log(Protocol):
    """What we need of a logger."""

    def info(self, event: str, **fields: object) -> Any: ...
    def warning(self, event: str, **fields: object) -> Any: ...
    def error(self, event: str, **fields: object) -> Any: ...


class _Silent:
    def info(self, event: str, **fields: object) -> None: ...

    warning = error = info


class Authenticated(Struct, frozen=True):
    """A connection whose peer has proven to be one of `names` (instances); its hello must bear one of them."""

    stream: trio.abc.HalfCloseableStream
    names: frozenset[str]

    @property
    def alert(self) -> NotAuthenticatedError | None:
        """Why the peer has refused our certificate after all, if it has: with TLS 1.3 its client learns that late."""
        return self.stream.alert if isinstance(self.stream, TlsStream) else None

    def judged(self, closed: Closed) -> Closed:
        """The end of the connection as TLS knows it: bytes that were changed on their way are refused by us, not just
        lost; a peer of whom only a part of a record has come was not just silent."""
        damage: ReplicateError | None = None
        if isinstance(self.stream, TlsStream):
            if closed.reason is CloseReason.CONNECTION_LOST:
                damage = self.stream.damage
            elif closed.reason is CloseReason.PEER_DEAD:
                damage = self.stream.unfinished()
        return closed if damage is None else Closed(CloseReason.WE_REFUSED, damage)


class Authenticator:
    """What this instance shows, and whom it lets in, on all the connections of one daemon."""

    def __init__(self, instance: Instance, config: Config, log: Log) -> None:
        """Nothing is read yet. `log` is told when changed certificates are used, and when they cannot be."""
        self.instance = instance
        self._config = config
        self._log = log
        self._next_warning_s = 0.0
        self._credentials = Credentials(
            TlsFiles.of(instance.path, config.tls), instance.name, self._reloaded, self._not_reloaded
        )
        self._key = SharedKey(instance.content.network)

    def needs_tls(self, address: Address) -> bool:
        """Whether connections at or to that address speak TLS."""
        return self._config.tls.loopback or not address.is_loopback

    def check(self, address: Address, *, where: str, is_receiver: bool, makes_key: bool = True) -> None:
        """Refuse at the start what could not work later. ConfigurationError; what load_identity and read_key raise.

        `makes_key`: a receiver makes the default key of loopback connections if there is none; one that only looks does
        not."""
        allowed = parse_allow(self._config.receiver.allow, where="receiver.allow")
        if not self.needs_tls(address):
            if is_receiver and (makes_key or self._config.loopback.key_file):
                self._receiver_key()
            return
        require_identity(self._credentials.files, self.instance.name, where=where, wanted_for=address)
        self._credentials.identity()
        if is_receiver and not allowed:
            raise ConfigurationError(
                f"nobody may send to {self.instance.name}: receiver.allow is empty",
                where="receiver.allow",
                do="Name the primary: replicate -i INSTANCE config set receiver.allow NAME",
            )

    def close(self) -> None:
        """Give the shared key back. May be called twice."""
        self._key.give_back()

    def warn_of_expiry(self, now_s: float) -> None:
        """Once a day: log what is to be warned of the certificates, if they are used. `now_s`: wall clock (Unix)."""
        if self._credentials.loaded is not None and now_s >= self._next_warning_s:
            self._next_warning_s = now_s + DAY_S
            for finding in certificate_findings(self.instance.path, self._config.tls, now_s):
                self._log.warning("certificate expires", finding=finding.code, what=finding.text, do=finding.do)

    def _reloaded(self, identity: Identity) -> None:
        facts = identity.certificate
        self._log.info("certificate reloaded", serial=facts.serial, fingerprint=facts.fingerprint)
        self._next_warning_s = 0.0

    def _not_reloaded(self, error: ReplicateError) -> None:
        self._log.error("certificate not reloaded, the old one stays", error=str(error), code=error.code)

    # The receiver's side.

    async def source(
        self, stream: trio.SocketStream, *, is_tls: bool, deadline: float, answers: Callable[[], object]
    ) -> Authenticated:
        """Who has connected? Takes over `stream`, and closes it when it raises NotAuthenticatedError (or another
        ReplicateError of our own files). `deadline`: of trio's clock. `answers` is called when its first words are
        answered, before it has proven anything."""
        opening = self._tls_source if is_tls else self._plain_source
        return await self._within(stream, deadline, lambda stream: opening(stream, answers))

    async def _tls_source(self, stream: trio.SocketStream, answers: Callable[[], object]) -> Authenticated:
        tls = await handshake(stream, self._credentials.identity(), is_server=True, answers=answers)
        return await self._judged(tls, lambda: self._names_of_source(tls))

    def _names_of_source(self, tls: TlsStream) -> frozenset[str]:
        return judge_source(
            certificate_names(tls.tls.getpeercert()),
            parse_allow(self._config.receiver.allow),
            me=self.instance.name,
            consumers=[peer.certificate_name for peer in self.instance.peers],
        )

    async def _plain_source(self, stream: trio.SocketStream, answers: Callable[[], object]) -> Authenticated:
        if await first_byte(stream) == HANDSHAKE_BYTE:
            raise refused(
                Reason.TLS_NOT_EXPECTED, "the peer speaks TLS, and this side plain TCP", do="Set tls.loopback on both"
            )
        name = await self._prove(stream, Role.RECEIVER, self._receiver_key(), answers)
        allowed = parse_allow(self._config.receiver.allow)
        if allowed and name not in allowed:
            error = refused(
                Reason.CERTIFICATE_UNKNOWN,
                f"{name} may not send to this instance: receiver.allow names {', '.join(allowed)}",
            )
            await _tell(stream, error)
            raise error
        return Authenticated(stream, frozenset({name}))

    # The source's side.

    async def receiver(self, stream: trio.SocketStream, peer: PeerEntry, *, deadline: float) -> Authenticated:
        """Is it the peer that we connected to? Otherwise as `source`."""
        is_tls = self.needs_tls(Address(peer.host, peer.port))

        async def tls_receiver(stream: trio.SocketStream) -> Authenticated:
            tls = await handshake(stream, self._credentials.identity(), is_server=False)
            return await self._judged(tls, lambda: self._names_of_receiver(tls, peer))

        async def plain_receiver(stream: trio.SocketStream) -> Authenticated:
            _require_loopback(stream, peer)
            key = self._source_key()
            try:
                name = await self._prove(stream, Role.SOURCE, key or secrets.token_bytes(NONCE_BYTES))
            except PeerError as error:
                if key is None and error.facts.get("reason") == Reason.KEY_WRONG:
                    raise _no_key(self.instance) from error
                raise
            return Authenticated(stream, frozenset({name}))

        return await self._within(stream, deadline, tls_receiver if is_tls else plain_receiver)

    def _names_of_receiver(self, tls: TlsStream, peer: PeerEntry) -> frozenset[str]:
        judge_receiver(
            certificate_names(tls.tls.getpeercert()),
            peer.certificate_name,
            me=self.instance.name,
            others=[other.certificate_name for other in self.instance.peers if other != peer],
        )
        return frozenset({peer.name})

    # Both.

    async def _within(
        self,
        stream: trio.SocketStream,
        deadline: float,
        opening: Callable[[trio.SocketStream], Awaitable[Authenticated]],
    ) -> Authenticated:
        is_open = False
        try:
            with trio.move_on_at(deadline):
                made = await opening(stream)
                is_open = True
                return made
            raise refused(Reason.HELLO_TIMEOUT, "the peer has not said who it is in time")
        finally:
            if not is_open:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    async def _judged(self, tls: TlsStream, judge: Callable[[], frozenset[str]]) -> Authenticated:
        try:
            return Authenticated(tls, judge())
        except NotAuthenticatedError as error:
            await _tell(tls, error)
            raise

    async def _prove(
        self, stream: trio.SocketStream, role: Role, key: bytes, answers: Callable[[], object] = lambda: None
    ) -> str:
        """The name that the peer has proven. `answers` is called before we send, so by a receiver once it has heard."""
        content = self.instance.content
        proof = Proof(role, key, content.network, content.name, secrets.token_bytes(NONCE_BYTES))
        try:
            while True:
                if data := proof.bytes_to_send():
                    answers()
                    await stream.send_all(data)
                if proof.is_done:
                    return proof.peer_name
                data = bytes(await stream.receive_some(READ_BYTES))
                if not data:
                    raise refused(Reason.CUT, _LOST, do=_LOST_DO)
                proof.receive(data)
        except PeerError as error:
            if data := proof.bytes_to_send():
                await say_last(stream, data)
            if isinstance(error, NotAuthenticatedError | PeerRefusedError) or "reason" in error.facts:
                raise
            raise refused(Reason.PROTOCOL, error.what) from error
        except trio.BrokenResourceError as error:
            raise refused(Reason.CUT, _LOST, do=_LOST_DO) from error

    def _receiver_key(self) -> bytes:
        file = self._config.loopback.key_file
        return read_key(self.instance.path / file) if file else self._key.take()

    def _source_key(self) -> bytes | None:
        """None when nobody has made one for this network and user: the peer can then still say what it is."""
        file = self._config.loopback.key_file
        if file:
            return read_key(self.instance.path / file)
        try:
            return read_key(default_path(self.instance.content.network))
        except NotFoundError:
            return None


def check_credentials(instance: Instance) -> None:
    """Refuse what the start of a daemon of this instance would refuse of its certificates and keys, with that very
    error (see `Authenticator.check`); and certificates that are there and cannot be used, whether or not the settings
    and peers want them by now: flags and the next peer may. Nothing is made, connected or changed."""
    authenticator = Authenticator(instance, instance.config, _Silent())
    for peer in instance.peers:
        if peer.by_packets:
            continue
        authenticator.check(Address(peer.host, peer.port), where=f"peer {peer.name}", is_receiver=False)
    if instance.receives:
        listen = parse_address(instance.config.receiver.listen, where=LISTEN)
        authenticator.check(listen, where=LISTEN, is_receiver=True, makes_key=False)
    files = TlsFiles.of(instance.path, instance.config.tls)
    if files.are_there():
        load_identity(files, instance.name)


def _no_key(instance: Instance) -> NotAuthenticatedError:
    return refused(
        Reason.KEY_MISSING,
        "there is no key to prove to the peer: no Receiver Server of this network runs here as this user",
        where=str(default_path(instance.content.network)),
        do="Run both as one user, or set loopback.key_file on both to copies of one file",
    )


def _require_loopback(stream: trio.SocketStream, peer: PeerEntry) -> None:
    """A name such as localhost leads wherever the machine says."""
    try:
        host = stream.socket.getpeername()[0].partition("%")[0]
    except OSError as error:  # it has gone again
        raise refused(Reason.CUT, "the connection was lost before it began") from error
    if not ipaddress.ip_address(host).is_loopback:
        raise ConfigurationError(
            f"{peer.host} leads to {host}, which is not a loopback address, and plain TCP does not leave the machine",
            where=peer.name,
            do=f"Register the peer under its address: replicate -i INSTANCE peer add {peer.name} HOST:PORT --replace",
        )


async def _tell(stream: trio.abc.HalfCloseableStream, error: ReplicateError) -> None:
    await say_last(stream, b"".join(encode(as_refuse(error))))
