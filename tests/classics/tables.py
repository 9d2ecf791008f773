"""The tables of the five descriptions that this system is measured by: paragraph → tests, or why not yet.

Guarantees: a row is read as it stands in its file, and one with a field that is missing, unknown or of another type is
refused by file and paragraph. A description is a file NAME.toml here; its head says how many paragraphs it has.
Leaves to others: whether the rows are in order and complete, and their tests there (test_classics.py); the printing
(`python -m tests.classics`).

A row promises something in our words. `works`: the tests fail if it breaks, and a reason is a remark. `partly`: the
tests are of what works, the reason says what is missing. `absent`: the reason says what there is instead. `comes_with`
says what will bring it. `not applicable`: there is nothing to build, and the reason says why."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent
WORKS, PARTLY, ABSENT, NOT_APPLICABLE = STATES = ("works", "partly", "absent", "not applicable")
CAPABILITIES = ("roles", "filters", "audit", "partitions", "packets", "suppliers", "postgresql")
BY_DESIGN = "by design"  # done otherwise, and it stays so

Place = tuple[int, str]
"""A paragraph and the letter of the part of it, "" for all of it."""


@dataclass(frozen=True)
class Row:
    paragraph: str
    promise: str
    state: str
    tests: tuple[str, ...] = ()
    reason: str = ""
    comes_with: str = ""

    @property
    def places(self) -> tuple[Place, ...]:
        """What `paragraph` means: "7", "40a", "1-4", "12, 15". Raises ValueError."""
        return tuple(place for part in self.paragraph.split(", ") for place in _places(part))


@dataclass(frozen=True)
class Description:
    name: str
    paragraphs: int
    rows: tuple[Row, ...]

    def count(self, state: str) -> int:
        return sum(row.state == state for row in self.rows)


def _places(part: str) -> Iterator[Place]:
    found = re.fullmatch(r"(\d+)(?:-(\d+)|([a-z]?))", part)
    if found is None:
        raise ValueError(f"{part!r} is no paragraph, no part of one and no range")
    first, last, letter = found.groups()
    yield from ((number, letter or "") for number in range(int(first), int(last or first) + 1))


def read(path: Path) -> Description:
    """Raises ValueError for what is no table."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    if content.keys() != {"name", "paragraphs", "row"} or content["name"] != path.stem:
        raise ValueError(f"{path.name}: it has name = {path.stem!r}, paragraphs, rows, and nothing else")
    return Description(content["name"], content["paragraphs"], tuple(_row(path, row) for row in content["row"]))


def _row(path: Path, row: dict[str, Any]) -> Row:
    where = f"{path.name}, paragraph {row.get('paragraph')}"
    tests = row.pop("tests", [])
    if not isinstance(tests, list) or not all(isinstance(text, str) and text for text in [*tests, *row.values()]):
        raise ValueError(f"{where}: each field is a text, and tests a list of them")
    try:
        return Row(**row, tests=tuple(tests))
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def descriptions() -> tuple[Description, ...]:
    """By name."""
    return tuple(read(path) for path in sorted(DIRECTORY.glob("*.toml")))


def summary(tables: tuple[Description, ...]) -> str:
    """A line for each description, and one for all of them."""
    width = max(len(table.name) for table in tables)
    counts = {table.name: [len(table.rows), *map(table.count, STATES)] for table in tables}
    counts["all five"] = total = [sum(column) for column in zip(*counts.values(), strict=True)]
    heads = ("rows", *STATES)
    lines = ["  ".join([" " * width, *heads])]
    for name, numbers in counts.items():
        cells = (f"{number:>{len(head)}}" for number, head in zip(numbers, heads, strict=True))
        lines.append("  ".join([name.ljust(width), *cells]))
    return "\n".join([*lines, f"{total[2] + total[3]} of {total[0]} are absent or there in part."])
