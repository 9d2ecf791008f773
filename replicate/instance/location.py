"""Where an instance is: the directory that a path or a name means.

Guarantees: nothing is opened or made; a name can lead to no other directory than one below `home()`.
Leaves to others: whether an instance is there (instance.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from replicate.instance.file import check_name

SYSTEM_HOME: Final = "/var/lib/replicate"
"""Where deploy/install has instances; the home directory of the user that it makes."""


def home() -> Path:
    """Where instances are found by name: REPLICATE_HOME; else /var/lib/replicate, for root and the user whose home it
    is; else the XDG data folder."""
    chosen = os.environ.get("REPLICATE_HOME")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0 or os.path.expanduser("~") == SYSTEM_HOME:
        return Path(SYSTEM_HOME)
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "replicate"


def resolve_instance(name_or_path: str | os.PathLike[str]) -> Path:
    """The directory of an instance given as a path (absolute, or with a slash, or '.') or as a name below
    `home()`."""
    text = os.fspath(name_or_path)
    if os.sep in text or text in (".", ".."):
        return Path(os.path.abspath(text))
    return home() / check_name(text, "instance")


def elsewhere(name: str | os.PathLike[str]) -> str:
    """What to do where the instance of that name is not below `home()`, and is among those of the services; else ""."""
    there = os.path.join(SYSTEM_HOME, os.fspath(name))
    if os.sep in os.fspath(name) or not os.path.isdir(there):
        return ""
    return (
        f"One of that name is in {SYSTEM_HOME}: export REPLICATE_HOME={SYSTEM_HOME}, or name its directory: -i {there}"
    )
