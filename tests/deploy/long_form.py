"""The long form of the suite, `deploy/test --long`: the whole suite at full length, with the tests that are marked
`long`; README's test command in a truly fresh Debian 12; the fault campaign at full length; and an island of an hour.

Guarantees: only a run that names this file has them; what a part says is seen while it runs; a machine that cannot run
a part skips it by name. Leaves to others: what the parts test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.harness.checkout import ROOT
from tests.harness.machine_tools import PATH

pytestmark = pytest.mark.timeout(0)  # each part ends by its own limit

FRESH_DEBIAN: Final = ROOT / "tests" / "deploy" / "fresh_debian.sh"
SUITE_LIMIT_S: Final = 3 * 3600.0


def readmes_command() -> str:
    """How README has a newcomer run the tests."""
    found = re.search(r"^    (deploy/test) +# ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_whole_suite_at_full_length() -> None:
    processes = min((os.cpu_count() or 1) + 1, 4)
    words = [sys.executable, "-m", "pytest", "-q", "--full", "-n", str(processes), "--dist", "loadfile"]
    words += ["--no-loadscope-reorder", "--durations=15"]
    assert subprocess.run(words, check=False, timeout=SUITE_LIMIT_S, cwd=ROOT).returncode == 0


def test_readmes_command_passes_in_a_fresh_debian(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    if shutil.which("debootstrap", path=PATH) is None:
        pytest.skip("debootstrap is not installed")
    words = [FRESH_DEBIAN, "--bare", "--keep-base", tmp_path / "base", readmes_command()]
    assert subprocess.run(words, check=False, timeout=SUITE_LIMIT_S).returncode == 0


def test_the_fault_campaign_at_full_length(pytestconfig: pytest.Config) -> None:
    hours, seed = (str(pytestconfig.getoption(f"--campaign-{name}")) for name in ("hours", "seed"))
    words = [sys.executable, "-m", "tests.faults.long", "--hours", hours, "--seed", seed]
    assert subprocess.run(words, check=False, cwd=ROOT).returncode == 0


def test_an_island_of_an_hour(pytestconfig: pytest.Config) -> None:
    island_s, seed = (str(pytestconfig.getoption(name)) for name in ("--campaign-island-s", "--campaign-seed"))
    words = [sys.executable, "-m", "tests.faults.suppliers", "--island-s", island_s, "--seed", seed]
    assert subprocess.run(words, check=False, cwd=ROOT).returncode == 0
