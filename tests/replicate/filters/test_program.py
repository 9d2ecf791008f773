"""Which program a setting names, and by what it is known."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from replicate.errors import ConfigurationError, FilterError
from replicate.filters.encoding import Form
from replicate.filters.program import program


def test_a_command_line_is_divided_as_a_shell_does_and_no_shell_runs(tmp_path: Path) -> None:
    script = tmp_path / "up grade.py"
    script.write_text("1\n")
    made = program(f"{shlex.quote(sys.executable)} '{script}' --with '$HOME;x'", "json")
    assert made.command == (sys.executable, str(script), "--with", "$HOME;x")
    assert (made.form, made.name) == (Form.JSON, Path(sys.executable).name)
    script.write_text("2\n")
    other = program(f"{shlex.quote(sys.executable)} '{script}' --with '$HOME;x'", "json")
    assert other.identity != made.identity
    assert other.identity.startswith(made.name)
    script.write_text("1\n")
    assert program(f"{shlex.quote(sys.executable)} '{script}' --with '$HOME;x'", "json").identity == made.identity
    assert program(f"{shlex.quote(sys.executable)} '{script}' --with other", "json").identity != made.identity


def test_a_function_runs_in_a_python_of_its_own() -> None:
    made = program("tests.harness.filters:same", "json")
    assert made.command == (sys.executable, "-m", "replicate.filters.callable_host", "tests.harness.filters:same")
    assert (made.form, made.name) == (Form.MSGPACK, "tests.harness.filters:same")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("/no/such/program", "/no/such/program is not there"),
        ("no-such-program -x", "no-such-program is not there"),
        ("no.such.module:function", r"no\.such\.module cannot be imported"),
        ("no_such_module:function", "no_such_module is not there"),
    ],
)
def test_one_that_is_not_there_is_refused_by_its_name(setting: str, text: str) -> None:
    with pytest.raises(FilterError, match=text):
        program(setting, "json")


def test_one_that_may_not_be_executed_is_refused_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "filter"
    script.write_text("#!/bin/cat\n")
    script.chmod(0o644)
    with pytest.raises(FilterError, match="cannot be executed"):
        program(str(script), "json")


def test_a_setting_that_is_no_command_line() -> None:
    for setting in ("'half", "  "):
        with pytest.raises(ConfigurationError):
            program(setting, "json")
