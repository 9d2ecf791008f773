"""The part of the street that others wait for.

Guarantees: it is the first that is not keeping up; nothing is called level that was not seen to be.
Leaves to others: what is wrong there, and what mends it (status/report.py). Pure.
"""

from __future__ import annotations

from typing import Final

from replicate.status.report import JournalReport, PeerReport, ReceivingReport

NOT_BEGUN: Final = "waiting for restart"
"""What a Source Server says while its peer has not said yet from where the stream is to begin."""


def bottleneck(
    journal: JournalReport,
    peers: tuple[PeerReport, ...],
    receiving: ReceivingReport | None,
    *,
    by_packets: bool = False,
) -> str:
    """The part of the street that others wait for; empty when all is known to be level. Of several peers, the worst.
    `by_packets`: as in `findings`."""
    if journal.fatal_errno:
        return "the journal: it takes no more transactions"
    if receiving is not None:
        if by_packets and receiving.is_seeded and receiving.instead is None and receiving.never_ran:
            return "not known: packets come here, and no line leads here"
        return _receiving_bottleneck(receiving)
    lagging = [
        peer
        for peer in peers
        if peer.backlog is None
        or peer.backlog > 0
        or not peer.source.is_running
        or not peer.is_connected
        or peer.is_silent
    ]
    if not lagging:
        return ""
    worst = max(lagging, key=lambda peer: (peer.backlog is None, peer.backlog or 0))
    return _peer_bottleneck(worst)


def _peer_bottleneck(peer: PeerReport) -> str:
    if not peer.source.is_running:
        return f"the Source Server for {peer.name}: it does not run"
    if peer.source.is_frozen:
        return f"the Source Server for {peer.name}: it is frozen"
    if peer.source.is_passive:
        return f"the Source Server for {peer.name}: it is passive"
    if not peer.is_connected:
        return f"the connection to {peer.name} at {peer.address}"
    if peer.is_silent:
        return f"the connection to {peer.name} at {peer.address}: nothing comes over it"
    if peer.source.text.startswith(NOT_BEGUN):
        return (
            f"{peer.name}, which has not asked for the stream: it has no first copy yet, or is looking where it stands"
        )
    if peer.update_state:
        return f"the Update Process at {peer.name}: it is {peer.update_state}"
    if peer.is_paused:
        return f"the Update Process at {peer.name}: its receive pool is full"
    if (peer.receiver_backlog or 0) >= (peer.source_backlog or 0):
        return f"the Update Process at {peer.name}"
    return f"the Source Server for {peer.name}, or the network to it"


def _receiving_bottleneck(receiving: ReceivingReport) -> str:
    if receiving.instead is not None:
        return f"the {receiving.instead.instead} that is under way"
    if not receiving.is_seeded:
        return "the first seed: this secondary holds nothing yet"
    if not receiving.update.is_running:
        return "the Update Process: it does not run"
    if receiving.receiver_backlog:
        return "the Update Process"
    if not receiving.receiver.is_running:
        return "the Receiver Server: it does not run"
    if not receiving.is_connected:
        return "the connection: no source is connected"
    if receiving.is_silent:
        return f"the connection from {receiving.source or 'the source'}: nothing comes over it"
    if receiving.backlog is None:
        return "not known: the source has not said lately how it stands"
    if receiving.backlog:
        return "the source, or the network from it"
    return f"the seed that {', '.join(receiving.waiting)} waits for" if receiving.waiting else ""
