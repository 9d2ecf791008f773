"""Certificates: what is made, for whom, and with which modes; what is refused."""

from __future__ import annotations

import json
import os
import ssl
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.security.certificate import describe, issue, make_ca
from replicate.security.guarded_file import read_guarded
from replicate.security.identity import load_identity
from replicate.security.tls_files import TlsFiles
from replicate.status.collect import collect
from tests.harness.certificates import DAY_S, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path / "home"))
    return Instance.create(tmp_path / "east", role="primary", name="east")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(root, list(arguments), catch_exceptions=False, standalone_mode=False)


def files_of(instance: Instance) -> TlsFiles:
    return TlsFiles.of(instance.path, instance.config.tls)


def identity_error(instance: Instance) -> Exception:
    with pytest.raises(Exception) as caught:
        load_identity(files_of(instance), instance.name)
    return caught.value


def test_what_is_issued(authority: Authority) -> None:
    made = issue(
        "east", ca=authority.ca, out=authority.directory / "out", hosts=("db1.example.com", "192.0.2.7"), days=30,
        now_s=time.time(),
    )  # fmt: skip
    assert made.instances == ("east",)
    assert made.names == ("east", "db1.example.com", "192.0.2.7")
    assert made.issuer == "CN=Test CA"
    assert abs(made.not_after_s - time.time() - 30 * DAY_S) < 60
    for directory in (authority.ca, authority.directory / "out"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        for file in directory.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert sorted(file.name for file in (authority.directory / "out").iterdir()) == [
        "ca.pem", "certificate.pem", "key.pem",
    ]  # fmt: skip


def test_nothing_is_overwritten_unasked(authority: Authority) -> None:
    out = authority.directory / "out"
    with pytest.raises(AlreadyExistsError):
        make_ca(authority.ca, name="again", days=1, now_s=time.time())
    facts: dict[str, Any] = {"ca": authority.ca, "out": out, "hosts": (), "days": 1, "now_s": time.time()}
    first = issue("east", **facts)
    with pytest.raises(AlreadyExistsError, match="--replace"):
        issue("east", **facts)
    second = issue("east", replace=True, **facts)
    assert first.serial != second.serial
    assert describe((out / "certificate.pem").read_bytes(), where="").serial == second.serial


def test_a_certificate_never_outlives_its_ca(authority: Authority) -> None:
    made = issue("east", ca=authority.ca, out=authority.directory / "o", hosts=(), days=36_500, now_s=time.time())
    assert made.not_after_s == describe((authority.ca / "ca.pem").read_bytes(), where="").not_after_s
    make_ca(authority.directory / "old", name="old", days=1, now_s=time.time() - 10 * DAY_S)
    with pytest.raises(ConfigurationError, match="CA has expired"):
        issue(
            "east", ca=authority.directory / "old", out=authority.directory / "p", hosts=(), days=1, now_s=time.time()
        )


def test_bad_names_hosts_and_cas(authority: Authority, tmp_path: Path) -> None:
    facts: dict[str, Any] = {"out": tmp_path / "o", "days": 1, "now_s": time.time()}
    with pytest.raises(UsageError):
        issue("../x", ca=authority.ca, hosts=(), **facts)
    for host in ("a b", "", "-x", "a/b", "ä"):
        with pytest.raises(UsageError, match="host name"):
            issue("east", ca=authority.ca, hosts=(host,), **facts)
    with pytest.raises(NotFoundError, match="certificate init"):
        issue("east", ca=tmp_path / "nowhere", hosts=(), **facts)
    (authority.ca / "ca-key.pem").chmod(0o640)
    with pytest.raises(PermissionRefusedError, match="0640"):
        issue("east", ca=authority.ca, hosts=(), **facts)
    assert not (tmp_path / "o").exists()
    with pytest.raises(UsageError):
        make_ca(tmp_path / "c", name="a\nb", days=1, now_s=time.time())
    with pytest.raises(ConfigurationError, match="no certificate"):
        describe(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", where="x")


def test_the_files_of_an_instance_are_loaded(authority: Authority, instance: Instance) -> None:
    authority.install(instance)
    made = load_identity(files_of(instance), "east")
    for context in (made.server, made.client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert not context.check_hostname
    assert made.server.num_tickets == 0
    assert made.certificate.instances == ("east",)


def test_files_that_others_can_reach_are_refused(authority: Authority, instance: Instance, tmp_path: Path) -> None:
    tls = authority.install(instance)
    (tls / "key.pem").chmod(0o640)
    assert "chmod 600" in str(identity_error(instance))
    (tls / "key.pem").chmod(0o600)
    (tls / "certificate.pem").chmod(0o622)
    assert isinstance(identity_error(instance), PermissionRefusedError)
    (tls / "certificate.pem").chmod(0o644)
    load_identity(files_of(instance), "east")
    (tls / "key.pem").rename(tmp_path / "elsewhere.pem")
    (tls / "key.pem").symlink_to(tmp_path / "elsewhere.pem")
    assert "symbolic link" in str(identity_error(instance))
    (tls / "key.pem").unlink()
    os.mkfifo(tls / "key.pem", 0o600)
    assert "no regular file" in str(identity_error(instance))
    (tls / "key.pem").unlink()
    assert isinstance(identity_error(instance), NotFoundError)


def test_another_users_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(b"x")
    key.chmod(0o600)
    real = os.fstat

    def given_away(fd: int) -> os.stat_result:
        facts = list(real(fd))
        facts[4] = 12345
        return os.stat_result(facts)

    monkeypatch.setattr(os, "fstat", given_away)
    with pytest.raises(PermissionRefusedError, match="belongs to user 12345"):
        read_guarded(key, is_secret=True, what="the key")


def test_files_that_do_not_fit(authority: Authority, instance: Instance) -> None:
    tls = authority.install(instance)
    other = authority.files("east", days=7)
    (tls / "key.pem").write_bytes((other / "key.pem").read_bytes())
    assert "do not fit together" in str(identity_error(instance))
    (tls / "key.pem").write_bytes(b"rubbish")
    assert isinstance(identity_error(instance), ConfigurationError)
    authority.install(instance, "west")
    assert "that of west, and this instance is east" in str(identity_error(instance))
    (tls / "ca.pem").write_bytes(b"rubbish")
    assert isinstance(identity_error(instance), ConfigurationError)


def test_an_encrypted_key_asks_nobody(authority: Authority, instance: Instance) -> None:
    from cryptography.hazmat.primitives import serialization as form

    tls = authority.install(instance)
    key = form.load_pem_private_key((tls / "key.pem").read_bytes(), None)
    locked = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret"))
    (tls / "key.pem").write_bytes(locked)
    assert "encrypted" in str(identity_error(instance))


def test_the_command_line(instance: Instance, tmp_path: Path) -> None:
    ca = str(tmp_path / "ca")
    assert "next: replicate certificate issue" in invoke("certificate", "init", ca).stdout
    assert "valid until" in invoke("-i", str(instance.path), "certificate", "issue", "east", "--ca", ca).stdout
    shown = json.loads(invoke("-i", str(instance.path), "--json", "certificate", "show").stdout)
    own = shown[str(instance.path / "tls" / "certificate.pem")]
    assert (own["instances"], own["is_ca"], len(own["fingerprint"])) == (["east"], False, 95)
    assert shown[str(instance.path / "tls" / "ca.pem")]["is_ca"] is True
    assert own["serial"] in invoke("certificate", "show", str(instance.path / "tls" / "certificate.pem")).stdout
    with pytest.raises(UsageError, match="not the instance east"):
        invoke("-i", str(instance.path), "certificate", "issue", "west", "--ca", ca)
    with pytest.raises(UsageError, match="--out"):
        invoke("certificate", "issue", "west", "--ca", ca)
    out = str(tmp_path / "west-tls")
    invoke("certificate", "issue", "west", "--ca", ca, "--out", out, "--host", "db2.example.com")
    assert "db2.example.com" in invoke("certificate", "show", f"{out}/certificate.pem").stdout


def test_another_host_needs_a_certificate(authority: Authority, instance: Instance) -> None:
    add = ("-i", str(instance.path), "peer", "add", "west", "192.0.2.9:7430")
    with pytest.raises(ConfigurationError, match=r"192.0.2.9:7430 is not a loopback.*certificate issue east") as caught:
        invoke(*add)
    assert caught.value.exit_code == 78
    assert Instance.open(instance.path).peers == ()
    authority.install(instance)
    invoke(*add, "--certificate", "db2.example.com")
    (peer,) = Instance.open(instance.path).peers
    assert (peer.certificate, peer.certificate_name) == ("db2.example.com", "db2.example.com")


def test_status_warns_before_the_end(authority: Authority, instance: Instance) -> None:
    def codes() -> list[str]:
        return [found.code for found in collect(instance).findings if found.code.startswith("CERT")]

    assert codes() == []
    authority.install(instance, days=31)
    assert codes() == []
    authority.install(instance, days=29)
    assert codes() == ["CERTIFICATE_EXPIRES"]
    authority.install(instance, days=1, age_days=5)
    assert codes() == ["CERTIFICATE_EXPIRED"]


@pytest.mark.parametrize(
    ("file", "spoil", "expected"),
    [
        ("key.pem", Path.unlink, "the private key is not there"),
        ("certificate.pem", Path.unlink, "the certificate is not there"),
        ("ca.pem", Path.unlink, "the CA's certificate is not there"),
        ("key.pem", lambda path: path.chmod(0o644), "the private key may be read by others"),
        ("certificate.pem", lambda path: path.write_text(path.read_text()[:200]), ""),
        (
            "key.pem",
            lambda path: path.write_bytes((path.parents[2] / "ca/ca-key.pem").read_bytes()),
            "do not fit",
        ),
    ],
)
def test_status_says_what_the_next_start_could_not_use(
    authority: Authority, instance: Instance, file: str, spoil: Any, expected: str
) -> None:
    """What runs has loaded it, and says nothing more of it."""
    path = authority.install(instance, days=100) / file
    spoil(path)
    (found,) = [one for one in collect(instance).findings if one.code.startswith("CERT")]
    assert found.code == "CERTIFICATE_UNUSABLE"
    assert expected in found.text
    assert str(path) in found.text
    assert found.do
