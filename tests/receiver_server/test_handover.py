"""What a secondary answers when it is to be primary, and what it does not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from receiver_server.handover import RoleTaker
from replicate.daemon.daemon import DaemonContext
from replicate.errors import TryAgainError
from replicate.wire.message import Handover, HandoverDone
from tests.harness.pair import Pair
from tests.harness.servers import ListLog

pytestmark = pytest.mark.trio


class Told:
    """A connection that keeps what is said on it."""

    peer_name = "primary"

    def __init__(self, role: str, received: int) -> None:
        self.said: list[Any] = []
        self.link = SimpleNamespace(
            can_exchange_roles=True,
            say_handover=self.said.append,
            peer=SimpleNamespace(role=role),
            last_received_seqno=received,
        )
        self.drive = SimpleNamespace(poke=lambda: None)


@pytest.mark.parametrize(
    ("role", "beyond", "why"),
    [("primary", 0, "is primary itself"), ("secondary", 1, "the role is handed over after transaction")],
)
async def test_a_role_that_was_not_given_or_at_another_place_is_not_taken(
    pair: Pair, role: str, beyond: int, why: str
) -> None:
    context = DaemonContext("receiver", pair.secondary.path, log=cast(Any, ListLog()))
    taker, last = RoleTaker(context, pair.secondary), 5
    told = Told(role, last)
    async with trio.open_nursery() as nursery:
        taker.nursery = nursery
        taker.heard(cast(Any, told), Handover(last + beyond))
    (done,) = told.said
    assert isinstance(done, HandoverDone)
    assert (done.exit_code, why in done.text) == (75, True)
    pair.secondary.reload()
    assert pair.secondary.role == "secondary"
    assert not taker.is_taking


async def test_a_wish_without_a_source_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver_server.handover.COMES_S", 0.01)
    context = DaemonContext("receiver", pair.secondary.path, log=cast(Any, ListLog()))
    with pytest.raises(TryAgainError, match="no source serves"):
        await RoleTaker(context, pair.secondary).wish(1, dry_run=False)
