"""Where an instance has its certificate, and when that ends.

Guarantees: an instance without certificates costs one look at the directory, and has no finding.
Leaves to others: TLS (security/tls.py), and what a certificate is made of (security/certificate.py).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.model.findings import Finding
from replicate.security.guarded_file import read_guarded, stamp
from replicate.settings.table import TlsConfig

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S


class TlsFiles(Struct, frozen=True):
    """Where the CA's certificate, our certificate (and what leads from it to the CA), and our key are."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, instance_path: Path, settings: TlsConfig) -> TlsFiles:
        """As the settings say; relative paths begin at the instance's directory."""
        return cls(instance_path / settings.ca, instance_path / settings.certificate, instance_path / settings.key)

    def stamps(self) -> tuple[tuple[int, ...], ...]:
        """What changes with any of them."""
        return stamp(self.ca), stamp(self.certificate), stamp(self.key)

    def are_there(self) -> bool:
        """Whether any of them is."""
        return any(self.stamps())


def certificate_findings(instance_path: Path, settings: TlsConfig, now_s: float) -> list[Finding]:
    """What `replicate status` and the logs say of certificates that end soon, or have ended. Nothing where there are
    none; what cannot be read is told elsewhere. `now_s`: the wall clock (Unix seconds)."""
    found = []
    for path, (what, not_after_s) in certificate_ends(instance_path, settings).items():
        finding = expiry_finding(now_s, not_after_s, settings.warn_days, what=what, where=str(path))
        if finding is not None:
            found.append(finding)
    return found


def certificate_ends(instance_path: Path, settings: TlsConfig) -> dict[Path, tuple[str, float]]:
    """What each certificate in use is, and when it ends (Unix seconds), by file; none where there are none, and without
    those that cannot be read."""
    files = TlsFiles.of(instance_path, settings)
    if not files.are_there():
        return {}
    from replicate.security.certificate import describe  # its library takes a tenth of a second to load

    found = {}
    for path, what in ((files.certificate, "the certificate"), (files.ca, "the CA's certificate")):
        with suppress(ReplicateError):
            found[path] = what, describe(read_guarded(path, is_secret=False, what=what), where=str(path)).not_after_s
    return found


def expiry_finding(now_s: float, not_after_s: float, warn_days: int, *, what: str, where: str) -> Finding | None:
    """The finding when a certificate ends within `warn_days`, or has ended; None otherwise. Times: seconds of the wall
    clock (Unix). `what`: whose certificate; `where`: its file."""
    left_s = not_after_s - now_s
    if left_s > warn_days * DAY_S:
        return None
    do = "replicate certificate issue NAME --ca DIR --out DIR --replace; it is used from the next connection on"
    if left_s <= 0:
        text = f"{what} expired {_told(-left_s)} ago: no peer accepts it"
        return Finding("CERTIFICATE_EXPIRED", f"{text} [{where}]", do)
    return Finding("CERTIFICATE_EXPIRES", f"{what} expires in {_told(left_s)} [{where}]", do)


def _told(seconds: float) -> str:
    """In days, or in hours where there are few of these: never more than it is."""
    if seconds >= 2 * DAY_S:
        return f"{int(seconds // DAY_S)} days"
    return f"{int(seconds // HOUR_S)} hours" if seconds >= 2 * HOUR_S else "less than two hours"
