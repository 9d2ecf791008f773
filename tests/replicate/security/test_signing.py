"""A name comes out only where the signature fits and the certificate is of our CA and valid now."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from replicate.errors import ConfigurationError, NotAuthenticatedError, NotFoundError
from replicate.security.certificate import issue, make_ca
from replicate.security.signing import names_of, require_signed, sign
from replicate.security.tls_files import TlsFiles

NOW_S = time.time()
DAY_S = 86_400


def files_in(directory: Path) -> TlsFiles:
    return TlsFiles(directory / "ca.pem", directory / "certificate.pem", directory / "key.pem")


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    make_ca(tmp_path / "ca", name="ours", days=30, now_s=NOW_S)
    return tmp_path / "ca"


def issued(ca: Path, name: str, days: int = 9) -> TlsFiles:
    issue(name, ca=ca, out=ca.parent / name, hosts=[], days=days, now_s=NOW_S)
    return files_in(ca.parent / name)


def test_who_has_signed_is_told(ca: Path) -> None:
    east, west = issued(ca, "east"), issued(ca, "west")
    certificates, value = sign(b"data", east)
    assert names_of(certificates, value, b"data", west, NOW_S) == {"east"}


def test_changed_data_and_a_signature_of_another_are_refused(ca: Path) -> None:
    east, west = issued(ca, "east"), issued(ca, "west")
    certificates, value = sign(b"data", east)
    of_west, value_of_west = sign(b"data", west)
    for one, by, data in (
        (value, certificates, b"date"),
        (value_of_west, certificates, b"data"),
        (value, of_west, b"data"),
        (b"", certificates, b"data"),
    ):
        with pytest.raises(NotAuthenticatedError) as caught:
            names_of(by, one, data, west, NOW_S)
        assert caught.value.do


def test_a_certificate_of_another_ca_is_refused(ca: Path, tmp_path: Path) -> None:
    make_ca(tmp_path / "other" / "ca", name="theirs", days=30, now_s=NOW_S)
    theirs = issued(tmp_path / "other" / "ca", "east")
    certificates, value = sign(b"data", theirs)
    with pytest.raises(NotAuthenticatedError, match="not accepted"):
        names_of(certificates, value, b"data", issued(ca, "west"), NOW_S)


@pytest.mark.parametrize("at_s", [NOW_S + 10 * DAY_S, NOW_S - 2 * DAY_S], ids=["expired", "not yet"])
def test_a_certificate_has_its_time(ca: Path, at_s: float) -> None:
    certificates, value = sign(b"data", issued(ca, "east"))
    with pytest.raises(NotAuthenticatedError, match="not accepted"):
        names_of(certificates, value, b"data", issued(ca, "west"), at_s)


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff" * 9])
def test_what_is_no_certificate_is_refused(ca: Path, pem: bytes) -> None:
    with pytest.raises(NotAuthenticatedError, match="makes no sense"):
        names_of(pem, b"value", b"data", issued(ca, "west"), NOW_S)


def operators(ca: Path, key: object) -> TlsFiles:
    """A certificate that an operator's own CA has issued, with a key of another kind."""
    signer = serialization.load_pem_private_key((ca / "ca-key.pem").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    begins = datetime.datetime.fromtimestamp(NOW_S, datetime.UTC) - datetime.timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "east")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())  # type: ignore[attr-defined]
        .serial_number(77)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=5))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("east")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    directory = ca.parent / "operators"
    directory.mkdir()
    files = files_in(directory)
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))  # type: ignore[attr-defined]
    files.ca.write_bytes((ca / "ca.pem").read_bytes())
    files.key.chmod(0o600)
    return files


@pytest.mark.parametrize("kind", ["rsa", "p384"])
def test_keys_of_other_kinds(ca: Path, kind: str) -> None:
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP384R1())
    certificates, value = sign(b"data", operators(ca, key))
    west = issued(ca, "west")
    assert names_of(certificates, value, b"data", west, NOW_S) == {"east"}
    with pytest.raises(NotAuthenticatedError):
        names_of(certificates, value, b"date", west, NOW_S)


def test_an_ed25519_key_signs(ca: Path) -> None:
    """Whether its certificate is accepted is the library's word."""
    _, value = sign(b"data", operators(ca, ed25519.Ed25519PrivateKey.generate()))
    assert len(value) == 64


def test_a_key_that_cannot_sign_is_named(ca: Path) -> None:
    files = issued(ca, "east")
    files.key.write_bytes(
        dsa.generate_private_key(2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(ConfigurationError, match="nothing can be signed") as caught:
        sign(b"data", files)
    assert caught.value.where == str(files.key)
    files.key.write_bytes(b"no key")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        sign(b"data", files)
    files.key.unlink()
    with pytest.raises(NotFoundError):
        sign(b"data", files)


def test_what_must_be_signed(ca: Path, tmp_path: Path) -> None:
    here, none = issued(ca, "east"), files_in(tmp_path / "none")
    assert require_signed(True, here, "x", accept_unsigned=False)
    assert not require_signed(False, here, "x", accept_unsigned=True)
    assert not require_signed(False, none, "x", accept_unsigned=False)
    assert not require_signed(True, none, "x", accept_unsigned=False)
    with pytest.raises(NotAuthenticatedError, match="x is not signed"):
        require_signed(False, here, "x", accept_unsigned=False)
