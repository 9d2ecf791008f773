"""The two commands of a newcomer: what they say, and what they refuse, before anything is installed."""

from __future__ import annotations

import subprocess
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
