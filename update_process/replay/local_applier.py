"""Has an applier of the Update Process apply, in this process, all that lies before it.

Guarantees: what an application or a compare holds is waited for, for a while; an applier that would have its source
begin again ends the import by name: no packet can. What came before an error is applied.
Leaves to others: what lies there, and what is applied how.
"""

from __future__ import annotations

import time
from typing import Final

from replicate.errors import BusyError, GapError, TryAgainError
from replicate.instance.instance import Instance
from update_process.applier import Applier
from update_process.replay.apply import Progress, Told
from update_process.replay.unpacking import Imported
from update_process.supplied_transactions import SupplierApplier
from update_process.work_result import Waiting

SLICE_S: Final = 0.5
"""So often it is told how far it is."""
NAP_S: Final = 0.02
PATIENCE_S: Final = 60.0
"""So long an application may keep the region, or a compare hold it still, before the import ends."""


def work_off(instance: Instance, applier: Applier | SupplierApplier, done: Imported, told: Told) -> None:
    """Until all is applied. TryAgainError, GapError, and what the applier raises; what came before is applied then."""
    patient_until_s = time.monotonic() + PATIENCE_S
    while True:
        found = applier.work(SLICE_S)
        done.transactions += found.transactions
        done.merged += found.merged
        told(Progress("applying", done.transactions, seqno=applier.applied_seqno))
        if found.waiting in (Waiting.NOTHING, Waiting.PART):
            return
        if found.waiting is Waiting.RESTART:
            raise GapError(
                f"what a packet brings does not go on from what is here: {found.text}",
                where=str(instance.path),
                do="What came before is applied. Verify the packet where it was made, and its journal",
            )
        if found.transactions or found.parts or found.skipped:
            patient_until_s = time.monotonic() + PATIENCE_S
        if found.waiting is Waiting.MORE:
            continue
        if time.monotonic() >= patient_until_s:
            kind = BusyError if found.waiting is Waiting.LOCK else TryAgainError
            raise kind(
                f"packets cannot be applied: {found.text or found.waiting.value}",
                where=str(instance.path),
                do="Import again; what was applied already is passed over",
            )
        time.sleep(NAP_S)
