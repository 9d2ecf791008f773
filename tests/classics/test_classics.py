"""The tables of the five descriptions: well formed, complete, true of the tests that they name, and never worse."""

from __future__ import annotations

import ast
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from tests.classics.tables import (
    ABSENT,
    BY_DESIGN,
    CAPABILITIES,
    NOT_APPLICABLE,
    PARTLY,
    STATES,
    WORKS,
    Description,
    Row,
    descriptions,
    read,
    summary,
)

ROOT = Path(__file__).parents[2]

# The ratchet. A row that turns green is counted here; a row that turns another colour is a promise that was broken.
WORKING = {
    "389ds-changelog-processing": 25,
    "allbase-audit-logging": 35,
    "allbase-synchronization-checkpoint-records": 24,
    "gtm-replication": 58,
    "multisite-epochs": 22,
}
PROMISE_MAX = 100

DESCRIPTIONS = descriptions()
each_description = pytest.mark.parametrize("table", DESCRIPTIONS, ids=lambda table: table.name)


def faults(row: Row) -> list[str]:
    """What is wrong with a row for itself."""
    is_missing = row.state in (PARTLY, ABSENT)
    rules = {
        f"its state is one of {', '.join(STATES)}": row.state in STATES,
        f"its promise is a few words, {PROMISE_MAX} characters at most": len(row.promise) <= PROMISE_MAX,
        "what works, all of it or in part, has a test": bool(row.tests) or row.state not in (WORKS, PARTLY),
        "what is absent has no test": not row.tests or row.state != ABSENT,
        "what does not work has a reason": bool(row.reason) or row.state == WORKS,
        "what is missing comes with something, and nothing else does": bool(row.comes_with) == is_missing,
        f"it comes with one of {', '.join(CAPABILITIES)}": row.comes_with in (*CAPABILITIES, BY_DESIGN, ""),
        "nothing that is absent is so by design: it is not applicable": row.comes_with != BY_DESIGN
        or row.state == PARTLY,
        "a test is named once": len(set(row.tests)) == len(row.tests),
    }
    return [rule for rule, is_kept in rules.items() if not is_kept]


def order_fault(table: Description) -> str:
    """ "" where each paragraph, or each of its parts, stands in one row, and rows and their places rise."""
    places = [place for row in table.rows for place in row.places]
    if len(set(places)) != len(places):
        return "a place is there twice"
    if any(list(row.places) != sorted(row.places) for row in table.rows):
        return "the places of a row do not rise"
    firsts = [row.places[0] for row in table.rows]
    if firsts != sorted(firsts):
        return "the rows do not rise"
    found = {number: "".join(letter for _, letter in some) for number, some in groupby(sorted(places), lambda p: p[0])}
    if [*found] != [*range(1, table.paragraphs + 1)]:
        return f"not the paragraphs 1 to {table.paragraphs}"
    if any(letters not in ("", "abcdefgh"[: len(letters)]) or letters == "a" for letters in found.values()):
        return "the parts of a paragraph are a, b and so on"
    return ""


@cache
def names_in(file: str) -> frozenset[str]:
    """What a test of that file may be called after the file: a function, or a class and its function."""
    path = ROOT / file
    if not path.is_file() or not path.name.startswith("test_"):
        return frozenset()
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = [one.name for one in inner if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        found.update(before + name for name in functions if name.startswith("test_"))
    return frozenset(found)


def is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return file.startswith("tests/") and name in names_in(file)


@each_description
def test_every_row_is_well_formed(table: Description) -> None:
    assert {row.paragraph: found for row in table.rows if (found := faults(row))} == {}


@each_description
def test_every_paragraph_has_its_row(table: Description) -> None:
    assert order_fault(table) == ""


@each_description
def test_every_test_that_a_row_names_is_there(table: Description) -> None:
    gone = [f"{row.paragraph}: {test}" for row in table.rows for test in row.tests if not is_there(test)]
    assert not gone, "name what tests these promises now"


def test_what_works_does_not_become_less() -> None:
    print(f"\n{summary(DESCRIPTIONS)}")
    works = {table.name: table.count(WORKS) for table in DESCRIPTIONS}
    assert works.keys() == WORKING.keys()
    fewer = {name: works[name] for name, number in WORKING.items() if works[name] < number}
    assert not fewer, "a promise that worked does not any more"
    assert works == WORKING, "more works than WORKING says: write it there, so that it stays so"


def test_the_summary_counts_every_row() -> None:
    one = Description("one", 2, (Row("1", "a", WORKS), Row("2", "b", ABSENT)))
    other = Description("another", 2, (Row("1a", "a", PARTLY), Row("1b", "b", NOT_APPLICABLE), Row("2", "c", WORKS)))
    lines = [line.split() for line in summary((one, other)).splitlines()]
    assert lines[1:4] == [
        ["one", "2", "1", "0", "1", "0"],
        ["another", "3", "1", "1", "0", "1"],
        ["all", "five", "5", "2", "1", "1", "1"],
    ]
    assert lines[4][:3] == ["2", "of", "5"]


@pytest.mark.parametrize(
    ("paragraphs", "fault"),
    [
        (["1-2", "3a", "3b", "4, 6", "5"], ""),
        (["1", "2", "2", "3-6"], "twice"),
        (["1", "3", "2", "4-6"], "rows do not rise"),
        (["2, 1", "3-6"], "of a row do not rise"),
        (["1-5"], "not the paragraphs 1 to 6"),
        (["1-7"], "not the paragraphs 1 to 6"),
        (["1a", "1c", "2-6"], "the parts"),
        (["1a", "2-6"], "the parts"),
        (["1", "1a", "2-6"], "the parts"),
    ],
)
def test_what_is_out_of_order_is_found(paragraphs: list[str], fault: str) -> None:
    found = order_fault(Description("one", 6, tuple(Row(paragraph, "a", WORKS) for paragraph in paragraphs)))
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (Row("1", "a", WORKS, ("t",)), 0),
        (Row("1", "a", WORKS, ("t",), "better"), 0),
        (Row("1", "a", PARTLY, ("t",), "half", "roles"), 0),
        (Row("1", "a", PARTLY, ("t",), "otherwise", BY_DESIGN), 0),
        (Row("1", "a", ABSENT, (), "none", "audit"), 0),
        (Row("1", "a", NOT_APPLICABLE, (), "says nothing"), 0),
        (Row("1", "a", WORKS), 1),
        (Row("1", "a", WORKS, ("t", "t")), 1),
        (Row("1", "a", WORKS, ("t",), "", "roles"), 1),
        (Row("1", "a", "done", ("t",), "why"), 1),
        (Row("1", "a" * 101, WORKS, ("t",)), 1),
        (Row("1", "a", PARTLY, (), "half", "roles"), 1),
        (Row("1", "a", PARTLY, ("t",), "", "roles"), 1),
        (Row("1", "a", PARTLY, ("t",), "half"), 1),
        (Row("1", "a", PARTLY, ("t",), "half", "magic"), 1),
        (Row("1", "a", ABSENT, ("t",), "none", "audit"), 1),
        (Row("1", "a", ABSENT, (), "none", BY_DESIGN), 1),
        (Row("1", "a", NOT_APPLICABLE), 1),
    ],
)
def test_each_fault_of_a_row_is_found(row: Row, count: int) -> None:
    assert len(faults(row)) == count


@pytest.mark.parametrize(
    "text",
    [
        'name = "b"\nparagraphs = 1\n[[row]]\nparagraph = "1"\npromise = "a"\nstate = "works"',
        'name = "a"\nparagraphs = 1\nmore = 1\n[[row]]\nparagraph = "1"\npromise = "a"\nstate = "works"',
        'name = "a"\nparagraphs = 1\n[[row]]\nparagraph = "1"\npromise = "a"',
        'name = "a"\nparagraphs = 1\n[[row]]\nparagraph = 1\npromise = "a"\nstate = "works"',
        'name = "a"\nparagraphs = 1\n[[row]]\nparagraph = "1"\npromise = ""\nstate = "works"',
        'name = "a"\nparagraphs = 1\n[[row]]\nparagraph = "1"\npromise = "a"\nstate = "works"\ntest = "t"',
        'name = "a"\nparagraphs = 1\n[[row]]\nparagraph = "1"\npromise = "a"\nstate = "works"\ntests = "t"',
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=r"^a\.toml"):
        read(tmp_path / "a.toml")


@pytest.mark.parametrize("paragraph", ["", "a", "1b2", "1-", "1,2", "1-2a"])
def test_what_is_no_paragraph_is_refused(paragraph: str) -> None:
    with pytest.raises(ValueError, match="is no paragraph"):
        assert Row(paragraph, "a", WORKS).places


def test_a_test_that_is_gone_is_noticed() -> None:
    here = "tests/classics/test_classics.py"
    assert is_there(f"{here}::test_a_test_that_is_gone_is_noticed")
    for gone in (
        f"{here}::test_gone",
        f"{here}::is_there",
        here,
        f"{here}::test_each_fault_of_a_row_is_found[row0-0]",
        "tests/classics/test_gone.py::test_gone",
        "tests/classics/tables.py::test_gone",
    ):
        assert not is_there(gone)
