"""What holds for the whole suite: a test that is skipped without leave fails, and none depends on how the suite was
started or on which tests ran before.

Guarantees: a skip (or an expected failure) of a test or a module that no line of tests/skips.txt allows is reported
as a failure, so it shows in pytest's closing line and in its exit code.
Where several processes run the suite, all tests of Spark are one's: each would have a Java process of its own.
How full the machine's disk is, is nobody's business: what asks in this process is told that there is room.
SIGINT works also where the suite was started in the background; a test leaves the umask, and a file of tests
REPLICATE_SHM_DIR, as it found them (commands and pairs in our process set them). Hypothesis measures no time.
Every commit, also those of processes that tests start, is checked against its regions (region/sqlite/capture/check.py).
What is marked `long` runs with --full alone: more of a kind of which one is in every run. What takes longer takes
turns by its cost (costs.py) or its mark `turns(N)`: a run has one in N, which the commit chooses, and --full has all.
Where the set-up of a file is what costs, a run has all of its tests or none: `together(N)`.
A run of named files or directories has all of theirs. `--left-out N` runs one in N of what a usual run of the commit
leaves out.
Each test's time is taken, and in the long form one that takes long without a reason fails (tests/durations.py).
Leaves to others: what the tests test.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import signal
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.costs import costs, function_of, turns_of
from tests.durations import Durations
from tests.harness.checkout import ROOT, commit_of

if TYPE_CHECKING:
    from tests.harness.pair import Pair

# Before anything of ours is imported. Processes that tests start have it too; with 0 a test can be timed without it.
os.environ.setdefault("REPLICATE_CHECK_CAPTURE", "1")

SKIPS = Path(__file__).with_name("skips.txt")
TOGETHER = "tests/spark"
SLOW_S = 6.0  # what a slow test costs that nobody has measured yet


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much the differential test (tests/system/test_differential.py) and the campaign of the long form
    (tests/deploy/long_form.py) run."""
    parser.addoption("--differential-statements", default="", help="statements that the differential test runs")
    parser.addoption("--differential-seed", default="20", help="another number gives other statements")
    parser.addoption("--differential-program", default="", help="one program's seed, as printed: run and shrink it")
    parser.addoption("--campaign-hours", default="1", help="hours of the fault campaign in the long form")
    parser.addoption("--full", action="store_true", help="with the tests that are marked long (deploy/test --long)")
    parser.addoption("--left-out", default=0, type=int, help="one in so many of what a usual run leaves out, alone")
    parser.addoption("--record-durations", default="", help="a file to which each test's seconds are appended")
    parser.addoption("--campaign-island-s", default="3600", help="seconds of the long form's island of suppliers")
    parser.addoption("--campaign-seed", default="1", help="another number gives other faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --full, what is marked `long` or has no turn is deselected. Files with a slow test come first: the small
    ones fill the end of a run by several processes, of which none is then left alone with a long file."""
    if not config.getoption("--full"):
        is_named = any(Path(word.partition("::")[0]).resolve() != ROOT / "tests" for word in config.args)
        turn = None if is_named else zlib.crc32(commit_of(ROOT).encode())
        in_run = functools.partial(is_in_run, turn=turn, left_out=config.getoption("--left-out"))
        others = [item for item in items if not in_run(item)]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if in_run(item)]
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


def is_in_run(item: pytest.Item, turn: int | None, left_out: int) -> bool:
    """Whether a run has a test. `turn`: of its commit; None: each has its turn. `left_out`: 0, or one in so many of
    what a usual run does not have, and nothing else."""
    is_usual = not item.get_closest_marker("long") and (turn is None or has_turn(item, turn))
    if not left_out:
        return is_usual
    return not is_usual and zlib.crc32(item.nodeid.encode(), turn or 0) % left_out == 0


def has_turn(item: pytest.Item, turn: int) -> bool:
    """Whether a test that takes turns with others has its turn."""
    if (together := item.get_closest_marker("together")) is not None:
        return (zlib.crc32(item.nodeid.partition("::")[0].encode()) + turn) % int(together.args[0]) == 0
    mark = item.get_closest_marker("turns")
    cost = costs().get(function_of(item.nodeid), SLOW_S if item.get_closest_marker("slow") else 0.0)
    every = int(mark.args[0]) if mark is not None else turns_of(cost)
    return (zlib.crc32(item.name.encode()) + turn) % every == 0


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts us in the background has us ignore SIGINT, and with us every process that we start."""
    config.pluginmanager.register(
        Durations(
            config.getoption("--record-durations"), config.getoption("--full") and not config.getoption("usepdb")
        ),
        "durations",
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Hypothesis asks the clock by itself (200 ms an example), and a loaded machine fails it.
    settings.register_profile("by no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("by no clock")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files to a process, as `--dist loadfile`; the directory tests/spark counts as one file."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path: str = super()._split_scope(nodeid)
            return TOGETHER if path.startswith(f"{TOGETHER}/") else path

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


POOLS: str | None = os.environ.get("REPLICATE_SHM_DIR")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Leaves the umask as it was before the test, and after a file's last one the directory of pools (Pair.create sets
    it, and fixtures of a whole module do)."""
    umask = os.umask(0o022)
    os.umask(umask)
    try:
        return (yield)
    finally:
        os.umask(umask)
        if nextitem is None or nextitem.path != item.path:
            if POOLS is None:
                os.environ.pop("REPLICATE_SHM_DIR", None)
            else:
                os.environ["REPLICATE_SHM_DIR"] = POOLS


@pytest.fixture(autouse=True, scope="session")
def _roomy_disk() -> Iterator[None]:
    """`status` warns of a disk that fills up. Who tests that says so, and how full it is. (Not by each test's own
    `monkeypatch`, which would then be undone after its directory is removed.)"""
    from replicate.journal import space
    from replicate.status import collect

    with pytest.MonkeyPatch.context() as patched:
        for module in (space, collect):
            patched.setattr(module, "fill_percent", lambda _disk: 10.0)
        yield


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of the test's own for pools; failpoints that it arms are disarmed. For a whole module:
    `pytestmark = pytest.mark.usefixtures("shared_memory")`."""
    from replicate.system import failpoint

    directory = tmp_path / "shm"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))
    yield directory
    failpoint.disarm()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A primary and its secondary, seeded. A module that wants them otherwise has a fixture of its own."""
    from tests.harness.pair import Pair

    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))  # Pair.create sets it; it is put back
    made = Pair.create(tmp_path)
    made.seed()
    return made


def allowed_patterns(text: str) -> tuple[str, ...]:
    """The patterns in a list of skips: the first word of each line that is no comment."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line.split()[0] for line in lines if line and not line.startswith("#"))


def is_allowed(node_id: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns names the test. A `[` stands for itself: node ids are full of them."""
    return any(fnmatch.fnmatchcase(node_id, pattern.replace("[", "[[]")) for pattern in patterns)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip that is not allowed into a failure."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself while it is collected."""
    return _judged((yield))


def _judged(report: Any) -> Any:
    if report.skipped and not is_allowed(report.nodeid, allowed_patterns(SKIPS.read_text(encoding="utf-8"))):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped ({reason}), and tests/skips.txt does not allow it"
    return report
