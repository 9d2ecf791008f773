"""Who may talk to whom: every refusal has its code, names both values, and means the same on both sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import (
    GapError,
    HardResyncNeededError,
    InternalError,
    JournalDamagedError,
    JournalMissingError,
    PeerRefusedError,
    ReplicateError,
    RollbackNeededError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.model.takeover import Takeover, takeover_from
from replicate.model.vector import Origin
from replicate.settings.peer_authority import Reason
from replicate.wire.codec import decode, encode
from replicate.wire.features import PROTOCOL, Protocol
from replicate.wire.frame import FrameReader
from replicate.wire.introduction import (
    PEER_SAID,
    as_refuse,
    check_hello,
    check_hello_reply,
    reason_of,
    refusal,
    refusal_from_peer,
)
from replicate.wire.message import OPENING_LIMITS, Hello, HelloReply, Introduction, Refuse, RefuseCode
from tests.harness.link_pair import PRIMARY, SECONDARY


def test_well() -> None:
    assert check_hello(Hello(*PROTOCOL, PRIMARY), SECONDARY) == PROTOCOL
    assert check_hello_reply(HelloReply(*PROTOCOL, SECONDARY), PRIMARY, "oslo") == PROTOCOL
    assert check_hello_reply(HelloReply(*PROTOCOL, SECONDARY), PRIMARY, None) == PROTOCOL
    relay = replace(PRIMARY, role="secondary")
    assert check_hello(Hello(*PROTOCOL, relay), SECONDARY) == PROTOCOL  # a secondary may feed a third site


@pytest.mark.parametrize(
    ("changed", "me", "code", "kind", "words"),
    [
        ({"network": b"x" * 16}, SECONDARY, "WRONG_NETWORK", WrongNetworkError, "78787878-7878"),
        ({"instance": SECONDARY.instance}, SECONDARY, "SAME_INSTANCE", WrongInstanceError, "oslo"),
        ({"name": "oslo"}, SECONDARY, "NAME_TAKEN", WrongInstanceError, "70707070-7070"),
        ({}, replace(SECONDARY, role="primary"), "WRONG_ROLE", PeerRefusedError, "oslo is primary"),
    ],
)
def test_the_receiver_refuses(
    changed: dict[str, bytes], me: Introduction, code: str, kind: type[ReplicateError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        check_hello(Hello(*PROTOCOL, replace(PRIMARY, **changed)), me)  # type: ignore[arg-type]
    assert caught.value.facts["reason"] == code
    refuse = as_refuse(caught.value)
    assert refuse.code == code
    there = refusal_from_peer(refuse, "oslo")
    assert type(there) is kind
    assert there.facts["reason"] == code
    assert words in str(there)


@pytest.mark.parametrize(
    ("theirs", "ours", "spoken"),
    [((1, 1), (1, 1), (1, 1)), ((1, 2), (1, 1), (1, 1)), ((1, 0), (1, 1), (1, 0)), ((3, 7), (3, 99), (3, 7))],
)
def test_of_two_minor_versions_the_lower_one_is_spoken(
    theirs: tuple[int, int], ours: tuple[int, int], spoken: tuple[int, int]
) -> None:
    mine = Protocol(*ours)
    assert check_hello(Hello(*theirs, PRIMARY), SECONDARY, mine) == spoken
    assert check_hello_reply(HelloReply(*spoken, SECONDARY), PRIMARY, None, Protocol(*theirs)) == spoken


@pytest.mark.parametrize(("theirs", "upgrade"), [((2, 0), "oslo"), ((0, 9), "paris")])
def test_another_major_version_is_refused_naming_both_releases_and_which_to_upgrade(
    theirs: tuple[int, int], upgrade: str
) -> None:
    """Before anything else is judged, even another network."""
    peer = replace(PRIMARY, release="7.8.9", network=b"x" * 16)
    with pytest.raises(PeerRefusedError) as caught:
        check_hello(Hello(*theirs, peer), SECONDARY, Protocol(1, 1))
    assert caught.value.facts["reason"] == "VERSION"
    text = str(refusal_from_peer(as_refuse(caught.value), "oslo"))
    for part in (
        f"paris runs release 7.8.9 and speaks protocol {theirs[0]}.{theirs[1]}",
        f"oslo runs release {SECONDARY.release} and speaks protocol 1.1: upgrade {upgrade}",
    ):
        assert part in str(caught.value)
        assert part in text


@pytest.mark.parametrize(
    ("reply", "expected", "code"),
    [
        (HelloReply(2, 0, SECONDARY), "oslo", "VERSION"),
        (HelloReply(PROTOCOL.major, PROTOCOL.minor + 1, SECONDARY), "oslo", "VERSION"),
        (HelloReply(*PROTOCOL, SECONDARY), "rome", "WRONG_INSTANCE"),
        (HelloReply(*PROTOCOL, replace(SECONDARY, role="primary")), "oslo", "WRONG_ROLE"),
        (HelloReply(*PROTOCOL, replace(SECONDARY, network=b"x" * 16)), "oslo", "WRONG_NETWORK"),
        (HelloReply(*PROTOCOL, replace(SECONDARY, instance=PRIMARY.instance)), "oslo", "SAME_INSTANCE"),
        (HelloReply(*PROTOCOL, replace(SECONDARY, name="paris")), "paris", "NAME_TAKEN"),
    ],
)
def test_the_source_refuses(reply: HelloReply, expected: str, code: str) -> None:
    with pytest.raises(ReplicateError) as caught:
        check_hello_reply(reply, PRIMARY, expected)
    assert caught.value.facts["reason"] == code


@pytest.mark.parametrize("code", RefuseCode)
def test_every_code_crosses_the_wire_as_the_same_class(code: RefuseCode) -> None:
    here = refusal(code, "what happened", expected=5, name="x")
    refuse = as_refuse(here)
    assert refuse == Refuse(code, "what happened", (("expected", 5), ("name", "x")))
    there = refusal_from_peer(refuse, "paris")
    assert type(there) is type(here)
    assert there.do == here.do
    assert there.facts["peer_facts"] == {"expected": 5, "name": "x"}


def test_what_an_operator_must_do_is_a_class() -> None:
    assert isinstance(refusal(RefuseCode.SECONDARY_AHEAD, ""), RollbackNeededError)
    assert isinstance(refusal(RefuseCode.ROLLBACK_FIRST, ""), RollbackNeededError)
    assert isinstance(refusal(RefuseCode.JOURNAL_MISSING, ""), HardResyncNeededError)


def test_errors_without_a_code_of_their_own() -> None:
    assert as_refuse(GapError("5 came")).code == "GAP"
    assert as_refuse(JournalMissingError("pruned")).code == "JOURNAL_MISSING"
    assert as_refuse(JournalDamagedError("bad frame")).code == "DAMAGED"
    assert as_refuse(WrongInstanceError("another one")).code == "WRONG_INSTANCE"
    assert as_refuse(InternalError("bug")).code == "INTERNAL"


REASONS = {*RefuseCode, *Reason, PEER_SAID}
"""All that a refusal can be counted by."""


def test_reasons_are_a_closed_list() -> None:
    assert PEER_SAID not in {*RefuseCode, *Reason}
    for known in sorted({*RefuseCode, *Reason}):
        assert reason_of(refusal_from_peer(Refuse(known, ""), "paris")) == known
    assert reason_of(PeerRefusedError("without one")) == "PEER_REFUSED"


@given(st.text(max_size=1024), st.text(max_size=1024))
def test_what_a_peer_says_is_never_a_reason(code: str, text: str) -> None:
    error = refusal_from_peer(Refuse(code, text, ((code, text),)), "paris")
    assert reason_of(error) in REASONS
    assert len(str(error)) < 3000


def test_codes_of_a_later_release_and_rude_texts() -> None:
    error = refusal_from_peer(Refuse("NEW_REASON", "line\nline\x1b[2J", (("what", 1), ("do", 2))), "paris")
    assert type(error) is PeerRefusedError
    assert "NEW_REASON" in str(error)
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)


TAKEN = Takeover("oslo", SECONDARY.instance, 2, Origin(PRIMARY.instance, 1).key, 10, 9, 2**64 - 1)


def test_another_primary_is_shown_who_we_are_and_by_which_record_it_was_ended() -> None:
    me = replace(SECONDARY, role="primary", takeovers=(TAKEN,))
    for incarnation in (1, 2, 64):
        with pytest.raises(PeerRefusedError) as caught:
            check_hello(Hello(*PROTOCOL, replace(PRIMARY, incarnation=incarnation)), me)
        facts = dict(decode_refuse(as_refuse(caught.value)).facts)
        assert facts["uuid"] == SECONDARY.instance.hex()
        assert takeover_from(facts) == TAKEN


def test_its_own_record_is_shown_before_a_later_one_of_another_instance() -> None:
    later = replace(TAKEN, name="rome", instance=b"r" * 16, incarnation=3, ended=TAKEN.origin, after=20)
    me = replace(SECONDARY, role="primary", takeovers=(TAKEN, later))
    for peer, shown in ((PRIMARY, TAKEN), (replace(PRIMARY, instance=b"x" * 16, name="else"), later)):
        with pytest.raises(PeerRefusedError) as caught:
            check_hello(Hello(*PROTOCOL, peer), me)
        assert takeover_from(dict(as_refuse(caught.value).facts)) == shown


def test_a_secondary_that_calls_a_primary_is_shown_nothing_more_than_before() -> None:
    me = replace(SECONDARY, role="primary", takeovers=(TAKEN,))
    with pytest.raises(PeerRefusedError) as caught:
        check_hello(Hello(*PROTOCOL, replace(PRIMARY, role="secondary")), me)
    assert dict(as_refuse(caught.value).facts) == {"role": "primary", "incarnation": 1}


def decode_refuse(said: Refuse) -> Refuse:
    """As it arrives."""
    reader = FrameReader(OPENING_LIMITS)
    reader.receive(b"".join(encode(said)))
    frame = reader.next_frame()
    assert frame is not None
    came = decode(frame.type, frame.body)
    assert isinstance(came, Refuse)
    return came
