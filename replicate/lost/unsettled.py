"""How many transactions wait in the lost files beside an instance: a quick look, which `status` takes each time.

Guarantees: reads names, the first and the last line of each file, and the lines of what is settled; changes nothing
and never raises: a file that cannot be read is told with the reason.
Refuses to know: whether the lines in between are whole (read.py).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from replicate.lost.file import FORMAT, LAST_LINE_BYTES_MAX, SUFFIX, last_line
from replicate.lost.sent import sent_to
from replicate.lost.settled import count_settled


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A lost file in which transactions wait. `waiting`: how many; of a file of an older release, at most. `error`: why
    that cannot be read, "" when it can."""

    path: Path
    waiting: int = 0
    error: str = ""


def look_at_unsettled(instance_path: Path) -> list[Unsettled]:
    """Those of the instance in that directory, by name."""
    prefix = f"{instance_path.name}-lost-"
    try:
        names = sorted(os.listdir(instance_path.parent))
    except OSError:
        return []  # where none of ours could be written, either
    paths = [instance_path.with_name(name) for name in names if name.startswith(prefix) and name.endswith(SUFFIX)]
    paths = [path for path in paths if not sent_to(path)]  # those of the others wait on the primary
    return [one for one in map(_look, paths) if one.waiting or one.error]


def _look(path: Path) -> Unsettled:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            known = json.loads(file.readline(LAST_LINE_BYTES_MAX))["format"]
            if known != FORMAT:
                return Unsettled(path, error=f"it has format {known!r}, this release knows {FORMAT}")
            last = json.loads(last_line(file)[0])
            held = int(last["data"] if "data" in last else last["transactions"])
        settled = count_settled(path)
    except OSError as error:
        return Unsettled(path, error=error.strerror or str(error))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Unsettled(path, error="it is not whole, or was changed by hand")
    return Unsettled(path, 0 if settled is None else max(0, held - settled))
