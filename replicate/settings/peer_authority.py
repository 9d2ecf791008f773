"""Who a peer is, by its certificate, and what it may do here: the judgement, without a socket or a file.

A certificate names an instance by the URI `urn:dualsite:instance:NAME`; in one that bears no such URI (issued by a CA
that knows nothing of us) every DNS name of the subjectAltName is a name. Host names count for nothing: the
configuration maps the name of a certificate to an instance, and to the side that this instance may be.

Guarantees: a name that the configuration does not expect is refused, and so is one that it knows on the other side of a
stream; every refusal has a reason that never changes once landed.
Leaves to others: how a certificate was verified (security/tls.py), connections. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from replicate.errors import ConfigurationError, NotAuthenticatedError
from replicate.limits import NAME_PATTERN

INSTANCE_URI: Final = "urn:dualsite:instance:"
SHOWN_MAX: Final = 200
"""Characters of a certificate's names in an error."""


class Reason(StrEnum):
    """Why a peer is not let in; the field `reason` of the event `connection refused`."""

    PLAINTEXT = "PLAINTEXT"
    TLS_NOT_EXPECTED = "TLS_NOT_EXPECTED"
    TLS_VERSION = "TLS_VERSION"
    TLS_FAILED = "TLS_FAILED"
    CERTIFICATE_MISSING = "CERTIFICATE_MISSING"
    CERTIFICATE_UNTRUSTED = "CERTIFICATE_UNTRUSTED"
    CERTIFICATE_EXPIRED = "CERTIFICATE_EXPIRED"
    CERTIFICATE_NOT_YET_VALID = "CERTIFICATE_NOT_YET_VALID"
    CERTIFICATE_INVALID = "CERTIFICATE_INVALID"
    CERTIFICATE_UNKNOWN = "CERTIFICATE_UNKNOWN"
    CERTIFICATE_WRONG_ROLE = "CERTIFICATE_WRONG_ROLE"
    CERTIFICATE_REFUSED = "CERTIFICATE_REFUSED"
    KEY_MISSING = "KEY_MISSING"
    KEY_WRONG = "KEY_WRONG"
    PROTOCOL = "PROTOCOL"
    HELLO_TIMEOUT = "HELLO_TIMEOUT"
    CUT = "CUT"


def refused(reason: Reason, what: str, *, where: str = "", do: str = "") -> NotAuthenticatedError:
    """The error of a peer that is not let in."""
    return NotAuthenticatedError(what, where=where, do=do, reason=str(reason))


def _shown(names: frozenset[str]) -> str:
    """For a text: a certificate may bear names without end."""
    text = ", ".join(sorted(names)) or "nobody"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


# What OpenSSL says.

_VERIFY: Final = {
    9: (Reason.CERTIFICATE_NOT_YET_VALID, "Compare the clocks of both hosts"),
    10: (
        Reason.CERTIFICATE_EXPIRED,
        "Issue a new one there: replicate -i NAME certificate issue NAME --ca DIR --replace",
    ),
    2: (Reason.CERTIFICATE_UNTRUSTED, ""),
    18: (Reason.CERTIFICATE_UNTRUSTED, ""),
    19: (Reason.CERTIFICATE_UNTRUSTED, ""),
    20: (Reason.CERTIFICATE_UNTRUSTED, ""),
    21: (Reason.CERTIFICATE_UNTRUSTED, ""),
    7: (Reason.CERTIFICATE_UNTRUSTED, ""),
}
_UNTRUSTED_DO: Final = (
    "Both sides need certificates of one CA, and its ca.pem (`replicate -i INSTANCE certificate show`)"
)
_SAID: Final = {
    "UNSUPPORTED_PROTOCOL": Reason.TLS_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": Reason.TLS_VERSION,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Reason.CERTIFICATE_MISSING,
    "WRONG_VERSION_NUMBER": Reason.PLAINTEXT,
    "HTTP_REQUEST": Reason.PLAINTEXT,
    "RECORD_LAYER_FAILURE": Reason.PLAINTEXT,
    "PACKET_LENGTH_TOO_LONG": Reason.PLAINTEXT,
}


def tls_refusal(said: str | None, verify_code: int | None, text: str) -> NotAuthenticatedError:
    """The error of a failed handshake. `said`: OpenSSL's name of its error; `verify_code`: of the certificate's
    verification, if that is what failed; `text`: OpenSSL's own sentence."""
    if verify_code is not None:
        reason, do = _VERIFY.get(verify_code, (Reason.CERTIFICATE_INVALID, ""))
        return refused(reason, f"the peer's certificate is refused: {text}", do=do or _UNTRUSTED_DO)
    if said is not None and "_ALERT_" in said and said not in _SAID:
        return refused(
            Reason.CERTIFICATE_REFUSED,
            f"the peer refuses our certificate: {said.partition('_ALERT_')[2].replace('_', ' ').lower()}",
            do=f"Look at the peer's log. {_UNTRUSTED_DO}",
        )
    reason = _SAID.get(said or "", Reason.TLS_FAILED)
    if reason is Reason.PLAINTEXT:
        return refused(
            reason,
            f"the peer does not speak TLS: it is set to plain TCP, or is no Dualsite Replicate, such as a web server "
            f"({text})",
            do="Look at its address and port (replicate -i PRIMARY peer list), and at tls.loopback on both sides",
        )
    return refused(reason, f"no TLS 1.3 with the peer: {text}", do="Look at the settings of both sides, and the log")


# Names.


def certificate_names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names in a verified certificate, as `ssl.SSLObject.getpeercert()` gives it; empty for none."""
    pairs = (certificate or {}).get("subjectAltName", ())
    uris = [value for kind, value in pairs if kind == "URI"]
    own = {uri.removeprefix(INSTANCE_URI) for uri in uris if uri.startswith(INSTANCE_URI)}
    return frozenset(own or {value for kind, value in pairs if kind == "DNS"})


def parse_allow(text: str, *, where: str = "receiver.allow") -> dict[str, str]:
    """{instance: name in its certificate} of `NAME, NAME=CERTIFICATE NAME, …`. ConfigurationError names `where`."""
    allowed: dict[str, str] = {}
    for item in re.split(r"[,\s]+", text.strip()) if text.strip() else ():
        name, equals, certificate = item.partition("=")
        if not re.match(NAME_PATTERN, name) or (equals and not certificate) or name in allowed:
            raise ConfigurationError(
                f"{item!r} is no NAME or NAME=CERTIFICATE-NAME, or stands there twice",
                where=where,
                do="Write the names of the instances that may send to this one, separated by commas",
            )
        allowed[name] = certificate or name
    return allowed


def judge_source(
    names: frozenset[str], allowed: Mapping[str, str], *, me: str, consumers: Iterable[str]
) -> frozenset[str]:
    """The instances that a source with these certificate names may be, by `receiver.allow`; at least one.

    NotAuthenticatedError when there is none. `consumers`: certificate names of those whom we send to, and who may
    therefore not send to us; `me`: this instance, which never replicates to itself.
    """
    found = frozenset(instance for instance, certificate in allowed.items() if certificate in names)
    if found:
        return found
    shown = _shown(names)
    if names & {me, *consumers}:
        raise refused(
            Reason.CERTIFICATE_WRONG_ROLE,
            f"the certificate of {shown} is known here, and not as one of a source",
            do="A source needs the certificate of its own name, and to stand in this side's receiver.allow",
        )
    raise refused(
        Reason.CERTIFICATE_UNKNOWN,
        f"the certificate names {shown}; sources may be {', '.join(sorted(allowed)) or 'none'}",
        do="If it may send to this instance: add its name to receiver.allow there",
    )


def judge_receiver(names: frozenset[str], expected: str, *, me: str, others: Iterable[str] = ()) -> None:
    """Whether the peer that we connected to bears the certificate name that we expect. NotAuthenticatedError if not.

    `others`: certificate names of our other peers: known, and not the one that belongs there.
    """
    if expected in names:
        return
    shown = _shown(names)
    known = bool(names & {me, *others})
    raise refused(
        Reason.CERTIFICATE_WRONG_ROLE if known else Reason.CERTIFICATE_UNKNOWN,
        f"the certificate of {expected} was expected there, it names {shown}",
        do="Correct its address, or its certificate's name: replicate -i INSTANCE peer add --certificate --replace",
    )
