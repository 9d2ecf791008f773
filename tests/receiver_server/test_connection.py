"""The receiver's filter, with real servers around it: what goes through, what stops, and what is switched."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from replicate.compare.compare import compare
from replicate.daemon.control import DaemonFailedError
from replicate.daemon.orders import give
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import ConfigurationError
from tests.harness.filtered import applied, kinds, write_all_kinds
from tests.harness.pair import Pair
from tests.harness.servers import Daemon, Servers, point, servers
from tests.harness.waiting import wait_until_async
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    door = open_door(made.primary)
    made.seed()
    yield made
    close_door(door)


async def street(running: Servers, pair: Pair, command: str, **settings: object) -> tuple[Daemon, Daemon]:
    """Receiver Server and Update Process of the secondary, and the Source Server: the first two."""
    receiver = await running.receiver(pair.secondary, receiver__filter=command, **settings)
    update = running.start("update", pair.secondary, serve_update)
    point(pair.primary, "west", receiver)
    running.source(pair.primary)
    return receiver, update


@pytest.mark.parametrize("command", ["cat", "tests.harness.filters:same"])
async def test_a_filter_that_changes_nothing_is_none(pair: Pair, command: str) -> None:
    async with servers() as running:
        receiver, update = await street(running, pair, command, receiver__statistics_period_s=0.2)
        last = await trio.to_thread.run_sync(lambda: write_all_kinds(pair))
        await applied(update, last)
        assert receiver.facts["filter"].startswith(command)
        await wait_until_async(lambda: bool(receiver.log.events("statistics")))
        assert receiver.log.events("statistics")[-1]["filter"] == receiver.facts["filter"]
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal
    assert kinds(pair) == {"HISTORY", "TRANSACTION", "RESTATED_LARGE"} or kinds(pair) == {
        "TRANSACTION",
        "RESTATED_LARGE",
    }


async def test_rows_are_told_in_other_words_under_the_same_numbers(pair: Pair) -> None:
    async with servers() as running:
        _, update = await street(running, pair, "tests.harness.filters:loud_and_without_entries")
        last = await trio.to_thread.run_sync(lambda: write_all_kinds(pair))
        await applied(update, last)
    assert pair.last_seqno(pair.secondary) == last
    notes = {row[3] for row in pair.rows("account")}
    assert "O" in {row[2] for row in pair.rows("account")}, notes
    assert not pair.rows("entry")
    assert {"RESTATED", "RESTATED_LARGE"} <= kinds(pair)


async def test_a_filter_that_fails_stops_the_stream_by_name_and_it_goes_on_when_that_is_mended(
    pair: Pair, tmp_path: Path
) -> None:
    program = tmp_path / "mended.py"
    program.write_text("import sys\nsys.exit('I do not know how')\n")
    async with servers() as running:
        receiver, update = await street(running, pair, shlex.join([sys.executable, str(program)]))
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await wait_until_async(lambda: "I do not know how" in str(receiver.facts.get("filter_error")))
        assert "the filter" in receiver.context.text
        assert (update.facts.get("last_applied_seqno") or 0) < last
        program.write_text("import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n")
        await applied(update, last)
        await wait_until_async(lambda: receiver.facts.get("filter_error") == "")
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal


async def test_one_that_dies_within_a_large_transaction_is_given_it_again(pair: Pair, tmp_path: Path) -> None:
    """Its first parts are in the receive pool by then, and applied in an open transaction."""
    marker, program = tmp_path / "died", tmp_path / "mortal.py"
    program.write_text(
        "import os, sys\n"
        "for number, line in enumerate(sys.stdin):\n"
        f"    if number == 1500 and not os.path.exists({str(marker)!r}):\n"
        f"        open({str(marker)!r}, 'w').close()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    print(line, end='', flush=line.startswith(('{\"end', '{\"hello')))\n"
    )
    async with servers() as running:
        receiver, update = await street(running, pair, shlex.join([sys.executable, str(program)]))
        last = await trio.to_thread.run_sync(lambda: write_all_kinds(pair))
        await applied(update, last)
        assert receiver.log.events("the filter failed"), "it has died"
        assert "killed by SIGKILL" in receiver.log.events("the filter failed")[0]["error"]
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal


async def test_it_is_turned_off_and_on_at_the_border_of_two_transactions(pair: Pair) -> None:
    async with servers() as running:
        receiver, update = await street(running, pair, "tests.harness.filters:loud_and_without_entries")
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
        done = await trio.to_thread.run_sync(lambda: give(pair.secondary, "receiver", "filter off"))
        assert done is not None
        assert done["is_on"] is False
        await wait_until_async(lambda: receiver.facts["filter"].startswith("off ("))
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
        done = await trio.to_thread.run_sync(lambda: give(pair.secondary, "receiver", "filter on"))
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
    assert [row[2] for row in pair.rows("account")] == ["O"] * 3 + ["o"] * 3 + ["O"] * 3


async def test_none_can_be_inserted_where_none_was_configured(pair: Pair) -> None:
    async with servers() as running:
        receiver, _ = await street(running, pair, "")
        with pytest.raises(Exception, match="none can be inserted") as caught:
            await trio.to_thread.run_sync(lambda: give(pair.secondary, "receiver", "filter on"))
        assert isinstance(caught.value, DaemonFailedError)
        assert caught.value.own_exit_code == ConfigurationError.exit_code
        assert "filter" not in receiver.facts
