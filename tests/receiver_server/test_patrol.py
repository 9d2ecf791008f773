"""The secondary's side of the patrol."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from msgspec.structs import replace

from receiver_server.patrol import WAITING_MAX, PatrolFound, Verifying
from replicate.admin.regions import add_region
from replicate.compare.patrol_found import Outcome, RangeVerdict, forget_patrolled, look_at_patrolled, settle_patrolled
from replicate.compare.patrol_rounds import Place
from replicate.compare.range_check import take_range, verify
from replicate.daemon.index_patrol import IndexPatrol
from replicate.errors import BusyError, JournalIOError, RegionDamagedError
from replicate.instance.instance import Instance
from replicate.wire.message import Check
from tests.harness.conflicting import spoil_database
from tests.harness.instances import with_settings
from tests.harness.pair import SMALL, Pair
from tests.harness.waiting import wait_until_async


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr("receiver_server.patrol.LOOK_S", 0.001)
    made = Pair.create(tmp_path)
    made.seed()
    made.write(5)
    return made


def found_of(pair: Pair) -> PatrolFound:
    instance = pair.secondary
    return PatrolFound(instance.path, IndexPatrol(instance, instance.config.receiver, structlog.get_logger()))


def checks_of(pair: Pair) -> list[Check]:
    place: Place | None = Place(7)
    found = []
    while place is not None:
        taken = take_range(pair.primary, place)
        assert taken.check is not None
        found.append(taken.check)
        place = taken.place
    return found


async def verified(pair: Pair, checks: list[Check], *, is_filtered: bool = False) -> tuple[PatrolFound, list[str]]:
    """What is found of these, and what was said of differences."""
    found, said = found_of(pair), list[str]()
    verifying = Verifying(pair.secondary, found, structlog.get_logger(), "east", is_filtered=is_filtered)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifying.run, lambda: 0, said.append)
            for check in checks:
                verifying.heard(check)
            last = checks[:WAITING_MAX][-1].number
            await wait_until_async(lambda: last in (found.now.here.told, found.now.whole.told))
            await wait_until_async(lambda: len(said) == len(found.now.different))
            nursery.cancel_scope.cancel()
    return found, said


@pytest.mark.trio
async def test_a_round_is_verified_and_kept(pair: Pair) -> None:
    pair.catch_up()
    found, said = await verified(pair, checks_of(pair))
    assert (found.now.whole.rows, found.now.whole.passed, said) == (5, 0, [])
    assert look_at_patrolled(pair.secondary.path) == found.now
    figures = found_of(pair).figures(found.now.whole.began_wall_ns + 5 * 10**9)
    assert figures == {"patrol_verified_rows": 5, "patrol_age_s": 5.0, "patrol_passed": 0, "patrol_different": 0}


def test_nothing_is_known_before(pair: Pair) -> None:
    assert found_of(pair).figures(0) == {}


@pytest.mark.trio
async def test_it_waits_for_the_transaction_and_holds_up_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Outcome] = []

    def looked(*words: Any) -> RangeVerdict:
        verdict = verify(*words)
        looks.append(verdict.outcome)
        return verdict

    monkeypatch.setattr("receiver_server.patrol.verify", looked)
    found = found_of(pair)
    verifying = Verifying(pair.secondary, found, structlog.get_logger(), "east", is_filtered=False)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifying.run, lambda: 0, print)
            for check in checks_of(pair):
                verifying.heard(check)
            await wait_until_async(lambda: len(looks) > 2)
            assert (set(looks), found.now.here.told) == ({Outcome.NOT_YET}, 0)
            await trio.to_thread.run_sync(pair.catch_up)
            await wait_until_async(lambda: found.now.whole.told > 0)
            nursery.cancel_scope.cancel()
    assert found.now.whole.rows == 5


@pytest.mark.trio
async def test_what_differs_is_said_and_kept_until_it_is_settled(pair: Pair) -> None:
    pair.catch_up()
    checks = [replace(check, rows=check.rows + 1) if check.table == "account" else check for check in checks_of(pair)]
    found, said = await verified(pair, checks)
    (one,) = found.now.different
    assert said == [one.brief]  # a source is told of it, and no key of a row
    assert one.keys in str(one)
    assert one.keys not in one.brief
    assert (one.table, one.rows, one.source_rows) == ("account", 5, 6)
    assert look_at_patrolled(pair.secondary.path).different == (one,)
    settle_patrolled(pair.secondary.path)
    assert found.look().different == ()
    assert found.now.whole.rows == 0


def flip_in_page(region: Path, text: bytes, by: int) -> None:
    """Change a bit of the first page that holds a text, as a disk does it: nobody is told."""
    with closing(sqlite3.connect(region)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(region.read_bytes())
    data[data.index(text) + by] ^= 1
    region.write_bytes(data)


PLANTED = {
    "a value": "UPDATE account SET note = 'another' WHERE id = 3",
    "a storage class": "UPDATE account SET note = CAST(note AS BLOB) WHERE id = 3",
    "a row too few": "DELETE FROM account WHERE id = 5",
    "a row too many": "INSERT INTO account (owner, note) VALUES ('o', 'more')",
    "a key": "UPDATE account SET id = 77 WHERE id = 1",
    "two rows exchanged": "UPDATE account SET note = CASE id WHEN 1 THEN 'row 2' ELSE 'row 1' END WHERE id < 3",
    "a value in a page": "",
    "the head of a page": "",
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.trio
async def test_what_nobody_was_told_of_is_found_within_one_round(pair: Pair, planted: str) -> None:
    with closing(pair.connect()) as connection:
        for row in (1, 2):
            connection.execute("UPDATE account SET note = ? WHERE id = ?", (f"row {row}", row))
            connection.commit()
    pair.catch_up()
    region = pair.secondary.regions[0].path
    if PLANTED[planted]:
        spoil_database(region, PLANTED[planted])
    elif planted == "a value in a page":
        flip_in_page(region, b"row 2", 4)
    else:
        with closing(sqlite3.connect(region)) as other:
            (root,) = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'account'").fetchone()
            (size,) = other.execute("PRAGMA page_size").fetchone()
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(region.read_bytes())
        data[(root - 1) * size] ^= 0xFF
        region.write_bytes(data)
    found, said = await verified(pair, checks_of(pair))
    assert len(said) == 1, (planted, found.now)
    assert {one.table for one in found.now.different} == {"account"}


@pytest.mark.trio
async def test_a_third_site_is_verified_against_the_secondary_that_sends_to_it(pair: Pair) -> None:
    pair.catch_up()
    network = pair.primary.content.network
    third = with_settings(Instance.create(pair.directory / "far", role="secondary", name="far", network=network), SMALL)
    pair.secondary.register_peer("far", "127.0.0.1", 7431)
    pair.secondary.reload()
    beyond = Pair(pair.directory, pair.secondary, third)
    beyond.seed()
    found, said = await verified(beyond, checks_of(beyond))
    assert (found.now.whole.rows, found.now.whole.passed, said) == (5, 0, [])
    forget_patrolled(third.path)
    spoil_database(third.regions[0].path, PLANTED["a value"])
    found, said = await verified(beyond, checks_of(beyond))
    assert [one.table for one in found.now.different] == ["account"]
    assert len(said) == 1


@pytest.mark.trio
async def test_a_region_that_came_while_it_runs_is_verified(pair: Pair) -> None:
    knows_none = Instance.open(pair.secondary.path)
    database = pair.primary.path.parent / "side.db"
    with closing(sqlite3.connect(database)) as other:
        other.execute("CREATE TABLE side (id INTEGER PRIMARY KEY)")
    add_region(pair.primary, database, name="side")
    pair.catch_up()
    found = found_of(pair)
    verifying = Verifying(knows_none, found, structlog.get_logger(), "east", is_filtered=False)
    (check,) = [one for one in checks_of(pair) if (one.region, one.table) == ("side", "side")]
    assert (await verifying._verify(check, 0)).outcome is Outcome.EQUAL


@pytest.mark.trio
async def test_beyond_a_filter_nothing_is_called_equal(pair: Pair) -> None:
    pair.catch_up()
    found, said = await verified(pair, checks_of(pair), is_filtered=True)
    assert (found.now.whole.rows, found.now.whole.passed, said) == (0, len(checks_of(pair)), [])
    assert "a filter is set here" in found.now.whole.why


@pytest.mark.trio
async def test_more_than_may_wait_is_lost_and_said_so(pair: Pair) -> None:
    pair.catch_up()
    (check, *_) = checks_of(pair)
    many = [replace(check, number=number, is_last=False) for number in range(1, WAITING_MAX + 50)]
    found, _ = await verified(pair, many)
    assert found.now.here.told == WAITING_MAX
    again, _ = await verified(pair, [replace(check, number=WAITING_MAX + 50, is_last=True)])
    assert again.now.whole.passed == 49


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RegionDamagedError("database disk image is malformed"), Outcome.DIFFERENT),
        (BusyError("locked"), Outcome.NOT_YET),
        (JournalIOError("a disk"), Outcome.PASSED),
    ],
)
@pytest.mark.trio
async def test_what_cannot_be_verified(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: Outcome
) -> None:
    def fails(*_: object) -> RangeVerdict:
        raise error

    monkeypatch.setattr("receiver_server.patrol.verify", fails)
    verifying = Verifying(pair.secondary, found_of(pair), structlog.get_logger(), "east", is_filtered=False)
    found = await verifying._verify(checks_of(pair)[0], 0)
    assert found.outcome is outcome


async def heard_by(pair: Pair, checks: list[Check], until: Any = None) -> PatrolFound:
    """By a Receiver Server that was just started, until it ends: when it has verified all, or as soon as `until` is."""
    found = found_of(pair)
    verifying = Verifying(pair.secondary, found, structlog.get_logger(), "east", is_filtered=False)
    last = checks[-1]

    def is_done() -> bool:
        rounds = (found.now.here, found.now.whole)
        return (last.round_wall_ns, last.number) in [(one.began_wall_ns, one.told) for one in rounds]

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifying.run, lambda: 0, print)
            for check in checks:
                verifying.heard(check)
            await wait_until_async(until or is_done)
            nursery.cancel_scope.cancel()
    return found


def next_round(checks: list[Check]) -> list[Check]:
    return [replace(check, round_wall_ns=check.round_wall_ns + 1) for check in checks]


@pytest.mark.trio
async def test_ranges_that_wait_when_the_server_ends_are_lost_told_and_verified_by_the_next_round(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Update Process has not come to their transaction: it does so while no Receiver Server runs."""
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 1)
    checks = checks_of(pair)
    assert len(checks) > 5
    looks: list[Outcome] = []

    def looked(*words: Any) -> RangeVerdict:
        verdict = verify(*words)
        looks.append(verdict.outcome)
        return verdict

    monkeypatch.setattr("receiver_server.patrol.verify", looked)
    await heard_by(pair, checks[:4], lambda: len(looks) > 2)
    assert set(looks) == {Outcome.NOT_YET}
    assert look_at_patrolled(pair.secondary.path).here.told == 0
    pair.catch_up()  # nobody hears of ranges meanwhile
    spoil_database(pair.secondary.regions[0].path, PLANTED["a value"])
    found = await heard_by(pair, checks[4:])  # the source goes on where it was
    assert (found.now.whole.passed, found.now.whole.why) == (4, "it was lost on the way")
    found = await heard_by(pair, next_round(checks))
    assert found.now.whole.passed == 0
    assert [one.table for one in found.now.different] == ["account"]


@pytest.mark.trio
async def test_a_round_whose_end_was_lost_is_never_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 1)
    pair.catch_up()
    checks = checks_of(pair)
    found = await heard_by(pair, checks[:-1])
    assert (found.now.here.told, found.now.whole.ended_wall_ns) == (len(checks) - 1, 0)
    found = await heard_by(pair, next_round(checks))
    assert (found.now.whole.began_wall_ns, found.now.whole.rows, found.now.whole.passed) == (8, 5, 0)


@pytest.mark.trio
async def test_what_a_killed_server_had_not_kept_counts_as_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has verified more than the file says: that is never the other way round."""
    monkeypatch.setattr("replicate.compare.range_check.ROWS_MAX", 1)
    pair.catch_up()
    checks = checks_of(pair)
    with monkeypatch.context() as killed:
        killed.setattr(PatrolFound, "keep", lambda _found: None)
        await heard_by(pair, checks[:3])
    found = await heard_by(pair, checks[3:])
    assert (found.now.whole.rows, found.now.whole.passed) == (5 - 2, 3)
