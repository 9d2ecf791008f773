"""README and the chapters of the manual as tests read them: sections, commands and blocks of code.

Guarantees: a section or chapter that is not there fails the test that asks for it.
Leaves to others: what is done with the commands.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.checkout import ROOT

MANUAL = ROOT / "deploy" / "manual"
README = ROOT / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def chapter(topic: str) -> str:
    """The text of a chapter."""
    return (MANUAL / f"{topic}.md").read_text(encoding="utf-8")


def readme() -> str:
    return README.read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under a heading, with the sections below it."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert found is not None, title
    return re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [code for kind, code in _BLOCK.findall(text) if kind == language]


def without_blocks(text: str) -> str:
    return _BLOCK.sub("", text)


def commands(text: str) -> list[str]:
    """The indented lines, without those that only find the environment, which is the one that runs the test."""
    lines = [line.strip() for line in without_blocks(text).splitlines() if line.startswith("    ")]
    return [line for line in lines if line and "bin/activate" not in line]


def headings(path: Path) -> list[str]:
    """Of a page, in their order."""
    return re.findall(r"^#+ (.*)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)


def anchor(heading: str) -> str:
    """What a link to a heading says after the #, as the usual renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
