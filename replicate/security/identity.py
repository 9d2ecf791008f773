"""This instance's certificate, its key and the CA's certificate, loaded and checked.

Guarantees: what is loaded has passed security/guarded_file.py, fits together, and is for this instance; nothing below
TLS 1.3 is spoken with it. Leaves to others: connections (security/tls.py), and who may do what.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from replicate.errors import ConfigurationError
from replicate.security.guarded_file import open_guarded, read_guarded
from replicate.security.tls_files import TlsFiles

if TYPE_CHECKING:
    from replicate.security.certificate import Described


class Identity(Struct, frozen=True):
    """Our certificate, loaded for both ends of a connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: Described


def load_identity(files: TlsFiles, instance: str) -> Identity:
    """The files, checked: as security/guarded_file.py demands, fitting together, valid now, and for `instance` if they
    name one.

    NotFoundError, PermissionRefusedError, ConfigurationError; each names the file.
    """
    from replicate.security.certificate import describe  # its library takes a tenth of a daemon's start to load

    ca_text = read_guarded(files.ca, is_secret=False, what="the CA's certificate")
    describe(ca_text, where=str(files.ca))  # refuses what is none
    certificate = describe(
        read_guarded(files.certificate, is_secret=False, what="the certificate"), where=str(files.certificate)
    )
    if certificate.instances and instance not in certificate.instances:
        raise ConfigurationError(
            f"the certificate is that of {', '.join(certificate.instances)}, and this instance is {instance}",
            where=str(files.certificate),
            do=f"Issue one for it: replicate -i INSTANCE certificate issue {instance} --ca DIR --replace",
        )
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = _strict(side, ca_text, files.ca)
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        _load_own(context, files)
        contexts.append(context)
    return Identity(contexts[0], contexts[1], certificate)


def _strict(side: ssl._SSLMethod, ca_text: bytes, where: Path) -> ssl.SSLContext:
    """That end of connections to what has a certificate of the CA."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=ca_text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"the CA's certificate cannot be used: {error}",
            where=str(where),
            do="Put the ca.pem there that was made beside the certificate (`certificate issue`)",
        ) from error
    return context


def for_pages(of: Identity | Path) -> ssl.SSLContext:
    """The client's end for pages of other hosts: each has to show a certificate that bears the host's name, of our own
    CA, whose certificate we show there; or of the one in that file, and we show none. Errors as `load_identity`."""
    if isinstance(of, Identity):
        context = of.client
    else:
        ca_text = read_guarded(of, is_secret=False, what="the CA's certificate")
        context = _strict(ssl.PROTOCOL_TLS_CLIENT, ca_text, of)
    context.check_hostname = True
    return context


def for_browsers(identity: Identity) -> ssl.SSLContext:
    """The server's end for those that may have no certificate of ours: one that is shown is of the CA."""
    identity.server.verify_mode = ssl.CERT_OPTIONAL
    return identity.server


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Through descriptors: what is loaded is what was checked, whatever stands at the path meanwhile."""

    def no_password() -> bytes:
        raise ConfigurationError(
            "the private key is encrypted, and a daemon has nobody to ask for the password",
            where=str(files.key),
            do="Store it without a password, mode 0600",
        )

    certificate = open_guarded(files.certificate, is_secret=False, what="the certificate")
    try:
        key = open_guarded(files.key, is_secret=True, what="the private key")
        try:
            context.load_cert_chain(f"/proc/self/fd/{certificate}", f"/proc/self/fd/{key}", no_password)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"certificate and key do not fit together: {error}",
                where=f"{files.certificate}, {files.key}",
                do="Put both files of one `replicate -i INSTANCE certificate issue` there",
            ) from error
        finally:
            os.close(key)
    finally:
        os.close(certificate)
