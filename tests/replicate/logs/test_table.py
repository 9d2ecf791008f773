"""logs/table.py: what people and programs are told."""

from __future__ import annotations

import csv
import json

from replicate.cli.common import plain
from replicate.logs.line import Teller, read_line
from replicate.logs.story import LogStory
from replicate.logs.table import COLUMNS, LogTable, csv_lines, document, lines, records, table_of
from tests.harness.logs import RECEIVER, SOURCE, UPDATE, raw, statistics


def table(*found: bytes, most: int | None = None, every_us: int | None = None) -> LogTable:
    story = LogStory(every_us=every_us)
    for one in found:
        line = read_line(one)
        assert line is not None
        story.take(line)
    story.end()
    return table_of(story, notes=("a file is odd",), most=most)


def street() -> tuple[bytes, ...]:
    """Three daemons for half an hour; a cut, and a clock that is set back."""
    made = [raw(0, SOURCE, "daemon started", role="primary"), raw(1, SOURCE, "streaming", from_seqno=1)]
    for step in range(180):
        is_cut = 60 <= step < 72
        made.append(statistics(10 * step + 2, SOURCE, 0 if is_cut else 12_345, backlog_max=4000 if is_cut else 1))
        unknown = {"backlog_max": None, "backlog_at_least_max": 1, "lag_s_max": 100.0} if is_cut else {}
        made.append(statistics(10 * step + 3, RECEIVER, 5, **unknown))
        made.append(statistics(10 * step + 4, UPDATE, 5, **unknown))
        if step == 60:
            made.append(raw(601, SOURCE, "connection closed", reason="connection lost", error="it is gone"))
    made.append(raw(1, UPDATE, "anything"))
    return tuple(made)


def test_a_table_for_people() -> None:
    text = "\n".join(lines(table(*street(), most=40)))
    assert "2030-03-17 17:46:40 to 18:16:34 UTC, 3 daemons, 544 lines; a row for every 1 min" in text
    assert "  A  east/source-west  sent      primary\n  B  west/receiver     received\n  C  west/update" in text
    assert "17:50:00     1,234       0.5       0.5           3      0.5    0.12" in text
    assert "17:57:00       0.0       0.5       0.5       4,000   ≥100.0    0.00" in text
    assert "A stream lost" in text
    assert "2030-03-17 17:56:41.000  A  stream lost: it is gone" in text
    assert "Note: a file is odd." in text
    assert "Note: these are logs of 2 hosts, each by its own clock: left, right." in text
    assert "Note: west/update: the clock was set back once, by 1793.0 s at most" in text
    assert max(map(len, text.splitlines())) <= 120


def test_rows_are_few_where_nothing_is_asked_for_and_as_asked_for() -> None:
    assert len(table(*street(), most=40).rows) <= 40
    assert len(table(*street(), most=3).rows) <= 3
    every = table(*street(), every_us=7_000_000, most=3)
    assert (every.width_us, len(every.rows) > 180) == (7_000_000, True)
    assert table(*street()).width_us == 100_000
    assert "a row for every 7 s" in next(lines(every))


def test_many_events_are_told_the_newest_first_to_be_seen() -> None:
    found = [raw(step, SOURCE, "streaming", from_seqno=step) for step in range(100)]
    text = list(lines(table(*found)))
    assert "What happened (the last 40 of 100; --json has more)" in text
    assert text[-3].endswith("stream begins: from transaction 99")
    assert any("statistics on --every 10" in line for line in text)


def test_csv_and_json_say_the_same() -> None:
    made = table(*street(), most=100)
    rows = list(csv.DictReader(csv_lines(made)))
    assert tuple(rows[0]) == COLUMNS
    found = list(records(made))
    assert len(rows) == len(found) == 3 * len(made.rows)
    for row, record in zip(rows, found, strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in record.items()}
    told = json.loads(json.dumps(plain(document(made)), allow_nan=False))
    assert told["rows"] == found
    assert told["every_s"] == made.width_us / 1e6
    assert [one["daemon"] for one in told["daemons"]] == ["source-west", "receiver", "update"]
    assert {one["event"] for one in told["events"]} == {"started", "stream begins", "stream lost"}
    assert {one["state"] for one in told["states"]} >= {"streaming", "primary"}
    assert "a file is odd" in told["notes"]


def test_nothing_at_all() -> None:
    made = table()
    assert list(lines(made)) == ["no daemon has written a line within that time", "Note: a file is odd."]
    assert list(csv_lines(made)) == [",".join(COLUMNS)]
    assert document(made)["from"] is None


def test_names_that_would_stand_for_two() -> None:
    def of(host: str, instance: str) -> bytes:
        return statistics(1, Teller(host, instance, "update"))

    same_host = table(of("h", "/a/west"), of("h", "/b/west"), of("h", "/a/east")).names.values()
    assert set(same_host) == {"h:/a/west/update", "h:/b/west/update", "east/update"}
    two_hosts = table(of("h", "/a/west"), of("g", "/a/west")).names.values()
    assert set(two_hosts) == {"h:west/update", "g:west/update"}


def test_more_daemons_than_letters() -> None:
    text = list(lines(table(*(statistics(1, Teller("", f"/{number:02}", "update")) for number in range(30)))))
    assert any(line.startswith("  AD  29/update") for line in text)
