"""The lost files that lie beside an instance, and what has become of each.

Guarantees: nothing is changed; a file that cannot be read is told with the reason, and hides none of the others.
Leaves to others: how they came there, and how they are applied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.lost.file import SUFFIX
from replicate.lost.history import standing
from replicate.lost.read import LostReader
from replicate.lost.sent_mark import sent_to
from replicate.lost.settled import Settled


class LostSeen(Struct, frozen=True):
    """`first_seqno` to `last_seqno` (None: nobody knows how far) of `instance`; `waiting`: how many of its transactions
    that carry data are not settled, and wait here. `in_history`: how many more of them the history here has already:
    nothing is to be done about them. `sent_to`: the primary that has the file, where they wait, "" when none
    has. `error`: why it cannot be read, "" when it can."""

    path: Path
    cause: str = ""
    instance: str = ""
    written: str = ""
    first_seqno: int = 0
    last_seqno: int | None = None
    transactions: int = 0
    waiting: int = 0
    sent_to: str = ""
    error: str = ""
    in_history: int = 0


def look_at_lost(instance: Instance) -> list[LostSeen]:
    """Those of this instance, by name."""
    prefix = f"{instance.path.name}-lost-"
    paths = (path for path in sorted(instance.path.parent.iterdir()) if path.name.startswith(prefix))
    return [look_at_file(path, instance.path) for path in paths if path.name.endswith(SUFFIX)]


def look_at_file(path: Path, instance_path: Path) -> LostSeen:
    """One of them, wherever it lies, for the instance in that directory."""
    try:
        with LostReader(path) as lost:
            settled = Settled.of(path)
            data = [one for one in lost.transactions() if one.is_data]
            head: dict[str, Any] = lost.head
            there = sent_to(path)
            left = [] if settled.is_all or there else [one for one in data if one.seqno not in settled.how]
            in_history = standing(instance_path, data) & {one.seqno for one in left} if left else ()
            return LostSeen(
                path,
                head["cause"],
                head["instance"],
                head["written"],
                head["from"],
                head["to"],
                len(data),
                len(left) - len(in_history),
                there,
                in_history=len(in_history),
            )
    except (ReplicateError, KeyError) as error:
        return LostSeen(path, error=str(error))
