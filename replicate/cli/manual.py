"""The chapters of the manual, which are installed with the package.

Guarantees: they are those of this release, whether the package runs from a checkout or was installed.
Leaves to others: what they say (deploy/manual), and who prints them (help.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import replicate
from replicate.errors import NotFoundError

_PACKAGE: Final = Path(replicate.__file__).parent


def place_of(package: Path) -> Path:
    """Where the chapters are: in an installed package below it, in a checkout in deploy/manual."""
    installed, checkout = package / "manual", package.parent / "deploy" / "manual"
    return checkout if checkout.is_dir() and not installed.is_dir() else installed


MANUAL: Final = place_of(_PACKAGE)


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
