"""What is sealed for one is read by that one, and by nobody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from replicate.errors import ConfigurationError, DamagedError, NotAuthenticatedError
from replicate.security.certificate import make_ca
from replicate.security.sealing import KEY_BYTES, TAG_BYTES, ChunkCipher, new_key, seal, unseal
from tests.replicate.security.test_signing import DAY_S, NOW_S, files_in, issued, operators


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    make_ca(tmp_path / "ca", name="ours", days=30, now_s=NOW_S)
    return tmp_path / "ca"


def test_its_owner_opens_it(ca: Path) -> None:
    east, west = issued(ca, "east"), issued(ca, "west")
    sealed = seal(b"rows" * 100, west.certificate.read_bytes(), east, time.time(), where="x")
    assert b"rows" not in sealed
    assert unseal(sealed, west, where="x") == b"rows" * 100
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for files, data in ((east, sealed), (west, changed), (west, sealed[:20]), (west, b"")):
        with pytest.raises(DamagedError, match="does not open") as caught:
            unseal(data, files, where="x.packet")
        assert caught.value.where == "x.packet"


def test_nothing_is_sealed_for_one_whom_our_ca_does_not_know(ca: Path, tmp_path: Path) -> None:
    east = issued(ca, "east")
    make_ca(tmp_path / "other" / "ca", name="theirs", days=30, now_s=NOW_S)
    theirs = issued(tmp_path / "other" / "ca", "west").certificate.read_bytes()
    with pytest.raises(NotAuthenticatedError, match="not accepted"):
        seal(b"rows", theirs, east, time.time(), where="x")
    with pytest.raises(NotAuthenticatedError, match="not accepted"):
        seal(b"rows", issued(ca, "west").certificate.read_bytes(), east, NOW_S + 20 * DAY_S, where="x")


def test_a_key_of_another_kind_is_named(ca: Path) -> None:
    files = operators(ca, ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(ConfigurationError, match=r"not of P-256"):
        seal(b"rows", files.certificate.read_bytes(), files, time.time(), where="x")
    with pytest.raises(ConfigurationError, match=r"not of P-256"):
        unseal(b"sealed", files, where="x")
    files.key.write_bytes(b"no key")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        unseal(b"sealed", files, where="x")


def test_a_certificate_that_was_issued_again_opens_nothing_old(ca: Path) -> None:
    west = issued(ca, "west")
    sealed = seal(b"rows", west.certificate.read_bytes(), west, time.time(), where="x")
    key = ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files_in(ca.parent / "west").key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    with pytest.raises(DamagedError) as caught:
        unseal(sealed, west, where="x")
    assert "issued again" in caught.value.do


def test_a_chunk_opens_in_its_place_only() -> None:
    cipher = ChunkCipher(new_key())
    sealed = cipher.seal(b"rows", 7, is_last=False)
    assert len(sealed) == 4 + TAG_BYTES
    assert cipher.open(sealed, 7, is_last=False, where="x") == b"rows"
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for data, number, is_last in ((sealed, 6, False), (sealed, 7, True), (sealed[:-1], 7, False), (changed, 7, False)):
        with pytest.raises(DamagedError, match=f"chunk {number} does not open") as caught:
            cipher.open(data, number, is_last=is_last, where="x.packet")
        assert caught.value.where == "x.packet"
    with pytest.raises(DamagedError):
        ChunkCipher(new_key()).open(sealed, 7, is_last=False, where="x")


def test_chunks_are_those_of_the_stream_construction() -> None:
    """By the library itself: a counter of 11 bytes, and 1 for the last."""
    key = bytes(range(KEY_BYTES))
    sealed = ChunkCipher(key).seal(b"rows", 258, is_last=True)
    assert AESGCM(key).decrypt(bytes(9) + bytes([1, 2, 1]), sealed, None) == b"rows"
    assert new_key() != new_key()
    with pytest.raises(DamagedError, match="a key of 31 bytes"):
        ChunkCipher(key[1:])
