"""The two commands of a newcomer: what they say, and what they refuse, before anything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import SKIPS, allowed_patterns, is_allowed
from tests.deploy import long_form

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


@pytest.mark.parametrize(
    "words",
    [("--hours", "1"), ("--hours",), ("--faults", "-k", "x"), ("--faults", "--long"), ("--environment",)],
)
def test_what_makes_no_sense_to_the_test_command_is_refused(words: tuple[str, ...]) -> None:
    done = run(CHECKOUT / "deploy" / "test", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("deploy/test: --")


# It plays the environment's Python: pip installs at once, and pytest says how it was called.
SAYING_PYTHON = """#!/bin/sh
case "$*" in
*"pip install"*) : >"$(dirname "$0")/replicate"; chmod +x "$(dirname "$0")/replicate" ;;
"-m pytest"*) echo "$*" ;;
*) exec '{python}' "$@" ;;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "--campaign-hours 1 --campaign-seed {today} tests/deploy/long_form.py"),
        (("--seed=7", "--hours", "3"), "--campaign-hours 3 --campaign-seed 7 tests/deploy/long_form.py"),
        (("-k", "fresh"), "--campaign-hours 1 --campaign-seed {today} tests/deploy/long_form.py -k fresh"),
    ],
)
def test_the_long_form_is_one_run_of_pytest(
    words: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    for tool in ("java", "strace", "mkfs.ext4", "mkfs.xfs", "debootstrap"):  # so that nothing is installed
        (environment / "bin" / tool).write_text("#!/bin/sh\n")
    (environment / "bin" / "python").write_text(SAYING_PYTHON.format(python=sys.executable))
    for path in (environment / "bin").iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{environment / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", "")
    before = datetime.now(UTC)
    done = run(CHECKOUT / "deploy" / "test", "--environment", environment, "--long", *words)
    assert done.returncode == 0, done.stderr
    today = {f"{one:%Y%m%d}" for one in (before, datetime.now(UTC))}  # by night it may be midnight just then
    assert done.stdout.splitlines() in [[f"-m pytest -q -s {expected.format(today=one)}"] for one in today]
    seed = done.stdout.partition("--campaign-seed ")[2].split()[0]
    assert f"deploy/test --long --seed {seed} " in done.stderr


def test_the_long_form_runs_readmes_command_in_a_fresh_debian_and_is_skipped_by_name_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "fresh debian"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/called"\n')
    script.chmod(0o755)
    monkeypatch.setattr(long_form, "FRESH_DEBIAN", script)
    monkeypatch.setattr(long_form, "PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(pytest.skip.Exception, match="debootstrap is not installed"):
        long_form.test_readmes_command_passes_in_a_fresh_debian(tmp_path)
    (tmp_path / "debootstrap").symlink_to(script)
    long_form.test_readmes_command_passes_in_a_fresh_debian(tmp_path)
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["--bare", "--keep-base", str(tmp_path / "base"), "deploy/test"]
    script.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(AssertionError):
        long_form.test_readmes_command_passes_in_a_fresh_debian(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="a chroot needs root"):
        long_form.test_readmes_command_passes_in_a_fresh_debian(tmp_path)
    name = "tests/deploy/long_form.py::test_readmes_command_passes_in_a_fresh_debian"
    assert is_allowed(name, allowed_patterns(SKIPS.read_text(encoding="utf-8")))
