"""`replicate status` as text for a terminal.

Guarantees: one screen: all regions and peers in one table, then the daemons, the bottleneck, and the findings, worst
first; what is unknown reads as "unknown", never as 0; ASCII only.
Refuses to know: how the report was made. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from replicate.findings import CODES, Kind
from replicate.status.report import DaemonReport, PeerReport, ReceivingReport, RegionReport, Status

_HEADINGS: Final = (
    "", "name", "state", "written", "sent", "received", "applied", "durable", "backlog", "lag", "where",
)  # fmt: skip
_NONE: Final = "-"
"""What a row has not; what it has and we do not know is "unknown"."""


def lines(status: Status) -> Iterator[str]:
    """The report, line by line."""
    journal = status.journal
    yield f"{status.role} {status.name} (incarnation {status.incarnation}), {status.path}"
    durable = _number(journal.last_durable_seqno)
    yield f"  journal   last written {journal.last_written_seqno}, durable {durable} ({journal.durability})"
    kept = "nothing" if journal.first_kept_seqno is None else f"from {journal.first_kept_seqno}"
    fill = f"{journal.cap_percent:.0f} % of the cap, keeps {kept}; disk {journal.disk_percent:.0f} % full"
    yield f"            {journal.segments} files, {size(journal.bytes)} = {fill}"
    rows = [_region(region) for region in status.regions]
    rows += [_peer(peer, journal.last_written_seqno) for peer in status.peers]
    if status.receiving is not None:
        rows.append(_source(status.receiving))
    if rows:
        yield from (f"  {line}" for line in columns([_HEADINGS, *rows]))
    for peer in status.peers:
        yield f"  {peer.source.name}: {daemon(peer.source)}"
        read = peer.transactions_from_pool + peer.transactions_from_files
        if read:
            pool, files = peer.transactions_from_pool, peer.transactions_from_files
            yield f"    read {pool} from the pool, {files} from files"
        if peer.update_state:
            yield f"    the Update Process there is {peer.update_state} since {peer.not_applying_since}"
    if status.receiving is not None:
        receiving = status.receiving
        fill = "unknown" if receiving.pool_percent is None else f"{receiving.pool_percent:.0f} %"
        yield f"  receiver: {daemon(receiving.receiver)}"
        yield f"  update: {daemon(receiving.update)}"
        yield f"    receiver backlog {_number(receiving.receiver_backlog)}, receive pool {fill} full"
    yield f"  bottleneck: {status.bottleneck or 'none, everything is level'}"
    for finding in status.findings:
        yield f"  {finding.code} {finding.severity}: {finding.text}. Next: {finding.do}"


def _region(region: RegionReport) -> tuple[str, ...]:
    state = "see below" if region.problem else "busy" if region.is_busy else "well"
    if region.pinned_by:
        state = f"WAL {size(region.wal_bytes)}"
    applied = _number(region.last_seqno)
    return ("region", region.name, state, _NONE, _NONE, _NONE, applied, _NONE, _NONE, _NONE, region.path)


def _peer(peer: PeerReport, written: int) -> tuple[str, ...]:
    state = "paused" if peer.is_paused else "connected" if peer.is_connected else "not connected"
    sent, received, applied = peer.last_sent_seqno, peer.last_received_seqno, peer.last_applied_seqno
    positions = [_number(seqno) for seqno in (written, sent, received, applied, peer.last_durable_seqno)]
    return ("peer", peer.name, state, *positions, _number(peer.backlog), seconds(peer.lag_s), peer.address)


def _source(receiving: ReceivingReport) -> tuple[str, ...]:
    state = "connected" if receiving.is_connected else "not connected"
    written, received = _number(receiving.source_last_seqno), _number(receiving.last_received_seqno)
    positions = (written, _NONE, received, str(receiving.last_applied_seqno), _number(receiving.last_durable_seqno))
    backlog, lag = _number(receiving.backlog), seconds(receiving.lag_s)
    return ("source", receiving.source or "unknown", state, *positions, backlog, lag, _NONE)


def explanation(kinds: Iterable[Kind] = CODES.values()) -> Iterator[str]:
    """The table of finding codes, or some rows of it, as text."""
    yield from columns((kind.code, kind.severity, kind.meaning) for kind in kinds)


def columns(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Rows as aligned lines, two spaces between columns."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


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
