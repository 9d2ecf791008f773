"""The proof of a shared key, without a socket: who holds the key gets through, all else is refused by name."""

from __future__ import annotations

import os

import pytest

from replicate.errors import InternalError, NotAuthenticatedError, PeerError
from replicate.limits import BATCH_BYTES_MAX, HELLO_BYTES_MAX
from replicate.wire.codec import encode
from replicate.wire.features import FEATURES
from replicate.wire.frame import FRAME_HEAD_BYTES, pack_wire_frame
from replicate.wire.message import Hello, Introduction, Refuse
from replicate.wire.proof import CHALLENGE_TYPE, NONCE_BYTES, PROOF_TYPE, Proof
from replicate.wire.state import Role

KEY = bytes(range(32))
NETWORK = b"n" * 16


def source(key: bytes = KEY, network: bytes = NETWORK) -> Proof:
    return Proof(Role.SOURCE, key, network, "east", os.urandom(NONCE_BYTES))


def receiver(key: bytes = KEY) -> Proof:
    return Proof(Role.RECEIVER, key, NETWORK, "west", os.urandom(NONCE_BYTES))


def talk(one: Proof, other: Proof, piece: int = 1 << 20) -> None:
    """Carry bytes until both are silent, `piece` at a time."""
    while True:
        there = one.bytes_to_send()
        for at in range(0, len(there), piece):
            other.receive(there[at : at + piece])
        back = other.bytes_to_send()
        for at in range(0, len(back), piece):
            one.receive(back[at : at + piece])
        if not there and not back:
            return


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_both_prove_the_key_however_the_bytes_are_cut(piece: int) -> None:
    one, other = source(), receiver()
    talk(one, other, piece)
    assert (one.is_done, one.peer_name) == (True, "west")
    assert (other.is_done, other.peer_name) == (True, "east")


def test_the_key_and_its_proof_do_not_repeat_on_the_wire() -> None:
    seen = []
    for _ in range(2):
        one, other = source(), receiver()
        first = one.bytes_to_send()
        other.receive(first)
        one.receive(other.bytes_to_send())
        proof = one.bytes_to_send()
        other.receive(proof)
        seen += [first, proof, other.bytes_to_send()]
    assert len(set(seen)) == 6
    assert not any(KEY in data for data in seen)


def test_another_key_is_refused_by_the_receiver_which_then_proves_nothing() -> None:
    one, other = source(b"x" * 32), receiver()
    other.receive(one.bytes_to_send())
    one.receive(other.bytes_to_send())
    with pytest.raises(NotAuthenticatedError, match="east does not hold the key") as caught:
        other.receive(one.bytes_to_send())
    assert caught.value.facts["reason"] == "KEY_WRONG"
    assert not other.is_done
    answer = other.bytes_to_send()
    assert len(answer) <= HELLO_BYTES_MAX
    with pytest.raises(PeerError, match="refused by the peer: KEY_WRONG"):
        one.receive(answer)
    assert one.bytes_to_send() == b""


def test_a_receiver_without_the_key_is_refused_by_the_source() -> None:
    one, false = source(), receiver(b"x" * 32)
    false.receive(one.bytes_to_send())
    one.receive(false.bytes_to_send())
    one.bytes_to_send()
    with pytest.raises(NotAuthenticatedError, match="west does not hold the key"):
        one.receive(b"".join(pack_wire_frame(PROOF_TYPE, bytes(32))))


def test_a_proof_sent_back_to_its_maker_proves_nothing() -> None:
    """Who holds no key mirrors challenge and proof: role and order are proven too."""
    one = source()
    one.receive(one.bytes_to_send())
    mirrored = one.bytes_to_send()
    with pytest.raises(NotAuthenticatedError) as caught:
        one.receive(mirrored)
    assert caught.value.facts["reason"] == "KEY_WRONG"


@pytest.mark.parametrize("at", range(FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + 54))
def test_a_challenge_that_was_changed_on_the_way_is_refused(at: int) -> None:
    one, other = source(), receiver()
    challenge = bytearray(one.bytes_to_send())
    challenge[at] ^= 1
    body = bytes(challenge[FRAME_HEAD_BYTES:])

    def deliver() -> None:  # the frame's check was mended by who changed it
        other.receive(b"".join(pack_wire_frame(CHALLENGE_TYPE, body)))
        one.receive(other.bytes_to_send())
        other.receive(one.bytes_to_send())

    with pytest.raises(NotAuthenticatedError):
        deliver()


def test_another_network_is_told_so() -> None:
    one, other = source(network=b"m" * 16), receiver()
    with pytest.raises(NotAuthenticatedError, match="another network") as caught:
        other.receive(one.bytes_to_send())
    assert caught.value.facts["reason"] == "WRONG_NETWORK"


def test_a_release_that_proves_nothing_is_refused_by_its_version() -> None:
    me = Introduction(NETWORK, b"i" * 16, "east", "primary", 1, "0.0.1", FEATURES, BATCH_BYTES_MAX, 15_000, 0)
    other = receiver()
    with pytest.raises(NotAuthenticatedError, match="without proving a key") as caught:
        other.receive(b"".join(encode(Hello(1, 1, me))))
    assert caught.value.facts["reason"] == "VERSION"


def test_a_later_version_of_the_challenge_is_answered() -> None:
    """Its first fields stay, whatever comes after; both prove the bytes as they were."""
    one, other = source(), receiver()
    body = b"\x02" + one.bytes_to_send()[FRAME_HEAD_BYTES + 1 :] + b"later"
    other.receive(b"".join(pack_wire_frame(CHALLENGE_TYPE, body)))
    assert other.bytes_to_send()[FRAME_HEAD_BYTES] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"".join(pack_wire_frame(PROOF_TYPE, bytes(32))),
        b"".join(pack_wire_frame(CHALLENGE_TYPE, b"")),
        b"".join(pack_wire_frame(CHALLENGE_TYPE, bytes(257))),
        b"".join(pack_wire_frame(CHALLENGE_TYPE, b"\x01" + NETWORK + bytes(32) + b"\x04../x")),
        b"".join(pack_wire_frame(CHALLENGE_TYPE, b"\x01" + NETWORK + bytes(32) + b"\x02\xff\xfe")),
        b"".join(pack_wire_frame(7, bytes(10))),
        b"".join(pack_wire_frame(1, bytes(HELLO_BYTES_MAX + 1)))[:FRAME_HEAD_BYTES],
        bytes(9),
    ],
)
def test_rubbish_is_refused_from_its_head(data: bytes) -> None:
    other = receiver()
    with pytest.raises(NotAuthenticatedError) as caught:
        other.receive(data)
    assert caught.value.facts["reason"] == "PROTOCOL"
    assert len(other.bytes_to_send()) <= HELLO_BYTES_MAX


def test_what_comes_after_the_proof_unasked_is_refused() -> None:
    one, other = source(), receiver()
    other.receive(one.bytes_to_send())
    one.receive(other.bytes_to_send())
    with pytest.raises(NotAuthenticatedError, match="before they were asked for"):
        other.receive(one.bytes_to_send() + b"x")
    assert not other.is_done


def test_a_refusal_of_the_peer_is_told_with_its_reason() -> None:
    one = source()
    with pytest.raises(PeerError, match="SECOND_SOURCE: no") as caught:
        one.receive(b"".join(encode(Refuse("SECOND_SOURCE", "no"))))
    assert caught.value.facts["reason"] == "SECOND_SOURCE"


def test_a_short_key_proves_nothing() -> None:
    with pytest.raises(InternalError):
        Proof(Role.SOURCE, b"short", NETWORK, "east", os.urandom(NONCE_BYTES))
    with pytest.raises(InternalError):
        Proof(Role.SOURCE, KEY, NETWORK, "east", b"")
