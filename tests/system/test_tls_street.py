"""The whole street over TLS, as real processes and by the manual's commands: certificates, listen, seed, write, renew.

It runs on loopback with `tls.loopback`, which makes both ends treat the address as that of another host.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.street import Street
from tests.harness.waiting import wait_until

SETTINGS = """
[source]
soft_period_s = 0.2
[receiver]
allow = "primary"
[tls]
loopback = true
"""


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=SETTINGS)
    try:
        yield made.build()
    finally:
        made.close()


def certify(street: Street) -> None:
    street.run("certificate", "init", street.directory / "ca")
    for instance in (street.primary, street.secondary):
        issue(street, instance)


def issue(street: Street, instance: Path, *more: str) -> str:
    done = street.on(instance, "--json", "certificate", "issue", instance.name, "--ca", street.directory / "ca", *more)
    return str(json.loads(done.stdout)["serial"])


@pytest.mark.slow
def test_a_street_over_tls_from_nothing_to_equal_databases(street: Street) -> None:
    refused = street.on(street.secondary, "receiver", "start", "--listen", "127.0.0.1:0", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (78, 1)
    assert f"replicate -i {street.secondary} certificate issue secondary" in refused.stderr
    certify(street)
    street.start()
    writer = street.writer(1, 100)
    assert writer.wait(timeout=120) == 0
    last = street.last_seqno(street.primary)
    street.on(street.secondary, "wait", "--seqno", str(last), "--timeout", "60")
    street.on(street.primary, "compare", "--with", street.secondary)

    def found() -> list[str]:
        return [item["code"] for item in street.status(street.secondary)["findings"]]

    # The host's disk is its own matter.
    wait_until(lambda: set(found()) - {"DISK_FILLING"} == {"COMPARED"}, what="nothing else is to be told")
    # A renewal: the stream that runs goes on, the next connection shows the new one.
    serial = issue(street, street.secondary, "--replace", "--days", "20")
    street.on(street.primary, "source", "stop")
    street.start_source()
    wait_until(
        lambda: any(
            line["event"] == "certificate reloaded" and line["serial"] == serial
            for line in street.log(street.secondary, "receiver")
        )
    )
    wait_until(lambda: street.daemon(street.primary, "source-secondary")["facts"].get("state") == "sending")
    assert "CERTIFICATE_EXPIRES" in found()
    log = (street.secondary / "log" / "receiver.log").read_text() + (
        street.primary / "log" / "source-secondary.log"
    ).read_text()
    assert "PRIVATE KEY" not in log


def test_another_host_is_refused_without_certificates_in_one_line(street: Street) -> None:
    for arguments, instance in (
        (("receiver", "start", "--listen", "0.0.0.0:0"), street.secondary),
        (("peer", "add", "secondary", "192.0.2.1:7430"), street.primary),
    ):
        done = street.on(instance, *arguments, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (78, 1), done.stderr
        assert "is not a loopback address, and plain TCP does not leave the machine" in done.stderr
        assert "replicate certificate init" in done.stderr
    certify(street)
    done = street.on(
        street.secondary, "receiver", "start", "--listen", "0.0.0.0:0", "--set", "receiver.allow=", check=False
    )
    assert done.returncode == 78
    assert "receiver.allow is empty" in done.stderr
