"""A journal that nobody has open, for `replicate status`: where it ends, and what its next open would stumble over.

Guarantees: reads headers, links, and the newest segment; takes no lock, changes nothing, and calls a tail that recovery
mends by itself well. Damage further back is for `replicate journal verify`.
Leaves to others: the rest of the status.
"""

from __future__ import annotations

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.scan import scan
from replicate.journal.tail import Damaged, classify_tail
from replicate.model.moment import wall_ns

VERIFY = "replicate -i INSTANCE journal verify; then restore the file, or begin again: "


class ClosedJournal(Struct, frozen=True):
    """What it holds: transactions up to `last_seqno`; those up to `last_durable_seqno` are on the disk by its own mark.
    None: nobody can tell. `last_commit_wall_ns`: of its newest transaction; 0: not known. `problem` is empty when
    all is well with it; else `do` mends it."""

    last_seqno: int | None = None
    last_durable_seqno: int | None = None
    last_commit_wall_ns: int = 0
    problem: str = ""
    do: str = ""


def look_at_closed_journal(instance: Instance, region_seqno: int) -> ClosedJournal:
    """`region_seqno`: the highest number in any region. Never raises a ReplicateError: that is the problem."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    try:
        segments = chain.segments()
        if not segments:
            if region_seqno == 0:
                return ClosedJournal(0, 0)
            text = f"the journal is gone, but a region holds transactions up to {region_seqno} [{chain.directory}]"
            do = f"restore the journal directory, or begin again: {instance.way_out}"
            return ClosedJournal(problem=text, do=do)
        durable = _durable(chain)
        with chain.open(segments[-1].header.first_seqno) as newest:
            if newest.header.adopted:
                whole = newest.scan_adopted()
                return ClosedJournal(whole.last_seqno, durable, wall_ns(whole.last_csn))
            catalogue, begin = newest.read_catalogue()
            found = scan(newest.fd, begin, newest.header.first_seqno, chains=catalogue.chains, path=newest.path)
            # As after a power loss: only what is proved to be missing is called so.
            ours = instance.told_role == "primary"
            verdict = classify_tail(found, last_durable_seqno=durable, power_lost=True, marks_are_ours=ours)
        if isinstance(verdict, Damaged):
            text = f"transaction {verdict.seqno} cannot be read: {verdict.reason} [{newest.path}]"
            return ClosedJournal(problem=text, do=VERIFY + instance.way_out)
    except ReplicateError as error:
        return ClosedJournal(problem=str(error), do=VERIFY + instance.way_out)
    return ClosedJournal(found.last_seqno, durable, wall_ns(found.last_csn))


def _durable(chain: Chain) -> int:
    sidecar = DurableSidecar(f"{chain.directory}/{SIDECAR_NAME}", writable=False)
    try:
        return sidecar.read()
    finally:
        sidecar.close()
