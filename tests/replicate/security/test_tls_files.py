"""Where an instance's certificate is, and when that ends: the borders of what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.security.tls_files import DAY_S, TlsFiles, certificate_ends, certificate_findings, expiry_finding
from replicate.settings.table import TlsConfig


def finding(left_s: float, warn_days: int = 30) -> tuple[str, str] | None:
    found = expiry_finding(1e9, 1e9 + left_s, warn_days, what="the certificate", where="/srv/a.pem")
    return None if found is None else (found.code, found.text)


@pytest.mark.parametrize(
    ("left_s", "told"),
    [
        (30 * DAY_S + 1, None),
        (30 * DAY_S, ("CERTIFICATE_EXPIRES", "the certificate expires in 30 days [/srv/a.pem]")),
        (2 * DAY_S, ("CERTIFICATE_EXPIRES", "the certificate expires in 2 days [/srv/a.pem]")),
        (1.4 * DAY_S, ("CERTIFICATE_EXPIRES", "the certificate expires in 33 hours [/srv/a.pem]")),
        (1800, ("CERTIFICATE_EXPIRES", "the certificate expires in less than two hours [/srv/a.pem]")),
        (
            0,
            ("CERTIFICATE_EXPIRED", "the certificate expired less than two hours ago: no peer accepts it [/srv/a.pem]"),
        ),
        (-5 * 3600, ("CERTIFICATE_EXPIRED", "the certificate expired 5 hours ago: no peer accepts it [/srv/a.pem]")),
        (-9 * DAY_S, ("CERTIFICATE_EXPIRED", "the certificate expired 9 days ago: no peer accepts it [/srv/a.pem]")),
    ],
)
def test_it_is_told_in_time_and_in_hours_when_days_say_nothing(left_s: float, told: tuple[str, str] | None) -> None:
    assert finding(left_s) == told


@given(left_s=st.integers(-(10**8), 10**8), warn_days=st.integers(0, 400))
def test_one_that_is_no_use_is_never_said_to_be_well(left_s: int, warn_days: int) -> None:
    found = finding(left_s, warn_days)
    code = "CERTIFICATE_EXPIRED" if left_s <= 0 else "CERTIFICATE_EXPIRES" if left_s <= warn_days * DAY_S else None
    assert (None if found is None else found[0]) == code
    assert found is None or " 0 " not in found[1]


def test_paths_begin_at_the_instance_and_where_there_is_none_nothing_is_said(tmp_path: Path) -> None:
    settings = TlsConfig()
    files = TlsFiles.of(tmp_path, settings)
    assert {files.ca, files.certificate, files.key} == {
        tmp_path / settings.ca, tmp_path / settings.certificate, tmp_path / settings.key,
    }  # fmt: skip
    assert not files.are_there()
    assert certificate_ends(tmp_path, settings) == {}
    before = files.stamps()
    files.ca.parent.mkdir(exist_ok=True)
    files.ca.write_text("no certificate")
    files.ca.chmod(0o600)
    assert files.are_there()
    assert files.stamps() != before
    assert certificate_ends(tmp_path, settings) == {}  # what cannot be read is told elsewhere
    assert certificate_findings(tmp_path, settings, 0.0) == []
    absolute = TlsFiles.of(tmp_path, TlsConfig(ca="/etc/ca.pem"))
    assert absolute.ca == Path("/etc/ca.pem")
