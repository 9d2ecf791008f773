"""Transactions told in other words go only to a peer that knows them; another one is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicate.errors import PeerRefusedError
from replicate.journal.record import pack_restated_large, read_head, restate
from replicate.model.transaction import Op
from tests.harness.journals import FrameMaker
from tests.harness.link_pair import SECONDARY, ConnectionPair, connected

OLDER = replace(SECONDARY, features=tuple(one for one in SECONDARY.features if one != "filter-1"))
HEAD = read_head(FrameMaker(next_seqno=3).transaction("a"))
RESTATED = restate(HEAD, "filter f", [int(Op.COMMENT), 0, 0, ["other words"]], (1,))
LARGE = pack_restated_large(HEAD, "filter f", b"\x01\x01\x01\x01\x91\x01", 5)
PLAIN = FrameMaker().transactions(2)


@pytest.mark.parametrize("frames", [PLAIN + RESTATED, LARGE])
def test_an_older_peer_is_refused_by_name_and_number(frames: bytes) -> None:
    link = connected(ConnectionPair(secondary=OLDER)).source
    with pytest.raises(PeerRefusedError, match=r"transaction 3 was told in other words .* does not know") as caught:
        link.check_known(frames)
    assert caught.value.facts["reason"] == "TOO_OLD"
    assert "Upgrade" in caught.value.do


def test_what_is_in_its_own_words_goes_to_it() -> None:
    link = connected(ConnectionPair(secondary=OLDER)).source
    link.check_known(PLAIN + restate(HEAD, "filter f", (), (1,)))


def test_a_peer_that_knows_them_has_them() -> None:
    link = connected(ConnectionPair()).source
    link.check_known(PLAIN + RESTATED)
    link.check_known(LARGE)
