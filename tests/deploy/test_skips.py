"""The rule of tests/conftest.py: a skip that is not on the list fails the run. Tried in a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

SUITE = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="too wet")
@pytest.mark.parametrize("case", ["rain"])
def test_weather(case):
    pass

@pytest.mark.xfail(reason="known")
def test_hope():
    assert False
"""


def run_suite(tmp_path: Path, skips: str, suite: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "skips.txt").write_text(skips, encoding="utf-8")
    (tmp_path / "test_suite.py").write_text(suite, encoding="utf-8")
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = str(CONFTEST.parents[1])  # it imports durations.py
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)


def test_a_skip_and_an_expected_failure_that_nobody_allowed_fail_the_run(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "# nothing\n", SUITE)
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 error" in done.stdout.splitlines()[-1]  # a mark skips before the test: an error
    assert "too wet" in done.stdout


@pytest.mark.slow
def test_what_is_on_the_list_is_skipped(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "test_suite.py::test_weather[rain]  no roof\n*::test_hope  hopeless\n", SUITE)
    assert done.returncode == 0
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("skips", "code"), [("", 2), ("test_suite.py  it lacks a module\n", 5)])
def test_a_module_that_skips_itself_is_judged_too(tmp_path: Path, skips: str, code: int) -> None:
    done = run_suite(tmp_path, skips, "import pytest\npytest.importorskip('no_such_module_at_all')\n")
    assert done.returncode == code
