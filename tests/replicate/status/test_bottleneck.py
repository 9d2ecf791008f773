"""status/bottleneck.py: which part of the street is named, on either side."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.status.bottleneck import bottleneck
from replicate.status.report import PeerReport, ReceivingReport
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, STOPPED


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (PEER, ""),
        (replace(PEER, source=STOPPED), "Source Server for west: it does not run"),
        (replace(PEER, is_connected=False, backlog=5), "the connection to west at h:1"),
        (replace(PEER, is_paused=True, backlog=5), "receive pool is full"),
        (replace(PEER, backlog=5, source_backlog=0, receiver_backlog=5), "the Update Process at west"),
        (replace(PEER, backlog=5, source_backlog=5, receiver_backlog=0), "the Source Server for west, or the network"),
        (replace(PEER, backlog=None, is_connected=False), "the connection to west"),
        (replace(PEER, backlog=5, source_backlog=5, source=replace(PEER.source, text="waiting for restart")),
         "west, which has not asked for the stream: it has no first copy yet"),
        (replace(PEER, is_silent=True), "the connection to west at h:1: nothing comes over it"),
    ],
)  # fmt: skip
def test_bottleneck_on_the_primary(peer: PeerReport, expected: str) -> None:
    found = bottleneck(JOURNAL, (PEER, peer), None)
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    ("receiving", "expected"),
    [
        (RECEIVING, ""),
        (replace(RECEIVING, update=STOPPED), "Update Process: it does not run"),
        (replace(RECEIVING, receiver_backlog=3, backlog=3), "the Update Process"),
        (replace(RECEIVING, receiver=STOPPED), "Receiver Server: it does not run"),
        (replace(RECEIVING, is_connected=False), "no source is connected"),
        (replace(RECEIVING, backlog=3), "the source, or the network"),
        (replace(RECEIVING, is_silent=True, backlog=None), "the connection from east: nothing comes over it"),
        (replace(RECEIVING, backlog=None), "not known"),
        (replace(RECEIVING, is_seeded=False, update=STOPPED), "the first seed"),
        (replace(RECEIVING, waiting=("rates",)), "the seed that rates waits for"),
    ],
)
def test_bottleneck_on_the_secondary(receiving: ReceivingReport, expected: str) -> None:
    found = bottleneck(JOURNAL, (), receiving)
    assert expected in found
    assert bool(expected) == bool(found)
