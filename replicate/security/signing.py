"""Signatures by an instance's certificate, for what no connection protects: who made this?

Over P-256, P-384 or P-521 by ECDSA, with RSA by PSS, with Ed25519 as it is; SHA-256. The certificate goes along, and is
verified as that of a client of TLS would be, by the library, against the CA of this instance.

Guarantees: a name comes out of `names_of` only where the signature fits the data, and the certificate is valid now.
Leaves to others: what is signed, and who may sign it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

from replicate.errors import ConfigurationError, NotAuthenticatedError
from replicate.security.guarded_file import read_guarded
from replicate.security.tls_files import TlsFiles
from replicate.settings.peer_authority import Reason, certificate_names, refused

if TYPE_CHECKING:
    from cryptography.x509.verification import VerifiedClient

_CONTEXT: Final = b"Dualsite Replicate packet 1\0"
"""Before what is signed: a signature of ours is never taken for one of something else."""
_CHAIN_MAX: Final = 8


def sign(data: bytes, files: TlsFiles) -> tuple[bytes, bytes]:
    """Our certificates in PEM form, and the signature of `data`. NotFoundError, PermissionRefusedError and
    ConfigurationError name the file."""
    certificates = read_guarded(files.certificate, is_secret=False, what="the certificate")
    return certificates, _signed(own_key(files), _CONTEXT + data, str(files.key))


def own_key(files: TlsFiles) -> object:
    """Our private key. NotFoundError, PermissionRefusedError and ConfigurationError name its file."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(read_guarded(files.key, is_secret=True, what="the private key"), None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"the private key cannot be used: {error}",
            where=str(files.key),
            do="Store it in PEM form, without a password",
        ) from error


def _signed(key: object, data: bytes, where: str) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size), hashes.SHA256())
    raise ConfigurationError(
        f"nothing can be signed with a key of the kind {type(key).__name__}",
        where=where,
        do="Use a certificate with a key of P-256, Ed25519 or RSA",
    )


def names_of(certificates: bytes, signature: bytes, data: bytes, files: TlsFiles, now_s: float) -> frozenset[str]:
    """The names in the certificate that has signed `data`. `now_s`: the wall clock (Unix seconds).

    NotAuthenticatedError: the signature does not fit, or the certificate is not of our CA, or not valid now;
    ConfigurationError and others: our own CA's certificate cannot be used.
    """
    from cryptography.exceptions import InvalidSignature

    names, key = certified(certificates, files, now_s)
    try:
        _verify(key, signature, _CONTEXT + data)
    except InvalidSignature as error:
        raise refused(
            Reason.CERTIFICATE_INVALID,
            "the signature does not fit: this was changed after it was signed, or somebody else signed it",
            do="Have it sent again, and find out who carried it",
        ) from error
    except (ValueError, TypeError) as error:
        raise refused(
            Reason.CERTIFICATE_INVALID, f"the signer's certificate makes no sense: {error}", do="Have it sent again"
        ) from error
    return names


def certified(certificates: bytes, files: TlsFiles, now_s: float) -> tuple[frozenset[str], object]:
    """The names in the first of these certificates (PEM), and its public key; the others lead from it to the CA.

    NotAuthenticatedError: it is not of our CA, or not valid now; ConfigurationError and others: our own CA's
    certificate cannot be used. `now_s`: the wall clock (Unix seconds).
    """
    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    ca = x509.load_pem_x509_certificates(read_guarded(files.ca, is_secret=False, what="the CA's certificate"))
    try:
        leaf, *between = x509.load_pem_x509_certificates(certificates)[:_CHAIN_MAX]
        now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
        verifier = PolicyBuilder().store(Store(ca)).time(now).build_client_verifier()
        return _names(verifier.verify(leaf, between)), leaf.public_key()
    except VerificationError as error:
        raise refused(
            Reason.CERTIFICATE_INVALID,
            f"the certificate is not accepted: {error}",
            do="It must be of this network's CA and not have expired; let its owner have a new one, and export again",
        ) from error
    except (ValueError, TypeError) as error:
        raise refused(
            Reason.CERTIFICATE_INVALID, f"the certificate makes no sense: {error}", do="Have it sent again"
        ) from error


def _names(verified: VerifiedClient) -> frozenset[str]:
    from cryptography import x509

    kinds = {x509.UniformResourceIdentifier: "URI", x509.DNSName: "DNS"}
    pairs = [(kinds[type(one)], one.value) for one in verified.subjects or () if type(one) in kinds]
    return certificate_names({"subjectAltName": pairs})


def _verify(key: object, signature: bytes, data: bytes) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, data)
    elif isinstance(key, rsa.RSAPublicKey):
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size)
        key.verify(signature, data, pss, hashes.SHA256())
    else:
        raise TypeError(f"a key of the kind {type(key).__name__}")


def require_signed(is_signed: bool, files: TlsFiles, what: str, *, accept_unsigned: bool) -> bool:
    """Whether a signature is to be verified: not where this instance has nothing to verify it with, and would take what
    is not signed. NotAuthenticatedError for what is not signed where it has a certificate, unless such are accepted."""
    if not files.are_there():
        return False
    if is_signed or accept_unsigned:
        return is_signed
    raise NotAuthenticatedError(
        f"{what} is not signed, and this instance has a certificate",
        do="Give the sender a certificate (replicate certificate issue NAME --ca DIR), and export again; or, where "
        "nobody else can write the files: replicate -i INSTANCE config set packets.unsigned accept",
    )
