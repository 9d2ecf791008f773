"""`replicate scrub`: what it says it does."""

from __future__ import annotations

from tests.harness.pair import Pair
from tests.replicate.cli.test_packet import pair
from tests.replicate.cli.test_partition import said, told

__all__ = ["pair"]


def test_what_is_kept_for_whom(pair: Pair) -> None:
    last = pair.write(3)
    said("-i", "east", "packet", "export")
    assert said("-i", "east", "scrub", "--dry-run").splitlines() == [
        "0 journal files would be removed",
        "for west everything after 2 is kept: it has confirmed no more",
    ]
    done = told("-i", "east", "scrub", "--before", "-0s", "--epoch", "3")
    assert done == {"removed": [], "kept_for": [{"peer": "west", "seqno": last, "aged": True}]}
    assert f"after {last} is kept: its packets are older than that" in said("-i", "east", "scrub")
