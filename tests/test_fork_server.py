"""A process of tests/harness/fork_server.py is as one that was executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness import fork_server
from tests.harness.fork_server import Forked
from tests.harness.street import is_replicate
from tests.harness.waiting import wait_until

LOOK = """
import json, os, sys, signal
umask = os.umask(0)
listed = map(int, os.listdir("/proc/self/fd"))
seen = {
    "arguments": sys.argv[1:], "directory": os.getcwd(), "umask": umask, "session": os.getsid(0) == os.getpid(),
    "environment": dict(os.environ), "files": sorted(n for n in listed if os.path.exists(f"/proc/self/fd/{n}")),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "name": __name__,
    "read": sys.stdin.read(), "parent": os.getppid(),
}
print(json.dumps(seen))
print("said", file=sys.stderr)
sys.exit(3)
"""


def looked(
    where: Path, environment: Mapping[str, str], passed: int, *, session: bool
) -> tuple[object, dict[str, object]]:
    process = fork_server.popen(
        [sys.executable, "-c", LOOK, "one", "two"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=where,
        pass_fds=(passed,),
        start_new_session=session,
    )
    assert process.stdin is not None
    process.stdin.write("given")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (3, "said\n")
    return process, json.loads(output)


@pytest.mark.parametrize("session", [False, True])
def test_it_is_as_one_that_was_executed(tmp_path: Path, session: bool) -> None:
    usual = {"PATH": os.environ["PATH"], "REPLICATE_CHECK_CAPTURE": os.environ["REPLICATE_CHECK_CAPTURE"]}
    usual |= {name: os.environ[name] for name in os.environ if fork_server._of_interpreter({name: ""}).get(name) == ""}
    with open(tmp_path / "file", "w") as file:
        number = file.fileno()
        forked, mine = looked(tmp_path, usual, number, session=session)
        executed, real = looked(tmp_path, {**usual, "PYTHONHASHSEED": "0"}, number, session=session)
    assert isinstance(forked, Forked)
    assert isinstance(executed, subprocess.Popen)
    assert real["environment"].pop("PYTHONHASHSEED") == "0"
    assert real.pop("parent") == os.getpid() != mine.pop("parent")
    assert mine == real
    assert mine["files"] == [0, 1, 2, number]


def test_it_can_be_watched_and_killed() -> None:
    program = "import sys; print('here', flush=True); sys.stdin.read()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = fork_server.popen([sys.executable, "-c", program], text=True, **streams)
    assert isinstance(process, Forked)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    assert is_replicate(process.pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL == process.poll()
    process.kill()  # one that has ended is left alone
    process.communicate()


def test_an_error_ends_it_as_usual() -> None:
    done = fork_server.run([sys.executable, "-c", "raise ValueError('so')"], env=os.environ, timeout=300)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: so")


def test_a_failpoint_is_armed() -> None:
    program = "from replicate.system.failpoint import hit; hit('place')"
    environment = {**os.environ, "REPLICATE_FAILPOINT": "place:1:kill"}
    assert fork_server.run([sys.executable, "-c", program], env=environment, timeout=300).returncode == -signal.SIGKILL


def test_a_file_of_the_job_is_not_closed_by_what_the_server_left() -> None:
    """An object of the server's that is collected in the job would close its own number again."""
    program = """
import gc, os
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
gc.unfreeze()
gc.collect()
[os.fstat(number) for number in held]
"""
    others = [fork_server.popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(3)]
    try:
        done = fork_server.run([sys.executable, "-c", program], env=os.environ, timeout=300)
    finally:
        for other in others:
            other.kill()
            other.wait(60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_it_forked_outlives_the_server_and_the_server_does_not_outlive_us() -> None:
    program = f"""
import subprocess, sys
from tests.harness import fork_server
process = fork_server.popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin={subprocess.PIPE})
print(process.pid, fork_server._server()._process.pid, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=fork_server.ROOT
    )
    assert process.stdout is not None
    forked, server = map(int, process.stdout.readline().split())
    os.kill(forked, signal.SIGSTOP)  # else it would end with its input
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    wait_until(lambda: not is_replicate(server), what="the server is gone")
    assert is_replicate(forked)
    os.kill(forked, signal.SIGKILL)


@pytest.mark.slow
def test_a_shell_has_the_command_and_what_it_starts_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, exit codes and signals pass through; a daemon that it starts is forked, and is nobody's child."""
    (tmp_path / "shm").mkdir()
    environment = os.environ | {"REPLICATE_SHM_DIR": str(tmp_path / "shm"), "REPLICATE_HOME": str(tmp_path)}
    environment |= fork_server.command(tmp_path / "bin")

    def shell(line: str, code: int = 0) -> str:
        done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    shell("replicate instance create north --role secondary --network 00000000-0000-4000-8000-000000000001")
    assert shell("replicate -i north-by status", 69).startswith("NOT_FOUND: ")
    shell("replicate -i north receiver start --listen 127.0.0.1:0 --no-update")
    pid = int(json.loads(shell("replicate -i north --json receiver status"))["receiver"]["pid"])
    server = fork_server._server()._process.pid
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] in (str(server), "1")
    assert shell("echo after $(replicate -i north receiver stop)").startswith("after")
    waits = subprocess.Popen(["sh", "-c", "exec replicate -i north wait --seqno 9 --timeout 60"], env=environment)
    wait_until(lambda: Path(f"/proc/{waits.pid}/comm").read_text() != "sh\n", what="the forwarder")
    wait_until(lambda: "SigCgt:\t0000000000004002" in Path(f"/proc/{waits.pid}/status").read_text(), what="its signals")
    waits.send_signal(signal.SIGTERM)
    assert waits.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)
