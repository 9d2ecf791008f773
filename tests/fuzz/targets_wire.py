"""Fuzzing targets of the wire: frames, messages, introductions, compression, and both links as a whole.

Guarantees: a target is a function of its bytes alone. The first byte chooses what is done; checks are made right again
unless it says otherwise, so that mutations get past them.
Leaves to others: who calls it; what may be raised (oracle.py).
"""

from __future__ import annotations

from receiver_server.link import ReceiverLink, ReceiverProgress
from replicate.errors import ReplicateError
from replicate.model.vector import SynchronizationVector
from replicate.wire.codec import decode, encode
from replicate.wire.compression import Compressor, Decompressor
from replicate.wire.connection import Link
from replicate.wire.event import Event, RestartRequested, SourceIntroduced
from replicate.wire.frame import FrameReader, WireFrame
from replicate.wire.introduction import as_refuse, check_hello, check_hello_reply, refusal_from_peer
from replicate.wire.message import LIMITS, OPENING_LIMITS, Bye, Hello, HelloReply, MessageType, Refuse, Xoff
from replicate.wire.proof import Proof
from replicate.wire.state import Role
from source_server.link import SourceLink
from tests.fuzz import repair
from tests.harness.link_pair import NETWORK, PRIMARY, RECEIVER_SETTINGS, SECONDARY, SETTINGS, WALL_NS, receiver_flow

_SHORTENED = (Refuse, Bye, Xoff)
"""Their texts are cut when they are written, so they need not come back equal."""


def wire_frame(data: bytes) -> None:
    """What comes out depends on the bytes alone, not on how they were cut."""
    if not data:
        return
    mode, stream = data[0], data[1:]
    if not mode & 1:
        stream = repair.wire_frames(stream)
    limits = LIMITS if mode & 2 else OPENING_LIMITS
    whole, cut = _frames(limits, [stream]), _frames(limits, _pieces(stream, 1 + mode // 4))
    assert whole == cut, "the frames depend on how the stream was cut"
    for frame in whole[0]:
        assert len(frame.body) <= limits[frame.type]


def _pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[start : start + size] for start in range(0, len(stream), size)]


def _frames(limits: dict[int, int], pieces: list[bytes]) -> tuple[list[WireFrame], str]:
    reader, found = FrameReader(limits), []
    try:
        for piece in pieces:
            reader.receive(piece)
            while (frame := reader.next_frame()) is not None:
                found.append(frame)
    except ReplicateError as error:
        return found, str(error)
    return found, ""


def wire_message(data: bytes) -> None:
    """The first byte is the type, the rest the body. What decodes can be encoded, and is the same then."""
    if not data or len(data) - 1 > LIMITS.get(data[0], 4096):
        return
    message = decode(data[0], data[1:])
    packed = b"".join(encode(message))
    again = decode(data[0], packed[9:])
    assert again == message or isinstance(message, _SHORTENED), f"{message} came back as {again}"


def wire_introduction(data: bytes) -> None:
    """Both sides judge a hello, and read a refusal; each refusal can be told to the peer, in one frame."""
    if not data:
        return
    message_type = (MessageType.HELLO, MessageType.HELLO_REPLY, MessageType.REFUSE)[data[0] % 3]
    message = decode(message_type, data[1 : 1 + LIMITS[message_type]])
    try:
        if isinstance(message, Hello):
            check_hello(message, SECONDARY)
        elif isinstance(message, HelloReply):
            check_hello_reply(message, PRIMARY, "oslo")
        elif isinstance(message, Refuse):
            raise refusal_from_peer(message, "peer")
    except ReplicateError as error:
        packed = b"".join(encode(as_refuse(error)))
        assert len(packed) - 9 <= LIMITS[MessageType.REFUSE], "a refusal is too long for the peer to read"
        decode(MessageType.REFUSE, packed[9:])
        raise


def proof(data: bytes) -> None:
    """The opening of a connection that is not authenticated yet, as either side hears it."""
    if not data:
        return
    mode, stream = data[0], data[1:] if data[0] & 1 else repair.wire_frames(data[1:])
    role = Role.SOURCE if mode & 2 else Role.RECEIVER
    opening = Proof(role, bytes(range(32)), NETWORK, "paris", bytes(32))
    size = 1 if mode & 4 else 1 << 20
    try:
        for piece in _pieces(stream, size):
            opening.bytes_to_send()
            opening.receive(piece)
    except ReplicateError:
        assert not opening.is_done
        assert len(opening.bytes_to_send()) <= 9 + LIMITS[MessageType.REFUSE]
        raise
    assert bool(opening.peer_name) == opening.is_done


def compression(data: bytes) -> None:
    """Four bytes of the size that is announced, then the compressed message; or, with a size of 0, plain bytes."""
    announced = int.from_bytes(data[:4], "big")
    if announced:
        assert len(Decompressor().decompress(data[4:], announced)) == announced
        return
    plain = data[4:]
    packed = Compressor().compress(plain)
    if packed is not None:
        assert Decompressor().decompress(packed, len(plain)) == plain


def wire_receiver(data: bytes) -> None:
    """A whole conversation as the Receiver Server hears it."""
    if not data:
        return
    link = ReceiverLink(RECEIVER_SETTINGS, receiver_flow(), SECONDARY, 0.0, WALL_NS)

    def act(event: Event) -> None:
        if isinstance(event, SourceIntroduced):
            link.accept(0.0)
            link.report(ReceiverProgress(), 0.0)
            part = data[0] >> 4 & 1
            link.send_restart(
                1 + (data[0] >> 3 & 1), SynchronizationVector(), {}, next_part=part, token=0xABC002 * part
            )

    _converse(link, data, act)


def wire_source(data: bytes) -> None:
    """A whole conversation as the Source Server hears it."""
    if not data:
        return
    link = SourceLink(SETTINGS, PRIMARY, 0.0, WALL_NS)

    def act(event: Event) -> None:
        if isinstance(event, RestartRequested):
            link.start(event.restart.next_seqno, 0, bytes(300))

    _converse(link, data, act)


def _converse(link: Link, data: bytes, act: object) -> None:
    """`Link.receive` never raises for what a peer sent; after the last event there is none."""
    assert callable(act)
    stream = data[1:] if data[0] & 1 else repair.wire_frames(data[1:])
    for number, piece in enumerate(_pieces(stream, (1 << 20, 7, 64, 1000)[data[0] >> 1 & 3])):
        was_closed = link.is_closed
        events = link.receive(piece, number / 1000)
        assert not (was_closed and events)
        for event in events:
            if not link.is_closed:
                act(event)
        link.bytes_to_send()
    link.tick(100.0, WALL_NS)
    link.receive_eof(101.0)
    link.bytes_to_send()
    assert link.is_closed
