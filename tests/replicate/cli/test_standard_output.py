"""Standard output and standard error that are closed, or whose reader has gone: commands, daemons and applications.

Fault 46.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import SERVING
from replicate.instance.instance import Instance
from tests.harness import instances
from tests.harness.waiting import wait_until

COMMAND = (sys.executable, "-P", "-m", "replicate.cli.main")
APPLICATION = """
import os, sys
os.closerange(0, 3)
import replicate
connection = replicate.connect(sys.argv[1])
held = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]
connection.execute("INSERT INTO t VALUES (7, 'x')")
connection.commit()
sys.exit(0 if held == ["/dev/null"] * 3 else 1)
"""


@pytest.fixture(autouse=True)
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would stay, where all pools are."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))


@pytest.fixture
def primary(tmp_path: Path) -> Path:
    return instances.make_primary(tmp_path / "alpha").path


@contextmanager
def gone() -> Iterator[dict[str, int]]:
    """Arguments of Popen: nobody reads what is written."""
    reader, writer = os.pipe()
    os.close(reader)
    yield {"stdout": writer, "stderr": writer}
    os.close(writer)


def closed() -> None:
    os.closerange(0, 3)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(instances.ROOT)}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code"), [(("region", "list"), 0), (("--json", "source", "status"), 1)])
def test_no_output_changes_an_exit_code(primary: Path, words: tuple[str, ...], code: int) -> None:
    """1: a daemon that never ran."""
    if words[-1] == "status":
        Instance.open(primary).register_peer("west", "127.0.0.1", 7430)
    line = [*COMMAND, "-i", str(primary), *words]
    for fd in (1, 2):
        done = subprocess.run(
            line, preexec_fn=lambda fd=fd: os.close(fd), capture_output=True, env=environment(), check=False
        )
        assert (done.returncode, done.stderr) == (code, b"")
    with gone() as outputs:
        done = subprocess.run(line, **outputs, env=environment(), check=False)  # type: ignore[call-overload]
    assert done.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize("way", ["closed", "gone"])
def test_a_daemon_without_an_output_serves_and_ends(tmp_path: Path, way: str) -> None:
    primary = instances.make_primary(tmp_path / "alpha")
    secondary = instances.make_secondary(tmp_path / "beta", primary).path
    with gone() as pipe:
        outputs: dict[str, int | Callable[[], None]] = dict(pipe) if way == "gone" else {"preexec_fn": closed}
        daemon = subprocess.Popen(  # type: ignore[call-overload]
            [*COMMAND, "-i", str(secondary), "update", "run"], **outputs, env=environment()
        )
    try:
        files = DaemonFiles(secondary, "update")

        def serves() -> bool:
            assert daemon.poll() is None, files.log.read_text()
            told = files.read_status()
            return told is not None and told.pid == daemon.pid and told.state == SERVING

        wait_until(serves, what="it serves")
        ours = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in range(3)]
        assert not [name for name in ours if str(tmp_path) in name], ours
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait()


def test_no_file_of_ours_is_what_an_application_prints_to(primary: Path) -> None:
    done = subprocess.run([sys.executable, "-c", APPLICATION, str(primary)], env=environment(), check=False)
    assert done.returncode == 0
    assert instances.rows(Instance.open(primary).region("main").path) == {7: "x"}
