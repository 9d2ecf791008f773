"""What `replicate status` says of peers that get packets, and of packets that wait here.

Guarantees: an instance without packets costs one look at a file. What cannot be read is a finding.
Leaves to others: what moves the epochs (transfer/packet/epochs.py), clocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from replicate.errors import ReplicateError
from replicate.instance.consumers import Consumer, read_consumer, read_hold
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.status.comparing import ago
from replicate.status.report import PacketsReport
from replicate.transfer.packet.epochs import Epochs
from replicate.transfer.packet.epochs_file import level_by_packets, read_epochs

SHOWN_MAX = 3


def look_at_packets(
    instance: Instance, last_seqno: int, now_wall_ns: int, problems: list[Finding]
) -> tuple[PacketsReport, ...]:
    """One for each peer that gets packets. `last_seqno`: the last one written here."""
    try:
        epochs = read_epochs(instance.consumers_directory)
        reports = tuple(
            _report(instance, epochs, peer.name, last_seqno, now_wall_ns)
            for peer in instance.consumers
            if peer.by_packets
        )
    except ReplicateError as error:
        do = error.do or "mend that; then replicate -i INSTANCE status"
        problems.append(Finding("CONSUMER_UNREADABLE", str(error), do))
        return ()
    waiting = [text for text, last in epochs.waiting if last > last_seqno]
    problems += _findings(instance, waiting, reports)
    lacking = epochs.lacking
    if waiting and lacking is not None and lacking.last_seqno > last_seqno:
        problems.append(Finding("PACKET_GAP", lacking.what, lacking.do))
    return reports


def hears_by_packets(instance: Instance) -> bool:
    """Whether it receives, and another instance's packets have reached it."""
    try:
        return instance.receives and bool(read_epochs(instance.consumers_directory).replicas)
    except ReplicateError:  # which `look_at_packets` tells
        return False


def were_level_by_packets(instance: Instance) -> set[str]:
    """As `level_by_packets`; nobody where that cannot be read, which `look_at_packets` tells."""
    try:
        return level_by_packets(instance)
    except ReplicateError:
        return set()


def _report(instance: Instance, epochs: Epochs, name: str, last_seqno: int, now_wall_ns: int) -> PacketsReport:
    consumer = read_consumer(instance.consumers_directory, name) or Consumer(name)
    held, replica = read_hold(instance.consumers_directory, name) or 0, epochs.of(name)
    heard = replica.heard.seqno if replica.heard else 0
    confirmed = consumer.acknowledged_seqno if consumer.acknowledged_wall_ns else 0
    confirmed = max(confirmed, heard)
    exported = max(confirmed, held, replica.known.seqno if replica.known else 0)
    since_ns = epochs.unconfirmed_since(name, now_wall_ns, confirmed)
    unconfirmed_s = (now_wall_ns - since_ns) / 1e9 if since_ns < now_wall_ns else None
    backlog = max(0, last_seqno - exported)
    return PacketsReport(name, exported, confirmed, backlog, unconfirmed_s, consumer.needs_seed and not held)


def _findings(instance: Instance, waiting: list[str], reports: tuple[PacketsReport, ...]) -> Iterator[Finding]:
    bound_s = instance.config.packets.confirm_within_s
    for one in reports:
        if one.needs_seed:
            do = f"replicate -i INSTANCE seed --to-file FILE --for {one.name} --restart"
            yield Finding("PEER_DROPPED", f"{one.name} was dropped, and must be seeded again", do, one.name)
        if one.unconfirmed_s is not None and 0 < bound_s < one.unconfirmed_s:
            yield Finding(
                "PACKET_UNCONFIRMED",
                f"{one.name} has confirmed transaction {one.confirmed_seqno}, and a packet after that was made "
                f"{ago(one.unconfirmed_s)} ago",
                f"import its receipt (there: packet export --to {instance.name} --receipt); if a packet is lost: "
                f"replicate -i INSTANCE packet recover --to {one.name} --number N",
                one.name,
            )
    if waiting:
        count = len(waiting)
        shown = "; ".join(waiting[:SHOWN_MAX]) + (f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else "")
        do = "import the missing ones too: replicate -i INSTANCE packet import DIR; it says which they are"
        yield Finding("PACKET_WAITS", f"{count} packet{'s' * (count != 1)} cannot be applied yet: {shown}", do)
