"""Who has the others stand aside, as people are told."""

from __future__ import annotations

from replicate.model.moment import first_csn
from replicate.model.schema_fences import FIRST, SECOND, Fences
from replicate.model.told_fences import ToldFence, told_fences
from replicate.model.transaction import FENCED, STANDS, History, Origin
from replicate.model.vector import SynchronizationVector
from replicate.model.writers import REST, Writers

ONE, OTHER, THIRD = (bytes([65 + at]) * 16 for at in range(3))
HISTORIES = [
    History(one, name, 1, Origin(one, 1).key, SynchronizationVector(), "test")
    for one, name in ((ONE, "one"), (OTHER, "other"))
]
NUMBER = first_csn(1_900_000_000_000_000)


def test_who_stands_aside_and_who_is_waited_for_is_named() -> None:
    """One that was let write, and has not begun to, by its UUID."""
    fences = Fences().told([FENCED, ONE, NUMBER, True]).told([STANDS, ONE, NUMBER, OTHER, FIRST])
    writers = Writers({REST: ONE, 2: THIRD}, fences=fences)
    since = "2030-03-17 17:46:40 UTC"
    told = ToldFence("one", (THIRD.hex(),), True, True, False, ("other",), since)
    assert told_fences(writers, HISTORIES, ONE) == [told]
    assert told_fences(Writers({REST: ONE}), HISTORIES, ONE) == []


def test_once_all_have_everything_it_is_closed_for_the_one_whose_it_is() -> None:
    fences = Fences().told([FENCED, ONE, NUMBER, True])
    for turn in (FIRST, SECOND):
        fences = fences.told([STANDS, ONE, NUMBER, OTHER, turn])
    writers = Writers({REST: ONE}, fences=fences)
    for own in (ONE, OTHER):
        (found,) = told_fences(writers, HISTORIES, own)
        assert (found.awaited, found.stands, found.is_own, found.is_closed) == ((), ("other",), own == ONE, own == ONE)
