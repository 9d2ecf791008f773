"""Standing aside for a supplier that changes the schema, on each of the others (model/schema_fences.py).

Guarantees: what is said is true when it is said: since the fence was applied here no application's commit has passed,
and what came of others before their first word is merged, before the second word is said. Nothing is held between two
calls; one that was killed is followed by one that says the same.
Leaves to others: who fences, commits of applications (door/writer_check.py), what arrives (supplied_transactions.py).
"""

from __future__ import annotations

from typing import Final

from replicate.door.secondary import ApplySession
from replicate.door.writer_check import suppliers_known
from replicate.errors import BusyError
from replicate.model.schema_fences import FIRST, SECOND
from replicate.roles.schema_fence import stand
from update_process.gone_suppliers import Parting

BUSY_S: Final = 1.0


class StandingAside:
    """One per applier. `work` between two batches."""

    def __init__(self, session: ApplySession, parting: Parting) -> None:
        """`parting`: looks who writes what, for both."""
        self._door = session.door
        self._own = session.door.instance.content.uuid
        self._parting = parting

    def work(self) -> None:
        """Say what is to be said, as it was found at the last look. Raises what a commit raises; where somebody holds
        the region, the next call says it."""
        for _ in (FIRST, SECOND):
            writers = self._parting.writers
            if not writers.fences.open(writers.retired) or not self._door.instance.takes_writes_now():
                return
            for one in writers.fences.to_stand(self._own, suppliers_known(self._door, writers), writers.retired):
                try:
                    stand(self._door, one, timeout_s=BUSY_S)
                except BusyError:
                    return
            self._parting.look()
