"""The Source Server asked for audit elements: what makes no sense alone, and a release that knows none, is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.admin.partitions import create, place_element
from replicate.door.recovery.opening import close_door, open_door
from replicate.instance.instance import Instance
from replicate.model.subscription import Subscription
from source_server.link import SourceLink
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Definitions are in partition 2, indexes in 3; the secondary has not been told."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    for element, name in (("DEFINITION", "defs"), ("STORAGE", "indexes")):
        create(made.primary, name)
        place_element(made.primary, element, name)
    made.primary = Instance.open(made.primary.path)
    made.seed()
    door = open_door(made.primary)
    yield made
    close_door(door)


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    ("held", "refused"),
    [
        ((1, 2, 3), ""),
        ((1, 2), "west does not ask for STORAGE, and its release knows no definitions without that"),
        ((1,), "west does not ask for DEFINITION, and its release"),
        ((1, 3), "west asks for STORAGE (partition indexes), and not for DEFINITION (partition defs)"),
        (None, ""),
    ],
)
async def test_what_is_asked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, held: tuple[int, ...] | None, refused: str, is_older: bool
) -> None:
    if is_older:
        monkeypatch.setattr(SourceLink, "can_leave_out_elements", False)
    elif "release" in refused:
        refused = ""
    pair.secondary.change_subscription(lambda _: Subscription(held, held))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        if refused:
            await wait_until_async(lambda: refused in str(source.facts.get("last_error")))
            return
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        pair.write(3)
        last = pair.last_seqno()
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
