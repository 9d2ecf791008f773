"""Audit elements: the kinds of what a journal records, and which of them may have a partition of their own.

    DATA           changes of rows, and counters of AUTOINCREMENT: in the partition of their table
    CHECKPOINT     synchronization checkpoint records: always
    COMMENT        comments of applications: `partition comments`
    DEFINITION     tables and views
    STORAGE        indexes and statistics
    SECTION        triggers
    AUTHORIZATION  rights: where the database has any

What is of no table goes to everybody, until an operator puts its element into a partition. Then it goes to those who
subscribe to that.

Guarantees: a name that is none, and one that cannot be placed, is refused with the way out.
Leaves to others: which statement is of which element (region/sqlite/sql/elements.py), and where each is. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from replicate.errors import NotSupportedError, UsageError
from replicate.limits import PARTITION_STREAM

DATA: Final = "DATA"
CHECKPOINT: Final = "CHECKPOINT"
COMMENT: Final = "COMMENT"
DEFINITION: Final = "DEFINITION"
STORAGE: Final = "STORAGE"
SECTION: Final = "SECTION"
AUTHORIZATION: Final = "AUTHORIZATION"
PLACED: Final = (DEFINITION, STORAGE, SECTION)
"""Those that a partition may be named for."""
RECORDED: Final = (DATA, COMMENT, *PLACED)
"""Those of which there are changes in a journal."""

_ELSE: Final = f"There are {', '.join(PLACED)}"


def element_named(word: str) -> str:
    """One of PLACED, in any case. UsageError for any other word, NotSupportedError for what SQLite does not have."""
    name = word.upper()
    if name in PLACED:
        return name
    if name == AUTHORIZATION:
        raise NotSupportedError(
            "SQLite has no rights that could be recorded: there is no element AUTHORIZATION", do=_ELSE
        )
    if name == COMMENT:
        raise UsageError(
            "comments have a command of their own", do="replicate -i INSTANCE partition comments NAME, or ALL"
        )
    if name in (DATA, CHECKPOINT):
        why = "rows are in the partition of their table" if name == DATA else "each partition has its own record"
        raise UsageError(f"the element {name} has no partition of its own: {why}", do=_ELSE)
    raise UsageError(f"there is no audit element {word}", do=_ELSE)


def recorded_named(words: Iterable[str]) -> frozenset[str]:
    """Those of RECORDED that an operator names, in any case. UsageError."""
    found = {word.upper() for word in words}
    if strange := sorted(found - set(RECORDED)):
        raise UsageError(f"a journal holds no changes of an element {strange[0]}", do=f"Say {', '.join(RECORDED)}")
    return frozenset(found)


def place_of(elements: Mapping[str, int], element: str) -> int:
    """The partition of an element, where those of `elements` have been placed; 0: it goes to everybody. What was not
    placed goes where DEFINITION does: an index fits the table that it is of."""
    return elements.get(element, elements.get(DEFINITION, PARTITION_STREAM))


def elements_in(elements: Mapping[str, int], number: int) -> list[str]:
    """The elements that are in that partition."""
    return [one for one in PLACED if number != PARTITION_STREAM and place_of(elements, one) == number]


def left_out(elements: Mapping[str, int], wants: Callable[[int], bool]) -> list[str]:
    """The elements that do not come where `wants` says which partitions do."""
    return [one for one in PLACED if not wants(place_of(elements, one))]


def misfit(elements: Mapping[str, int], wants: Callable[[int], bool]) -> str:
    """The first element that would come without DEFINITION, which it needs; "" where none would."""
    absent = left_out(elements, wants)
    return next((one for one in PLACED if one not in absent), "") if DEFINITION in absent else ""
