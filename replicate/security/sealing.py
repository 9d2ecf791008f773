"""Sealing for one reader, by the key of its certificate.

    a key        by HPKE (RFC 9180) with P-256, HKDF-SHA256 and AES-256-GCM, as a whole
    what is long by AES-256-GCM under that key, chunk after chunk, each with a nonce of its number and whether it is the
                 last: the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár, with the nonces of age

Guarantees: nobody but the holder of the certificate's key reads what is sealed. What was changed does not open; nor
does a chunk in another one's place, or as the last where it is not. The certificate is of our CA and valid now, or
nothing is sealed.
Leaves to others: who made it (a signature within says that), and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from replicate.errors import ConfigurationError, DamagedError
from replicate.security.signing import certified, own_key
from replicate.security.tls_files import TlsFiles

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
"""So much longer is a chunk when it is sealed."""
_INFO: Final = b"Dualsite Replicate sealed packet 2"
_COUNTER_BYTES: Final = 11
_KEY_DO: Final = "Use one of: replicate certificate issue NAME --ca DIR"


def _suite() -> Suite:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def _is_p256(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec

    return isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"


def seal(data: bytes, certificate: bytes, files: TlsFiles, now_s: float, *, where: str) -> bytes:
    """`data`, to be read by the owner of the certificate (PEM). NotAuthenticatedError: it is not of our CA, or not
    valid now; ConfigurationError: its key is none of P-256. `where`: the certificate's file."""
    _, key = certified(certificate, files, now_s)
    if not _is_p256(key):
        raise ConfigurationError("nothing can be sealed for a key that is not of P-256", where=where, do=_KEY_DO)
    return _suite().encrypt(data, key, info=_INFO)  # type: ignore[arg-type]


def unseal(sealed: bytes, files: TlsFiles, *, where: str) -> bytes:
    """What was sealed for us. DamagedError: it was changed, or is sealed for another key; ConfigurationError and
    others: our key cannot be used. `where`: the sealed file."""
    from cryptography.exceptions import InvalidTag

    key = own_key(files)
    if not _is_p256(key):
        raise ConfigurationError("a key that is not of P-256 opens nothing", where=str(files.key), do=_KEY_DO)
    try:
        return _suite().decrypt(sealed, key, info=_INFO)  # type: ignore[arg-type]
    except (InvalidTag, ValueError) as error:
        raise DamagedError(
            "this does not open: it was changed, or is sealed for another key than ours",
            where=where,
            do="Copy it again. If our certificate was issued again since: send a receipt, and have it exported again",
        ) from error


def new_key() -> bytes:
    """For one ChunkCipher that seals."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM.generate_key(8 * KEY_BYTES)


class ChunkCipher:
    """Seals or opens chunks. A key seals each number once: it is for one file, that nobody writes again."""

    def __init__(self, key: bytes) -> None:
        """`key`: KEY_BYTES. DamagedError for none."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != KEY_BYTES:
            raise DamagedError(f"a key of {len(key)} bytes was sealed", do="Have it made again")
        self._aead = AESGCM(key)

    def seal(self, data: bytes, number: int, *, is_last: bool) -> bytes:
        """The chunk with that number, from 0."""
        return self._aead.encrypt(_nonce(number, is_last), data, None)

    def open(self, data: bytes, number: int, *, is_last: bool, where: str) -> bytes:
        """What `seal` was given. DamagedError."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(_nonce(number, is_last), data, None)
        except InvalidTag as error:
            raise DamagedError(
                f"chunk {number} does not open: it was changed or moved, or the file was cut",
                where=where,
                do="Copy it again; if it is damaged where it was made, there: replicate -i SENDER packet recover",
            ) from error


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(_COUNTER_BYTES, "big") + bytes([is_last])
