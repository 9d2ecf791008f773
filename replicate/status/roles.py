"""What a change of roles has left undone, as findings: a rollback that was killed, lost transactions that wait.

Guarantees: only looks, at names and a few lines; what makes findings never raises.
Leaves to others: which rollback that is (roles/rollback.py), what stands in the files (replicate/lost).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import ROLLBACK_MARKER, make_chain
from replicate.errors import ReplicateError
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.lost.unsettled import Unsettled, look_at_unsettled
from replicate.model.findings import Finding
from replicate.region.kind import KIND
from replicate.status.report import RETIRED_THERE


def is_rolled_back_in_part(instance: Instance) -> bool:
    """Whether a rollback has begun and not ended; it may be at work."""
    return (instance.path / ROLLBACK_MARKER).exists()


def rollback_findings(instance: Instance, *, is_at_work: bool) -> Iterator[Finding]:
    """`is_at_work`: a process keeps the daemons down, and is seen already."""
    if is_rolled_back_in_part(instance) and not is_at_work:
        text = "a rollback has begun and not ended: nothing can open the instance until it has"
        yield Finding("ROLLBACK_UNFINISHED", text, "replicate -i INSTANCE rollback")


def frozen_findings(instance: Instance) -> Iterator[Finding]:
    """Whether an operator holds it."""
    frozen = instance.content.frozen
    if frozen is not None:
        is_primary = instance.role == "primary"
        what = "writers wait, and are refused after their time-out" if is_primary else "nothing is applied"
        text = f"the instance is {frozen}: {what}"
        yield Finding("FROZEN", text, "replicate -i INSTANCE instance freeze off")


def not_level(instance: Instance, were_level: Collection[str]) -> set[str]:
    """Of a supplier that was restored, the peers that have not brought all that they had. Nobody who is gone for good,
    by what is known here, is one of them: nothing is taken from it. Raises what opening the region raises."""
    awaited = {peer.name for peer in instance.peers if not peer.passive} - set(were_level)
    if not awaited or not instance.regions:
        return awaited
    entry = instance.regions[0]
    with KIND.naming(str(entry.path)), closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        writers, seqno = opened.writers(), opened.seqno()
    if not writers.retiring and not writers.retired:
        return awaited
    histories = catalogue_before(make_chain(instance), seqno + 1).histories
    return awaited - {one.name for one in histories if writers.is_gone(one.instance)}


def restoring_findings(instance: Instance, were_level: Collection[str]) -> Iterator[Finding]:
    """`were_level`: the suppliers that have brought all that they had."""
    if not instance.content.is_restoring:
        return
    if not instance.is_supplier:
        text = (
            "this primary was restored from an older state, and takes no writes until each of its peers has answered "
            f"with what it had: {', '.join(sorted(peer.name for peer in instance.peers))}"
        )
        do = (
            "replicate -i INSTANCE replica restore says who has not, and what brings it; it makes this one primary then"
        )
        yield Finding("RESTORING", text, do)
        return
    try:
        awaited = sorted(not_level(instance, were_level))
    except ReplicateError:  # other findings tell of that
        awaited = sorted({peer.name for peer in instance.peers if not peer.passive} - set(were_level))
    text = (
        "this supplier was restored from an older state, and takes no writes until it has back what it had: waiting "
        f"for {', '.join(awaited) or 'the first supplier that sends'}"
    )
    force = "replicate -i INSTANCE replica restore --force"
    yield Finding("RESTORING", text, f"see that they send to this one; to go on without what only they have: {force}")


def retired_finding(instance: Instance, said: Mapping[str, str]) -> Iterator[Finding]:
    """Whether others say that this supplier is gone for good: noted, or just `said`, by peer the error."""
    by = instance.content.retired_by
    if by is None and not (told := [name for name, error in said.items() if RETIRED_THERE in error]):
        return
    name, more = (told[0], "") if by is None else (by.name, f" --from {by.seqno + 1}")
    writes = "" if by is None else ", and takes no writes"
    text = f"{name} says that this supplier is gone for good{writes}: nobody takes what is committed here"
    keep = "replicate -i INSTANCE instance convert --role secondary --force"
    do = (
        f"write on {name}. What only this one has: replicate -i INSTANCE journal show{more}; to have that in a file: "
        f"{keep}; then make the site again, under another name (replicate help suppliers). If {name} is wrong: "
        f"replicate -i INSTANCE peer remove {shlex.quote(name)}; replicate -i INSTANCE replica restore --force"
    )
    yield Finding("SUPPLIER_RETIRED", text, do, name)


def succession_findings(instance: Instance, last_seqno: int, connected: Collection[str]) -> Iterator[Finding]:
    """Who is primary instead of this instance, or beside it. `last_seqno`: the last of its journal. `connected`: the
    peers to which a connection stands."""
    successor = instance.content.successor
    if successor is not None and successor.is_pending:
        text = (
            f"the role was handed over to {successor.name} after transaction {successor.seqno}, and {successor.name} "
            "has not said that it has it: nothing can be written on either site"
        )
        do = f"replicate -i INSTANCE switchover --to {successor.name}"
        yield Finding("HANDED_OVER", text, do, successor.name)
    elif (fence := instance.content.fence) is not None:
        yield _fenced(fence, last_seqno)
    elif instance.told_role == "primary":
        yield from _other_primaries(instance, connected)


def _fenced(fence: Successor, last_seqno: int) -> Finding:
    more = max(0, last_seqno - fence.seqno)
    alone = f"{more} transactions after it are only here" if more else "nothing after it is here"
    text = f"{fence.name} took over after transaction {fence.seqno}, and no writes are taken here: {alone}"
    do = (
        "to follow it: replicate -i INSTANCE rollback; replicate -i INSTANCE receiver start; or have "
        "that done: replicate -i INSTANCE receiver start --auto-rollback. To take the role back: replicate -i INSTANCE "
        "promote --force"
    )
    return Finding("FENCED", text, do, fence.name)


def _other_primaries(instance: Instance, connected: Collection[str]) -> Iterator[Finding]:
    """By the word of the daemons that have met them. One that is connected takes our stream by now."""
    seen = set(connected)
    for daemon in ("receiver", *(f"source-{peer.name}" for peer in instance.peers)):
        status = DaemonFiles(instance.path, daemon).read_status()
        found = None if status is None or not status.is_running else status.facts.get("other_primary")
        if isinstance(found, dict) and str(found.get("name")) not in seen:
            seen.add(str(found.get("name")))
            yield Finding("SPLIT_BRAIN", str(found.get("text")), str(found.get("do")), str(found.get("name")))


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
