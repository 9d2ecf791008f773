"""seeing/history.py: curves and events of logs and of statuses, each thing told once, in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from replicate.logs.line import US, LogLine, read_line
from replicate.logs.story import MARKS_MAX, LogMark, MarkKind
from replicate.seeing.history import EVENTS_MAX, SPANS_MAX, SeenHistory
from replicate.status.report import Status
from tests.harness.logs import SOURCE, START_US, UPDATE, line, statistics
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, REGION, RUNS

PRIMARY = Status("east", "primary", "/srv/east", "n", "u", 1, 0, JOURNAL, (REGION,), (PEER,), None, "", ())
SECONDARY = replace(PRIMARY, name="west", role="secondary", peers=(), receiving=RECEIVING)


def told(at_s: float, transactions: int = 10, **fields: Any) -> LogLine:
    found = read_line(statistics(at_s, SOURCE, transactions, **fields))
    assert found is not None
    return found


def written(seqno: int, **peer: Any) -> Status:
    return replace(PRIMARY, journal=replace(JOURNAL, last_written_seqno=seqno), peers=(replace(PEER, **peer),))


def us(second: float) -> int:
    return START_US + round(second * US)


def test_the_past_is_there_before_anybody_has_looked() -> None:
    history = SeenHistory(0)
    history.line(told(10, 50, lag_s_max=2.5, backlog_max=7, last_written_seqno=100))
    history.line(told(20, 30, lag_s_max=None, backlog_max=None, backlog_at_least_max=9, last_written_seqno=140))
    lag = history.curves["source-west", "lag_s"].columns(us(0), us(20), 2)
    assert [point.value for point in lag] == [2.5, None]
    backlog = history.curves["source-west", "backlog"].columns(us(0), us(20), 2)
    assert [(point.value, point.is_at_least) for point in backlog] == [(7, False), (9, True)]
    assert [point.value for point in history.curves["source-west", "per_s"].columns(us(0), us(20), 2)] == [5.0, 3.0]
    assert history.curves["journal", "per_s"].lately(us(20)).value == 4.0
    assert history.per_s("sent:west", us(20)) == 3.0
    assert history.per_s("written", us(20)) == 4.0
    assert history.per_s("sent:west", us(60)) is None
    assert history.per_s("sent:nobody", us(20)) is None


def test_a_rate_is_what_passed_in_the_last_seconds() -> None:
    history = SeenHistory(0)
    for second, seqno in enumerate([100, 110, 120, 120, 120, 120]):
        history.status(written(seqno, last_sent_seqno=seqno), us(second))
        if second == 0:
            assert history.per_s("written", us(0)) is None
        if second == 2:
            assert history.per_s("written", us(2)) == 10.0
            assert history.per_s("sent:west", us(2)) == 10.0
    assert history.per_s("written", us(5)) == 0.0


def test_two_looks_close_together_are_no_rate() -> None:
    """A daemon tells once a second: what it told between the two passed in all of that second."""
    history = SeenHistory(0)
    for look, seqno in enumerate([100, 140, 140, 140, 180]):
        history.status(written(seqno, last_sent_seqno=seqno), us(0.4 * look))
        rate = history.per_s("sent:west", us(0.4 * look))
        assert rate == (None if look < 4 else pytest.approx(50.0))


def test_another_journal_is_no_negative_rate_and_after_a_pause_of_looking_nothing_is_drawn_between() -> None:
    history = SeenHistory(0)
    history.status(written(100), us(0))
    history.status(written(5), us(1))
    assert history.per_s("written", us(1)) is None
    history.status(written(10), us(500))
    assert history.per_s("written", us(500)) is None
    points = history.curves["source-west", "lag_s"].columns(us(0), us(500), 5)
    assert [point.value for point in points] == [0.0, None, None, None, 0.0]
    history.status(written(10), us(499))  # the clock was set back
    assert len(history.curves["source-west", "lag_s"].seen) == 3


def test_a_secondary_that_hears_nothing_is_drawn_as_or_more() -> None:
    history = SeenHistory(0)
    unknown = replace(RECEIVING, backlog=None, lag_s=None, backlog_at_least=4, lag_at_least_s=9.0)
    for second in range(2):
        history.status(replace(SECONDARY, receiving=unknown), us(second))
    lag = history.curves["receiver", "lag_s"].lately(us(1))
    assert (lag.value, lag.is_at_least) == (9.0, True)
    assert history.curves["receiver", "backlog"].lately(us(1)).value == 4.0


def test_a_daemon_that_was_killed_is_told_at_once_and_once() -> None:
    history = SeenHistory(0)
    history.line(line(0, SOURCE, "daemon started", pid=7, role="primary", incarnation=1))
    history.status(PRIMARY, us(1))
    dead = replace(PRIMARY, peers=(replace(PEER, source=replace(RUNS, state="dead")),))
    for second in (2, 3):
        history.status(dead, us(second))
    died = [mark for mark in history.events if mark.kind is MarkKind.DIED]
    assert [(mark.at_us, mark.teller.daemon) for mark in died] == [(us(2), "source-west")]
    history.line(line(5, SOURCE, "daemon started", pid=8, role="primary", incarnation=1))  # the log says it by now
    assert sum(mark.kind is MarkKind.DIED for mark in history.events) == 1


def test_a_role_that_was_changed_is_told_at_once_and_once() -> None:
    history = SeenHistory(0)
    history.line(line(0, UPDATE, "daemon started", role="secondary", incarnation=1, name="west"))
    history.status(SECONDARY, us(1))
    now = replace(SECONDARY, role="primary", incarnation=2)
    history.status(now, us(2))

    def roles() -> list[LogMark]:
        return [mark for mark in history.events if mark.kind is MarkKind.ROLE]

    assert [mark.text for mark in roles()] == ["west is primary, it was secondary (incarnation 2)"]
    history.line(line(90, UPDATE, "daemon started", role="primary", incarnation=2, name="west"))
    assert len(roles()) == 1


def test_where_a_source_reads() -> None:
    history = SeenHistory(0)
    assert not history.reads_files("source-west")
    history.line(line(1, SOURCE, "now reading from journal files; journal pool does not contain the next transaction"))
    assert history.reads_files("source-west")
    assert history.tally(us(0)) == {MarkKind.FILES: 1}
    history.line(line(2, SOURCE, "now reading from the journal pool"))
    assert not history.reads_files("source-west")
    assert history.tally(us(2)) == {MarkKind.POOL: 1}


def test_what_happens_for_ever_takes_no_more_room() -> None:
    history = SeenHistory(0)
    history.line(line(0, SOURCE, "streaming"))
    for step in range(MARKS_MAX + EVENTS_MAX):
        history.line(line(step, SOURCE, "XOFF received" if step % 2 else "XON received"))
    assert len(history.events) == EVENTS_MAX
    assert history.events[-1].at_us == us(MARKS_MAX + EVENTS_MAX - 1)
    (track,) = history.tracks
    assert len(track.spans) <= 2 * SPANS_MAX


def test_lines_of_before_say_only_how_things_stood() -> None:
    history = SeenHistory(us(100))
    history.line(told(50))
    history.line(line(50, SOURCE, "XOFF received"))
    assert history.curves == {}
    assert history.events == []
    history.line(told(150))
    assert history.curves["source-west", "per_s"].past
