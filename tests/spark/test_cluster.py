"""A real standalone cluster on loopback: a master and two workers, each a process, driven by spark-submit and --master.

Faults 86 and 87: executors die and tasks come twice, a driver is killed, two replays meet; each leaves the old state or
the new one, applied once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from tests.harness.backlog import Backlog
from tests.harness.instances import ROOT, last_seqno
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
"""Processes of a cluster take seconds to start, and many on a busy machine. Nobody waits longer than it takes."""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
DEFAULTS = f"""
spark.executor.memory 512m
spark.executor.cores 1
spark.cores.max 2
spark.executor.extraJavaOptions {QUICK_JVM}
spark.driver.extraJavaOptions {QUICK_JVM}
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
spark.sql.shuffle.partitions 2
spark.speculation true
"""


class Cluster:
    """The processes, what they have said, and what anybody who drives them needs in the environment."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self.directory = directory
        self.home = Path(pyspark.__file__).parent
        (directory / "conf").mkdir(parents=True)
        (directory / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
        self.environment = {
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self) -> None:
        """Master and workers; returns when both have registered."""
        self._run("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        wait_until(lambda: re.search(r"spark://127\.0\.0\.1:\d+", self.said("master")), timeout_s=PATIENCE_S)
        found = re.search(r"spark://127\.0\.0\.1:\d+", self.said("master"))
        assert found is not None
        self.master = found[0]
        for name in ("one", "two"):
            self._run(
                name,
                "org.apache.spark.deploy.worker.Worker",
                self.master,
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "600m", "--work-dir", str(self.directory / name)),
            )
        for name in ("one", "two"):
            wait_until(lambda: "Successfully registered" in self.said(name), timeout_s=PATIENCE_S)  # noqa: B023

    def said(self, name: str) -> str:
        """Everything that one of them has logged."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _run(self, name: str, *arguments: str) -> None:
        with open(self.directory / f"{name}.log", "wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(self.home / "bin" / "spark-class"), *arguments, "--webui-port", "0"],
                    env={**os.environ, **self.environment},
                    cwd=self.directory,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def executors(self) -> list[int]:
        """Processes of executors that belong to this cluster."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes()
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in words and b"--worker-url" in words and self._is_ours(path.parent):
                found.append(int(path.parent.name))
        return found

    def _is_ours(self, process: Path) -> bool:
        try:
            return str(self.directory) in os.readlink(process / "cwd")
        except OSError:
            return False

    def popen(self, *command: object, **environment: str) -> subprocess.Popen[str]:
        """A driver."""
        return subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **self.environment, **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End all of them, executors too."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self.executors():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def result(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


COMMAND = (sys.executable, "-m", "replicate.cli.main")


def test_spark_submit_archives_as_the_one_machine_does(cluster: Cluster, backlog: Backlog, tmp_path: Path) -> None:
    uri = (tmp_path / "archive").as_uri()
    job = ROOT / "replicate" / "cli" / "spark_job.py"
    submit = (cluster.home / "bin" / "spark-submit", "--master", cluster.master, job)
    primary = backlog.pair.primary
    done = result(cluster.popen(*submit, "-i", primary.path, "archive", uri, "--json"))
    assert done["last_seqno"] > backlog.base_seqno
    for name in ("one", "two"):
        assert list((cluster.directory / name).glob("app-*/*/stderr")), f"worker {name} has done nothing"
    # All of it is there: whatever the archive was made by, a replay without Spark makes the primary of it.
    secondary = backlog.secondary()
    again = (*COMMAND, "-i", secondary.path, "replay", "--journal", uri, "--journal", primary.path, "--json")
    assert result(cluster.popen(*again))["seqno"] == last_seqno(primary)
    assert compare(primary, secondary, timeout_s=5).equal


@pytest.mark.long
def test_fault_86_an_executor_is_killed_and_the_driver_too(cluster: Cluster, backlog: Backlog) -> None:
    primary, secondary = backlog.pair.primary, backlog.secondary()
    replay = (*COMMAND, "-i", secondary.path, "replay", "--journal", backlog.archive, "--journal", primary.path)
    by_spark = (*replay, "--master", cluster.master, "--json")  # a master says which engine, too
    before = set(cluster.executors())  # perhaps of an earlier application, on their way out
    driver = cluster.popen(*by_spark, REPLICATE_FAILPOINT="take.renamed:2:kill")
    found: set[int] = set()

    def begun() -> bool:
        found.update(set(cluster.executors()) - before)
        return bool(found) or driver.poll() is not None

    wait_until(begun, timeout_s=PATIENCE_S, what="an executor")
    assert found, driver.communicate()
    os.kill(min(found), signal.SIGKILL)
    _, err = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, err
    stands = last_seqno(secondary)
    assert backlog.base_seqno < stands < last_seqno(primary)
    assert not verify_journal(secondary).findings
    done = result(cluster.popen(*replay, "--json"))
    assert (done["first_seqno"], done["seqno"]) == (stands + 1, last_seqno(primary))
    assert compare(primary, secondary, timeout_s=5).equal
    assert not (secondary.path / "replay").exists()
