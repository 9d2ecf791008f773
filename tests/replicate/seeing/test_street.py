"""seeing/street.py: each row of the street with the status's own figures, and no part called well that is not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from replicate.seeing.street import Mood, StreetRow, street_of
from replicate.status.report import DaemonReport, PacketsReport, PeerReport, ReceivingReport, Status
from tests.replicate.seeing.test_history import PRIMARY, SECONDARY
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, REGION, RUNS, STOPPED


def rows(status: Status, paces: dict[str, float] | None = None, files: bool = False) -> tuple[StreetRow, ...]:
    return street_of(status, (paces or {}).get, lambda _daemon: files)


def figures(row: StreetRow, part: int) -> dict[str, Any]:
    return {figure.key: figure.value for figure in row.parts[part].figures}


def to_peer(peer: PeerReport) -> StreetRow:
    return rows(replace(PRIMARY, peers=(peer,)))[0]


def test_a_primary_has_a_row_for_each_peer() -> None:
    away = replace(PEER, name="away", is_connected=False, last_applied_seqno=None, backlog=None, lag_s=None)
    found = rows(replace(PRIMARY, peers=(PEER, away)), {"written": 9.0, "sent:west": 8.0})
    assert [row.name for row in found] == ["to west", "to away"]
    row = found[0]
    assert [part.key for part in row.parts] == ["applications", "journal", "source-west", "peer:west"]
    assert [(way.key, way.seqno, way.per_s) for way in row.ways] == [
        ("written", 100, 9.0), ("read:west", None, None), ("sent:west", 100, 8.0),
    ]  # fmt: skip
    assert figures(row, 1)["last_durable_seqno"] == 100
    assert figures(row, 3) == {
        "last_received_seqno": 100, "last_applied_seqno": 100, "last_durable_seqno": 100, "backlog": 0, "lag_s": 0.0,
    }  # fmt: skip
    assert {part.mood for part in row.parts[1:]} == {"well"}
    assert figures(found[1], 3)["backlog"] is None
    assert found[1].parts[3].mood == "unknown"
    assert (found[1].ways[2].state, found[1].ways[2].mood) == ("not connected", "error")


def test_a_secondary_has_the_street_from_its_source() -> None:
    behind = replace(RECEIVING, last_applied_seqno=90, backlog=10, receiver_backlog=10, lag_s=2.0, pool_percent=97.0)
    (row,) = rows(replace(SECONDARY, receiving=behind), {"received": 5.0, "applied": 4.0})
    assert row.name == "from east"
    assert [part.key for part in row.parts] == ["source", "receiver", "update", "journal"]
    assert figures(row, 0) == {"source_last_seqno": 100, "backlog": 10, "lag_s": 2.0}
    assert figures(row, 3)["last_applied_seqno"] == 90
    line, pool, applied = row.ways
    assert (line.seqno, line.per_s, line.state, line.is_line) == (100, 5.0, "connected", True)
    assert (pool.waiting, pool.state, pool.mood) == (10, "97 % full", "warning")
    assert (applied.seqno, applied.per_s) == (90, 4.0)


def test_what_a_secondary_does_not_know_is_or_more() -> None:
    unknown = replace(RECEIVING, is_connected=False, backlog=None, lag_s=None, backlog_at_least=3, lag_at_least_s=7.5)
    (row,) = rows(replace(SECONDARY, receiving=unknown))
    assert figures(row, 0) == {"source_last_seqno": 100, "backlog_at_least": 3, "lag_at_least_s": 7.5}
    assert all(figure.is_at_least for figure in row.parts[0].figures)
    assert row.parts[0].mood == "unknown"
    assert row.ways[0].mood == "error"


def test_a_secondary_that_sends_on_has_both() -> None:
    found = rows(replace(SECONDARY, peers=(PEER,)))
    assert [[part.key for part in row.parts] for row in found] == [
        ["source", "receiver", "update", "journal"],
        ["journal", "source-west", "peer:west"],
    ]


def test_a_supplier_has_applications_beside_its_sources() -> None:
    found = rows(replace(SECONDARY, role="supplier", peers=(PEER,)))
    assert [[part.key for part in row.parts] for row in found] == [
        ["source", "receiver", "update", "journal"],
        ["applications", "journal", "source-west", "peer:west"],
    ]


def test_nothing_passes_a_line_that_is_cut() -> None:
    away = replace(PEER, is_connected=False)
    cut = replace(PRIMARY, peers=(PEER, away), receiving=replace(RECEIVING, is_connected=False))
    found = street_of(cut, lambda _key: 7.0, lambda _daemon: False)
    assert [[way.per_s for way in row.ways if way.is_line] for row in found] == [[None], [7.0], [None]]


def test_an_instance_alone_has_its_journal() -> None:
    (row,) = rows(replace(PRIMARY, peers=()))
    assert [part.key for part in row.parts] == ["applications", "journal"]
    (packets,) = rows(replace(PRIMARY, peers=(), packets=(PacketsReport("far", 50, 40, 50, None),)))
    assert figures(packets, 1) == {"confirmed_seqno": 40, "backlog": 50}
    assert (packets.ways[0].seqno, packets.ways[0].waiting) == (50, 50)


@pytest.mark.parametrize(
    ("report", "mood"),
    [
        (RUNS, "well"),
        (replace(RUNS, is_frozen=True), "error"),
        (replace(RUNS, filter_error="FILTER_FAILED: x"), "error"),
        (STOPPED, "warning"),
        (replace(STOPPED, state="dead"), "error"),
        (replace(STOPPED, state="failed", error="GAP: x [y]"), "error"),
        (replace(RUNS, is_passive=True), "warning"),
        (replace(STOPPED, instead="replay"), "busy"),
    ],
)
def test_how_a_daemon_is(report: DaemonReport, mood: Mood) -> None:
    assert to_peer(replace(PEER, source=report)).parts[2].mood == mood


@pytest.mark.parametrize(
    ("peer", "state", "line", "far"),
    [
        (replace(PEER, is_paused=True, backlog=5), "paused (XOFF)", "warning", "busy"),
        (replace(PEER, is_silent=True), "silent", "error", "unknown"),
        (replace(PEER, update_state="stopped"), "connected", "well", "warning"),
        (replace(PEER, needs_seed=True), "connected", "well", "error"),
        (replace(PEER, region_waits=True), "connected", "well", "warning"),
    ],
)
def test_how_a_line_and_a_peer_are(peer: PeerReport, state: str, line: Mood, far: Mood) -> None:
    row = to_peer(peer)
    assert (row.ways[2].state, row.ways[2].mood, row.parts[3].mood) == (state, line, far)


def test_a_source_that_sleeps_on_a_secondary_is_not_missed() -> None:
    sleeps = replace(PEER, source=replace(RUNS, is_passive=True), is_connected=False)
    row = rows(replace(SECONDARY, peers=(sleeps,)))[1]
    assert (row.parts[1].state, row.parts[1].mood, row.ways[1].mood) == ("passive", "off", "off")
    assert to_peer(sleeps).parts[2].mood == "warning"


def test_reading_files_is_seen() -> None:
    (row,) = rows(PRIMARY, files=True)
    assert (row.ways[1].label, row.ways[1].mood) == ("from files", "busy")


@pytest.mark.parametrize(
    ("status", "state", "mood"),
    [
        (PRIMARY, "durable", "well"),
        (replace(PRIMARY, journal=replace(JOURNAL, is_open=False)), "durable", "off"),
        (replace(PRIMARY, journal=replace(JOURNAL, fatal_errno=28)), "takes no more", "error"),
        (replace(PRIMARY, journal=replace(JOURNAL, cap_percent=71.0)), "71 % full", "warning"),
        (replace(PRIMARY, regions=(replace(REGION, disk_percent=96.0),)), "96 % full", "error"),
        (replace(PRIMARY, regions=(replace(REGION, problem="X: y [z]"),)), "region main: see below", "error"),
    ],
)
def test_how_the_journal_is(status: Status, state: str, mood: Mood) -> None:
    part = rows(status)[0].parts[1]
    assert (part.state, part.mood) == (state, mood)


def test_a_receiver_that_has_asked_for_a_pause_shows_it() -> None:
    paused: ReceivingReport = replace(RECEIVING, receiver=replace(RECEIVING.receiver, text="waiting (XOFF sent)"))
    (row,) = rows(replace(SECONDARY, receiving=paused))
    assert row.ways[0].state == "paused (XOFF)"
