"""The partitions of an instance: their names and numbers, and where new tables, comments and audit elements belong.

A partition is a set of tables whose rows go together to those who subscribe to it. Each table is in exactly one, or in
NONE: its rows are journalled, so that a crash tears no transaction, and never leave the instance.

Guarantees: a number and a name are used once; DEFAULT, with the number 1, is always there; what breaks a rule is
refused by name, and nothing is changed then.
Leaves to others: which table is in which (its definition says so), and who subscribes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.errors import AlreadyExistsError, NotFoundError, UsageError
from replicate.limits import PARTITION_DEFAULT, PARTITION_MAX, PARTITION_NONE, PARTITION_STREAM
from replicate.model.elements import PLACED, element_named, elements_in, place_of

DEFAULT: Final = "DEFAULT"
NONE: Final = "NONE"
ALL: Final = "ALL"
MOVED_EMPTY: Final = 0x8000_0000
"""Beside the former partition in the argument of the comment that tells of a table's move: it had no rows."""
_RESERVED: Final = {NONE: PARTITION_NONE, ALL: PARTITION_STREAM}
_TOLD_CHARACTERS_MAX: Final = 255
_NAME: Final = re.compile(r"\w[\w.-]{0,62}\Z")
"""Of one that is made: what commands print with it is one line, and can be copied. Those of before are as they are."""
_NAME_HEAD_BYTES: Final = 3
"""Of a name in msgpack, at most."""
LIMIT: Final = 16
"""So many partitions an instance has at most, until it is told otherwise."""


class Partitions(Struct, frozen=True):
    """`names`: number -> name, DEFAULT among them. `default`: where tables belong that are created from now on.
    `comments`: where comments of applications do; 0: they go to everybody. `limit`: most partitions."""

    names: Mapping[int, str]
    default: int = PARTITION_DEFAULT
    comments: int = PARTITION_STREAM
    limit: int = LIMIT
    keeps_back: bool = False
    """Whether something has ever been put into NONE."""
    elements: Mapping[str, int] = field(default_factory=dict)
    """Element -> where it belongs, of those that were placed."""

    @property
    def in_use(self) -> bool:
        """Whether anything is, or may be, elsewhere than in DEFAULT."""
        return self != replace(ONLY_DEFAULT, limit=self.limit)

    def number(self, name: str) -> int:
        """The number of a partition by its name, in any case, or by the number itself; NONE is one. NotFoundError."""
        if name.upper() == NONE:
            return PARTITION_NONE
        for number, known in self.names.items():
            if known.upper() == name.upper() or str(number) == name:
                return number
        raise NotFoundError(
            f"there is no partition {name}",
            do=f"There are {', '.join(self.names.values())}; another one: replicate -i INSTANCE partition create NAME",
        )

    def name(self, number: int) -> str:
        """How people call it: its name, or the number where it has none here."""
        if number == PARTITION_NONE:
            return NONE
        return self.names.get(number, str(number))

    def created(self, name: str, number: int | None = None) -> Partitions:
        """With one more; the lowest free number when none is given. AlreadyExistsError; UsageError for a number out of
        range, a name that is a word or cannot be written in a command, and one above the limit."""
        if not _NAME.match(name):
            raise UsageError(
                f"{name!r} is no name of a partition",
                do="Use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter, a digit or '_'",
            )
        if name.upper() in (*_RESERVED, "COMMENT") or name.isdigit():
            raise UsageError(f"a partition cannot be called {name}", do="Give it another name")
        for known, taken in self.names.items():
            if taken.upper() == name.upper():
                raise AlreadyExistsError(f"there is a partition {taken} already, number {known}")
        if number is None:
            number = next((one for one in range(2, PARTITION_MAX + 1) if one not in self.names), PARTITION_MAX + 1)
        if number in self.names:
            raise AlreadyExistsError(
                f"partition {self.names[number]} has the number {number}", do="Give another --id, or none"
            )
        if len(self.names) >= self.limit:
            raise UsageError(
                f"{len(self.names)} partitions are there, and no more than {self.limit} may be",
                do=f"Raise the limit (up to {PARTITION_MAX}): replicate -i INSTANCE partition limit N"
                if self.limit < PARTITION_MAX
                else "Drop one that has no tables: replicate -i INSTANCE partition drop NAME",
            )
        if not 1 <= number <= PARTITION_MAX:
            raise UsageError(f"{number} is no number of a partition", do=f"Give one from 2 to {PARTITION_MAX}")
        return replace(self, names=dict(sorted({**self.names, number: name}.items())))

    def dropped(self, name: str) -> Partitions:
        """Without that one. NotFoundError; UsageError for DEFAULT, NONE, and one where new tables or comments go. That
        it has no tables is for the caller to know."""
        number = self.number(name)
        if number in (PARTITION_DEFAULT, PARTITION_NONE):
            raise UsageError(f"partition {self.name(number)} is always there")
        for what, used in (("new tables", self.default), ("comments", self.comments)):
            if used == number:
                word = "default" if what == "new tables" else "comments"
                raise UsageError(
                    f"{what} belong to partition {self.name(number)}",
                    do=f"Name another one for them: replicate -i INSTANCE partition {word} NAME",
                )
        for element in elements_in(self.elements, number):
            raise UsageError(
                f"the element {element} belongs to partition {self.name(number)}",
                do=f"Name another one for it, or ALL: replicate -i INSTANCE partition element {element} NAME",
            )
        return replace(self, names={one: known for one, known in self.names.items() if one != number})

    def with_default(self, name: str) -> Partitions:
        """Tables that are created from now on belong there. NotFoundError."""
        number = self.number(name)
        return replace(self, default=number, keeps_back=self.keeps_back or number == PARTITION_NONE)

    def with_comments(self, name: str) -> Partitions:
        """Comments belong there; ALL: they go to everybody. NotFoundError."""
        number = PARTITION_STREAM if name.upper() == ALL else self.number(name)
        return replace(self, comments=number, keeps_back=self.keeps_back or number == PARTITION_NONE)

    def with_element(self, word: str, name: str) -> Partitions:
        """That audit element belongs there; ALL: it goes to everybody, or where DEFINITION does. NotFoundError;
        UsageError for NONE and for what is no element that can be placed, NotSupportedError for what SQLite lacks."""
        element = element_named(word)
        rest = {one: number for one, number in self.elements.items() if one != element}
        if name.upper() == ALL:
            return replace(self, elements=rest)
        number = self.number(name)
        if number == PARTITION_NONE:
            raise UsageError(
                f"{element} cannot be kept back: what is in NONE is told nobody, and a secondary may want it",
                do="Name a partition, and have those subscribe to it that want it: replicate -i INSTANCE partition "
                f"element {element} NAME",
            )
        return replace(
            self, elements={one: {**rest, element: number}[one] for one in PLACED if one in {*rest, element}}
        )

    def told(self, bytes_max: int) -> tuple[str, ...]:
        """The names of the numbers from 2 on, for another instance; "" where a number has none, or one of more than 255
        characters. As many as fit into so many bytes."""
        names: list[str] = []
        for number in range(2, max(self.names) + 1):
            name = self.names.get(number, "")
            name = name if len(name) <= _TOLD_CHARACTERS_MAX else ""
            bytes_max -= len(name.encode()) + _NAME_HEAD_BYTES
            if bytes_max < 0:
                break
            names.append(name)
        return tuple(names)

    def calling(self, told: Sequence[str]) -> Partitions:
        """With those names (as `told` gives them) for numbers that have none here. Left out is what is no name here,
        or is another number's."""
        now = self
        for number, name in enumerate(told, 2):
            if name and number not in now.names:
                with suppress(AlreadyExistsError, UsageError):
                    now = replace(now, limit=max(now.limit, len(now.names) + 1)).created(name, number)
        return now

    def called_otherwise(self, told: Sequence[str]) -> tuple[int, ...]:
        """Of which numbers the name here is another one than the one that is told."""
        return tuple(
            number for number, name in enumerate(told, 2) if name and self.names.get(number, "").upper() != name.upper()
        )

    def place_of(self, element: str) -> int:
        """The partition of an audit element; 0: it goes to everybody."""
        return place_of(self.elements, element)

    def keeping_back(self) -> Partitions:
        """A table is about to be put into NONE."""
        return replace(self, keeps_back=True)

    def with_limit(self, limit: int) -> Partitions:
        """At most so many partitions, DEFAULT counted. UsageError for fewer than there are."""
        if not len(self.names) <= limit <= PARTITION_MAX:
            raise UsageError(
                f"{limit} partitions at most cannot be: {len(self.names)} are there, and no more than {PARTITION_MAX} "
                "may be",
                do=f"Give a number from {len(self.names)} to {PARTITION_MAX}",
            )
        return replace(self, limit=limit)

    def pack(self) -> dict[str, Any]:
        """As a JSON object."""
        facts: dict[str, Any] = {
            "names": {str(number): name for number, name in self.names.items()},
            "default": self.default,
            "comments": self.comments,
            "limit": self.limit,
            "keeps_back": self.keeps_back,
        }
        return facts | ({"elements": dict(self.elements)} if self.elements else {})


ONLY_DEFAULT: Final = Partitions({PARTITION_DEFAULT: DEFAULT})
"""Of an instance that has no partitions of its own."""


def unpack(facts: Any) -> Partitions:
    """What `pack` gave. ValueError, KeyError, TypeError, AttributeError for anything else."""
    names = {int(number): name for number, name in facts["names"].items()}
    elements = {one: int(number) for one, number in facts.get("elements", {}).items()}
    keeps_back = facts["keeps_back"] is True
    made = Partitions(names, int(facts["default"]), int(facts["comments"]), int(facts["limit"]), keeps_back, elements)
    known = (*names, PARTITION_NONE)
    if (
        names.get(PARTITION_DEFAULT) != DEFAULT
        or not all(1 <= number <= PARTITION_MAX and type(name) is str and name for number, name in names.items())
        or len({name.upper() for name in names.values()}) != len(names)
        or made.default not in known
        or made.comments not in (*known, PARTITION_STREAM)
        or not len(names) <= made.limit <= PARTITION_MAX
        or not elements.keys() <= set(PLACED)
        or not set(elements.values()) <= names.keys()
    ):
        raise ValueError("partitions")
    return made
