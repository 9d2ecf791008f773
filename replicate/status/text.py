"""`replicate status` as text for a terminal.

Guarantees: one screen: journal, regions, peers or source, daemons, bottleneck, and the findings, worst first; no line
is longer than the terminal is wide, but for a path or a command that is longer by itself, which must stay whole to be
pasted; what is unknown reads as "unknown", never as 0; an error stands there once; ASCII only.
Leaves to others: how the report was made. Pure.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from replicate.model.findings import CODES, FindingKind
from replicate.status.comparing import ago
from replicate.status.report import DaemonReport, PacketsReport, PeerReport, ReceivingReport, RegionReport, Status

WIDTH_LEAST: Final = 40
COMMAND: Final = re.compile(
    r"\b(?:replicate -|kill |chmod |chown |fuser )(?:'[^']*'|,(?=\S)|[^;,()'])*(?:'[^']*'|[^;,(). '])"
)
"""With the quoted words and lists (`a,b`) that are in it."""
_GLUE: Final = "\x01"
"""Stands for the spaces of a command while lines are broken."""
_DAY_S: Final = 86_400


def lines(status: Status, width: int = 80) -> Iterator[str]:
    """The report, line by line, for a terminal so wide."""
    for indent, text in _paragraphs(status):
        yield from wrapped(text, indent, width)


def wrapped(text: str, indent: int, width: int) -> list[str]:
    """A paragraph so wide, set in, with each command in it whole."""
    whole = COMMAND.sub(lambda command: command[0].replace(" ", _GLUE), text)
    broken = textwrap.wrap(
        whole,
        max(width, WIDTH_LEAST),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in broken]


def _paragraphs(status: Status) -> Iterator[tuple[int, str]]:
    journal = status.journal
    yield 0, f"{status.role} {status.name} (incarnation {status.incarnation}), {status.path}"
    durable = _number(journal.last_durable_seqno)
    yield 2, f"journal: last written {journal.last_written_seqno}, durable {durable} ({journal.durability})"
    kept = "nothing" if journal.first_kept_seqno is None else f"from {journal.first_kept_seqno}"
    fill = f"{journal.cap_percent:.0f} % of the cap, keeps {kept}; disk {journal.disk_percent:.0f} % full"
    files = f"{journal.segments} file{'s' * (journal.segments != 1)}"
    yield 4, f"{files}, {size(journal.bytes)} = {fill}"
    for region in status.regions:
        yield 2, _region(region)
    told = [finding.text for finding in status.findings]
    for peer in status.peers:
        # It may have sent more since the journal was looked at.
        yield from _peer(peer, max(journal.last_written_seqno, peer.last_sent_seqno or 0))
        yield 4, f"{peer.source.name}: {daemon(peer.source, told)}"
        read = peer.transactions_from_pool + peer.transactions_from_files
        if read:
            yield 4, f"read {peer.transactions_from_pool} from the pool, {peer.transactions_from_files} from files"
        if peer.update_state:
            yield 4, f"the Update Process there is {peer.update_state} since {peer.not_applying_since}"
    for to in status.packets:
        yield 2, f"peer {to.name}: by packets, exported up to {to.exported_seqno}, confirmed up to {to.confirmed_seqno}"
        yield 4, f"not exported {to.backlog}" + _unconfirmed(to)
    if status.receiving is not None:
        receiving = status.receiving
        yield from _source(receiving)
        for one in status.suppliers if len(status.suppliers) > 1 else ():
            state = ", not connected" if not one.is_connected else ", silent" if one.silent_s is not None else ""
            state += ", paused (XOFF)" if one.is_paused else ""
            numbers = f"written {one.last_seqno}; received {one.last_received_seqno}, applied {one.last_applied_seqno}"
            yield 4, f"from {one.name}: {numbers}{state}"
        percent = receiving.pool_percent
        fill = "receive pool unknown" if percent is None else f"receive pool {percent:.0f} % full"
        yield 2, f"receiver: {daemon(receiving.receiver, told)}"
        yield 2, f"update: {daemon(receiving.update, told)}"
        yield 4, f"receiver backlog {_number(receiving.receiver_backlog)}, {fill}"
        if status.partitions:
            yield 2, f"partitions: {'; '.join(f'{one.name} {one.state}' for one in status.partitions)}"
        if status.patrol is not None:
            yield 2, f"patrol: {status.patrol.line}"
    for name, row in status.told.items():
        yield (
            2,
            f"{name} has {', '.join(f'{origin} up to {last}' for origin, last in row.items())}, by what it has told",
        )
    if status.indexes is not None:
        yield 2, f"indexes: {status.indexes.line}"
    yield 2, f"bottleneck: {status.bottleneck or 'none, everything is level'}"
    for finding in status.findings:
        yield 2, f"{finding.code} {finding.severity}: {finding.text}"
        yield 4, f"Next: {finding.do}"


def _region(region: RegionReport) -> str:
    state = "see below" if region.problem else "busy" if region.is_busy else "well"
    if region.pinned_by:
        state = f"WAL {size(region.wal_bytes)}"
    return f"region {region.name}: {state}, applied {_number(region.last_seqno)}, {region.path}"


def _unconfirmed(to: PacketsReport) -> str:
    return "" if to.unconfirmed_s is None else f", a packet unconfirmed for {ago(to.unconfirmed_s)}"


def _peer(peer: PeerReport, written: int) -> Iterator[tuple[int, str]]:
    state = "paused" if peer.is_paused else "connected" if peer.is_connected else "not connected"
    state = "silent" if peer.is_silent else "passive" if peer.source.is_passive else state
    yield 2, f"peer {peer.name}: {state}, {_last_heard(peer.last_heard, peer.last_heard_s)}; {peer.address}"
    is_sending = peer.source.is_running and not peer.source.is_frozen
    is_told = is_sending and peer.is_connected and not peer.is_silent
    is_old = not is_told and peer.last_applied_seqno is not None
    theirs = f"received {_number(peer.last_received_seqno)}, applied {_number(peer.last_applied_seqno)}"
    sent = f"sent {_number(peer.last_sent_seqno)}"
    if not is_sending and peer.source.state != "stopped" and peer.last_sent_seqno is not None:
        sent += " or more"  # it tells once a second, and may have sent more before it died
    told = f"{'as it last told: ' if is_old else ''}{theirs}, durable {peer.last_durable_seqno}"
    yield 4, f"written {written}, {sent}; {told}"
    old = " or less, by what it last told" if is_old and peer.backlog else ""
    yield 4, f"backlog {_number(peer.backlog)}, lag {seconds(peer.lag_s)}{old}"


def _source(receiving: ReceivingReport) -> Iterator[tuple[int, str]]:
    state = "connected" if receiving.is_connected else "not connected"
    state = "silent" if receiving.is_silent else state
    heard = _last_heard(receiving.last_heard, receiving.last_heard_s)
    yield 2, f"source {receiving.source or 'unknown'}: {state}, {heard}"
    is_known = receiving.backlog is not None
    speed = _speed(receiving)
    written = _number(receiving.source_last_seqno)
    if not is_known and receiving.source_last_seqno is not None:
        written += " or more"
    ours = f"received {_number(receiving.last_received_seqno)}, applied {receiving.last_applied_seqno}"
    yield 4, f"written {written}; {ours}, durable {_number(receiving.last_durable_seqno)}"
    if is_known:
        yield 4, f"backlog {receiving.backlog}, lag {seconds(receiving.lag_s)}{speed}"
        return
    since = receiving.backlog_unknown_since
    since = f" since {_short(since) if (receiving.lag_at_least_s or 0.0) < _DAY_S else since}" if since else ""
    least = f", at least {receiving.backlog_at_least}" if receiving.backlog_at_least else ""
    lag = f"at least {seconds(receiving.lag_at_least_s)}" if receiving.lag_at_least_s is not None else "unknown"
    yield 4, f"backlog unknown{since}{least}; lag {lag}{speed}"


def _speed(receiving: ReceivingReport) -> str:
    """How quickly the backlog is worked off: only what was measured here."""
    if receiving.applied_per_s is None or not receiving.level_in_s:
        return ""
    return f"; {receiving.applied_per_s:.0f} applied a second, level in {seconds(receiving.level_in_s)}"


def _last_heard(at: str | None, ago_s: float | None) -> str:
    if at is None or ago_s is None:
        return "not heard yet"
    return f"last heard {_short(at) if ago_s < _DAY_S else at}, {seconds(ago_s)} ago"


def _short(at: str) -> str:
    """A time of today without its date."""
    return at.partition(" ")[2]


def explanation(kinds: Iterable[FindingKind] = CODES.values(), width: int = 80) -> Iterator[str]:
    """The table of finding codes, or some rows of it, as text for a terminal so wide."""
    rows = tuple(kinds)
    codes, severities = (
        max(len(cell) + 2 if cell else 0 for cell in cells)
        for cells in ([k.code for k in rows], [k.severity for k in rows])
    )
    for kind in rows:
        head = kind.code.ljust(codes) + (kind.severity or "").ljust(severities)
        yield from textwrap.wrap(
            kind.meaning, max(width, WIDTH_LEAST), initial_indent=head, subsequent_indent=" " * len(head)
        )


def daemon(report: DaemonReport, told: Iterable[str] = ()) -> str:
    """A daemon in a few words; what stands in one of the texts `told` is not told again."""
    process = f" (process {report.pid})" if report.is_running and report.pid else ""
    detail = report.error or report.text
    if report.error or (detail and any(f"({detail})" in text or f": {detail}" in text for text in told)):
        detail = "see below"
    return f"{report.state}{process}" + (f", {detail}" if detail and detail != report.state else "")


def seconds(value: float | None) -> str:
    """A duration, in the unit one would say it in."""
    if value is None:
        return "unknown"
    if value < 120:
        return f"{math.ceil(round(value * 10, 3)) / 10:.1f} s"  # rounded up: 0.0 says that there is none
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
