"""Who a certificate names, and what it may do: judged without a socket."""

from __future__ import annotations

import pytest

from replicate.errors import ConfigurationError, NotAuthenticatedError
from replicate.security.tls_files import DAY_S, expiry_finding
from replicate.settings.peer_authority import (
    INSTANCE_URI,
    Reason,
    certificate_names,
    judge_receiver,
    judge_source,
    parse_allow,
    tls_refusal,
)


def test_our_uri_counts_and_hosts_do_not() -> None:
    shown = {"subjectAltName": (("DNS", "west"), ("URI", INSTANCE_URI + "east"), ("IP Address", "192.0.2.1"))}
    assert certificate_names(shown) == {"east"}
    foreign = {"subjectAltName": (("DNS", "db1.example.com"), ("DNS", "db"), ("URI", "spiffe://x/east"))}
    assert certificate_names(foreign) == {"db1.example.com", "db"}
    assert certificate_names({"subject": ((("commonName", "east"),),)}) == frozenset()
    assert certificate_names(None) == frozenset()


def test_allow_maps_certificates_to_instances() -> None:
    assert parse_allow("") == {}
    assert parse_allow(" east, north=db1.example.com ") == {"east": "east", "north": "db1.example.com"}
    for wrong in ("east=", "=x", "../x", "east,east", "a/b"):
        with pytest.raises(ConfigurationError):
            parse_allow(wrong)


def test_a_source_is_one_that_is_allowed() -> None:
    allowed = {"east": "db1.example.com", "north": "north"}
    found = judge_source(frozenset({"db1.example.com"}), allowed, me="west", consumers=["third"])
    assert found == {"east"}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"stranger"}, Reason.CERTIFICATE_UNKNOWN),
        ({"east"}, Reason.CERTIFICATE_UNKNOWN),  # the instance's name, and not that of its certificate
        (set(), Reason.CERTIFICATE_UNKNOWN),
        ({"west"}, Reason.CERTIFICATE_WRONG_ROLE),
        ({"third"}, Reason.CERTIFICATE_WRONG_ROLE),
    ],
)
def test_a_source_that_is_not_allowed(names: set[str], reason: Reason) -> None:
    with pytest.raises(NotAuthenticatedError) as caught:
        judge_source(frozenset(names), {"east": "db1.example.com"}, me="west", consumers=["third"])
    assert caught.value.facts["reason"] == reason
    assert caught.value.exit_code == 76


def test_a_receiver_is_the_one_that_is_expected() -> None:
    judge_receiver(frozenset({"west"}), "west", me="east")
    with pytest.raises(NotAuthenticatedError, match="certificate of west was expected there, it names x") as caught:
        judge_receiver(frozenset({"x"}), "west", me="east")
    assert caught.value.facts["reason"] == Reason.CERTIFICATE_UNKNOWN
    for known in ("east", "third"):
        with pytest.raises(NotAuthenticatedError) as caught:
            judge_receiver(frozenset({known}), "west", me="east", others=["third"])
        assert caught.value.facts["reason"] == Reason.CERTIFICATE_WRONG_ROLE


@pytest.mark.parametrize(
    ("said", "code", "reason"),
    [
        ("CERTIFICATE_VERIFY_FAILED", 10, Reason.CERTIFICATE_EXPIRED),
        ("CERTIFICATE_VERIFY_FAILED", 9, Reason.CERTIFICATE_NOT_YET_VALID),
        ("CERTIFICATE_VERIFY_FAILED", 20, Reason.CERTIFICATE_UNTRUSTED),
        ("CERTIFICATE_VERIFY_FAILED", 26, Reason.CERTIFICATE_INVALID),
        ("TLSV1_ALERT_UNKNOWN_CA", None, Reason.CERTIFICATE_REFUSED),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", None, Reason.CERTIFICATE_REFUSED),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", None, Reason.CERTIFICATE_REFUSED),
        ("TLSV1_ALERT_PROTOCOL_VERSION", None, Reason.TLS_VERSION),
        ("UNSUPPORTED_PROTOCOL", None, Reason.TLS_VERSION),
        ("WRONG_VERSION_NUMBER", None, Reason.PLAINTEXT),
        ("SOMETHING_NEW", None, Reason.TLS_FAILED),
        (None, None, Reason.TLS_FAILED),
    ],
)
def test_what_openssl_says_has_a_reason(said: str | None, code: int | None, reason: Reason) -> None:
    assert tls_refusal(said, code, "text").facts["reason"] == reason


def test_expiry_is_found_in_time() -> None:
    now = 1_000_000_000.0

    def code(left_days: float) -> str:
        found = expiry_finding(now, now + left_days * DAY_S, 30, what="the certificate", where="/x/certificate.pem")
        return "" if found is None else found.code

    assert [code(days) for days in (31, 30, 1, 0, -1)] == [
        "",
        "CERTIFICATE_EXPIRES",
        "CERTIFICATE_EXPIRES",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_EXPIRED",
    ]
    found = expiry_finding(now, now + 5 * DAY_S, 30, what="the certificate", where="/x/certificate.pem")
    assert found is not None
    assert (found.severity, found.text) == ("warning", "the certificate expires in 5 days [/x/certificate.pem]")
    assert "--replace" in found.do


def test_names_without_end_make_no_text_without_end() -> None:
    names = frozenset(f"host-{number}.example.com" for number in range(10_000))
    for judged in (
        lambda: judge_source(names, {"east": "db1"}, me="west", consumers=[]),
        lambda: judge_receiver(names, "db1", me="west"),
    ):
        with pytest.raises(NotAuthenticatedError) as caught:
            judged()
        assert len(str(caught.value)) < 600
