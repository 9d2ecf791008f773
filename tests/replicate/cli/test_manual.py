"""Where the chapters are that the package brings along."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.manual import MANUAL, chapters, title_of
from replicate.errors import NotFoundError
from tests.harness.checkout import ROOT


def test_the_link_leads_to_the_chapters_of_the_checkout() -> None:
    manual = ROOT / "deploy" / "manual"
    assert MANUAL.resolve() == manual.resolve()
    assert set(chapters(MANUAL)) == {path.stem.lower() for path in manual.glob("*.md")}


def test_chapters_are_in_the_order_of_their_topics_whatever_their_case(tmp_path: Path) -> None:
    for name in ("zoo.md", "CHANGES.md", "apes.md", "notes.txt"):
        (tmp_path / name).write_text(f"# Of {name}\n\nText.\n")
    found = chapters(tmp_path)
    assert [*found] == ["apes", "changes", "zoo"]
    assert title_of(found["changes"]) == "Of CHANGES.md"


def test_a_package_without_its_manual_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="pip install"):
        chapters(tmp_path)
