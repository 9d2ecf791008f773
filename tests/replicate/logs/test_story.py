"""logs/story.py: what events mean, together, in any order, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import UsageError
from replicate.logs import story as module
from replicate.logs.line import LogLine
from replicate.logs.period import Periods
from replicate.logs.story import LogStory, MarkKind
from tests.harness.logs import BACK, RECEIVER, SOURCE, START_US, UPDATE, line


def told(*lines: LogLine, **limits: Any) -> LogStory:
    story = LogStory(**limits)
    for one in lines:
        story.take(one)
    story.end()
    return story


def marks(story: LogStory) -> list[tuple[float, str, MarkKind]]:
    return [((mark.at_us - START_US) / 1e6, mark.teller.daemon, mark.kind) for mark in story.marks]


def states(story: LogStory, teller: Any) -> list[tuple[float, float, str]]:
    spans = story.tracks[teller].spans
    return [((span.from_us - START_US) / 1e6, (span.until_us - START_US) / 1e6, span.what) for span in spans]


def test_a_stream_from_its_start_to_its_end() -> None:
    story = told(
        line(0, SOURCE, "daemon started", role="primary", incarnation=1, name="east"),
        line(2, SOURCE, "streaming", from_seqno=5),
        line(3, SOURCE, "XOFF received"),
        line(4, SOURCE, "XON received"),
        line(5, SOURCE, "now reading from journal files; journal pool does not contain the next transaction"),
        line(6, SOURCE, "now reading from the journal pool"),
        line(7, SOURCE, "connection closed", reason="connection lost", error="UNREACHABLE: cut", code="UNREACHABLE"),
        line(8, SOURCE, "connection closed", reason="peer dead", error="it never streamed"),
        line(9, SOURCE, "streaming", from_seqno=9),
        line(10, SOURCE, "passive"),
        line(12, SOURCE, "daemon ended", state="stopped"),
    )
    kinds = MarkKind
    assert [kind for _, _, kind in marks(story)] == [
        kinds.STARTED, kinds.CONNECTED, kinds.PAUSED, kinds.RESUMED, kinds.FILES, kinds.POOL, kinds.CUT,
        kinds.CONNECTED, kinds.PASSIVE, kinds.ENDED,
    ]  # fmt: skip
    assert [one for one in states(story, SOURCE) if one[2] not in ("files", "primary")] == [
        (0, 2, "no stream"), (2, 3, "streaming"), (3, 4, "paused (XOFF)"), (4, 7, "streaming"), (7, 9, "no stream"),
        (9, 10, "streaming"), (10, 12, "passive"),
    ]  # fmt: skip
    assert (5, 6, "files") in states(story, SOURCE)
    assert (0, 12, "primary") in states(story, SOURCE)
    assert next(mark.text for mark in story.marks if mark.kind is kinds.CUT) == "UNREACHABLE: cut"


def test_a_daemon_that_was_killed_has_died_when_it_was_last_heard() -> None:
    story = told(
        line(0, UPDATE, "daemon started", pid=7),
        line(50, UPDATE, "region made", pid=7),
        line(90, UPDATE, "daemon started", pid=8),
        line(95, UPDATE, "daemon failed", pid=8, error="CONFLICT: no"),
        line(95, UPDATE, "daemon ended", pid=8, state="failed"),
        line(99, UPDATE, "daemon started", pid=9),
    )
    assert (50.0, "update", MarkKind.DIED) in marks(story)
    assert [kind for _, _, kind in marks(story)].count(MarkKind.DIED) == 1
    assert [one for one in states(story, UPDATE) if one[2] == "not running"] == [
        (50, 90, "not running"),
        (95, 99, "not running"),
    ]


def test_a_role_changes_once_however_many_daemons_say_so() -> None:
    story = told(
        line(0, RECEIVER, "daemon started", role="secondary", incarnation=1, name="west"),
        line(1, UPDATE, "daemon started", role="secondary", incarnation=1, name="west"),
        line(2, UPDATE, "daemon ended", state="stopped"),
        line(3, RECEIVER, "daemon ended", state="stopped"),
        line(5, RECEIVER, "daemon started", role="primary", incarnation=2, name="west"),
        line(5, RECEIVER, "serving", status="standing by: this instance is primary"),
        line(6, UPDATE, "daemon started", role="primary", incarnation=2, name="west"),
        line(9, UPDATE, "anything"),
    )
    changes = [mark for mark in story.marks if mark.kind is MarkKind.ROLE]
    assert [mark.text for mark in changes] == ["west is primary, it was secondary (incarnation 2)"]
    assert (6, 9, "primary") in states(story, UPDATE)
    assert story.tracks[UPDATE].role == "primary"


def test_daemons_that_follow_another_role_say_it_and_stay_the_same_processes() -> None:
    """After a switchover: the role was told as it was when they were started."""
    story = told(
        line(0, RECEIVER, "daemon started", role="secondary", incarnation=1, name="west"),
        line(0, UPDATE, "daemon started", role="secondary", incarnation=1, name="west"),
        line(0, BACK, "daemon started", role="secondary", incarnation=1, name="west"),
        line(1, BACK, "passive"),
        line(2, RECEIVER, "receiving"),
        line(3, RECEIVER, "connection closed", reason="bye"),
        line(4, RECEIVER, "role followed", role="primary", incarnation=2, name="west"),
        line(5, UPDATE, "role followed", role="primary", incarnation=2, name="west"),
        line(5, BACK, "role followed", role="primary", incarnation=2, name="west"),
        line(6, BACK, "streaming"),
        line(7, RECEIVER, "role followed", role="secondary", incarnation=3, name="west"),
        line(8, UPDATE, "role followed", role="secondary", incarnation=3, name="west"),
        *(line(9, teller, "anything") for teller in (RECEIVER, UPDATE, BACK)),
    )
    changes = [mark.text for mark in story.marks if mark.kind is MarkKind.ROLE]
    assert changes == [
        "west is primary, it was secondary (incarnation 2)",
        "west is secondary, it was primary (incarnation 3)",
    ]
    assert {(4, 7, "primary"), (4, 7, "standing by"), (7, 9, "no stream"), (7, 9, "secondary")} <= {
        *states(story, RECEIVER)
    }
    assert {(5, 8, "standing by"), (8, 9, "running")} <= {*states(story, UPDATE)}
    assert {(1, 5, "passive"), (5, 6, "no stream"), (6, 9, "streaming")} <= {*states(story, BACK)}


def test_statistics_say_how_it_was_where_the_lines_of_the_stream_are_gone_or_kept_back() -> None:
    def of(at_s: float, state: str) -> LogLine:
        return line(at_s, SOURCE, "statistics", state=state, transactions=1, period_s=1.0)

    story = told(of(1, "sending"), of(2, "waiting for XON"), of(3, "passive"), of(4, "waiting for a connection"))
    assert [what for _, _, what in states(story, SOURCE)] == ["streaming", "paused (XOFF)", "passive"]
    assert story.tracks[SOURCE].periods.rows


def test_only_what_is_within_the_time_is_told_and_what_was_before_is_known() -> None:
    lines = [
        line(0, SOURCE, "daemon started", role="primary"),
        line(1, SOURCE, "streaming"),
        line(2, SOURCE, "statistics", transactions=5, period_s=1.0, state="sending"),
        line(10, SOURCE, "statistics", transactions=7, period_s=1.0, state="sending"),
        line(11, SOURCE, "XOFF received"),
        line(20, SOURCE, "daemon ended", state="stopped"),
    ]
    story = told(*lines, since_us=START_US + 5_000_000, until_us=START_US + 20_000_000)
    assert (story.lines, [kind for _, _, kind in marks(story)]) == (2, [MarkKind.PAUSED])
    assert sum(row.transactions for row in story.tracks[SOURCE].periods.rows.values()) == 7
    assert (5, 11, "streaming") in states(story, SOURCE)
    assert not told(*lines, since_us=START_US + 30_000_000).tracks


def test_a_clock_that_is_set_back_is_counted_and_loses_nothing() -> None:
    story = told(*(line(at_s, UPDATE, "statistics", transactions=1, period_s=1.0) for at_s in (5, 6, 1, 2, 1.5, 9)))
    track = story.tracks[UPDATE]
    assert (track.set_back, track.set_back_us) == (1, 5_000_000)
    assert sum(row.transactions for row in track.periods.rows.values()) == 6


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 50)
    monkeypatch.setattr(module, "SPANS_MAX", 20)
    monkeypatch.setattr(module, "TELLERS_MAX", 3)
    monkeypatch.setattr(Periods, "ROWS_MAX", 100)
    story = LogStory()
    for number in range(5000):
        story.take(line(number, SOURCE, "statistics", transactions=1, period_s=1.0))
        story.take(line(number, SOURCE, "XOFF received" if number % 2 else "XON received"))
        story.take(line(number, SOURCE.__class__("", f"/{number}", "update"), "anything"))
    story.end()
    track = story.tracks[SOURCE]
    assert len(track.periods.rows) <= 100
    assert sum(row.transactions for row in track.periods.rows.values()) == 5000
    assert (len(story.marks), story.marks_left_out, len(track.spans)) == (50, 4950, 20)
    assert track.spans_left_out > 0
    assert (len(story.tracks), story.tellers_left_out) == (3, 4998)


def test_more_rows_than_can_be_kept_with_the_period_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Periods, "ROWS_MAX", 5)
    monkeypatch.setattr(module, "ROWS_ASKED_MAX", 10)
    lines = [line(number, SOURCE, "statistics", transactions=1) for number in range(20)]
    with pytest.raises(UsageError, match="more than 10 rows of 1 s"):
        told(*lines, every_us=1_000_000)
    assert len(told(*lines, every_us=5_000_000).tracks[SOURCE].periods.rows) == 4


EVENTS = st.sampled_from(
    ["daemon started", "daemon ended", "streaming", "receiving", "connection closed", "XOFF received", "XON sent",
     "now reading from the journal pool", "now reading from journal files", "passive", "active", "statistics",
     "the peer is silent", "serving", "daemon failed", "log lines lost", "what"]
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from([SOURCE, RECEIVER, UPDATE]), EVENTS, st.integers(1, 3))))
def test_any_lines_in_any_order(found: list[tuple[int, Any, str, int]]) -> None:
    story = told(
        *(
            line(at_s, teller, event, pid=pid, transactions=1, role="primary" if pid > 1 else "", reason="bye")
            for at_s, teller, event, pid in found
        )
    )
    assert story.lines == len(found)
    for teller, track in story.tracks.items():
        assert all(span.until_us > span.from_us for span in track.spans)
        wanted = sum(1 for _, one, event, _ in found if one == teller and event == "statistics")
        assert sum(row.transactions for row in track.periods.rows.values()) == wanted
    assert [mark.at_us for mark in story.marks] == sorted(mark.at_us for mark in story.marks)
