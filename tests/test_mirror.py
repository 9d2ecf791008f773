"""The tests mirror the product: one that changes a module finds its tests by its name.

The tests of a module in a room stand in the same room of tests: test_MODULE and test_MODULE_*, with the ending py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.turns(1)  # a rule of every commit

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("replicate", "source_server", "receiver_server", "update_process")

LIST = Path(__file__).with_name("without_test_file.txt")
MOST_WITHOUT = 58
"""Of LIST, which may only get shorter: lower this with it."""

OF_THE_PACKAGE = {"package", "cpython_suite"}
"""Tests of `replicate` as a whole, which stand in tests/replicate itself."""


def without_a_test_file() -> set[str]:
    """Modules of the product that no test file is named after."""
    modules = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.as_posix() for path in modules if path.name != "__init__.py" and not files_of(path)}


def files_of(module: Path) -> list[Path]:
    there = ROOT / "tests" / module.parent
    return [*there.glob(f"test_{module.stem}.py"), *there.glob(f"test_{module.stem}_*.py")]


def test_a_module_has_a_test_file_of_its_name_or_stands_in_the_list() -> None:
    listed = [line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = without_a_test_file()
    assert not found - {*listed}, "give each a test file of its name; one that was only renamed: change its line"
    assert not {*listed} - found, f"these have a test file now, or are gone: take them out of {LIST.name}"
    assert listed == sorted(listed)
    assert len(listed) <= MOST_WITHOUT


@pytest.mark.parametrize("package", PACKAGES)
def test_a_test_file_stands_in_the_mirror_of_a_room(package: str) -> None:
    files = sorted((ROOT / "tests" / package).rglob("test_*.py"))
    assert files
    astray = [path for path in files if not (ROOT / path.parent.relative_to(ROOT / "tests")).is_dir()]
    assert not astray, "these test no room that is there: move them to where their modules have gone"


def test_in_the_hall_stand_only_the_tests_of_what_stands_there() -> None:
    here = {path.stem for path in (ROOT / "replicate").glob("*.py")} | OF_THE_PACKAGE
    astray = [path for path in (ROOT / "tests" / "replicate").glob("test_*.py") if path.stem[5:] not in here]
    assert not astray, "move each to the room of the module that it tests"
