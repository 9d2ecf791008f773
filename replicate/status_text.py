"""`replicate status` as text for a terminal.

Guarantees: one screen; what is unknown reads as "unknown", never as 0; ASCII only.
Refuses to know: how the report was made. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from replicate.status_report import DaemonReport, PeerReport, ReceivingReport, Status


def lines(status: Status) -> Iterator[str]:
    """The report, line by line."""
    journal = status.journal
    yield f"{status.role} {status.name} (incarnation {status.incarnation}), {status.path}"
    durable = _number(journal.last_durable_seqno)
    yield f"  journal   last written {journal.last_written_seqno}, durable {durable} ({journal.durability})"
    kept = "nothing" if journal.first_kept_seqno is None else f"from {journal.first_kept_seqno}"
    fill = f"{journal.cap_percent:.0f} % of the cap, keeps {kept}; disk {journal.disk_percent:.0f} % full"
    yield f"            {journal.segments} files, {size(journal.bytes)} = {fill}"
    for region in status.regions:
        state = region.problem or f"last changed by {_number(region.last_seqno)}, {region.path}"
        yield f"  region    {region.name}: {state}"
    for peer in status.peers:
        yield from _peer(peer)
    if status.receiving is not None:
        yield from _receiving(status.receiving)
    yield f"  bottleneck: {status.bottleneck or 'none, everything is level'}"
    for finding in status.findings:
        yield f"  {finding.severity}: {finding.text}" + (f". Next: {finding.do}" if finding.do else "")


def _peer(peer: PeerReport) -> Iterator[str]:
    yield f"  peer      {peer.name} at {peer.address}: {daemon(peer.source)}"
    yield (
        f"            sent {_number(peer.last_sent_seqno)}, received {_number(peer.last_received_seqno)},"
        f" applied {_number(peer.last_applied_seqno)}, durable {peer.last_durable_seqno}"
    )
    yield (
        f"            source backlog {_number(peer.source_backlog)}, receiver backlog {_number(peer.receiver_backlog)},"
        f" in all {_number(peer.backlog)} transactions, lag {seconds(peer.lag_s)}"
    )
    read = peer.transactions_from_pool + peer.transactions_from_files
    if read:
        yield f"            read {peer.transactions_from_pool} from the pool, {peer.transactions_from_files} from files"


def _receiving(receiving: ReceivingReport) -> Iterator[str]:
    yield f"  receiver  {daemon(receiving.receiver)}" + (f", from {receiving.source}" if receiving.source else "")
    yield f"  update    {daemon(receiving.update)}"
    yield (
        f"            the source has {_number(receiving.source_last_seqno)}; received"
        f" {_number(receiving.last_received_seqno)}, applied {receiving.last_applied_seqno},"
        f" durable {_number(receiving.last_durable_seqno)}"
    )
    fill = "unknown" if receiving.pool_percent is None else f"{receiving.pool_percent:.0f} %"
    yield (
        f"            receiver backlog {_number(receiving.receiver_backlog)}, in all {_number(receiving.backlog)}"
        f" transactions, lag {seconds(receiving.lag_s)}, receive pool {fill} full"
    )


def daemon(report: DaemonReport) -> str:
    """A daemon in a few words."""
    process = f" (process {report.pid})" if report.is_running and report.pid else ""
    detail = report.error or report.text
    return f"{report.state}{process}" + (f", {detail}" if detail and detail != report.state else "")


def seconds(value: float | None) -> str:
    """A duration, in the unit one would say it in."""
    if value is None:
        return "unknown"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size(value: int) -> str:
    """A number of bytes, in the unit one would say it in."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)
