"""That a lost file is there where its transactions are wanted: a small file beside it, FILE.sent.

    {"format": 1, "to": NAME}

Guarantees: replaced whole and durably; what cannot be read counts as not there: the file is offered again.
Leaves to others: how it travels (travel.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from replicate.errors import ReplicateError
from replicate.system.files import read_private, replace_file, sync_directory

FORMAT: Final = 1
SUFFIX: Final = ".sent"


def _path(file: Path) -> Path:
    return file.with_name(file.name + SUFFIX)


def sent_to(file: Path) -> str:
    """The name of the primary that has the lost file: its transactions wait there; "" when none has."""
    try:
        facts = json.loads(read_private(_path(file)))
        return str(facts["to"]) if facts["format"] == FORMAT else ""
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def note_sent(file: Path, to: str) -> None:
    """It is durable there. JournalIOError, DiskFullError, PermissionRefusedError."""
    replace_file(_path(file), (json.dumps({"format": FORMAT, "to": to}) + "\n").encode())


def forget_sent(file: Path) -> None:
    """It waits here again. OSError."""
    _path(file).unlink(missing_ok=True)
    sync_directory(os.fspath(file.parent))
