"""Where the chapters are that the package brings along."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.manual import MANUAL, chapters, place_of, title_of
from replicate.errors import NotFoundError
from tests.harness.checkout import ROOT


def test_in_a_checkout_they_are_those_of_deploy() -> None:
    manual = ROOT / "deploy" / "manual"
    assert MANUAL.resolve() == manual.resolve()
    assert set(chapters(MANUAL)) == {path.stem.lower() for path in manual.glob("*.md")}


def test_an_installed_package_has_its_own_whatever_is_beside_it(tmp_path: Path) -> None:
    package, beside = tmp_path / "replicate", tmp_path / "deploy" / "manual"
    assert place_of(package) == package / "manual"  # as it would be named where it is missing
    beside.mkdir(parents=True)
    assert place_of(package) == beside
    (package / "manual").mkdir(parents=True)
    assert place_of(package) == package / "manual"


def test_chapters_are_in_the_order_of_their_topics_whatever_their_case(tmp_path: Path) -> None:
    for name in ("zoo.md", "CHANGES.md", "apes.md", "notes.txt"):
        (tmp_path / name).write_text(f"# Of {name}\n\nText.\n")
    found = chapters(tmp_path)
    assert [*found] == ["apes", "changes", "zoo"]
    assert title_of(found["changes"]) == "Of CHANGES.md"


def test_a_package_without_its_manual_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="pip install"):
        chapters(tmp_path)
