"""What the last replay into an instance took, of each engine: one small file beside the daemons', for `status`.

Guarantees: only a replay that came to its end, and was long enough to say something, is noted; the file is replaced
whole. It is for advice only: what can not be read is not known, and a replay that is done does not fail because this
can not be written.
Refuses to know: how a replay works, and what follows from its time (catching_up.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from replicate.errors import JournalIOError, ReplicateError
from replicate.instance.file import replace_file
from replicate.instance.instance import Instance
from replicate.instance.private_files import read_private
from replicate.status.catching_up import Took, Way

FORMAT: Final = 1
NAME: Final = "replays.json"
LEAST_CHANGES: Final = 100_000
"""A replay of fewer is mostly its beginning and its end."""
_ENGINES: Final[tuple[Way, ...]] = ("local", "spark")


def _path(instance: Instance) -> Path:
    return instance.run_directory / NAME


def note_replay(instance: Instance, engine: Way, took: Took) -> None:
    """The last replay by `engine` took so long; nothing is noted of one of fewer than LEAST_CHANGES."""
    if took.changes < LEAST_CHANGES or not took.seconds > 0:
        return
    known = {**look_at_replays(instance), engine: took}
    made = {
        name: {"changes": one.changes, "seconds": one.seconds, "start_s": one.start_s} for name, one in known.items()
    }
    with suppress(JournalIOError):  # a full disk, too
        replace_file(_path(instance), (json.dumps({"format": FORMAT, "engines": made}) + "\n").encode())


def look_at_replays(instance: Instance) -> Mapping[Way, Took]:
    """The last one of each engine, as far as is known."""
    try:
        made = json.loads(read_private(_path(instance)))
        if made["format"] != FORMAT:
            return {}
        found = {name: _took(made["engines"][name]) for name in _ENGINES if name in made["engines"]}
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}
    return {name: took for name, took in found.items() if took is not None}


def _took(made: Any) -> Took | None:
    """None for what no replay has taken."""
    found = Took(int(made["changes"]), float(made["seconds"]), float(made["start_s"]))
    is_sane = found.changes >= LEAST_CHANGES and 0 < found.seconds < math.inf and 0 <= found.start_s < math.inf
    return found if is_sane else None
