"""The street of one instance as parts and the ways between them, with the figures that pass there.

    applications ──written──► journal ──► Source Server ══sent══► a peer            one row for each peer
    the primary ══received══► Receiver Server ──receive pool──► Update Process ──applied──► journal and regions

Guarantees: every figure is one of the status, under its name there; what is not known is None, and never 0; a part is
called well only where the status says so.
Leaves to others: how it is drawn (terminal.py, the page of replicate/web). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from msgspec import Struct

from replicate.status.report import (
    DaemonReport,
    JournalReport,
    PacketsReport,
    PeerReport,
    ReceivingReport,
    RegionReport,
    Status,
    fill_level,
)

Mood = Literal["well", "busy", "warning", "error", "off", "unknown"]
"""How a part is. `busy`: at work on a backlog; `off`: it does not run, and is not missed here."""
Unit = Literal["seqno", "transactions", "seconds", "percent"]


class ShownFigure(Struct, frozen=True):
    """`key`: its name in `status --json`; None: not known. `is_at_least`: that, or more."""

    key: str
    label: str
    value: float | int | None
    unit: Unit = "seqno"
    is_at_least: bool = False


class StreetPart(Struct, frozen=True):
    """A part of the street. `key` names it among those of its instance, for programs."""

    key: str
    title: str
    state: str
    mood: Mood
    figures: tuple[ShownFigure, ...] = ()


class StreetWay(Struct, frozen=True):
    """What leads from one part into the next: the last transaction that came along, how many a second do, how many
    wait before it. `is_line`: it is the network."""

    key: str
    label: str
    seqno: int | None
    per_s: float | None
    waiting: int | None = None
    state: str = ""
    mood: Mood = "well"
    is_line: bool = False
    is_at_least: bool = False


class StreetRow(Struct, frozen=True):
    """One street, from its first part to its last; `ways` has one less."""

    name: str
    parts: tuple[StreetPart, ...]
    ways: tuple[StreetWay, ...]


Pace = Callable[[str], float | None]
"""Transactions a second at a place of the street, by its key (history.py)."""
_FAILED: Final = ("failed", "dead")


def street_of(status: Status, pace: Pace, reads_files: Callable[[str], bool]) -> tuple[StreetRow, ...]:
    """Every row of an instance's street: one for the stream that it receives, one for each peer. `reads_files`: whether
    that Source Server reads journal files."""
    core = StreetPart(
        "journal", "Journal", *_journal_state(status.journal, status.regions), (*_journal(status.journal),)
    )
    rows = []
    if status.receiving is not None:
        rows.append(_from_source(status, status.receiving, core, pace))
    rows += [_to_peer(status, peer, core, pace, reads_files) for peer in status.peers]
    rows += [_by_packets(to, core) for to in status.packets]
    if rows:
        return tuple(rows)
    parts = (StreetPart("applications", "Applications", "", "unknown"), core)
    return (StreetRow("", parts, (_written(status, pace),)),)


def _written(status: Status, pace: Pace) -> StreetWay:
    return StreetWay("written", "written", status.journal.last_written_seqno, pace("written"))


# The journal and its regions.


def _journal_state(journal: JournalReport, regions: tuple[RegionReport, ...]) -> tuple[str, Mood]:
    if journal.fatal_errno:
        return "takes no more", "error"
    broken = next((region for region in regions if region.problem), None)
    if broken is not None:
        return f"region {broken.name}: see below", "error"
    worst = max(journal.cap_percent, journal.disk_percent, *(region.disk_percent for region in regions), 0.0)
    level = fill_level(worst)
    if level is not None:
        return f"{worst:.0f} % full", "error" if level == "FULL" else "warning"
    return journal.durability, "well" if journal.is_open else "off"


def _journal(journal: JournalReport) -> Iterator[ShownFigure]:
    yield ShownFigure("last_written_seqno", "written", journal.last_written_seqno)
    yield ShownFigure("last_durable_seqno", "durable", journal.last_durable_seqno)
    yield ShownFigure("cap_percent", "cap", journal.cap_percent, "percent")
    yield ShownFigure("disk_percent", "disk", journal.disk_percent, "percent")


# To a peer.


def _daemon_part(title: str, report: DaemonReport) -> StreetPart:
    mood = _daemon_mood(report)
    state = report.state  # what else there is to say, a finding says
    if report.is_frozen or report.instead:
        state = report.instead or "frozen"
    elif mood in ("well", "warning") and report.is_running:
        state = report.text or state
    return StreetPart(report.name, title, state, mood)


def _daemon_mood(report: DaemonReport) -> Mood:
    if report.state in _FAILED or report.is_frozen or report.error:
        return "error"
    if report.instead:
        return "busy"
    if not report.is_running or report.is_passive:
        return "warning"
    return "error" if report.filter_error else "well"


def _to_peer(
    status: Status, peer: PeerReport, core: StreetPart, pace: Pace, reads_files: Callable[[str], bool]
) -> StreetRow:
    name = peer.name
    is_idle = status.role == "secondary" and peer.source.is_passive
    source = _daemon_part("Source Server", peer.source)
    if is_idle:
        source = StreetPart(source.key, source.title, "passive", "off")
    elif peer.source.is_passive and peer.source.is_running:
        source = StreetPart(source.key, source.title, "passive", "warning")
    place = "files" if reads_files(peer.source.name) else "pool"
    reads = StreetWay(
        f"read:{name}", f"from {place}", None, None, peer.source_backlog,
        mood="busy" if place == "files" else "well",
    )  # fmt: skip
    state, mood = _line_state(peer.is_connected, peer.is_paused, peer.is_silent)
    if is_idle:
        mood = "off"
    line = StreetWay(
        f"sent:{name}", "sent", peer.last_sent_seqno, pace(f"sent:{name}") if peer.is_connected else None, None, state,
        mood, is_line=True,
        is_at_least=not peer.source.is_running and peer.source.state != "stopped",
    )  # fmt: skip
    far = StreetPart(
        f"peer:{name}",
        name,
        f"Update Process {peer.update_state}" if peer.update_state else _heard(peer.last_heard_s),
        _far_mood(peer),
        (
            ShownFigure("last_received_seqno", "received", peer.last_received_seqno),
            ShownFigure("last_applied_seqno", "applied", peer.last_applied_seqno),
            ShownFigure("last_durable_seqno", "durable", peer.last_durable_seqno),
            ShownFigure("backlog", "backlog", peer.backlog, "transactions"),
            ShownFigure("lag_s", "lag", peer.lag_s, "seconds"),
        ),
    )
    if status.role == "secondary":  # what it sends on came from its own source
        return StreetRow(f"to {name}", (core, source, far), (reads, line))
    writes = StreetPart("applications", "Applications", "", "unknown")
    return StreetRow(f"to {name}", (writes, core, source, far), (_written(status, pace), reads, line))


def _far_mood(peer: PeerReport) -> Mood:
    if peer.needs_seed:
        return "error"
    if peer.update_state or peer.region_waits:
        return "warning"
    if not peer.is_connected or peer.is_silent or peer.last_applied_seqno is None:
        return "unknown"
    return "busy" if peer.backlog else "well"


def _line_state(is_connected: bool, is_paused: bool, is_silent: bool) -> tuple[str, Mood]:
    if not is_connected:
        return "not connected", "error"
    if is_silent:
        return "silent", "error"
    return ("paused (XOFF)", "warning") if is_paused else ("connected", "well")


def _heard(age_s: float | None) -> str:
    """In whole seconds: it is read by people, several times a second."""
    return "not heard yet" if age_s is None else f"heard {age_s:.0f} s ago" if age_s >= 1 else "heard just now"


def _by_packets(to: PacketsReport, core: StreetPart) -> StreetRow:
    far = StreetPart(
        f"peer:{to.name}", to.name, "by packets", "error" if to.needs_seed else "well",
        (
            ShownFigure("confirmed_seqno", "confirmed", to.confirmed_seqno),
            ShownFigure("backlog", "not exported", to.backlog, "transactions"),
        ),
    )  # fmt: skip
    way = StreetWay(f"packets:{to.name}", "exported", to.exported_seqno, None, to.backlog)
    return StreetRow(f"to {to.name}", (core, far), (way,))


# From the source.


def _from_source(status: Status, receiving: ReceivingReport, core: StreetPart, pace: Pace) -> StreetRow:
    is_known = receiving.backlog is not None
    far = StreetPart(
        "source",
        receiving.source or "the source",
        _heard(receiving.last_heard_s),
        "well" if is_known and receiving.is_connected else "unknown",
        (
            ShownFigure("source_last_seqno", "written", receiving.source_last_seqno, is_at_least=not is_known),
            ShownFigure(*_backlog(receiving), "transactions", not is_known),
            ShownFigure(*_lag(receiving), "seconds", not is_known),
        ),
    )
    is_paused = receiving.receiver.is_running and "XOFF" in receiving.receiver.text
    state, mood = _line_state(receiving.is_connected, is_paused, receiving.is_silent)
    per_s = pace("received") if receiving.is_connected else None  # what passed a moment ago passes no more
    line = StreetWay("received", "received", receiving.last_received_seqno, per_s, None, state, mood, is_line=True)
    fill = receiving.pool_percent
    pool = StreetWay(
        "pool", "receive pool", None, None, receiving.receiver_backlog, "" if fill is None else f"{fill:.0f} % full",
        "warning" if fill is not None and fill >= 95 else "busy" if receiving.receiver_backlog else "well",
    )  # fmt: skip
    speed = receiving.applied_per_s if receiving.applied_per_s is not None else pace("applied")
    applied = StreetWay("applied", "applied", receiving.last_applied_seqno, speed)
    durable = ShownFigure("last_durable_seqno", "durable", receiving.last_durable_seqno)
    last = StreetPart(
        core.key, "Journal, regions", core.state, core.mood,
        (
            ShownFigure("last_applied_seqno", "applied", receiving.last_applied_seqno),
            durable,
            *(figure for figure in core.figures if figure.unit == "percent"),
        ),
    )  # fmt: skip
    parts = (
        far,
        _daemon_part("Receiver Server", receiving.receiver),
        _daemon_part("Update Process", receiving.update),
        last,
    )
    return StreetRow(
        f"from {receiving.source}" if receiving.source else "from the source", parts, (line, pool, applied)
    )


def _backlog(receiving: ReceivingReport) -> tuple[str, str, int | None]:
    if receiving.backlog is not None:
        return "backlog", "backlog", receiving.backlog
    return "backlog_at_least", "backlog", receiving.backlog_at_least


def _lag(receiving: ReceivingReport) -> tuple[str, str, float | None]:
    if receiving.backlog is not None:
        return "lag_s", "lag", receiving.lag_s
    return "lag_at_least_s", "lag", receiving.lag_at_least_s
