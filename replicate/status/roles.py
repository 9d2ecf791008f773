"""What a change of roles has left undone, as findings: a rollback that was killed, lost transactions that wait.

Guarantees: only looks, at names and a few lines, and never raises.
Leaves to others: which rollback that is (roles/rollback.py), what stands in the files (replicate/lost).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.instance.instance import Instance
from replicate.lost.unsettled import Unsettled, look_at_unsettled
from replicate.model.findings import Finding


def is_rolled_back_in_part(instance: Instance) -> bool:
    """Whether a rollback has begun and not ended; it may be at work."""
    return (instance.path / ROLLBACK_MARKER).exists()


def rollback_findings(instance: Instance, *, is_at_work: bool) -> Iterator[Finding]:
    """`is_at_work`: a process keeps the daemons down, and is seen already."""
    if is_rolled_back_in_part(instance) and not is_at_work:
        text = "a rollback has begun and not ended: nothing can open the instance until it has"
        yield Finding("ROLLBACK_UNFINISHED", text, "replicate -i INSTANCE rollback")


def lost_findings(instance: Instance) -> Iterator[Finding]:
    """One for the files in which transactions wait; one for each file that cannot be read."""
    found = look_at_unsettled(instance.path)
    for one in found:
        if one.error:
            text = f"whether transactions wait in a lost file cannot be read: {one.error} [{one.path}]"
            yield Finding("LOST_UNSETTLED", text, "replicate -i INSTANCE lost list")
    waiting = [one for one in found if one.waiting]
    if waiting:
        yield _waiting(instance, waiting)


def _waiting(instance: Instance, waiting: list[Unsettled]) -> Finding:
    count, file = sum(one.waiting for one in waiting), shlex.quote(str(waiting[0].path))
    what = "1 transaction waits" if count == 1 else f"{count} transactions wait"
    where = "a lost file" if len(waiting) == 1 else f"{len(waiting)} lost files, the first of which is"
    at = "replicate -i INSTANCE" if instance.role == "primary" else "on the primary: replicate -i PRIMARY"
    do = f"{at} lost apply {file}; or, where they are not wanted: replicate -i INSTANCE lost settle {file}"
    return Finding("LOST_UNSETTLED", f"{what} in {where} {waiting[0].path}: nobody has settled them", do)
