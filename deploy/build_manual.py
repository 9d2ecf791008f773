"""The step of a build that puts the chapters of the manual into the package (pyproject.toml names it).

Guarantees: what is installed has `replicate/manual` with the chapters of deploy/manual; a checkout stays as it is, and
needs no link (an archive, or a file system without links, loses one). Leaves to others: who reads them
(replicate/cli/manual.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

CHAPTERS = Path(__file__).resolve().parent / "manual"


class BuildWithManual(build_py):
    """`build_py`, and then the chapters. An editable installation reads those of the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "replicate" / "manual"
        target.mkdir(parents=True, exist_ok=True)
        for chapter in sorted(CHAPTERS.glob("*.md")):
            shutil.copyfile(chapter, target / chapter.name)
