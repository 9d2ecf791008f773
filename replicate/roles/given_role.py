"""That this instance has its role by a switchover: who was primary before had nothing more, and said so.

    run/given_role.json    our incarnation

Guarantees: one small file, replaced whole and durably. It counts only in the incarnation in which it was noted, so a
change of role ends it; where it is not there, or cannot be read, nobody says that nothing is missing.
Leaves to others: how the role is given (receiver_server/handover.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.system.files import read_private, replace_file

NAME: Final = "given_role.json"
FORMAT: Final = 1


def note_given(instance: Instance) -> None:
    """It has just taken the role that it was given. JournalIOError, DiskFullError, PermissionRefusedError."""
    made = {"format": FORMAT, "incarnation": instance.content.incarnation}
    replace_file(_path(instance), (json.dumps(made) + "\n").encode())


def was_given(instance: Instance) -> bool:
    """Whether this primary has its role by a switchover."""
    try:
        facts = json.loads(read_private(_path(instance)))
        return bool(facts["format"] == FORMAT and facts["incarnation"] == instance.content.incarnation)
    except (OSError, ReplicateError, ValueError, KeyError, TypeError):
        return False


def _path(instance: Instance) -> Path:
    return instance.run_directory / NAME
