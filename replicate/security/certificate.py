"""Certificates for those who have no CA: a small private CA, and one certificate for each instance of a network.

EC keys on P-256. An instance's certificate names it by the URI `urn:dualsite:instance:NAME`, which is what counts, and
by DNS names, which other tools show. The three files of an instance (ca.pem, certificate.pem, key.pem) are what its
directory `tls` holds; the CA's key stays where it was made.

Guarantees: files appear whole, with mode 0600, and nothing that exists is replaced unless that was asked for; a
certificate never outlives its CA.
Leaves to others: connections, and who may do what.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from replicate.errors import AlreadyExistsError, ConfigurationError, NotFoundError, UsageError
from replicate.instance.file import check_name
from replicate.security.guarded_file import read_guarded
from replicate.settings.peer_authority import INSTANCE_URI
from replicate.system.files import replace_file
from replicate.system.os_errors import io_error

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
CERTIFICATE_FILE: Final = "certificate.pem"
KEY_FILE: Final = "key.pem"
_CA_DO: Final = "Put both files of one `replicate certificate init` there"
_SKEW: Final = datetime.timedelta(hours=1)
"""A certificate is valid from a little earlier on: the other host's clock may be behind ours."""
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


class Described(Struct, frozen=True):
    """What is to be known of a certificate. Times are seconds of the wall clock (Unix)."""

    subject: str
    issuer: str
    serial: str
    instances: tuple[str, ...]
    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float
    fingerprint: str
    is_ca: bool


def describe(pem: bytes, *, where: str) -> Described:
    """The first certificate of a PEM text. ConfigurationError when there is none."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = _alternative_names(certificate)
        is_ca = _is_ca(certificate)
    except (ValueError, x509.DuplicateExtension) as error:
        raise ConfigurationError(
            "this is no certificate in PEM form",
            where=where,
            do="Put one of `replicate -i INSTANCE certificate issue` there",
        ) from error
    return Described(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        instances=tuple(name.removeprefix(INSTANCE_URI) for name in names if name.startswith(INSTANCE_URI)),
        names=tuple(name for name in names if not name.startswith(INSTANCE_URI)),
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        is_ca=is_ca,
    )


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def make_ca(directory: Path, *, name: str, days: int, now_s: float) -> Described:
    """A new CA in `directory` (made if missing, 0700). AlreadyExistsError when one is there; UsageError for a bad name.

    `now_s`: the wall clock (Unix seconds).
    """
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise UsageError(f"{name!r} is no name for a CA", do="Use 1 to 64 printable characters")
    _make_directory(directory)
    for file in (directory / CA_FILE, directory / CA_KEY_FILE):
        if file.exists() or file.is_symlink():
            raise AlreadyExistsError("a CA is here already", where=str(file), do="Use it, or name another directory")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins, ends = _validity(now_s, days)
    builder = _builder(subject, subject, key.public_key(), begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    replace_file(directory / CA_KEY_FILE, _key_pem(key))
    replace_file(directory / CA_FILE, _pem(certificate))
    return describe(_pem(certificate), where=str(directory / CA_FILE))


def issue(
    name: str, *, ca: Path, out: Path, hosts: Iterable[str], days: int, now_s: float, replace: bool = False
) -> Described:
    """A certificate for the instance `name`, its key and the CA's certificate in `out` (made if missing, 0700).

    `ca`: the directory of `make_ca`. AlreadyExistsError when a certificate is there, unless `replace`; NotFoundError or
    PermissionRefusedError for the CA's files; UsageError for a bad name or host. The key goes first, so that a daemon
    that looks in between finds files that do not fit, and stays with what it has.
    """
    check_name(name, "instance")
    alternatives = [*_own_names(name), *(_host(host) for host in hosts)]
    ca_pem, signer, ca_key = _load_ca(ca)
    ca_ends = signer.not_valid_after_utc
    if ca_ends.timestamp() <= now_s:
        raise ConfigurationError("the CA has expired", where=str(ca / CA_FILE), do="Make a new one, in a new directory")
    _make_directory(out)
    if not replace:
        for file in (out / CERTIFICATE_FILE, out / KEY_FILE, out / CA_FILE):
            if file.exists() or file.is_symlink():
                raise AlreadyExistsError(
                    "this is there already", where=str(file), do="Add --replace, or name another --out"
                )
    key = ec.generate_private_key(ec.SECP256R1())
    begins, ends = _validity(now_s, days)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, signer.subject, key.public_key(), begins, min(ends, ca_ends))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(both, critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    of_ca = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = builder.add_extension(of_ca, critical=False).sign(ca_key, hashes.SHA256())
    replace_file(out / KEY_FILE, _key_pem(key))
    replace_file(out / CERTIFICATE_FILE, _pem(certificate))
    replace_file(out / CA_FILE, ca_pem)
    return describe(_pem(certificate), where=str(out / CERTIFICATE_FILE))


def _load_ca(ca: Path) -> tuple[bytes, x509.Certificate, ec.EllipticCurvePrivateKey]:
    where = str(ca)
    try:
        pem = read_guarded(ca / CA_FILE, is_secret=False, what="the CA's certificate")
        key_pem = read_guarded(ca / CA_KEY_FILE, is_secret=True, what="the CA's key")
    except NotFoundError as error:
        raise NotFoundError(error.what, where=error.where, do=f"Make a CA: replicate certificate init {ca}") from None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the CA cannot be read: {error}", where=where, do=_CA_DO) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigurationError(f"{CA_FILE} and {CA_KEY_FILE} do not belong together", where=where, do=_CA_DO)
    return pem, certificate, key


def _own_names(name: str) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(INSTANCE_URI + name), x509.DNSName(name)]


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.match(host):
        raise UsageError(f"{host!r} is no host name or IP address", do="Write it like db1.example.com or 192.0.2.7")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _validity(now_s: float, days: int) -> tuple[datetime.datetime, datetime.datetime]:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return now - _SKEW, now + datetime.timedelta(days=days)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise io_error(error, "the directory cannot be made", str(directory)) from error
