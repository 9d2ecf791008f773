"""Certificates for tests: a CA of ours, certificates into the directories of instances, and foreign ones by trustme.

Guarantees: everything is below the directory given. Leaves to others: connections.
"""

from __future__ import annotations

import shutil
import ssl
import time
from pathlib import Path

import trustme

from replicate.instance.instance import Instance
from replicate.security.certificate import issue, make_ca

DAY_S = 86_400


class Authority:
    """A CA of ours below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca"
        make_ca(self.ca, name="Test CA", days=3650, now_s=time.time() - 100 * DAY_S)

    def files(self, name: str, *, days: int = 30, age_days: float = 0) -> Path:
        """A directory with the three files of `name`, issued `age_days` ago (negative: in the future)."""
        out = self.directory / f"{name}-{days}-{age_days}"
        if not out.exists():
            issue(name, ca=self.ca, out=out, hosts=(), days=days, now_s=time.time() - age_days * DAY_S)
        return out

    def install(self, instance: Instance, name: str = "", *, days: int = 30, age_days: float = 0) -> Path:
        """Put the files into the instance's directory `tls`, in the place of what is there."""
        target = instance.path / "tls"
        target.mkdir(mode=0o700, exist_ok=True)
        for file in self.files(name or instance.name, days=days, age_days=age_days).iterdir():
            aside = target / f"{file.name}.new"
            shutil.copy(file, aside)
            aside.chmod(0o600)
            aside.rename(target / file.name)
        return target


def client_context(files: Path | None) -> ssl.SSLContext:
    """A client that shows the certificate of `files` (None: none), and believes every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files / "certificate.pem", files / "key.pem")
    return context


def foreign_context(name: str) -> ssl.SSLContext:
    """A client with a certificate of that DNS name from a CA that nobody here knows."""
    context = client_context(None)
    trustme.CA().issue_cert(name).configure_cert(context)
    return context


_FOREIGN: dict[Path, trustme.CA] = {}


def foreign_files(authority: Authority, name: str) -> Path:
    """Files of a CA that knows nothing of us: no URI of ours, a DNS name only."""
    out = authority.directory / f"foreign-{name}"
    out.mkdir()
    ca = _FOREIGN.setdefault(authority.directory, trustme.CA())
    made = ca.issue_cert(f"{name}.example.com")
    ca.cert_pem.write_to_path(out / "ca.pem")
    made.private_key_pem.write_to_path(out / "key.pem")
    for number, pem in enumerate(made.cert_chain_pems):
        pem.write_to_path(out / "certificate.pem", append=number > 0)
    return out
