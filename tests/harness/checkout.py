"""Which commit of this project a directory holds.

Guarantees: an answer on every machine: without git, and in an unpacked archive, the commit is unknown, also where the
archive lies inside somebody else's repository. Leaves to others: what was run of it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UNKNOWN: Final = "unknown"


def commit_of(checkout: Path) -> str:
    """The commit that is checked out there, with a plus sign when its files differ from it; else UNKNOWN."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=10"]
    # What a caller of git's (a hook) has set would name another repository; so would one further up.
    settings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    settings["GIT_CEILING_DIRECTORIES"] = str(checkout.resolve().parent)
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=settings, check=False)
    except OSError:  # no git on this machine
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN


def name_of(checkout: Path) -> str:
    """What tells a checkout from another one: its commit, or its path where that is unknown."""
    commit = commit_of(checkout)
    return str(checkout) if commit == UNKNOWN else commit
