"""The two commands of a newcomer: what they say, and what they refuse, before anything is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO = CHECKOUT / "deploy" / "demo"


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd="/", check=False)


@pytest.mark.parametrize("script", ["demo", "test", "environment.sh"])
def test_it_is_posix_shell(script: str) -> None:
    assert run("sh", "-n", CHECKOUT / "deploy" / script).stderr == ""


@pytest.mark.parametrize("script", ["deploy/demo", "deploy/test", ".ci/run"])
def test_it_can_be_executed(script: str) -> None:
    assert (CHECKOUT / script).stat().st_mode & 0o111 == 0o111


def test_help_names_every_option() -> None:
    done = run(DEMO, "--help")
    assert done.returncode == 0
    for option in ("--duration", "--keep", "--directory", "--environment"):
        assert option in done.stdout


@pytest.mark.parametrize(
    "words",
    [("--duration",), ("--duration", "4"), ("--duration=ten",), ("--duration", "1.5"), ("--directory=",), ("primary",)],
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(words: tuple[str, ...], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    done = run(DEMO, "--environment", environment, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("deploy/demo: ")
    assert not environment.exists()


# It plays the environment's Python: pip installs at once, and Ctrl-C comes before the real Python has begun to run.
INTERRUPTED_PYTHON = """#!/bin/sh
case "$*" in
*"pip install"*) : >"$(dirname "$0")/replicate"; chmod +x "$(dirname "$0")/replicate" ;;
*demo.py*) kill -INT $$; exec '{python}' "$@" ;;
*) exec '{python}' "$@" ;;
esac
"""


def test_ctrl_c_while_python_starts_waits_until_the_demonstration_can_answer(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    python = environment / "bin" / "python"
    python.write_text(INTERRUPTED_PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    directory = tmp_path / "directory"
    done = run(DEMO, "--environment", environment, "--directory", directory)
    assert done.returncode == 130, done.stderr
    assert "interrupted (SIGINT)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not directory.exists()


@pytest.mark.parametrize("words", [("--hours", "1"), ("--hours",), ("--faults", "-k", "x"), ("--environment",)])
def test_what_makes_no_sense_to_the_test_command_is_refused(words: tuple[str, ...]) -> None:
    done = run(CHECKOUT / "deploy" / "test", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("deploy/test: --")
