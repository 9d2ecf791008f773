"""What a supplier has to say while all others stand aside for a change of the schema: who waits for whom, since when.

Guarantees: only looks, and never raises for what it cannot read: other findings tell of that.
Leaves to others: the fence itself (roles/schema_fence.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from replicate.door.recovery.opening import make_chain
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.model.findings import Finding
from replicate.model.told_fences import ToldFence, told_fences
from replicate.region.kind import KIND


def schema_fence_findings(instance: Instance, now_wall_s: float) -> Iterator[Finding]:
    """Of a supplier, one for each fence that is open; nothing of any other instance."""
    if not instance.is_supplier or not instance.regions:
        return
    entry = instance.regions[0]
    try:
        with KIND.naming(str(entry.path)), closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            writers, seqno = opened.writers(), opened.seqno()
        if not (fencers := writers.fences.open(writers.retired)):
            return
        histories = catalogue_before(make_chain(instance), seqno + 1).histories
    except ReplicateError:
        return
    warn_s = instance.config.status.fence_warn_s
    for fencer, one in zip(fencers, told_fences(writers, histories, instance.content.uuid), strict=True):
        lasts = now_wall_s - writers.fences.since_us(fencer) / 1e6 >= warn_s
        yield Finding("SCHEMA_FENCE_LASTS" if lasts else "SCHEMA_FENCE", _told(one), _do(one), one.by)


def _told(one: ToldFence) -> str:
    since = f"since {one.since} {one.by} has all other suppliers stand aside for a change of the schema"
    stands = f"standing aside, and writing nothing: {', '.join(one.stands) or 'nobody'}"
    return f"{since}; {stands}" + (f"; waited for: {', '.join(one.awaited)}" if one.awaited else "")


def _do(one: ToldFence) -> str:
    fencer = "INSTANCE" if one.is_own else one.by
    ends = f"replicate -i {fencer} schema unfence"
    gone = "" if one.is_own else f". Where {one.by} is gone for good: replicate -i INSTANCE replica retire {one.by}"
    if not one.awaited:
        return f"once the schema is changed, or where it is not to be: {ends}{gone}"
    awaited = one.awaited[0]
    runs = f"see that the Update Process of {', '.join(one.awaited)} runs, and is connected"
    lost = f"where {awaited} is gone for good: replicate -i INSTANCE replica retire {awaited}"
    return f"{runs}; {lost}. To let all write again: {ends}{gone}"
