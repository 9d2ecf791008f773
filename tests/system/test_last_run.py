"""Fault 93: a daemon started again by the command that `status` printed comes back exactly as it ran."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.instance.instance import Instance
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until


@pytest.mark.slow
def test_what_status_prints_brings_a_killed_receiver_back_as_it_ran(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    network = Instance.create(tmp_path / "primary", role="primary").content.network
    made = Instance.create(tmp_path / "secondary", role="secondary", network=network)
    files, port = DaemonFiles(made.path, "receiver"), free_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REPLICATE_HOME": str(tmp_path),
        "REPLICATE_SHM_DIR": str(tmp_path / "shm"),
    }

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)

    def facts() -> tuple[object, list[str]]:
        said = files.read_status()
        assert said is not None
        command = Path(f"/proc/{said.pid}/cmdline").read_text().split("\0")
        return said.facts.get("listen"), [word for word in command if "=" in word]

    flags = f"--listen 127.0.0.1:{port} --allow 'primary, other=*.example.com' --set receiver.dead_after_s=90"
    try:
        assert shell(f"replicate -i secondary receiver start {flags}").returncode == 0
        before = facts()
        assert before[0] == f"127.0.0.1:{port}"
        running = files.lock.probe()
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: files.lock.probe() is None, what="the end of the receiver")
        for path in made.run_directory.iterdir():  # a reboot, or somebody who takes run/ for disposable
            path.unlink()
        told = shell("replicate -i secondary status").stdout  # wrapped to a terminal, but never within a command
        command = re.findall(r"receiver does not run.*?Next:\s+(replicate [^\n]*)", told, flags=re.DOTALL)[0]
        started = shell(command)
        assert (started.returncode, started.stderr) == (0, "")
        assert facts()[0] == before[0]
        assert sorted(facts()[1]) == sorted(
            ["receiver.dead_after_s=90.0", f"receiver.listen=127.0.0.1:{port}", before[1][-1]]
        )
        assert json.loads(files.last_run.read_text())["given"]["receiver.allow"] == "primary, other=*.example.com"
    finally:
        shell("replicate -i secondary receiver stop --timeout 5")
