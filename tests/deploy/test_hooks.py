"""deploy/hooks/commit-msg: which messages it lets pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[2] / "deploy" / "hooks" / "commit-msg"
BODY = "\n\nBecause it was wrong.\n"


def judged(tmp_path: Path, message: str) -> tuple[int, str]:
    file = tmp_path / "message"
    file.write_text(message, encoding="utf-8")
    done = subprocess.run([str(HOOK), str(file)], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "A thing" + BODY,
        "ü" * 72 + BODY,
        "\n\nA thing" + BODY,
        "A thing" + BODY + "# Please enter the commit message.\n# ------------------------ >8 -----\ndiff --git",
        "Merge branch 'lag'\n",
        "fixup! " + "x" * 80,
    ],
)
def test_what_passes(tmp_path: Path, message: str) -> None:
    assert judged(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("", "there is no subject"),
        ("# only a comment\n", "there is no subject"),
        ("A thing\n", "there is no body"),
        ("A thing\n\n# a comment is none\n", "there is no body"),
        ("A thing\nat once\n", "an empty line belongs between"),
        ("x" * 73 + BODY, "the subject has 73 characters"),
    ],
)
def test_what_is_refused(tmp_path: Path, message: str, says: str) -> None:
    code, told = judged(tmp_path, message)
    assert code == 1
    assert says in told
