"""The first words on a plain connection: both sides prove that they hold one key, which never crosses the wire.

    source                                   receiver
      CHALLENGE  -------------------------->             version, network, name, a nonce
             <------------------------------ CHALLENGE   the same (or REFUSE)
      PROOF  ------------------------------>             HMAC-SHA256 over both challenges and "source"
             <------------------------------ PROOF       over both and "receiver" (or REFUSE); then HELLO may come

    CHALLENGE = VERSION(u8) NETWORK(16) NONCE(32) LENGTH(u8) NAME, perhaps more of a later version; PROOF = 32 bytes

Both challenges are proven as the bytes that they are, so neither version nor name can be changed on the way; the role
keeps a proof from being sent back to its maker. Types 64 and 65 belong to this opening alone (message.MessageType has
the others). A side that begins with HELLO is of a release that could not prove anything: it is refused by name.

Guarantees: nothing is decoded before the peer has proven the key but these two fixed layouts and a REFUSE of at most
4 KiB; what comes after the proof is not lost, and not looked at.
Leaves to others: where key and nonce come from, sockets, clocks. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from typing import Final

from replicate.errors import InternalError, NotAuthenticatedError, ReplicateError
from replicate.limits import HELLO_BYTES_MAX, NAME_PATTERN
from replicate.wire.codec import decode, encode
from replicate.wire.frame import FrameReader, WireFrame, pack_wire_frame
from replicate.wire.introduction import as_refuse, refusal, refusal_from_peer
from replicate.wire.message import MessageType, Refuse, RefuseCode
from replicate.wire.state import Role

PROOF_VERSION: Final = 1
CHALLENGE_TYPE: Final = 64
PROOF_TYPE: Final = 65
NONCE_BYTES: Final = 32
KEY_BYTES_MIN: Final = 16
_HEAD: Final = struct.Struct(">B16s32sB")
_LABEL: Final = b"dualsite replicate, proof of the shared key\x00"
_DIGEST_BYTES: Final = hashlib.sha256().digest_size

PROOF_LIMITS: Final = {
    CHALLENGE_TYPE: 256,
    PROOF_TYPE: _DIGEST_BYTES,
    int(MessageType.REFUSE): HELLO_BYTES_MAX,
    int(MessageType.HELLO): HELLO_BYTES_MAX,
}
"""Most bytes of a body by type, before the proof. HELLO is named here to be refused by name; it is not decoded."""
assert not {CHALLENGE_TYPE, PROOF_TYPE} & {int(known) for known in MessageType}


class Proof:
    """One opening of one connection. Feed `receive`, send what `bytes_to_send` gives after it, until `is_done`."""

    def __init__(self, role: Role, key: bytes, network: bytes, name: str, nonce: bytes) -> None:
        """`nonce`: NONCE_BYTES of fresh randomness. `name`, `network`: of this instance. InternalError for a key that
        is too short or a nonce of another length."""
        if len(key) < KEY_BYTES_MIN or len(nonce) != NONCE_BYTES:
            raise InternalError(f"a key of {len(key)} bytes and a nonce of {len(nonce)} prove nothing")
        self.role = role
        self.peer_name = ""
        """The name that the peer has proven; "" before."""
        self.is_done = False
        self._key = key
        self._network = network
        self._name = name
        self._mine = _HEAD.pack(PROOF_VERSION, network, nonce, len(name.encode())) + name.encode()
        self._theirs: bytes | None = None
        self._claimed = ""
        self._reader = FrameReader(PROOF_LIMITS)
        self._out: list[bytes] = []
        if role is Role.SOURCE:
            self._out += pack_wire_frame(CHALLENGE_TYPE, self._mine)

    def bytes_to_send(self) -> bytes:
        """What is to be written now; b"" for nothing. After an error: the REFUSE that tells the peer, if one is due."""
        data, self._out = b"".join(self._out), []
        return data

    def receive(self, data: bytes | bytearray) -> None:
        """Take bytes as they came. NotAuthenticatedError when the peer is not let in (its reason: KEY_WRONG, PROTOCOL,
        VERSION), PeerError when the peer refuses us; the same holds for every later call."""
        self._reader.receive(data)
        try:
            while not self.is_done and (frame := self._reader.next_frame()) is not None:
                self._take(frame)
            if self.is_done and self._reader.is_mid_frame:
                raise refusal(RefuseCode.PROTOCOL, "bytes after the proof, before they were asked for")
        except NotAuthenticatedError as error:
            self._refuse(error)
            raise
        except ReplicateError as error:
            if error.facts.get("from_peer"):
                raise
            self._refuse(error)
            raise NotAuthenticatedError(
                error.what, do=error.do, reason=str(error.facts.get("reason", RefuseCode.PROTOCOL))
            ) from error

    def _refuse(self, error: ReplicateError) -> None:
        self.is_done = False
        self._out = encode(as_refuse(error))

    def _take(self, frame: WireFrame) -> None:
        if frame.type == MessageType.REFUSE:
            message = decode(frame.type, frame.body)
            assert isinstance(message, Refuse)
            error = refusal_from_peer(message, "")
            error.facts["from_peer"] = True
            raise error
        if frame.type == MessageType.HELLO:
            raise refusal(
                RefuseCode.VERSION, "the peer begins without proving a key, as releases did that had none to prove"
            )
        if frame.type == CHALLENGE_TYPE and self._theirs is None:
            self._challenged(frame.body)
        elif frame.type == PROOF_TYPE and self._theirs is not None:
            self._proven(frame.body)
        else:
            raise refusal(RefuseCode.PROTOCOL, f"an opening message of type {frame.type} came out of turn")

    def _challenged(self, body: bytes) -> None:
        try:
            version, network, _, length = _HEAD.unpack_from(body)
            name = body[_HEAD.size : _HEAD.size + length].decode("ascii")
        except (struct.error, UnicodeDecodeError):
            raise refusal(RefuseCode.PROTOCOL, "a challenge that cannot be read") from None
        if version < PROOF_VERSION or not re.match(NAME_PATTERN, name):
            raise refusal(RefuseCode.PROTOCOL, f"a challenge of version {version}, from {name[:64]!r}")
        if network != self._network:
            # Each network has its own key, so the proof would fail: say why instead.
            raise refusal(RefuseCode.WRONG_NETWORK, f"{name} belongs to another network than {self._name}")
        self._theirs = body
        self._claimed = name
        if self.role is Role.SOURCE:
            self._out += pack_wire_frame(PROOF_TYPE, self._digest(Role.SOURCE))
        else:
            self._out += pack_wire_frame(CHALLENGE_TYPE, self._mine)

    def _proven(self, body: bytes) -> None:
        peer = Role.RECEIVER if self.role is Role.SOURCE else Role.SOURCE
        if not hmac.compare_digest(self._digest(peer), body):
            raise NotAuthenticatedError(
                f"{self._claimed} does not hold the key of this side",
                do="Both instances must run as one user, or set loopback.key_file on both to copies of one file",
                reason="KEY_WRONG",
            )
        self.peer_name = self._claimed
        self.is_done = True
        if self.role is Role.RECEIVER:
            self._out += pack_wire_frame(PROOF_TYPE, self._digest(Role.RECEIVER))

    def _digest(self, role: Role) -> bytes:
        assert self._theirs is not None
        source, receiver = (self._mine, self._theirs) if self.role is Role.SOURCE else (self._theirs, self._mine)
        parts = [role.value.encode(), source, receiver]
        content = _LABEL + b"".join(struct.pack(">I", len(part)) + part for part in parts)
        return hmac.digest(self._key, content, "sha256")
