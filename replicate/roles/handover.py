"""A switchover: in which order two sites exchange their roles, and what follows when a step fails. Pure.

    primary (giver)                                                    secondary (taker)
    CHECK     could you be primary, and is the way back there? ------>  looks, and tries the way back
    CATCH_UP  the rest is sent, the door is still open
    CLOSE     no commit beyond N
    PROVE     where do you stand with all up to N? ------------------>  vector and chain hashes, compared here
    GIVE      secondary, durably, with its successor: the point of no return
    TELL      take the role after N --------------------------------->  primary, durably; the stream runs the other way

Guarantees: a step that fails before GIVE has taken effect leaves the old roles, and the door opens; after that nothing
leads back, and the same command goes on with TELL until the taker is primary. The taker takes the role only of one that
has given it, and only where it stands at exactly N. At no time two sites are primary.
Leaves to others: daemons, the wire, how a step is done. What is durable is looked at again after each failure, so a
step that has failed may have taken effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct


class GiverStep(Enum):
    """What the giver does next, or how it has ended. The values end a sentence."""

    CHECK = "it was checked whether the other site can be primary"
    CATCH_UP = "the other site got the rest"
    CLOSE = "the door was closed"
    PROVE = "the two sites were compared"
    GIVE = "the role was given"
    TELL = "the other site was told to take the role"
    DONE = "the other site is primary"
    KEPT = "the roles are as they were"
    PENDING = "the role is given, and the other site has not said that it has it"


ENDS: Final = frozenset({GiverStep.DONE, GiverStep.KEPT, GiverStep.PENDING})
_AFTER: Final = {
    GiverStep.CHECK: GiverStep.CATCH_UP,
    GiverStep.CATCH_UP: GiverStep.CLOSE,
    GiverStep.CLOSE: GiverStep.PROVE,
    GiverStep.PROVE: GiverStep.GIVE,
    GiverStep.GIVE: GiverStep.TELL,
    GiverStep.TELL: GiverStep.DONE,
}


class GiverStanding(Enum):
    """What is durable at the giver."""

    HAS_ROLE = "primary"
    HAS_GIVEN = "secondary, and the successor has not said that it is primary"
    HAS_SUCCESSOR = "secondary, and the successor is primary"


_BEGINS: Final = {
    GiverStanding.HAS_ROLE: GiverStep.CHECK,
    GiverStanding.HAS_GIVEN: GiverStep.TELL,
    GiverStanding.HAS_SUCCESSOR: GiverStep.DONE,
}
_FAILS: Final = {
    GiverStanding.HAS_ROLE: GiverStep.KEPT,
    GiverStanding.HAS_GIVEN: GiverStep.PENDING,
    GiverStanding.HAS_SUCCESSOR: GiverStep.DONE,
}


def first_step(standing: GiverStanding) -> GiverStep:
    """Where a command begins, or goes on."""
    return _BEGINS[standing]


def next_step(step: GiverStep, *, is_well: bool, standing: GiverStanding) -> GiverStep:
    """After `step`. `standing`: as it is now, after it."""
    return _AFTER[step] if is_well else _FAILS[standing]


def may_give(*, seqno: int, compared_at: int) -> bool:
    """Asked with the door closed and every lock held: whether the journal still ends where both sites were found
    equal. A door that was closed for too long has let writers in."""
    return seqno == compared_at


class TakerAnswer(Enum):
    """What the taker does when it is told to take the role."""

    TAKES = "takes it"
    HAS = "has it already"
    REFUSES = "does not take it"


class TakerView(Struct, frozen=True):
    """Of itself: whether it `is_primary`, the last transaction that it has `applied`, and has `received`. Of the giver:
    whether that says of itself that it `gave_role`, which it does durably before."""

    is_primary: bool
    applied: int
    received: int
    gave_role: bool


def judge(view: TakerView, seqno: int) -> tuple[TakerAnswer, str]:
    """When told to take the role after `seqno`; and why not."""
    if view.is_primary:
        return TakerAnswer.HAS, ""
    if not view.gave_role:
        return TakerAnswer.REFUSES, "the site that hands its role over is primary itself"
    if not view.applied == view.received == seqno:
        have = f"{view.applied} is applied here, and {view.received} received"
        return TakerAnswer.REFUSES, f"the role is handed over after transaction {seqno}; {have}"
    return TakerAnswer.TAKES, ""
