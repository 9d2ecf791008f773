"""Another user: somebody who may not read what is ours.

Guarantees: afterwards this process is whom it was, and the directory has its mode of before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NOBODY: Final = 65534


@contextmanager
def unreadable(directory: Path) -> Iterator[None]:
    """Nobody may enter it; root, for whom that is nothing, is nobody meanwhile. What is imported meanwhile has to be
    readable for everybody."""
    mode, user = directory.stat().st_mode, os.geteuid()
    directory.chmod(0)
    if not user:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(mode)
