"""daemon/figures.py: status, metrics and statistics lines of all daemons say what they said before there was one table.

`figures.json` was written by the code before the table. A new figure adds a row there; none of the others may change.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from receiver_server.process import ReceiverServer
from receiver_server.returning_primary import Returning
from receiver_server.source_state import SourceState
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import FIGURES, METRICS, page
from replicate.daemon.last_heard import Heard
from replicate.daemon.statistics import Lag
from replicate.instance.file import PeerEntry
from replicate.model.clock_skew import PeerClock
from replicate.pool import control as word
from replicate.pool.receive_pool import SOURCE_LAST_SEQNO
from replicate.wire.message import UpdateState
from source_server.consumer_state import ConsumerState
from source_server.process import SourceServer
from tests.harness.servers import ListLog
from update_process.process import _Driver

KEPT = Path(__file__).with_name("figures.json")


def words(**values: int) -> list[int]:
    made = [0] * 512
    for name, value in values.items():
        made[getattr(word, name)] = value
    return made


def receive_pool(source_last_seqno: int = 0, told_s: float | None = None, **facts: Any) -> Any:
    made = {
        "memory": SimpleNamespace(bytes=64 << 20, note_home=lambda _path: None), "last_received_seqno": 0,
        "applied_seqno": 0, "durable_seqno": 0, "fullest": 0.0, "source_period_s": 0.0, "source_told_ns": 0,
        "is_connected": False, "source_told_s": lambda _now: told_s, "words": [0] * 512,
    }  # fmt: skip
    made["words"][SOURCE_LAST_SEQNO] = source_last_seqno  # type: ignore[index]
    return SimpleNamespace(**(made | facts))


async def said(context: DaemonContext, report: Callable[[], Awaitable[None]], log: ListLog) -> dict[str, Any]:
    """All three channels, now."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        await trio.sleep(301.0)  # a period, by a clock that jumps
        nursery.cancel_scope.cancel()
    (line,) = log.events("statistics")
    text = page(context.kind, context.figures, {"daemon": context.kind}).decode()
    # Families come in no order of meaning; the facts of a status are printed in theirs.
    return {"text": context.text, "facts": list(context.facts.items()), "page": sorted(text.splitlines()), "log": line}


def context_of(name: str) -> tuple[DaemonContext, ListLog]:
    log = ListLog()
    return DaemonContext(name, Path("/there"), log=cast(Any, log), state="serving"), log


async def source(change: Callable[[ConsumerState], None]) -> dict[str, Any]:
    context, log = context_of("source-west")
    door = SimpleNamespace(words=words(LAST_SEQNO=1200, LAST_DURABLE_SEQNO=1150, LAST_COMMIT_WALL_NS=5, FATAL=28))
    instance = SimpleNamespace(
        path=Path("/there"),
        consumers_directory=Path("/there/consumers"),
        peer=lambda name: PeerEntry(name, "127.0.0.1", 7430),
    )
    consumer = ConsumerState(context, cast(Any, instance), cast(Any, door), "west")
    change(consumer)
    consumer.tell(last_error=None)
    context.figures = consumer.metrics
    return await said(context, SourceServer(consumer, *[cast(Any, None)] * 4).reporting.run, log)


def streaming(consumer: ConsumerState) -> None:
    consumer.activity = "sending"
    consumer.heard.at(trio.current_time())
    progress, reading = consumer.progress, consumer.reading
    progress.last_sent_seqno, progress.last_received_seqno, progress.last_applied_seqno = 1100, 1090, 900
    progress.update_state, progress.round_trip_s = "running", 0.00012345678
    consumer.position.acknowledged(950)
    reading.from_pool, reading.from_files, reading.switches = 700, 30, 2
    consumer.statistics.batch(730, 99_000)
    consumer.statistics.count("xoff")
    consumer.refused["NOT_AUTHORISED"] += 3


def paused(consumer: ConsumerState) -> None:
    streaming(consumer)
    consumer.activity = "waiting for XON"
    consumer.progress.update_state, consumer.progress.not_applying_since_wall_ns = "not running", 77


async def receiver(change: Callable[[SourceState], None], pool: Any, directory: Path) -> dict[str, Any]:
    context, log = context_of("receiver")
    content = SimpleNamespace(partitions_here=None, told_states=None)
    instance = cast(
        Any, SimpleNamespace(path=Path("/there"), run_directory=directory, is_supplier=False, content=content)
    )
    source = SourceState(context, instance, pool, Returning(context, instance))
    change(source)
    source.tell()
    context.figures = source.metrics
    server = ReceiverServer(source, cast(Any, None), cast(Any, None), False)
    return await said(context, server.reporting.run, log)


def receiving(source: SourceState) -> None:
    link = SimpleNamespace(last_heard=trio.current_time())
    east = SimpleNamespace(link=link, peer_name="east", is_stopped=True, is_streaming=True, clock=PeerClock())
    source.active = cast(Any, east)
    source.name, source.last_seqno, source.listen, source.activity = "east", 1180, "127.0.0.1:7430", "receiving"
    source.update_state = UpdateState.RUNNING
    source.statistics.batch(730, 99_000)
    source.statistics.count("xoff", 2)
    source.statistics.count("xon")
    source.refused["SECOND_SOURCE"] += 1


def silent(source: SourceState) -> None:
    receiving(source)
    source.active = None
    source.last_refusal = "; east refused the stream: AHEAD"


async def update(pool: Any, known: int) -> dict[str, Any]:
    context, log = context_of("update")
    supplies = SimpleNamespace(is_supplier=False)
    door = SimpleNamespace(words=words(LAST_SEQNO=900, LAST_DURABLE_SEQNO=880, FATAL=5), instance=supplies)
    session = SimpleNamespace(position=SimpleNamespace(last_seqno=900), door=door)
    driver = _Driver(context, cast(Any, None), cast(Any, session))
    driver._pool = pool
    driver._statistics.batch(known, 10 * known)
    driver._statistics.count("batches", 3)
    driver._statistics.count("skipped", 1)
    context.figures = driver._figures
    return await said(context, driver.reporting.run, log)


async def all_of_them(directory: Path) -> dict[str, Any]:
    here = {"last_received_seqno": 1100, "applied_seqno": 900, "durable_seqno": 890, "fullest": 0.12345,
            "source_period_s": 2.0, "source_told_ns": 4_000_000_000, "is_connected": True}  # fmt: skip
    return {
        "source, as it begins": await source(lambda _consumer: None),
        "source, streaming": await source(streaming),
        "source, paused": await source(paused),
        "receiver, as it begins": await receiver(lambda _source: None, receive_pool(), directory),
        "receiver, receiving": await receiver(receiving, receive_pool(1180, 1.0, **here), directory),
        "receiver, silent": await receiver(silent, receive_pool(1180, 100.0, **here), directory),
        "update, no pool": await update(None, 0),
        "update, applying": await update(receive_pool(1180, 1.0, **here), 730),
        "update, silent": await update(receive_pool(1180, 100.0, **here), 730),
    }


def test_every_channel_says_what_it_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lag, "seconds", lambda _lag, applied, _now: 0.0 if applied == 1200 else 1.25)
    monkeypatch.setattr(Heard, "age_s", lambda heard: None if heard.last is None else 3.5)
    monkeypatch.setattr(Heard, "facts", lambda _heard: {"last_heard_monotonic_ns": 7, "boot": 9})
    found = trio.run(all_of_them, tmp_path, clock=MockClock(autojump_threshold=0))
    assert json.loads(json.dumps(found)) == json.loads(KEPT.read_text())


UNUSED = {
    *("filter", "filter_error"),
    *("patrol", "patrol_verified_rows", "patrol_age_s", "patrol_passed", "patrol_different"),
    *("index_entries", "index_age_s", "index_left_out", "index_damaged"),
    *("merged_total", "lost_total"),
    *("partition_here", "partition_states", "partition_copied", "partition_seqno", "partition_origin_seqno"),
    *("partition_applied", "partition_rows", "partition_bytes", "partition_sent", "partition_sent_bytes"),
    *("partition_kept_back", "partition_kept_back_bytes", "partition_backlog", "partition_lag_s"),
    *("kept_back", "kept_back_bytes"),
    "schema_fence_s",
}
"""What nobody says who has no filter, has not heard of the patrol, is no supplier, or has all partitions."""


@pytest.mark.parametrize("daemon", ["source", "receiver", "update"])
def test_a_row_says_where_its_figure_stands(daemon: str) -> None:
    said = [one for name, one in json.loads(KEPT.read_text()).items() if name.partition(",")[0] == daemon]
    in_log = {name for one in said for name in one["log"]}
    told = {name for name, row in FIGURES.items() if row.is_in(daemon, "log")} - UNUSED
    if daemon != "update":  # it tells its status where it works, and counts what it has met
        in_status = {name for one in said for name, _ in one["facts"]}
        others = {"last_heard_monotonic_ns", "boot", "told_monotonic_ns", "last_error", "statistics_period_s"}
        rows = {name for name, row in FIGURES.items() if row.is_in(daemon, "status")}
        assert in_status - others == rows - UNUSED
        assert told <= in_log
    measured = {name for name in in_log if name in FIGURES}
    assert measured <= told
    every = {name for name, row in METRICS.items() if row.where == "every metric"}
    of_disk = every - {"dualsite_connected_state", "dualsite_known_state"}
    on_page = {line.split()[2] for one in said for line in one["page"] if line.startswith("# TYPE")}
    unused = {name for name, row in METRICS.items() if row.name in UNUSED}
    assert on_page == {name for name, row in METRICS.items() if row.is_in(daemon, "metric")} - of_disk - unused


def test_a_status_has_no_age_which_would_have_its_file_written_each_second() -> None:
    ages = {name: row for name, row in FIGURES.items() if name.endswith("_age_s")}
    assert ages
    for daemon in ("source", "receiver", "update"):
        assert [name for name, row in ages.items() if row.is_in(daemon, "status")] == []
