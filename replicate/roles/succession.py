"""Two primaries have met: which of them is superseded, by what proof, and what each of them says to its operator. Pure.

An instance is superseded by a record that ended an origin of its own. It believes that only of a speaker that shows the
chain hash of its own last common transaction, and only where its own journal has the same transaction there.

Guarantees: a claim alone never supersedes; nor does anything an instance that was restored from a backup (what it has
may be the only copy), one that has taken its role back from that very record, or one from which a third site took over
in between: they have parted, and both say so. Of two sites at most one finds itself superseded.
Leaves to others: files, the wire, what is done about it (superseded.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from replicate.model.takeover import Takeover
from replicate.model.transaction import History
from replicate.model.vector import Position

RECORDS_SHOWN: Final = 3


class Own(Struct, frozen=True):
    """Of ourselves, a primary: the `histories` of our journal, oldest first, and the takeovers that we can show.
    `is_restored`: from a backup, since our role last changed. `overruled`: key of the origin from which we took our
    role back, 0: none."""

    name: str
    instance: bytes
    incarnation: int
    histories: tuple[History, ...]
    takeovers: tuple[Takeover, ...] = ()
    is_restored: bool = False
    overruled: int = 0

    def is_mine(self, origin: int) -> bool:
        """Whether we have written it."""
        return any(one.origin.key == origin and one.instance == self.instance for one in self.histories)


class Other(Struct, frozen=True):
    """Of the other primary, by its own word."""

    name: str
    instance: bytes
    incarnation: int
    takeovers: tuple[Takeover, ...] = ()


class Superseded(Struct, frozen=True):
    """We are: by `takeover`, which our own journal proves; the primary now is `by`."""

    by: str
    takeover: Takeover


class Superseding(Struct, frozen=True):
    """The other one is, by `takeover`; it may not know yet, or not believe it."""

    takeover: Takeover


class Parted(Struct, frozen=True):
    """Both go on, and neither is proven to follow the other: an operator has to choose. `common`: the last transaction
    that both have, None where that is not proven."""

    why: str
    common: int | None = None


Verdict = Superseded | Superseding | Parted


def judge(own: Own, other: Other, position_before: Callable[[int], Position | None]) -> Verdict:
    """What we, a primary, are when `other` says that it is primary too. `position_before`: where our journal stood just
    before a number; None where it does not reach that. It is asked once at most."""
    claim = _claim_on(own, other)
    if claim is not None:
        if not _is_proven(claim, position_before(claim.after + 1)):
            return Parted(f"{claim.told}, it says, but our transaction {claim.after} does not prove that")
        if own.is_restored:
            return Parted(f"{claim.told}, and {own.name} was restored from a backup since", claim.after)
        if claim.origin == own.overruled:
            return Parted(f"{claim.told}, and {own.name} took its role back", claim.after)
        return Superseded(other.name, claim)
    for ours in reversed(own.takeovers):
        if _is_of(ours.ended, own.histories, other.instance) and not _knows(other, ours):
            return Superseding(ours)
    return _parted(own, other)


def _claim_on(own: Own, other: Other) -> Takeover | None:
    """The newest takeover from us that we do not know of, after which nobody but us has written here."""
    known = {one.origin.key for one in own.histories}
    for claim in reversed(other.takeovers):
        if claim.instance == own.instance or claim.origin in known or not own.is_mine(claim.ended):
            continue
        keys = [one.origin.key for one in own.histories]
        since = own.histories[keys.index(claim.ended) :]
        if all(one.instance == own.instance for one in since):
            return claim
    return None


def _is_proven(claim: Takeover, at: Position | None) -> bool:
    """Our journal has, at the same number, the same transaction of the same origin with the same hash over all before
    it."""
    if at is None or at.last_seqno != claim.after or at.vector.last(claim.ended) != claim.place:
        return False
    return at.chains.get(claim.ended) == (claim.place, claim.chain)


def _is_of(origin: int, histories: tuple[History, ...], instance: bytes) -> bool:
    return any(one.origin.key == origin and one.instance == instance for one in histories)


def _knows(other: Other, ours: Takeover) -> bool:
    """Whether it has followed that takeover, and taken over since; or another one from the same origin."""
    return any(theirs.ended in (ours.origin, ours.ended) for theirs in other.takeovers)


def _parted(own: Own, other: Other) -> Parted:
    """Two that took over from the same origin have all up to the first of the two places."""
    for theirs in reversed(other.takeovers):
        for ours in own.takeovers:
            if theirs.ended == ours.ended and theirs.origin != ours.origin:
                return Parted(f"{theirs.told}, and {ours.told}", min(theirs.after, ours.after))
    return Parted("neither has a record that it took over from the other")


def text_of(verdict: Verdict, own: Own, other: Other) -> str:
    """What has become of both, with the history of each."""
    theirs = "; ".join(one.told for one in other.takeovers[-RECORDS_SHOWN:]) or "no takeover"
    shown = own.histories[-RECORDS_SHOWN:]
    ours = "; ".join(f"{one.name} (incarnation {one.incarnation}) from transaction {one.seqno}" for one in shown)
    if isinstance(verdict, Superseded):
        why = f"{verdict.takeover.told}, which our own journal proves: {own.name} is superseded"
    elif isinstance(verdict, Superseding):
        why = f"{verdict.takeover.told}: {other.name} is superseded, and takes writes until it knows"
    else:
        why = f"{verdict.why}: what both have written since belongs to nobody's past but its own"
    return (
        f"{other.name} is primary too. {why}. Here: {ours or 'no record'}. There: {other.name} (incarnation "
        f"{other.incarnation}), {theirs}"
    )


def do_of(verdict: Verdict, own: Own, other: Other) -> str:
    """What to type. INSTANCE stands for ourselves."""
    there = f"replicate -i {other.name}"
    if isinstance(verdict, Superseded):
        return back("replicate -i INSTANCE", verdict.takeover.after)
    if isinstance(verdict, Superseding):
        return f"if it does not give way by itself, there: {back(there, verdict.takeover.after)}"
    common = "N" if verdict.common is None else str(verdict.common)
    last = " (N: the last that compare, or the journals, show to be common)" if verdict.common is None else ""
    return (
        f"stop the applications of both, choose, and take the other one back{last}. Where {other.name} goes on, here: "
        f"replicate -i INSTANCE demote; replicate -i INSTANCE rollback --to {common}. Where {own.name} goes on, there: "
        f"{there} demote; {there} rollback --to {common}"
    )


def back(command: str, after: int) -> str:
    """How one that gives way goes back. `command`: replicate, with the instance."""
    return f"{command} demote; {command} rollback --to {after}"
