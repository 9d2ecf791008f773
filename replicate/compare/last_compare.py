"""What the last compare with each other instance found: one small file beside the consumers' positions.

A secondary proves by its journal that it has applied what it was sent. That the rows are still the primary's (no bad
disk, no program past the guards, no defect of ours) only a compare proves, and only for its moment: so its age counts.

Guarantees: only a compare that came to its end is noted; the file is replaced whole and durably. A seed forgets what
was found before it, and is noted itself: the time without a compare counts from there. What cannot be read counts as
never compared.
Leaves to others: how one compares (compare/), and when it is due (status/comparing.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from replicate.compare.index_found import forget_indexes
from replicate.compare.patrol_found import forget_patrolled, settle_patrolled
from replicate.errors import ReplicateError, UsageError
from replicate.instance.file import check_name
from replicate.instance.instance import Instance
from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
NAME: Final = "_compared.json"
"""No peer can bear such a name."""
PARTNERS_MAX: Final = 64
"""The newest ones are kept: an instance has few others in its network."""
DIFFERENCES_MAX: Final = 20
"""So many tables are named."""


class Found(Struct, frozen=True):
    """A compare at the transaction `seqno`, ended at `wall_ns`; `differs` names tables, at most DIFFERENCES_MAX."""

    seqno: int
    wall_ns: int
    is_equal: bool
    differs: tuple[str, ...] = ()


class Repaired(Struct, frozen=True):
    """Rows were mended at the transaction `seqno`, at `wall_ns`, and as they are in the instance `like`."""

    seqno: int
    wall_ns: int
    rows: int
    like: str


class Compared(Struct, frozen=True):
    """What is noted in an instance. `seeded_wall_ns`: when it was filled last, 0 when never. `found`: by the name of
    the other instance, the newest last. `repaired`: the last time since it was filled."""

    seeded_wall_ns: int = 0
    found: Mapping[str, Found] = field(default_factory=dict)
    repaired: Repaired | None = None


def compared_path(instance_path: Path) -> Path:
    """Where it stands."""
    return instance_path / "consumers" / NAME


def look_at_compared(instance_path: Path) -> Compared:
    """What is noted; nothing where there is no file, or none that makes sense."""
    try:
        made = json.loads(read_private(compared_path(instance_path)))
        if made["format"] != FORMAT:
            return Compared()
        found = {check_name(name, "instance"): _found(one) for name, one in made["with"].items()}
        newest_last = dict(sorted(found.items(), key=lambda item: item[1].wall_ns))
        repaired = _repaired(made["repaired"]) if "repaired" in made else None
        return Compared(max(0, int(made["seeded_wall_ns"])), newest_last, repaired)
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Compared()


def note_compared(instance: Instance, other: str, seqno: int, differs: Sequence[str]) -> None:
    """A compare with the instance `other` at the transaction `seqno` has ended now; `differs`: what did not agree.

    JournalIOError, DiskFullError, PermissionRefusedError: what was noted stands then. UsageError for no name."""
    check_name(other, "instance")
    found = Found(seqno, time.time_ns(), not differs, tuple(differs[:DIFFERENCES_MAX]))

    def noted(known: Compared) -> Compared:
        others = [item for item in known.found.items() if item[0] != other]
        return replace(known, found=dict([*others[1 - PARTNERS_MAX :], (other, found)]))

    _change(instance, noted)
    if not differs:
        settle_patrolled(instance.path)


def note_repaired(instance: Instance, repaired: Repaired) -> None:
    """Rows of the instance were mended. Errors: as `note_compared`."""
    check_name(repaired.like, "instance")
    _change(instance, lambda known: replace(known, repaired=repaired))


def note_seeded(instance: Instance) -> None:
    """What was compared, and patrolled, is given up now, for the rows of a seed. Errors: as `note_compared`."""
    forget_patrolled(instance.path)
    forget_indexes(instance.path)
    _change(instance, lambda _: Compared(seeded_wall_ns=time.time_ns()))


def forget_compared(instance: Instance, other: str) -> None:
    """Nobody asks for that instance any more. Errors: as `note_compared`."""
    if other in look_at_compared(instance.path).found:
        _change(instance, lambda known: replace(known, found={k: v for k, v in known.found.items() if k != other}))


def _change(instance: Instance, changed: Callable[[Compared], Compared]) -> None:
    with instance.locked():
        made = changed(look_at_compared(instance.path))
        found = {
            name: {"seqno": one.seqno, "wall_ns": one.wall_ns, "equal": one.is_equal, "differs": list(one.differs)}
            for name, one in made.found.items()
        }
        facts: dict[str, Any] = {"format": FORMAT, "seeded_wall_ns": made.seeded_wall_ns, "with": found}
        if made.repaired is not None:
            facts["repaired"] = to_builtins(made.repaired)
        replace_file(compared_path(instance.path), (json.dumps(facts) + "\n").encode())


def _repaired(made: Any) -> Repaired:
    return Repaired(int(made["seqno"]), int(made["wall_ns"]), int(made["rows"]), check_name(made["like"], "instance"))


def _found(made: Any) -> Found:
    """UsageError for what no compare has found."""
    differs = tuple(str(one) for one in made["differs"])
    found = Found(int(made["seqno"]), int(made["wall_ns"]), made["equal"] is True, differs)
    if found.seqno < 0 or found.wall_ns < 0 or found.is_equal == bool(differs):
        raise UsageError("no compare has found that")
    return found
