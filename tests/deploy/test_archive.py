"""A machine without git, and an unpacked archive: what names a commit says that it is unknown, and goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import report as benchmarks
from tests.benchmarks.street_bench import machine
from tests.faults import report as campaign
from tests.harness.checkout import ROOT, UNKNOWN, commit_of, name_of

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *words: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(directory), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    made = tmp_path / "check out"
    made.mkdir()
    git(made, "init", "--quiet")
    (made / "file").write_text("one\n")
    git(made, "add", "file")
    git(made, "commit", "--quiet", "--message", "One")
    return made


@needs_git
def test_a_checkout_has_its_commit_and_a_plus_sign_when_files_differ(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == name_of(checkout) == head[:10]
    (checkout / "new").touch()
    assert commit_of(checkout) == head[:10]  # a file that nobody has added is none of the commit's
    (checkout / "file").write_text("two\n")
    assert commit_of(checkout) == f"{head[:10]}+"


@needs_git
def test_a_hook_of_another_repository_changes_nothing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another one"))
    assert commit_of(checkout) != UNKNOWN


@needs_git
def test_an_unpacked_archive_is_unknown_also_inside_another_repository(checkout: Path) -> None:
    unpacked = checkout / "unpacked"
    unpacked.mkdir()
    subprocess.run("git archive HEAD | tar -x -C unpacked", shell=True, check=True, cwd=checkout)
    assert (unpacked / "file").exists()
    assert commit_of(unpacked) == UNKNOWN
    assert name_of(unpacked) == str(unpacked)


def test_without_git_benchmarks_and_campaign_say_commit_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = machine()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(ROOT) == UNKNOWN
    line = benchmarks.line("wire", unit="rows/s", figure={}, settings={}, facts=facts)
    assert benchmarks.taken_on(line).endswith("commit unknown")
    part = campaign.table({}, zero=(), seed=1, seconds=1.0, machine="a machine")
    whole = campaign.closing({}, seed=1, seconds=1.0, hours=0.2, machine="a machine", left_out=())
    for text in (part, whole):
        assert ["commit", "unknown"] in [one.split() for one in text.splitlines()]


def test_a_directory_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "nowhere") == UNKNOWN
