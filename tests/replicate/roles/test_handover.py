"""The protocol of a switchover, walked whole: each message lost, each side killed, at every step, and again.

The world knows what is durable, and no more: roles, journals, and whom the old primary named. A command walks through
the steps; at each one a fault may come before its effect or after it. Then the command is given again, as long as it
takes. Writers commit wherever they can, at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import pytest

from replicate.roles.handover import (
    ENDS,
    GiverStanding,
    GiverStep,
    TakerAnswer,
    TakerView,
    first_step,
    judge,
    may_give,
    next_step,
)

STEPS = (GiverStep.CHECK, GiverStep.CATCH_UP, GiverStep.CLOSE, GiverStep.PROVE, GiverStep.GIVE, GiverStep.TELL)


class Fault(Enum):
    NONE = 0
    LOST_BEFORE = 1
    """The message, or the step itself, fails without effect."""
    LOST_AFTER = 2
    """It takes effect, and nobody hears of it."""
    GIVER_DIES_BEFORE = 3
    GIVER_DIES_AFTER = 4
    TAKER_DIES_BEFORE = 5
    TAKER_DIES_AFTER = 6
    DOOR_EXPIRES = 7
    """The giver stood still for too long: the door opened, and a writer came."""


GIVER_DIES = (Fault.GIVER_DIES_BEFORE, Fault.GIVER_DIES_AFTER)
NO_EFFECT = (Fault.LOST_BEFORE, Fault.GIVER_DIES_BEFORE, Fault.TAKER_DIES_BEFORE)


@dataclass(frozen=True)
class World:
    """`journal` of each: what is in it. `compared_at`: in the memory of the giver's daemon, as is the closed door."""

    giver_is_primary: bool = True
    gave_after: int | None = None
    is_told: bool = False
    giver_journal: tuple[str, ...] = ("a", "b")
    taker_is_primary: bool = False
    taker_journal: tuple[str, ...] = ("a",)
    door_is_closed: bool = False
    compared_at: int = -1

    @property
    def standing(self) -> GiverStanding:
        if self.giver_is_primary:
            return GiverStanding.HAS_ROLE
        return GiverStanding.HAS_SUCCESSOR if self.is_told else GiverStanding.HAS_GIVEN


def check(world: World) -> World:
    """What must be true at every moment."""
    assert not (world.giver_is_primary and world.taker_is_primary), "two primaries"
    common = min(len(world.giver_journal), len(world.taker_journal))
    assert world.giver_journal[:common] == world.taker_journal[:common], "the journals part"
    if world.taker_is_primary:
        assert len(world.taker_journal) >= len(world.giver_journal), "something committed is lost"
    return world


def write(world: World) -> World:
    """An application commits where it may."""
    if world.giver_is_primary and not world.door_is_closed:
        return check(replace(world, giver_journal=(*world.giver_journal, f"g{len(world.giver_journal)}")))
    if world.taker_is_primary:
        return check(replace(world, taker_journal=(*world.taker_journal, f"t{len(world.taker_journal)}")))
    return world


def stream(world: World) -> World:
    return world if world.taker_is_primary else replace(world, taker_journal=world.giver_journal)


def act(world: World, step: GiverStep) -> tuple[World, bool]:
    """One step takes effect; whether it does."""
    if step is GiverStep.CATCH_UP:
        return stream(world), True
    if step is GiverStep.CLOSE:
        return replace(world, door_is_closed=True, compared_at=-1), True
    if step is GiverStep.PROVE:
        world = stream(world)
        return replace(world, compared_at=len(world.giver_journal)), True
    if step is GiverStep.GIVE:
        seqno = len(world.giver_journal)
        if not may_give(seqno=seqno, compared_at=world.compared_at):
            return world, False
        return replace(world, giver_is_primary=False, gave_after=seqno), True
    if step is GiverStep.TELL:
        assert world.gave_after is not None
        last = len(world.taker_journal)
        view = TakerView(world.taker_is_primary, last, last, gave_role=not world.giver_is_primary)
        answer, why = judge(view, world.gave_after)
        assert answer is not TakerAnswer.REFUSES, why
        return check(replace(world, taker_is_primary=True)), True
    return world, True


def command(world: World, faults: dict[GiverStep, Fault]) -> tuple[World, GiverStep | None]:
    """Give it once; how it has ended, None when its daemon died."""
    step = first_step(world.standing)
    while step not in ENDS:
        fault = faults.pop(step, Fault.NONE)
        is_well = True
        if fault is Fault.DOOR_EXPIRES:
            world = write(replace(world, door_is_closed=False))
        if fault in NO_EFFECT:
            is_well = False
        else:
            world, is_well = act(world, step)
            is_well = is_well and fault in (Fault.NONE, Fault.DOOR_EXPIRES)
        if fault in GIVER_DIES:
            return check(write(replace(world, door_is_closed=False, compared_at=-1))), None
        if step is GiverStep.TELL and is_well:
            world = replace(world, is_told=True)
        world = check(write(world))
        step = next_step(step, is_well=is_well, standing=world.standing)
    world = replace(world, door_is_closed=False, compared_at=-1)
    if step is GiverStep.KEPT:
        assert world.giver_is_primary
        before = len(world.giver_journal)
        assert len(write(world).giver_journal) == before + 1, "the door is open again"
    return check(write(world)), step


def schedules(faults: int) -> Iterator[list[dict[GiverStep, Fault]]]:
    """For as many commands after one another, each fault at each step."""
    choices = [(step, fault) for step, fault in itertools.product(STEPS, Fault) if fault is not Fault.NONE]
    for chosen in itertools.product(choices, repeat=faults):
        yield [{step: fault} for step, fault in chosen]


@pytest.mark.parametrize("faults", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_whatever_fails_the_command_given_again_ends_it(faults: int) -> None:
    ends = set()
    for schedule in schedules(faults):
        world = World()
        for one in [*schedule, {}, {}]:
            had_role = world.giver_is_primary
            world, end = command(world, dict(one))
            ends.add(end)
            if end is GiverStep.KEPT:
                assert had_role, "nothing leads back"
        assert (world.giver_is_primary, world.taker_is_primary, world.is_told) == (False, True, True)
        assert end is GiverStep.DONE
        assert world.gave_after is not None
        assert world.taker_journal[: world.gave_after] == world.giver_journal
    assert ends == {GiverStep.DONE, *([GiverStep.KEPT, GiverStep.PENDING, None] if faults else [])}


def test_one_fault_of_each_kind_has_the_end_that_it_should() -> None:
    for step, fault in itertools.product(STEPS, Fault):
        world, end = command(World(), {step: fault})
        if fault in GIVER_DIES:
            assert end is None
        elif fault in (Fault.NONE,) or (fault is Fault.DOOR_EXPIRES and step not in (GiverStep.PROVE, GiverStep.GIVE)):
            assert end is GiverStep.DONE
        elif step is GiverStep.TELL or (step is GiverStep.GIVE and not world.giver_is_primary):
            assert end is GiverStep.PENDING
        elif not (fault is Fault.DOOR_EXPIRES and step is GiverStep.PROVE):
            assert end is GiverStep.KEPT


@pytest.mark.parametrize(
    ("view", "answer", "why"),
    [
        (TakerView(False, 7, 7, True), TakerAnswer.TAKES, ""),
        (TakerView(True, 9, 9, True), TakerAnswer.HAS, ""),
        (TakerView(True, 9, 9, False), TakerAnswer.HAS, ""),
        (TakerView(False, 7, 7, False), TakerAnswer.REFUSES, "is primary itself"),
        (TakerView(False, 6, 7, True), TakerAnswer.REFUSES, "6 is applied here, and 7 received"),
        (TakerView(False, 8, 8, True), TakerAnswer.REFUSES, "after transaction 7; 8 is applied"),
        (TakerView(False, 7, 8, True), TakerAnswer.REFUSES, "8 received"),
    ],
)
def test_the_taker_judges(view: TakerView, answer: TakerAnswer, why: str) -> None:
    judged, text = judge(view, 7)
    assert judged is answer
    assert why in text
