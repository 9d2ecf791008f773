"""The source's filter, with real servers around it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from replicate.audit.query import Query
from replicate.compare.compare import compare
from replicate.daemon.orders import give
from replicate.door.partial_journal import mark_partial
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import ConfigurationError, JournalIOError, UsageError
from replicate.filters.whose_words import Content, note_content, read_content
from replicate.journal.chain import Chain
from source_server.filtering import definitions_there, filter_here
from tests.harness.filtered import applied, kinds, write_all_kinds
from tests.harness.pair import Pair
from tests.harness.servers import Daemon, Servers, point, servers
from tests.harness.waiting import wait_until_async
from tests.replicate.admin.test_subscriptions_marked import bare
from tests.replicate.door.test_partial_journal import flags
from update_process.process import serve as serve_update
from update_process.replay.audited import find_in_journals
from update_process.replay.command import require_own_words, require_whole_journal, whole_journal


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    door = open_door(made.primary)
    made.seed()
    yield made
    close_door(door)


async def street(running: Servers, pair: Pair, command: str, **settings: object) -> tuple[Daemon, Daemon]:
    """Source Server with that filter, and Update Process."""
    receiver = await running.receiver(pair.secondary, **settings)
    update = running.start("update", pair.secondary, serve_update)
    point(pair.primary, "west", receiver)
    return running.source(pair.primary, source__filter=command), update


@pytest.mark.trio
@pytest.mark.parametrize("command", ["cat", "tests.harness.filters:same"])
async def test_a_filter_that_changes_nothing_is_none(pair: Pair, command: str) -> None:
    async with servers() as running:
        source, update = await street(running, pair, command)
        last = await trio.to_thread.run_sync(lambda: write_all_kinds(pair))
        await applied(update, last)
        assert source.facts["filter"].startswith(command)
        await trio.to_thread.run_sync(lambda: give(pair.primary, "source-west", "statistics on 600"))
        await trio.to_thread.run_sync(lambda: give(pair.primary, "source-west", "statistics off"))
        lines = [fields for _, event, fields in source.log.lines if event == "statistics"]
        assert lines[-1]["filter"] == source.facts["filter"]
    equal = await trio.to_thread.run_sync(lambda: compare(pair.primary, pair.secondary, timeout_s=60))
    assert equal.equal
    assert all(flags(pair.secondary))  # that one changes nothing is not known before
    assert kinds(pair) - {"HISTORY"} == {"TRANSACTION", "RESTATED_LARGE"}


@pytest.mark.trio
async def test_what_a_filter_makes_is_sent_and_both_ends_may_have_one(pair: Pair) -> None:
    async with servers() as running:
        filters = "tests.harness.filters:loud_and_without_entries"
        source, update = await street(running, pair, filters, receiver__filter="tests.harness.filters:numbered")
        last = await trio.to_thread.run_sync(lambda: write_all_kinds(pair))
        await applied(update, last)
        assert source.facts["filter"].startswith(filters)
    assert {row[2][0] for row in pair.rows("account")} == {"O"}
    assert all(row[2].endswith("!") for row in pair.rows("account"))
    assert not pair.rows("entry")
    assert all(flags(pair.secondary))


@pytest.mark.trio
@pytest.mark.parametrize("side", ["source", "receiver"])
async def test_a_journal_in_a_filters_words_says_so_wherever_it_is_copied_to(pair: Pair, side: str) -> None:
    """From the first transaction on that comes through the filter, and none before."""
    async with servers() as running:
        source, update = await street(running, pair, "")
        await applied(update, await trio.to_thread.run_sync(lambda: pair.write(3)))
    assert flags(pair.secondary) == [False]
    require_whole_journal(bare(pair))
    filters = "tests.harness.filters:loud_and_without_entries"
    async with servers() as running:
        if side == "source":
            source, update = await street(running, pair, filters)
        else:
            source, update = await street(running, pair, "", receiver__filter=filters)
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
    assert flags(pair.secondary) == [False, True]
    assert Chain(pair.secondary.journal_directory).first_seqnos()[1] == last - 2
    assert flags(pair.primary) == [False]
    refused = (
        "the journal is that of a secondary that gets some partitions, rows or columns only, or what a filter tells"
    )
    with pytest.raises(UsageError, match=refused):
        require_whole_journal(bare(pair))
    with pytest.raises(UsageError, match=refused):
        whole_journal(bare(pair))
    with pytest.raises(UsageError, match=refused):
        whole_journal(pair.secondary.path)
    with pytest.raises(UsageError, match=refused):
        require_own_words(pair.primary, [pair.primary.path, bare(pair)])
    with pytest.raises(UsageError, match=refused):
        find_in_journals([str(bare(pair)), str(pair.primary.path)], Query(), pair.directory)
    require_whole_journal(pair.secondary.path, made_by=pair.secondary.content.uuid)
    with pytest.raises(UsageError, match=refused):  # nobody knows whose copy that goes on
        require_whole_journal(bare(pair), made_by=pair.secondary.content.uuid)
    async with servers() as running:  # what was told in other words is still there
        source, update = await street(running, pair, "")
        await applied(update, await trio.to_thread.run_sync(lambda: pair.write(1)))
    assert flags(pair.secondary) == [False, True]
    assert not source.facts.get("filter")


@pytest.mark.trio
async def test_it_says_so_before_anything_comes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the mark, and before the filter is noted."""
    noted: list[list[bool]] = []

    def note(*_args: object) -> None:
        noted.append(flags(pair.secondary))
        raise JournalIOError("died")

    monkeypatch.setattr("receiver_server.connection.note_content", note)
    async with servers() as running:
        await street(running, pair, "tests.harness.filters:loud_and_without_entries")
        await trio.to_thread.run_sync(lambda: pair.write(3))
        await wait_until_async(lambda: bool(noted), what="a connection that is to be noted")
    assert noted[0] == [True]
    assert pair.rows("account") == []


@pytest.mark.trio
async def test_one_that_fails_stops_the_stream_by_name_and_is_turned_off(pair: Pair, tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("import sys\nsys.exit('I do not know how')\n")
    async with servers() as running:
        source, update = await street(running, pair, shlex.join([sys.executable, str(program)]))
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await wait_until_async(lambda: "I do not know how" in str(source.facts.get("filter_error")))
        assert (update.facts.get("last_applied_seqno") or 0) < last
        told = await trio.to_thread.run_sync(lambda: give(pair.primary, "source-west", "filter off"))
        assert told is not None
        assert told["is_on"] is False
        await applied(update, last)
    assert len(pair.rows("account")) == 3


@pytest.mark.trio
async def test_the_restart_of_a_receiver_may_stop_it(pair: Pair) -> None:
    async with servers() as running:
        filters = "tests.harness.filters:loud_and_without_entries"
        source, update = await street(running, pair, filters, receiver__stop_source_filter=True)
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
        assert source.facts["filter"].startswith("off (")
    assert {row[2] for row in pair.rows("account")} == {"o"}


@pytest.mark.trio
async def test_a_source_with_another_filter_than_the_one_before_it_is_refused(pair: Pair) -> None:
    """As a third site that was fed through a filter by one site, and is connected to another one."""
    filters = "tests.harness.filters:loud_and_without_entries"
    before = Content("cd" * 16, "north", "other 1")
    note_content(pair.secondary.run_directory, None, before)
    async with servers() as running:
        source, update = await street(running, pair, filters)
        await wait_until_async(lambda: "FILTER_MISMATCH" in str(source.facts.get("last_error")))
        assert "came from north through other 1; east sends it through tests" in source.facts["last_error"]
        note_content(pair.secondary.run_directory, before, Content("cd" * 16, "north", source.facts["filter"]))
        last = await trio.to_thread.run_sync(lambda: pair.write(3))
        await applied(update, last)
    known = read_content(pair.secondary.run_directory)
    assert known == Content(pair.primary.content.uuid.hex(), "east", source.facts["filter"])


def test_a_peer_is_told_of_the_filter_that_what_it_gets_came_through(pair: Pair) -> None:
    """Also where the filter is gone, and what it has told is still here."""
    west = pair.secondary
    assert filter_here(west) == ""
    mark_partial(west)
    assert filter_here(west) == "an earlier filter"
    note_content(west.run_directory, None, Content("cd" * 16, "north", "mask"))
    assert filter_here(west) == "mask"
    note_content(west.run_directory, read_content(west.run_directory), Content("cd" * 16, "north", ""))
    assert filter_here(west) == "an earlier filter"
    west.change_subscription(lambda now: replace(now, wanted=(2,), held=(2,)))
    assert filter_here(west) == ""  # it has some partitions, and tells that
    assert filter_here(pair.primary) == ""


def test_the_tables_of_the_peer_are_ours_or_those_of_a_script(pair: Pair) -> None:
    script = pair.primary.path / "there.sql"
    script.write_text("CREATE TABLE person (id INTEGER PRIMARY KEY, first TEXT, last TEXT NOT NULL);")
    assert definitions_there({}, "", pair.primary) == {}
    (made,) = definitions_there({}, "there.sql", pair.primary).values()
    assert (made.region, made.table, [column.name for column in made.columns]) == (
        "main", "person", ["id", "first", "last"]
    )  # fmt: skip
    assert made.columns[2].not_null
    for setting, text in (("two=there.sql", "names no region"), ("missing.sql", "No such file")):
        with pytest.raises(ConfigurationError, match=text):
            definitions_there({}, setting, pair.primary)
    script.write_text("CREATE TABEL person")
    with pytest.raises(ConfigurationError, match="syntax error"):
        definitions_there({}, "main=there.sql", pair.primary)
