"""A process has a secondary keep its own journal after a number, for as long as it lives: a region's copy is on its
way, and what was journalled since is put into it from there.

    run/kept-journal.json    {"format": 1, "seqno": N}, true while somebody holds locks/kept-journal.lock

Guarantees: what a killed process has asked for holds nothing.
Leaves to others: who prunes (door/pruning.py), and what the journal is for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from replicate.instance.instance import Instance
from replicate.system.files import read_private, replace_file
from replicate.system.locks import FileLock

NAME: Final = "kept-journal.json"
LOCK_NAME: Final = "kept-journal.lock"
FORMAT: Final = 1
WAIT_S: Final = 5.0


@contextmanager
def journal_kept(instance: Instance, seqno: int) -> Iterator[None]:
    """Nothing after transaction `seqno` is pruned in the block. BusyError when another process keeps some."""
    lock = FileLock(instance.locks_directory / LOCK_NAME)
    path = instance.run_directory / NAME
    try:
        lock.acquire(WAIT_S, what="the keeping of the journal")
        replace_file(path, (json.dumps({"format": FORMAT, "seqno": seqno}) + "\n").encode())
        yield
    finally:
        if lock.held:
            path.unlink(missing_ok=True)
        lock.close()


def kept_after(locks_directory: Path, run_directory: Path) -> int | None:
    """After which number everything is kept; None where nobody keeps any. What cannot be read keeps all."""
    path = run_directory / NAME
    if not path.exists():
        return None
    lock = FileLock(locks_directory / LOCK_NAME)
    try:
        if lock.try_acquire():
            path.unlink(missing_ok=True)  # of one that was killed
            return None
        facts = json.loads(read_private(path))
        return int(facts["seqno"]) if facts["format"] == FORMAT else 0
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return 0
    finally:
        lock.close()
