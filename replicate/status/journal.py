"""What the next open of a journal would stumble over, for `replicate status` while nobody has the journal open.

Guarantees: reads headers, links, and the newest segment; takes no lock, changes nothing, and calls a tail that recovery
mends by itself well. Damage further back is for `replicate journal verify`.
Refuses to know: the rest of the status.
"""

from __future__ import annotations

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.scan import scan
from replicate.journal.tail import Damaged, classify_tail

VERIFY = "replicate journal verify; then restore the file, or begin anew: "


def problem_of_closed_journal(instance: Instance, region_seqno: int) -> tuple[str, str]:
    """What is wrong and what to do; ("", "") when nothing is. `region_seqno`: the highest number in any region."""
    chain = Chain(instance.journal_directory, network=instance.content.network, instance=instance.content.uuid)
    try:
        segments = chain.segments()
        if not segments:
            if region_seqno == 0:
                return "", ""
            text = f"the journal is gone, but a region holds transactions up to {region_seqno} [{chain.directory}]"
            return text, f"restore the journal directory, or begin anew: {instance.way_out}"
        with chain.open(segments[-1].header.first_seqno) as newest:
            if newest.header.adopted:
                newest.scan_adopted()
                return "", ""
            catalogue, begin = newest.read_catalogue()
            found = scan(newest.fd, begin, newest.header.first_seqno, chains=catalogue.chains, path=newest.path)
            # As after a power loss: only what is proved to be missing is called so.
            verdict = classify_tail(found, last_durable_seqno=_durable(chain), power_lost=True)
        if isinstance(verdict, Damaged):
            return (
                f"transaction {verdict.seqno} can not be read: {verdict.reason} [{newest.path}]",
                VERIFY + instance.way_out,
            )
    except ReplicateError as error:
        return str(error), VERIFY + instance.way_out
    return "", ""


def _durable(chain: Chain) -> int:
    sidecar = DurableSidecar(f"{chain.directory}/{SIDECAR_NAME}")
    try:
        return sidecar.read()
    finally:
        sidecar.close()
