"""logs/line.py: any bytes are a line of a daemon or none, and never an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.daemon.log import LogFile, make_logger
from replicate.logs.line import read_line
from tests.harness.logs import SOURCE, raw

WORDS = {"event": "x", "timestamp": "2030-01-31T12:00:00.000001Z", "daemon": "update", "instance": "/srv/a"}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def test_a_line_that_a_daemon_has_written(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "update.log")
    log = make_logger(daemon="update", instance="/srv/west", level="info", row_values=False, file=file)
    log.info("statistics", transactions=7, lag_s=None)
    file.close()
    found = read_line((tmp_path / "update.log").read_bytes())
    assert found is not None
    assert (found.teller.name, found.teller.kind, found.event) == ("west/update", "update", "statistics")
    assert found.teller.host
    assert (found.count("transactions"), found.number("lag_s"), found.count("nothing")) == (7, None, 0)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    for line in (data, b"{" + data, raw(1.0, SOURCE, "statistics")[: len(data)] + data):
        found = read_line(line)
        assert found is None or found.teller.daemon


@given(st.dictionaries(st.sampled_from([*WORDS, "pid", "host", "lag_s"]), ODD))
def test_any_values(odd: dict[str, object]) -> None:
    found = read_line(json.dumps({**WORDS, **odd}).encode())
    if found is not None:
        assert isinstance(found.number("lag_s"), (int, float, type(None)))
        assert found.count("lag_s") >= 0
        assert isinstance(found.text("event"), str)
        assert isinstance(found.teller.name, str)


@pytest.mark.parametrize(
    "changed",
    [
        {"timestamp": "yesterday"}, {"timestamp": "-15m"}, {"timestamp": "2030-01-31T12:00:00"},
        {"timestamp": "1969-01-31T12:00:00Z"}, {"timestamp": 7}, {"daemon": "cron"}, {"daemon": "source-"},
        {"event": None}, {"instance": []}, {"instance": "x" * 5000},
    ],
)  # fmt: skip
def test_what_is_none(changed: dict[str, object]) -> None:
    assert read_line(json.dumps(WORDS).encode()) is not None
    assert read_line(json.dumps({**WORDS, **changed}).encode()) is None


def test_nesting_without_end() -> None:
    assert read_line(b'{"a":' * 100_000) is None
    assert read_line(b'{"pid": 1' + b"0" * 100_000 + b"}") is None
