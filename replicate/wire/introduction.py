"""Do these two belong together? The rules by which each side judges the other's hello, and what a refusal means.

Guarantees: every refusal has a stable code, names both values that do not fit, and says to the operator of *this* side
what to do; the same code from the peer becomes the same class of error on the other side.
Leaves to others: bytes, sockets, the order of messages. Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Final

from replicate.errors import (
    DamagedError,
    DivergedError,
    GapError,
    HardResyncNeededError,
    JournalMissingError,
    PeerRefusedError,
    PermissionRefusedError,
    ProtocolViolationError,
    ReplicateError,
    RollbackNeededError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.model.vector import Origin
from replicate.model.writers import SUPPLIER
from replicate.settings.peer_authority import Reason
from replicate.wire.features import PROTOCOL, Protocol
from replicate.wire.message import Hello, HelloReply, Introduction, Refuse, RefuseCode

INCARNATIONS_MAX: Final = 64
"""So many of its last incarnations a peer may have been in since another one took over from it."""


_ANEW: Final = "there, `replicate -i SECONDARY update stop` and `replicate -i SECONDARY seed --restart`"
_MORE: Final = (
    "Look at what the secondary has more (`replicate -i SECONDARY journal show --from N`), then seed it again: "
    f"{_ANEW}. Where the source was restored from a backup, it gets that back before: there, "
    "`replicate -i SOURCE replica restore`"
)

_CLASSES: Final[dict[str, tuple[type[ReplicateError], str]]] = {
    RefuseCode.PROTOCOL: (ProtocolViolationError, "Compare the releases of both sides; look for damage on the way"),
    RefuseCode.VERSION: (
        PeerRefusedError,
        "Upgrade the older side: both need one major version of the protocol",
    ),
    RefuseCode.WRONG_NETWORK: (
        WrongNetworkError,
        "Correct the address; or make the instance again, in this network (`replicate instance create --network`)",
    ),
    RefuseCode.SAME_INSTANCE: (WrongInstanceError, "An instance cannot replicate to itself: correct the address"),
    RefuseCode.NAME_TAKEN: (
        WrongInstanceError,
        "Names are unique in a network: create one of the two under another name",
    ),
    RefuseCode.WRONG_INSTANCE: (
        WrongInstanceError,
        "Correct the peer's address or name (`replicate -i PRIMARY peer list`); of an instance that was made again, "
        "`replicate -i PRIMARY peer remove NAME` and `peer add NAME HOST:PORT`, then seed it",
    ),
    RefuseCode.WRONG_ROLE: (
        PeerRefusedError,
        "Only a secondary takes a stream, and a supplier that of a supplier; see `replicate -i NAME status` on both "
        "sides",
    ),
    RefuseCode.NOT_AUTHORISED: (PeerRefusedError, "Register this instance as a peer on the other side"),
    RefuseCode.NAME_NOT_PROVEN: (
        PeerRefusedError,
        "An instance bears the name in its certificate; map another one with receiver.allow or peer add --certificate",
    ),
    RefuseCode.FILTER_MISMATCH: (
        PeerRefusedError,
        f"Give the new source the filter of the one before it; or seed the secondary from it: {_ANEW}",
    ),
    RefuseCode.PARTITION_REFUSED: (
        PeerRefusedError,
        "Say on the secondary what is wanted: replicate -i SECONDARY subscription set NAME…; or have the source give "
        "it more: replicate -i PRIMARY peer add NAME HOST:PORT --partitions NAME,… --replace",
    ),
    RefuseCode.ROWS_REFUSED: (
        PeerRefusedError,
        "Say on the secondary what is wanted (replicate -i SECONDARY subscription filter TABLE with --where … or "
        f"--columns …, and --ahead, or --none), and load them again: {_ANEW}",
    ),
    RefuseCode.RETIRED: (
        PeerRefusedError,
        "It was said to be gone for good, and what it wrote is another one's now: it takes no writes. Look at what "
        "only it has (`replicate -i NAME journal show`), and make it again: replicate help suppliers (gone for good)",
    ),
    RefuseCode.TURNED_BACK: (
        PeerRefusedError,
        "It takes no writes until the others have sent it what it had: `replicate -i NAME status` there names who is "
        "waited for",
    ),
    RefuseCode.SECOND_SOURCE: (PeerRefusedError, "Stop the other Source Server of this stream first"),
    RefuseCode.SECONDARY_AHEAD: (RollbackNeededError, _MORE),
    RefuseCode.ROLLBACK_FIRST: (RollbackNeededError, _MORE),
    RefuseCode.JOURNAL_MISSING: (HardResyncNeededError, f"Seed the secondary again: {_ANEW}"),
    RefuseCode.DIVERGED: (DivergedError, f"Do not go on: compare both sides, then seed the secondary again: {_ANEW}"),
    RefuseCode.GAP: (
        GapError,
        "The stream starts again from the last good position; if it repeats, verify the journal",
    ),
    RefuseCode.TOO_OLD: (PeerRefusedError, "Upgrade the older side first; nothing is lost until then"),
    RefuseCode.DAMAGED: (DamagedError, "Run `replicate -i NAME journal verify` on the side that reports it"),
}

_OF_SUPPLIERS: Final[dict[str, tuple[str, str]]] = {
    RefuseCode.JOURNAL_MISSING: (
        "held_from",
        "Register that one with the one that lacks them. Where nobody has them, make a new copy of one of the two: "
        "replicate help suppliers (A line is down)",
    ),
    RefuseCode.DIVERGED: (
        "origin_seqno",
        "Do not go on: one of two was copied, or restored, and used twice. Stop that one, look at what only it has "
        "(`journal show`), and make a new copy of it: replicate help suppliers (What can go wrong)",
    ),
}
"""What to do where both are suppliers, neither of which is simply filled again; and the fact that only they tell."""


def _class_of(code: str, facts: Collection[str]) -> tuple[type[ReplicateError], str]:
    kind, do = _CLASSES.get(code, (PeerRefusedError, ""))
    fact, of_suppliers = _OF_SUPPLIERS.get(code, ("", ""))
    return kind, of_suppliers if fact in facts else do


def refusal(code: RefuseCode, what: str, **facts: int | str) -> ReplicateError:
    """The error that this side raises when it refuses; `as_refuse` makes the message of it."""
    kind, do = _class_of(code, facts)
    return kind(what, do=do, reason=str(code), peer_facts=dict(facts))


PEER_SAID: Final = "PEER_SAID"
"""The reason of a peer that gives one which this release does not know. What it said stands in the error's text."""
_KNOWN: Final = frozenset({*map(str, RefuseCode), *map(str, Reason)})


def refusal_from_peer(refuse: Refuse, peer: str) -> ReplicateError:
    """The error of the side that was refused. A code that this release does not know is shown as it came, in the text
    of a PeerRefusedError, and is never a reason: reasons are counted, and anybody may say anything."""
    kind, do = _class_of(refuse.code, dict(refuse.facts))
    text = "".join(char if char.isprintable() else " " for char in f"{refuse.code}: {refuse.text}")
    reason = refuse.code if refuse.code in _KNOWN else PEER_SAID
    return kind(f"refused by the peer: {text}", where=peer, do=do, reason=reason, peer_facts=dict(refuse.facts))


def reason_of(error: ReplicateError) -> str:
    """The word by which a connection that ended so is counted and logged: a reason of ours, or the error's code."""
    return str(error.facts.get("reason") or error.code)


_CODES: Final[tuple[tuple[type[ReplicateError], RefuseCode], ...]] = (
    (ProtocolViolationError, RefuseCode.PROTOCOL),
    (GapError, RefuseCode.GAP),
    (JournalMissingError, RefuseCode.JOURNAL_MISSING),
    (HardResyncNeededError, RefuseCode.JOURNAL_MISSING),
    (RollbackNeededError, RefuseCode.ROLLBACK_FIRST),
    (WrongNetworkError, RefuseCode.WRONG_NETWORK),
    (WrongInstanceError, RefuseCode.WRONG_INSTANCE),
    (PermissionRefusedError, RefuseCode.NOT_AUTHORISED),
    (DivergedError, RefuseCode.DIVERGED),
    (DamagedError, RefuseCode.DAMAGED),
)


def as_refuse(error: ReplicateError) -> Refuse:
    """The message that tells the peer about an error of ours."""
    code = error.facts.get("reason")
    if not isinstance(code, str):
        code = next((known for kind, known in _CODES if isinstance(error, kind)), RefuseCode.INTERNAL)
    facts = error.facts.get("peer_facts")
    pairs = tuple(facts.items()) if isinstance(facts, dict) else ()
    return Refuse(str(code), error.what, pairs)


def _shown(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))


def _check_peer(me: Introduction, peer: Introduction) -> None:
    """Network, identity and name; the same on both sides."""
    if peer.network != me.network:
        raise refusal(
            RefuseCode.WRONG_NETWORK,
            f"{peer.name} belongs to network {_shown(peer.network)}, {me.name} to {_shown(me.network)}",
        )
    if peer.instance == me.instance:
        raise refusal(RefuseCode.SAME_INSTANCE, f"both ends are the instance {me.name} ({_shown(me.instance)})")
    if peer.name == me.name:
        raise refusal(
            RefuseCode.NAME_TAKEN,
            f"{peer.name} is the name of {_shown(me.instance)}, and {_shown(peer.instance)} bears it too",
        )


def check_proven(peer: Introduction, proven: frozenset[str] | None) -> None:
    """The name in a hello is one that its sender has proven, by certificate or key. Raises the refusal."""
    if proven is not None and peer.name not in proven:
        raise refusal(
            RefuseCode.NAME_NOT_PROVEN,
            f"the hello is that of {peer.name}, and the peer has proven to be {', '.join(sorted(proven))}",
        )


def _check_major(me: Introduction, ours: Protocol, peer: Introduction, theirs: Protocol) -> None:
    """Both sides can talk. Names both releases, and which to upgrade; before anything else, of which less is sure."""
    if theirs.major == ours.major:
        return
    older = me if ours.major < theirs.major else peer
    raise refusal(
        RefuseCode.VERSION,
        f"{peer.name} runs release {peer.release} and speaks protocol {theirs}, {me.name} runs release {me.release} "
        f"and speaks protocol {ours}: upgrade {older.name}",
        our_release=me.release,
        our_protocol=str(ours),
        peer_release=peer.release,
        peer_protocol=str(theirs),
        upgrade=older.name,
    )


def check_hello(hello: Hello, me: Introduction, ours: Protocol = PROTOCOL) -> Protocol:
    """The receiver judges the source. Returns the protocol to speak, the lower of both; raises the refusal."""
    theirs = Protocol(hello.major, hello.minor)
    _check_major(me, ours, hello.introduction, theirs)
    _check_peer(me, hello.introduction)
    if me.role == SUPPLIER:
        _check_suppliers(me, hello.introduction)
    elif me.role != "secondary":
        facts: dict[str, int | str] = {"role": me.role, "incarnation": me.incarnation, **_shown_to(hello, me)}
        raise refusal(RefuseCode.WRONG_ROLE, f"{me.name} is {me.role}, not a secondary", **facts)
    return min(ours, theirs)


def _shown_to(hello: Hello, me: Introduction) -> dict[str, int | str]:
    """To another primary: who we are, and the newest takeover from itself that we can show; where there is none, our
    newest one."""
    peer = hello.introduction
    if peer.role != "primary":
        return {}
    if not me.takeovers:
        return {"uuid": me.instance.hex()}
    own = {Origin(peer.instance, number).key for number in range(peer.incarnation, -1, -1)[:INCARNATIONS_MAX]}
    found = next((one for one in reversed(me.takeovers) if one.ended in own), me.takeovers[-1])
    return {"uuid": me.instance.hex(), **found.facts()}


def check_hello_reply(
    reply: HelloReply,
    me: Introduction,
    expected_name: str | None,
    ours: Protocol = PROTOCOL,
) -> Protocol:
    """The source judges the receiver. Returns the protocol that it chose; raises the refusal."""
    peer, chosen = reply.introduction, Protocol(reply.major, reply.minor)
    _check_major(me, ours, peer, chosen)
    if chosen > ours:
        raise refusal(
            RefuseCode.VERSION,
            f"{peer.name} ({peer.release}) chose protocol {chosen}, which is above what {me.name} ({me.release}) "
            f"speaks: {ours}",
        )
    _check_peer(me, peer)
    if expected_name is not None and peer.name != expected_name:
        raise refusal(RefuseCode.WRONG_INSTANCE, f"{expected_name} was expected there, {peer.name} answered")
    if peer.role == SUPPLIER:
        _check_suppliers(peer, me)
    elif peer.role != "secondary":
        raise refusal(RefuseCode.WRONG_ROLE, f"{peer.name} is {peer.role}, not a secondary")
    return chosen


def _check_suppliers(consumer: Introduction, source: Introduction) -> None:
    """A supplier takes the stream of suppliers: others do not know what to do with what it has itself."""
    if source.role != SUPPLIER:
        raise refusal(
            RefuseCode.WRONG_ROLE,
            f"{consumer.name} is a supplier, and {source.name} is {source.role}: make that one a supplier, too "
            "(there: replicate -i INSTANCE instance convert --role supplier)",
        )
