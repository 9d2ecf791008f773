"""Where an instance is: the directory that a path or a name means.

Guarantees: nothing is opened or made; a name can lead to no other directory than one below `home()`.
Leaves to others: whether an instance is there (instance.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from replicate.instance.file import check_name


def home() -> Path:
    """Where instances are found by name: REPLICATE_HOME; else root's /var/lib/replicate; else the XDG data folder."""
    chosen = os.environ.get("REPLICATE_HOME")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/replicate")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "replicate"


def resolve_instance(name_or_path: str | os.PathLike[str]) -> Path:
    """The directory of an instance given as a path (absolute, or with a slash, or '.') or as a name below
    `home()`."""
    text = os.fspath(name_or_path)
    if os.sep in text or text in (".", ".."):
        return Path(os.path.abspath(text))
    return home() / check_name(text, "instance")
