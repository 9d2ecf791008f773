"""How many transactions wait in the lost files beside an instance: a quick look, which `status` takes each time.

Guarantees: reads names, the first and the last line of each file, the lines of what is settled, and of each origin one
or two places in the journal; all of a file only where that does not tell, and it is short. What the history here has
does not wait. Changes nothing and never raises: a file that cannot be read is told with the reason.
Leaves to others: whether the lines in between are whole (read.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate.limits import MIB
from replicate.lost.file import FORMAT, LAST_LINE_BYTES_MAX, SUFFIX, is_as_written, last_line
from replicate.lost.files import look_at_file
from replicate.lost.history import stands
from replicate.lost.sent_mark import sent_to
from replicate.lost.settled import count_settled
from replicate.system.files import open_to_read

READ_BYTES_MAX: Final = 16 * MIB
"""Of a longer file all that is not settled counts as waiting, where its ends do not tell."""


class Unsettled(Struct, frozen=True):
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
    return [one for path in paths if (one := _look(path, instance_path)).waiting or one.error]


def _look(path: Path, instance_path: Path) -> Unsettled:
    try:
        with open_to_read(path) as file:
            known = json.loads(file.readline(LAST_LINE_BYTES_MAX))["format"]
            if known != FORMAT:
                return Unsettled(path, error=f"it has format {known!r}, this release knows {FORMAT}")
            last = json.loads(last_line(file)[0])
            if not is_as_written(last):
                raise ValueError("its last line was changed")
            file_bytes = os.fstat(file.fileno()).st_size
        held = int(last["data"] if "data" in last else last["transactions"])
        settled = count_settled(path)
        if settled is None or settled >= held:
            return Unsettled(path)
        in_history = _in_history(instance_path, last.get("origins"))
        if in_history and settled:
            in_history = None  # some of these may be settled
        if in_history is None and file_bytes <= READ_BYTES_MAX:
            seen = look_at_file(path, instance_path)
            return Unsettled(path, seen.waiting, seen.error)
    except OSError as error:
        return Unsettled(path, error=error.strerror or str(error))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Unsettled(path, error="it is not whole, or was changed by hand")
    return Unsettled(path, held - settled - (in_history or 0))


def _in_history(instance_path: Path, origins: Any) -> int | None:
    """How many of the transactions the history has; None where only the file itself can tell."""
    if origins is None:
        return None
    count = 0
    for origin, data, first, last in origins:
        if stands(instance_path, origin, *last):
            count += data
        elif stands(instance_path, origin, *first):
            return None
    return count
