"""The source's side of the patrol: where it stands, and when it may go."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from replicate.admin import partitions
from replicate.compare.patrol_rounds import Place
from replicate.errors import InternalError
from replicate.filters.rows import RowSelection
from replicate.filters.selection import PartitionSelection
from replicate.pool import control as word
from replicate.settings.table import SourceConfig
from replicate.wire.message import Check, UpdateState
from source_server.consumer_state import ConsumerProgress
from source_server.link import SourceLink
from source_server.patrol import AHEAD_MAX, BACKLOG_MAX, Patrol, RoundStanding, keep_standing, place_path, read_standing
from tests.harness.link_pair import ConnectionPair, Journal, connected
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

CHECK = Check(5, 1, True, 2, "main", "t", b"", b"", 0, bytes(16))


@pytest.mark.parametrize(
    "standing",
    [
        RoundStanding(7, None),
        RoundStanding(7, Place(7)),
        RoundStanding(7, Place(7, 3, "main", "t", ("a", 1, b"\xff"))),
    ],
)
def test_it_is_kept_where_it_stands(tmp_path: Path, standing: RoundStanding) -> None:
    assert read_standing(tmp_path, "west") == RoundStanding()
    keep_standing(tmp_path, "west", standing)
    assert read_standing(tmp_path, "west") == standing
    assert read_standing(tmp_path, "east") == RoundStanding()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "[" * 5000])
def test_what_makes_no_sense_is_the_beginning(tmp_path: Path, text: str) -> None:
    place_path(tmp_path, "west").write_text(text)
    assert read_standing(tmp_path, "west") == RoundStanding()


class Link:
    """What a patrol asks of its link."""

    def __init__(self) -> None:
        self.can_send_bulk = True
        self.knows_patrol = True
        self.sent: list[Check] = []
        self.last_sent_seqno = 10**9
        self.asked = 0

    def can_send_check(self, seqno: int) -> bool:
        self.asked += 1
        return self.can_send_bulk and seqno <= self.last_sent_seqno

    def send_check(self, check: Check) -> None:
        self.sent.append(check)


class Consumer:
    """And of its consumer."""

    def __init__(self, pair: Pair, **settings: Any) -> None:
        self.instance, self.peer_name = pair.primary, "west"
        self.indexes = SimpleNamespace(goes=False, beside="")
        quick = {"patrol_percent": 100.0, "patrol_round_s": 1000.0, "patrol_speed_mb": 1000.0}
        self.settings = replace(SourceConfig(), **{**quick, **settings})
        self.progress = ConsumerProgress(last_applied_seqno=10**9, update_state=UpdateState.RUNNING.text)
        appended = {word.REGION_APPENDED + one.region_id: 10**9 for one in pair.primary.regions}
        self.words = {word.LAST_SEQNO: 10**9, **appended}
        self.progressed = trio.Event()
        self.said: list[tuple[object, ...]] = []

    def say(self, *what: object, **_facts: object) -> None:
        self.said.append(what)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr("source_server.patrol.LOOK_S", 0.01)
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 2)
    made = Pair.create(tmp_path)
    made.write(200)
    return made


def patrol_of(consumer: Consumer, link: Link, goes: Any = None) -> Patrol:
    drive = SimpleNamespace(closed=None, poke=lambda: None)
    return Patrol(cast(Any, consumer), cast(Any, link), cast(Any, drive), goes)


async def walked(consumer: Consumer, link: Link, until: int) -> None:
    """Let it go until it has told of so many ranges."""
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol_of(consumer, link).run)
            await wait_until_async(lambda: len(link.sent) >= until)
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_round_and_where_it_was_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, link = Consumer(pair), Link()
    looks: list[None] = []
    monkeypatch.setattr("source_server.patrol.is_within", lambda *_: looks.append(None) or True)
    await walked(consumer, link, 3)
    told = len(link.sent)
    await walked(consumer, link, told + 1)
    assert [check.number for check in link.sent[: told + 1]] == list(range(1, told + 2))  # it went on where it was
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol_of(consumer, link).run)
            await wait_until_async(lambda: link.sent[-1].is_last)
            # The next one is not due, however often that is looked at.
            patrol_looks = len(looks)
            await wait_until_async(lambda: len(looks) > patrol_looks + 3)
            nursery.cancel_scope.cancel()
    assert [check.is_last for check in link.sent].count(True) == 1  # the next round is not due
    assert read_standing(pair.primary.run_directory, "west").place is None
    assert consumer.indexes.beside == ""
    assert {check.table for check in link.sent} >= {"", "account"}


FILTERS = {("main", "account"): "id = 1"}, {("main", "account"): "COLUMNS (id)"}, {("side", "account"): "id = 1"}


@pytest.mark.parametrize(
    ("selection", "goes"),
    [
        (None, True),
        (PartitionSelection(None, {}), True),
        (PartitionSelection([1, 2], {}), True),
        (PartitionSelection([2], {}), False),
        (RowSelection(FILTERS[0], {}), False),
        (RowSelection(FILTERS[1], {}), False),
        (RowSelection(FILTERS[2], {}), True),
        (RowSelection(FILTERS[2], {}, PartitionSelection([2], {})), False),
    ],
)
@pytest.mark.trio
async def test_of_a_table_that_does_not_go_whole_nothing_is_digested(
    pair: Pair, selection: PartitionSelection | RowSelection | None, *, goes: bool
) -> None:
    """And the round comes to its end."""
    consumer, link = Consumer(pair), Link()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol_of(consumer, link, selection and selection.goes_whole).run)
            await wait_until_async(lambda: bool(link.sent) and link.sent[-1].is_last)
            nursery.cancel_scope.cancel()
    checks = [check for check in link.sent if check.table == "account"]
    if goes:
        assert len(checks) > 1
        assert sum(check.rows for check in checks) == 200
    else:
        (check,) = checks
        assert (check.after, check.upto, check.rows, check.digest) == (b"", b"", 0, bytes(16))


@pytest.mark.trio
async def test_of_what_is_in_none_no_key_and_no_digest_leaves(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through real servers."""
    partitions.assign(pair.primary, "NONE", ["account"])
    with pair.connect() as connection:
        connection.execute("INSERT INTO entry VALUES ('now', 1.5, NULL)")
    pair.seed(restart=True)
    sent: list[Check] = []
    send = SourceLink.send_check
    monkeypatch.setattr(SourceLink, "send_check", lambda link, check: (sent.append(check), send(link, check)))
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        running.source(pair.primary, source__patrol_percent=100.0, source__patrol_round_s=1.0)
        await wait_until_async(lambda: bool(sent) and sent[-1].is_last)
        assert update.facts
    assert any(check.rows for check in sent if check.table)
    assert {(check.upto, check.rows) for check in sent if check.table == "account"} == {(b"", 0)}


@pytest.mark.parametrize("why", ["percent", "filter", "release"])
@pytest.mark.trio
async def test_there_is_none(pair: Pair, why: str) -> None:
    settings = {"percent": {"patrol_percent": 0.0}, "filter": {"filter": "cat"}}.get(why, {})
    consumer, link = Consumer(pair, **settings), Link()
    link.knows_patrol = why != "release"
    with trio.fail_after(5):
        await patrol_of(consumer, link).run()
    assert not link.sent


@pytest.mark.parametrize("why", ["backlog", "paused", "not applying", "ahead"])
@pytest.mark.trio
async def test_it_rests(pair: Pair, why: str) -> None:
    consumer, link = Consumer(pair), Link()
    patrol = patrol_of(consumer, link)
    assert patrol._may_go()
    if why == "backlog":
        consumer.words[word.LAST_SEQNO] += BACKLOG_MAX + 1
    elif why == "paused":
        link.can_send_bulk = False
    elif why == "not applying":
        consumer.progress.update_state = UpdateState.NOT_RUNNING.text
    else:
        patrol._ahead.extend([10**9 + 1] * AHEAD_MAX)
    assert not patrol._may_go()


@pytest.mark.trio
async def test_a_check_waits_until_its_transaction_was_sent(pair: Pair) -> None:
    consumer, link = Consumer(pair), Link()
    link.last_sent_seqno = 0
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol_of(consumer, link).run)
            await wait_until_async(lambda: bool(consumer.indexes.beside))
            await wait_until_async(lambda: link.asked > 3)
            assert not link.sent
            link.last_sent_seqno = 10**9
            await wait_until_async(lambda: bool(link.sent))
            nursery.cancel_scope.cancel()
    assert link.sent[0].number == 1


@pytest.mark.parametrize("appended", [0, 10**9])
@pytest.mark.trio
async def test_a_region_that_nobody_writes_is_told_at_the_journals_last_number(pair: Pair, appended: int) -> None:
    """Not where it may lack what was appended for it."""
    consumer, link = Consumer(pair), Link()
    (region,) = pair.primary.regions
    own = pair.last_seqno()
    consumer.words[word.LAST_SEQNO], link.last_sent_seqno = own + 7, own + 7
    consumer.words[word.REGION_APPENDED + region.region_id] = appended
    await walked(consumer, link, 3)
    assert {check.seqno for check in link.sent} == {own if appended else own + 7}


@pytest.mark.trio
async def test_a_table_that_cannot_be_read_is_said_and_counts_as_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from replicate.compare import range_check
    from replicate.errors import RegionDamagedError

    def broken(instance: Any, place: Place, goes: Any) -> range_check.Taken:
        taken = range_check.take_range(instance, place, goes)
        if taken.check is not None and taken.check.table == "account":
            raise RegionDamagedError("database disk image is malformed")
        return taken

    monkeypatch.setattr("source_server.patrol.take_range", broken)
    consumer, link = Consumer(pair), Link()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol_of(consumer, link).run)
            await wait_until_async(lambda: bool(link.sent) and link.sent[-1].is_last)
            nursery.cancel_scope.cancel()
    assert [said[:2] for said in consumer.said] == [("the patrol cannot read", "main.account")]
    numbers = [check.number for check in link.sent]
    assert sorted({*range(1, numbers[-1] + 1)} - {*numbers}) == [2]
    assert "account" not in {check.table for check in link.sent}


def test_a_link_sends_no_check_of_what_was_not_sent() -> None:
    pair = ConnectionPair()
    connected(pair)
    journal = Journal()
    journal.write(3)
    with pytest.raises(InternalError):
        pair.source.send_check(CHECK)
    pair.source.send_batch(journal.batch(1, 2))
    assert not pair.source.can_send_check(2)  # nothing may overtake it
    pair.settle()
    assert pair.source.can_send_check(2)
    assert not pair.source.can_send_check(3)
    pair.source.send_check(CHECK)
    pair.settle()
