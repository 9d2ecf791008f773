"""How long tests take is noted, and one that takes long without a reason fails: see durations.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durations import REASONS, Reading, is_named, reasons, stalled_s, taken_s
from tests.harness.checkout import ROOT

MOST_REASONS = 0
"""The list may only get shorter: lower this with it."""

TEST = """
import subprocess, sys, time
import pytest

BUSY = "import time\\nend = time.process_time() + 0.2\\nwhile time.process_time() < end: pass"

def test_busy():
    exec(BUSY)

def test_busy_in_a_process():
    subprocess.run([sys.executable, "-c", BUSY], check=True)

@pytest.mark.slow
def test_marked():
    exec(BUSY)

@pytest.fixture
def made():
    exec(BUSY)

def test_whose_set_up_is_long(made):
    pass

def test_quick():
    pass
"""


def ran(directory: Path, *words: str, limit_s: float, reasons: str = "") -> tuple[str, list[list[object]]]:
    """What pytest says of TEST under the plugin, and the durations that it has noted."""
    (directory / "test_it.py").write_text(TEST)
    (directory / "reasons.txt").write_text(reasons)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    long\n")
    (directory / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests import durations\n"
        f"durations.LONG_S = {limit_s}\ndurations.REASONS = Path(__file__).with_name('reasons.txt')\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(durations.Durations('noted', not config.getoption('usepdb')), 'durations')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stderr == ""
    return done.stdout, [json.loads(line) for line in (directory / "noted").read_text().splitlines()]


def test_what_takes_long_without_a_reason_fails(tmp_path: Path) -> None:
    said, noted = ran(tmp_path, limit_s=0.09)
    assert "2 failed, 2 passed, 1 error" in said, said
    for name in ("test_busy", "test_busy_in_a_process", "test_whose_set_up_is_long"):
        assert f"test_it.py::{name} (" in said
    assert "by itself, and 0.09 is the most. Make it quicker, mark it slow, or write its reason into" in said
    found = {(name, when): (taken, marked) for taken, _, when, name, marked in noted}
    assert found["test_it.py::test_busy_in_a_process", "call"][0] >= 0.2  # type: ignore[operator]
    assert found["test_it.py::test_whose_set_up_is_long", "setup"][0] >= 0.2  # type: ignore[operator]
    assert found["test_it.py::test_marked", "call"][1] is True
    assert found["test_it.py::test_busy", "call"][1] is False


@pytest.mark.slow
def test_a_reason_a_debugger_and_a_factor_of_two_are_enough(tmp_path: Path) -> None:
    for number, (words, limit_s, listed) in enumerate([
        ((), 0.09, "test_it.py::test_*   because"),
        (("--pdb",), 0.09, ""),
        ((), 30.0, ""),
    ]):  # fmt: skip
        directory = tmp_path / str(number)
        directory.mkdir()
        said, _ = ran(directory, *words, limit_s=limit_s, reasons=listed)
        assert "5 passed" in said
        assert "failed" not in said


@pytest.mark.parametrize(
    ("wall", "processor", "stalled", "taken"),
    [
        (10.0, 1.0, 0.0, 10.0),  # it waited by itself
        (10.0, 1.0, 9.5, 1.0),  # it waited for others: a loaded machine
        (10.0, 1.0, 6.0, 4.0),
        (10.0, 1.0, 15.0, 1.0),  # for a processor and a disk at once
        (10.0, 15.0, 0.0, 15.0),  # several processes at once
        (10.0, 1.0, None, 1.0),  # the kernel does not say
    ],
)
def test_what_others_do_to_the_machine_does_not_count(
    wall: float, processor: float, stalled: float | None, taken: float
) -> None:
    before = Reading(100.0, 50.0, None if stalled is None else 1000.0)
    after = Reading(100.0 + wall, 50.0 + processor, None if stalled is None else 1000.0 + stalled)
    assert taken_s(before, after) == pytest.approx(taken)


@pytest.mark.parametrize("text", ["", "some avg10=0.00 avg60=0.00 avg300=0.00\n", "nonsense total=many\n"])
def test_a_kernel_that_does_not_say_is_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu").write_text(text)
    assert stalled_s((tmp_path / "cpu", tmp_path / "gone")) is None


def test_pressure_is_read(tmp_path: Path) -> None:
    for name, total in (("cpu", 1_500_000), ("io", 250_000)):
        (tmp_path / name).write_text(f"some avg10=1.00 avg60=2.00 avg300=3.00 total={total}\nfull avg10=0.00 total=7\n")
    assert stalled_s((tmp_path / "cpu", tmp_path / "io")) == 1.75


def test_the_list_only_gets_shorter_and_names_tests_that_are_there() -> None:
    found = reasons(REASONS.read_text(encoding="utf-8"))
    assert len(found) <= MOST_REASONS, "make a test quicker, or mark it slow, before another one goes into the list"
    for pattern in found:
        file, _, test = pattern.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        name = test.rpartition("::")[2].partition("[")[0]
        assert f"def {name}(" in text, f"{REASONS.name} names {pattern}, which is gone"


def test_a_line_without_a_reason_is_refused() -> None:
    assert reasons("# a comment\n\na::b[c]  why not\n") == {"a::b[c]": "why not"}
    with pytest.raises(ValueError):
        reasons("a::b\n")


def test_a_bracket_stands_for_itself() -> None:
    listed = {"a.py::test[x]": "why", "b.py::test[*]": "why"}
    assert is_named("a.py::test[x]", listed)
    assert is_named("b.py::test[1]", listed)
    assert not is_named("a.py::testx", listed)
    assert not is_named("a.py::test", listed)
