"""model/elements.py: where each element is, which come without DEFINITION, and each word that is refused."""

from __future__ import annotations

from itertools import product

import pytest

from replicate.errors import NotSupportedError, ReplicateError, UsageError
from replicate.model.elements import (
    PLACED,
    RECORDED,
    element_named,
    elements_in,
    left_out,
    misfit,
    place_of,
    recorded_named,
)

D, S, T = PLACED


@pytest.mark.parametrize(("d", "s", "t"), list(product((None, 2, 3), repeat=3)))
@pytest.mark.parametrize("wanted", [(), (2,), (3,), (2, 3)])
def test_every_placing_and_every_wish(d: int | None, s: int | None, t: int | None, wanted: tuple[int, ...]) -> None:
    elements = {one: number for one, number in zip(PLACED, (d, s, t), strict=True) if number is not None}
    places = {D: d or 0, S: s or d or 0, T: t or d or 0}
    assert {one: place_of(elements, one) for one in PLACED} == places
    for number in (2, 3):
        assert elements_in(elements, number) == [one for one in PLACED if places[one] == number]
    assert elements_in(elements, 0) == []

    def wants(number: int) -> bool:
        return number in (0, *wanted)

    absent = [one for one in PLACED if places[one] not in (0, *wanted)]
    assert left_out(elements, wants) == absent
    assert bool(misfit(elements, wants)) == (D in absent and len(absent) < 3)
    assert misfit(elements, wants) not in absent


def test_words() -> None:
    assert [element_named(word) for word in ("definition", "Storage", "SECTION")] == list(PLACED)
    assert recorded_named(["data", "Section"]) == {"DATA", "SECTION"}
    assert recorded_named([]) == frozenset()
    refused: list[tuple[type[ReplicateError], str, str]] = [
        (UsageError, "tables", "no audit element tables"),
        (UsageError, "comment", "partition comments"),
        (UsageError, "data", "partition of their table"),
        (UsageError, "CHECKPOINT", "its own record"),
        (NotSupportedError, "authorization", "SQLite has no rights"),
    ]
    for error, word, text in refused:
        with pytest.raises(error, match=text):
            element_named(word)
    with pytest.raises(UsageError, match="CHECKPOINT") as caught:
        recorded_named(["DATA", "checkpoint"])
    assert all(one in str(caught.value) for one in RECORDED)
