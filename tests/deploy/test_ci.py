"""What continuous integration runs: the whole suite, and before it one part of what takes longer, chosen by the commit.

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
tr '\\0' '\\n' </proc/$$/environ | sort >"seen by ${PYTHON:+another}"
case "$*" in "") exit "$(cat whole)" ;; *) exit "$(cat part)" ;; esac
"""
OTHER_PYTHON = """#!/bin/sh
case $1 in --version) echo "Python {0}.0" ;; *) echo "{0} another one" ;; esac
"""


class Checkout:
    """A checkout of its own, and a search path with all tools that `.ci/run` would install."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        self.path = directory / "path"
        self.home = directory / "home"
        self.other = directory / "other"
        self.newer = directory / "newer" / "other"
        for name in (self.root / ".ci", self.root / "deploy", self.path, self.home, self.newer.parent):
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
        self, *words: str, system: Path | str = "", newer: str = "", part: int = 0, whole: int = 0, by_hand: str = ""
    ) -> tuple[int, list[str]]:
        """Exit code, and the lines that it says; `part` and `whole`: exit codes of the two runs; `by_hand`: the part's
        name."""
        (self.root / "part").write_text(str(part))
        (self.root / "whole").write_text(str(whole))
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", "SYSTEM_PYTHON": str(system)}
        environment |= {"LONG_PART": by_hand, "NEWER_PYTHONS": newer, "HOME": str(self.home), "LANG": "de_DE.UTF-8"}
        environment |= dict.fromkeys(("PYTHON", "PYTHONUNBUFFERED", "PIP_INDEX_URL", "JAVA_HOME", "TMPDIR"), "/nowhere")
        done = subprocess.run(
            ["bash", self.root / RUN, *words], capture_output=True, text=True, cwd="/", env=environment, check=False
        )
        assert done.stderr == ""
        return done.returncode, [line for line in done.stdout.splitlines() if "not installed" not in line]

    def at_commit(self, commit: str) -> None:
        self._program(self.path / "git", f"#!/bin/sh\necho {commit}\n")

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
    assert part.startswith(
        f"by {checkout.other}: --environment .venv-other -x -m not slow tests/fuzz/test_as_sqlite3.py "
    )
    assert whole == lines[-1] == "by any: "


def test_of_the_callers_settings_three_are_left(checkout: Checkout) -> None:
    assert checkout.run(system=checkout.other)[0] == 0
    path = f"{checkout.path}:{os.environ['PATH']}"
    seen = [f"HOME={checkout.home}", "LANG=de_DE.UTF-8", f"PATH={path}"]
    assert (checkout.root / "seen by ").read_text().splitlines() == seen
    assert (checkout.root / "seen by another").read_text().splitlines() == [*seen, f"PYTHON={checkout.other}"]


def test_the_newest_python_goes_before_the_systems_own(checkout: Checkout) -> None:
    newer = f"/nowhere/python3.14 {checkout.other} {checkout.newer} {sys.executable}"
    code, lines = checkout.run(system=checkout.other, newer=newer)
    assert code == 0
    assert [line.partition(":")[0] for line in by_suite(lines)] == [f"by {checkout.newer}", "by any"]
    assert lines[0] == "== a part by another Python, Python 3.99.0"


@pytest.mark.parametrize(("part", "whole", "expected"), [(1, 0, 1), (0, 5, 5), (124, 2, 2), (0, 124, 124)])
def test_it_fails_when_either_does_and_runs_both(checkout: Checkout, part: int, whole: int, expected: int) -> None:
    code, lines = checkout.run(system=checkout.other, part=part, whole=whole)
    assert code == expected
    assert len(by_suite(lines)) == 2
    assert lines[-1] == "by any: "
    told = f"== failed: the part python_regions: exit code {part}; the whole suite runs all the same"
    assert (told in lines) == (part not in (0, 124))


def test_a_part_that_was_cut_has_failed_nothing(checkout: Checkout) -> None:
    code, lines = checkout.run(by_hand="others", part=124)
    assert code == 0
    assert by_suite(lines) == [PARTS["others"], "by any: "]
    assert "== the part others was cut after 300 s; nothing of it had failed" in lines


@pytest.mark.parametrize("system", [sys.executable, "/nowhere/python3"])
def test_the_same_python_or_none_has_no_part(checkout: Checkout, system: str) -> None:
    assert checkout.run(system=system) == (0, ["by any: "])


PARTS = {
    "others": "by any: -x --left-out 7",
    "faults": "by any: --faults --hours 0.1",
}


def test_a_few_commits_have_all_parts(checkout: Checkout) -> None:
    seen = []
    for number in range(6):
        checkout.at_commit(f"00000{number}abcdef")
        code, lines = checkout.run(system=checkout.other)
        assert code == 0
        part, whole = by_suite(lines)
        assert whole == "by any: "
        seen.append(part)
    assert seen[1::2] == [PARTS["others"]] * 3
    assert all(part.startswith(f"by {checkout.other}: ") for part in seen[::2])
    assert len({*seen[::2]}) == 3


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_chosen_by_hand_and_fails_the_run(checkout: Checkout, name: str) -> None:
    code, lines = checkout.run(by_hand=name, part=3)
    assert code == 1
    assert by_suite(lines) == [PARTS[name], "by any: "]
    assert f"== failed: the part {name}: exit code 3; the whole suite runs all the same" in lines


def test_a_part_that_is_none_fails_the_run(checkout: Checkout) -> None:
    code, lines = checkout.run(by_hand="nonsense")
    assert code == 1
    assert lines[0] == "no such part: nonsense (python_regions python_copies python_daemons others faults)"


def test_arguments_are_those_of_one_run(checkout: Checkout) -> None:
    assert checkout.run("-k", "a b", system=checkout.other) == (0, ["by any: -k a b"])


def test_another_python_has_each_room_in_one_of_its_parts() -> None:
    """All but those of our own formats, which no interpreter changes."""
    text = (CHECKOUT / RUN).read_text().replace("\\\n", " ")
    named = [word for line in re.findall(r"^ +by_other_python (.*)", text, re.MULTILINE) for word in line.split()]
    assert [word for word in named if not (CHECKOUT / "tests" / word).exists()] == []
    rooms = {f"replicate/{path.name}" for path in (CHECKOUT / "replicate").iterdir() if (path / "__init__.py").exists()}
    rooms |= {"receiver_server", "source_server", "update_process"}
    ours = {f"replicate/{name}" for name in ("door", "journal", "pool")}
    assert sorted(word for word in named if not word.endswith(".py")) == sorted(rooms - ours)
