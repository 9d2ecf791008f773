"""Transactions told in other words go only to a peer that knows them; another one is refused by name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.errors import PeerRefusedError
from replicate.journal.record import FrameBatch, large_payload, pack_restated_large, read_head
from replicate.model.transaction import Op
from replicate.wire.event import LargeReceived
from tests.harness.journals import FrameMaker
from tests.harness.link_pair import SECONDARY, ConnectionPair, Journal, connected
from tests.harness.restating import restate

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


def test_they_arrive_as_any_other() -> None:
    journal = Journal(large=(4,))
    journal.write(5)
    pair = connected(ConnectionPair())
    told = restate(read_head(journal.frames[1]), "a filter", [int(Op.COMMENT), 0, 0, ["other words"]], (1,))
    pair.source.send_batch(FrameBatch(1, 3, 3, journal.frames[0] + told + journal.frames[2]))
    pair.settle()
    assert pair.receiver.last_received_seqno == 3
    token, parts = journal.token(4), journal.parts[4]
    pair.source.send_parts(4, token, 0, len(parts), b"".join(parts))
    pair.settle()
    payload, count = large_payload(token, len(parts), 1, 1, (1,))
    commit = pack_restated_large(read_head(journal.frames[3]), "a filter", payload, count)
    pair.source.send_large(4, token, len(parts), commit)
    pair.settle()
    assert pair.receiver.last_received_seqno == 4
    (taken,) = [one for one in pair.receiver_events if isinstance(one, LargeReceived)]
    assert taken.frame == commit
