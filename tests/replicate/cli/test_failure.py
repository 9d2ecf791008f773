"""cli/failure.py: what a line tells comes back field by field; with --json there is always JSON; no output, no harm."""

from __future__ import annotations

import json
import sys

import pytest

from replicate.cli.failure import Failure, parsed, tell
from replicate.errors import BusyError

FAILURES = (
    Failure("BUSY", "somebody writes", 75),
    Failure("BUSY", "somebody writes", 75, "/i/main.db"),
    Failure("BUSY", "somebody writes", 75, "/i/main.db", "Try again. It goes on"),
)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_line_tells_all_of_it(failure: Failure) -> None:
    assert parsed(failure.line, 75) == failure


def test_an_error_of_ours_is_read_from_its_own_text() -> None:
    error = BusyError("held [twice]", where="/x", do="Wait")
    found = parsed(str(error), error.exit_code)
    assert (found.code, found.exit_code) == ("BUSY", error.exit_code)
    assert found.line == str(error)


@pytest.mark.parametrize("line", ["", "Killed", "busy: no code", "MemoryError: 7"])
def test_a_line_of_another_form_is_told_as_it_is(line: str) -> None:
    assert parsed(line, 1) == Failure("", line, 1)
    assert parsed(line, 1).line == line


def test_a_line_is_one_line() -> None:
    assert Failure("BUSY", "two\nlines  here", 75, do="and\n\nmore").line == "BUSY: two lines here. and more"


@pytest.mark.parametrize("code", ["BUSY", ""])
def test_json_stands_on_standard_output_and_the_line_on_the_other(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell(Failure(code, "x", 75, "/w", "do"), ["status", "--json"]) == 75
    out, err = capsys.readouterr()
    assert json.loads(out) == {"code": code or "DAEMON_FAILED", "what": "x", "where": "/w", "do": "do", "exit_code": 75}
    assert err == f"{'BUSY: ' if code else ''}x [/w]. do\n"
    assert tell(Failure(code, "x", 75), ["status"]) == 75
    assert capsys.readouterr().out == ""


def test_streams_that_are_gone_change_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", full)
    monkeypatch.setattr(sys, "stdout", None)
    assert tell(FAILURES[0], ["--json"]) == 75
    with pytest.raises(OSError, match="No space left"):
        full.close()  # what waits in it is told here: Python 3.13 tells it of a file that is thrown away, too
