"""The chapters of the manual, which are installed with the package.

Guarantees: they are those of this release, whether the package runs from a checkout or was installed.
Leaves to others: what they say (deploy/manual), and who prints them (help.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import replicate
from replicate.errors import NotFoundError

MANUAL: Final = Path(replicate.__file__).parent / "manual"
"""In a checkout a link to deploy/manual, in an installed package a directory with the same files."""


def chapters(manual: Path) -> dict[str, Path]:
    """By topic, the file of each chapter. NotFoundError where the manual is not there."""
    found = {path.stem.lower(): path for path in manual.glob("*.md")}
    if not found:
        raise NotFoundError(
            "the manual was not installed", where=str(manual), do="Install the package again: pip install CHECKOUT"
        )
    return dict(sorted(found.items()))


def title_of(chapter: Path) -> str:
    """The heading of a chapter."""
    with chapter.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").rstrip("\n")
