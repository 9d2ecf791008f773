"""What continuous integration runs: the whole suite, and before it a part by another Python, if there is one.

`.ci/run` is copied into a checkout whose `deploy/test` only says how it was called; what it may want to install is
there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = ".ci/run"
TEST = """echo "by ${PYTHON:-any}: $*"
case ${PYTHON:-} in */other) exit "$(cat part)" ;; *) exit "$(cat whole)" ;; esac
"""
OTHER_PYTHON = """#!/bin/sh
case $1 in --version) echo "Python {0}.0" ;; *) echo "{0} another one" ;; esac
"""


class Checkout:
    """A checkout of its own, and a search path with all tools that `.ci/run` would install."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        self.path = directory / "path"
        self.other = directory / "other"
        self.newer = directory / "newer" / "other"
        for name in (self.root / ".ci", self.root / "deploy", self.path, self.newer.parent):
            name.mkdir(parents=True)
        text = (CHECKOUT / RUN).read_text()
        (self.root / RUN).write_text(text)
        (self.root / "deploy" / "test").write_text(TEST)
        tools = re.search(r'^tools="(.*)"$', text, re.MULTILINE)
        assert tools is not None
        for tool in tools[1].split():
            self._program(self.path / tool, "#!/bin/sh\n")
        self._program(self.path / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        self._program(self.path / "apt-get", "#!/bin/sh\nexit 1\n")
        self._program(self.other, OTHER_PYTHON.format("3.05"))
        self._program(self.newer, OTHER_PYTHON.format("3.99"))

    def run(
        self, *words: str, system: Path | str, newer: str = "", part: int = 0, whole: int = 0
    ) -> tuple[int, list[str]]:
        """Exit code, and the lines that it says; `part` and `whole`: exit codes of the two runs."""
        (self.root / "part").write_text(str(part))
        (self.root / "whole").write_text(str(whole))
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", "SYSTEM_PYTHON": str(system)}
        environment["NEWER_PYTHONS"] = newer
        environment.pop("PYTHON", None)
        done = subprocess.run(
            ["bash", self.root / RUN, *words], capture_output=True, text=True, cwd="/", env=environment, check=False
        )
        assert done.stderr == ""
        return done.returncode, [line for line in done.stdout.splitlines() if "not installed" not in line]

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def by_suite(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("by ")]


def test_another_python_of_the_system_has_a_part_and_the_whole_suite_the_last_word(checkout: Checkout) -> None:
    code, lines = checkout.run(system=checkout.other)
    assert code == 0
    part, whole = by_suite(lines)
    assert part.startswith(f"by {checkout.other}: --environment .venv-other -m not slow tests/replicate ")
    assert whole == lines[-1] == "by any: "


def test_the_newest_python_goes_before_the_systems_own(checkout: Checkout) -> None:
    newer = f"/nowhere/python3.14 {checkout.other} {checkout.newer} {sys.executable}"
    code, lines = checkout.run(system=checkout.other, newer=newer)
    assert code == 0
    assert [line.partition(":")[0] for line in by_suite(lines)] == [f"by {checkout.newer}", "by any"]
    assert lines[0] == "== by another Python, Python 3.99.0, a part of the suite"


@pytest.mark.parametrize(("part", "whole", "expected"), [(1, 0, 1), (0, 5, 5), (124, 2, 2), (0, 124, 124)])
def test_it_fails_when_either_does_and_runs_both(checkout: Checkout, part: int, whole: int, expected: int) -> None:
    code, lines = checkout.run(system=checkout.other, part=part, whole=whole)
    assert code == expected
    assert len(by_suite(lines)) == 2
    assert lines[-1] == "by any: "
    told = f"== failed: the suite's part by {checkout.other}: exit code {part}; the whole suite runs all the same"
    assert (told in lines) == bool(part)


@pytest.mark.parametrize("system", [sys.executable, "/nowhere/python3"])
def test_the_same_python_or_none_has_no_part(checkout: Checkout, system: str) -> None:
    assert checkout.run(system=system) == (0, ["by any: "])


def test_arguments_are_those_of_one_run(checkout: Checkout) -> None:
    assert checkout.run("-k", "a b", system=checkout.other) == (0, ["by any: -k a b"])


def test_every_directory_of_the_part_is_there() -> None:
    command = re.search(r"limited \d+ sh deploy/test --environment .*?\|\|", (CHECKOUT / RUN).read_text(), re.DOTALL)
    assert command is not None
    words = re.findall(r"tests/[a-z_/]+", command[0])
    assert len(words) == 8
    for word in words:
        assert (CHECKOUT / word).exists(), word
