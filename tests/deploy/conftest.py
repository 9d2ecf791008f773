"""What tests of the installation share: a checkout, packages to install from, and one real installation below a
directory.

Guarantees: made once a session, with the system's own Python, from a copy of this checkout that nobody edits; a machine
without that Python, or without a package index, skips by name the tests that need it, and a failing installation fails
them.
Leaves to others: what is tested of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")
SOURCES = ("deploy", "pyproject.toml", "README.md", "replicate", "source_server", "receiver_server", "update_process")


@dataclass(frozen=True)
class Staged:
    """What `deploy/install --root` made."""

    checkout: Path
    root: Path
    environment: dict[str, str]
    """With it, pip takes everything from a directory, not from the network."""

    def run(self, script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run deploy/install or deploy/uninstall on it."""
        return subprocess.run(
            [str(self.checkout / "deploy" / script), "--root", str(self.root), *map(str, words)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def frozen_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an installation needs of this checkout."""
    directory = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, directory / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, directory)
    return directory


@pytest.fixture(scope="session")
def wheels(frozen_checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of wheels: this package, what it needs, and what builds it."""
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"])
    if probe.returncode:
        pytest.skip("the system's own Python 3.11 or newer with the module venv is not installed")
    directory = tmp_path_factory.mktemp("wheels")
    source = tmp_path_factory.mktemp("source")
    # A copy: building a package writes into its sources.
    shutil.copytree(frozen_checkout, source, symlinks=True, dirs_exist_ok=True)
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", source / "venv"], check=True)
    pip = [str(source / "venv" / "bin" / "python"), "-m", "pip", "-q"]
    if subprocess.run([*pip, "download", "--no-deps", "-d", str(directory), "click"], capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    made = subprocess.run(
        [*pip, "wheel", "--prefer-binary", "-w", str(directory), f"{source}[web]", "setuptools>=68", "wheel"],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    return directory


@pytest.fixture(scope="session")
def staged(frozen_checkout: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """A tree made by deploy/install; tests only look at it."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))},
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
    }
    made = Staged(frozen_checkout, tmp_path_factory.mktemp("stage") / "a root", environment)
    done = made.run("install")
    assert done.returncode == 0, done.stderr
    return made
