"""status/report.py: what a finding says of a daemon that says nothing itself, and of a journal that has become long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.status.report import JournalReport, PeerReport, findings
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, REGION, RUNS


@pytest.mark.parametrize(
    ("says", "expected"), [("", "no source is connected"), ("waits", "no source is connected (waits)")]
)
def test_who_is_not_connected_says_why_if_it_does(says: str, expected: str) -> None:
    receiving = replace(RECEIVING, receiver=replace(RUNS, name="receiver", text=says), is_connected=False)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), receiving)
    assert (found.code, found.text) == ("NO_SOURCE", expected)


FULL = replace(JOURNAL, cap_percent=96.0)
AWAY = replace(PEER, name="away", last_durable_seqno=10)


@pytest.mark.parametrize(
    ("journal", "peers", "expected"),
    [
        (FULL, (PEER,), "raise journal.cap_bytes"),
        (FULL, (PEER, AWAY), "it is kept for peer away: let it catch up, or remove it"),
        (FULL, (replace(AWAY, needs_seed=True),), "raise"),
        (FULL, (replace(PEER, seed_seqno=20),), "the seed that waits for peer west: finish it there, or give it up"),
        (FULL, (replace(PEER, seed_seqno=20), AWAY), "peer away"),
        (FULL, (replace(AWAY, seed_seqno=20),), "peer away"),
        (FULL, (replace(AWAY, seed_seqno=20, needs_seed=True),), "seed --forget away"),
        (
            replace(FULL, archive="/arc", archived_seqno=5, unarchived_bytes=9),
            (AWAY,),
            "the archive /arc: replicate -i INSTANCE archive",
        ),
        (replace(FULL, archive="/arc", archived_seqno=50, unarchived_bytes=9), (AWAY,), "peer away"),
        (replace(FULL, archive="/arc", archived_seqno=5), (), "raise"),
    ],
)
def test_a_full_journal_names_what_it_is_kept_for(
    journal: JournalReport, peers: tuple[PeerReport, ...], expected: str
) -> None:
    (found,) = [one for one in findings("primary", journal, (), peers, None) if one.code == "JOURNAL_FULL"]
    assert expected in found.do
    assert found.do.endswith("raise journal.cap_bytes")


def test_a_dropped_peer_is_seeded_by_commands_that_are_not_refused() -> None:
    """Its Update Process runs as a rule, and a seed is refused while it does."""
    found = findings("primary", JOURNAL, (REGION,), (replace(PEER, needs_seed=True),), None)
    (dropped,) = (one for one in found if one.code == "PEER_DROPPED")
    assert dropped.do.endswith("replicate -i west update stop, then replicate -i west seed --restart")
