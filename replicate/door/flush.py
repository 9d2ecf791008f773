"""Flushing an instance while it is in use: its journal, then its regions.

Guarantees: what was visible when it began is durable in the journal, and then as far as no reader needs the WAL in the
databases; nobody waits for that. A region that cannot be flushed keeps no other one from it.
Leaves to others: when it is time, and what is done about a region that cannot be.
"""

from __future__ import annotations

from replicate.door.door import Door
from replicate.door.recovery.stale_wal import refuse_stale_file
from replicate.errors import ReplicateError
from replicate.region.kind import KIND


def flush(door: Door) -> list[str]:
    """Make all durable; why a region could not be flushed, for each of those. Raises what the journal's sync raises.
    For a thread: it waits for the disk."""
    door.sync_to_end()
    problems = []
    for entry in door.instance.regions:
        try:
            refuse_stale_file(door.instance, entry)
            KIND.flush(entry.path, region=entry.uuid)
        except ReplicateError as error:
            problems.append(str(error))
    return problems
