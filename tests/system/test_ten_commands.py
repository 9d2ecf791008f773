"""The chapter on two hosts is true: its commands, as they stand there, on two network namespaces with a cable.

Each namespace has an address, instances and shared memory of its own; what is said to be carried from one to the other
is copied. Installing is tested in tests/deploy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.manual import chapter, commands, section
from tests.harness.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
ADDRESSES = {"primary": "192.0.2.1", "secondary": "192.0.2.2"}
INSERT = """
import sys, replicate
connection = replicate.connect("primary", "main")
for number in range(int(sys.argv[1])):
    with connection:
        connection.execute("INSERT INTO purchase (article) VALUES (?)", (f"article {number}",))
print(connection.last_seqno)
"""


def steps() -> list[tuple[str, str]]:
    """The commands of the chapter, with the host of each: the indented lines "HOST COMMAND  # comment"."""
    found = re.findall(r"^    (both|primary|secondary) +(.*?)(?: +# .*)?$", chapter("two-hosts"), flags=re.MULTILINE)
    return [(host, command) for host, command in found]


class Cable:
    """Two network namespaces, joined by a pair of interfaces."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = {host: f"dualsite-{os.getpid()}-{host[0]}" for host in ADDRESSES}
        self.ends = {host: f"ds{os.getpid()}{host[0]}"[-15:] for host in ADDRESSES}

    def plug(self) -> None:
        """Make both, and the cable. RuntimeError where that is not to be had."""
        ends = self.ends
        for host, name in self.names.items():
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
            (self.directory / host / "shm").mkdir(parents=True)
        self.ip("link", "add", ends["primary"], "type", "veth", "peer", "name", ends["secondary"])
        for host, name in self.names.items():
            self.ip("link", "set", ends[host], "netns", name)
            self.ip("-n", name, "address", "add", f"{ADDRESSES[host]}/30", "dev", ends[host])
            self.ip("-n", name, "link", "set", ends[host], "up")

    @staticmethod
    def ip(*words: str) -> str:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def on(self, host: str, command: str, *, code: int = 0) -> str:
        """Run a shell command on a host, in its directory; what it printed."""
        here = self.directory / host
        done = subprocess.run(
            ["ip", "netns", "exec", self.names[host], "sh", "-c", command],
            cwd=here,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(CHECKOUT),
                "REPLICATE_HOME": str(here / "instances"),
                "REPLICATE_SHM_DIR": str(here / "shm"),
                "XDG_RUNTIME_DIR": str(here),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{host}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def pull(self, out: bool) -> None:
        """Pull the cable, or plug it in again."""
        self.ip("-n", self.names["primary"], "link", "set", self.ends["primary"], "down" if out else "up")

    def close(self) -> None:
        for host, name in self.names.items():
            with contextlib.suppress(RuntimeError):
                for pid in map(int, self.ip("netns", "pids", name).split()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.ip("netns", "delete", name)
            shutil.rmtree(self.directory / host / "shm", ignore_errors=True)


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("root and the command ip are needed")
    made = Cable(tmp_path)
    try:
        made.plug()
    except RuntimeError as error:
        made.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


def compared(cable: Cable) -> str:
    """What the last two commands of the section say: a digest is made, carried and compared."""
    digest, compare = [command for _, command in steps()[-2:]]
    cable.on("primary", digest)
    shutil.copy(cable.directory / "primary" / "primary.json", cable.directory / "secondary")
    return cable.on("secondary", compare)


def is_well(cable: Cable, host: str, status: str) -> bool:
    """Whether that command finds nothing but a disk that fills up, which is the host's."""
    found = json.loads(cable.on(host, f"{status} --json; :"))["findings"]
    return not {finding["code"] for finding in found} - {"DISK_FILLING"}


def set_up(cable: Cable) -> None:
    """The chapter's commands up to where both are compared."""
    (cable.directory / "primary" / "insert.py").write_text(INSERT)
    (cable.directory / "secondary" / "insert.py").write_text(INSERT.replace("primary", "secondary"))
    connection = sqlite3.connect(cable.directory / "primary" / "shop.db")
    connection.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY, article TEXT NOT NULL)")
    connection.execute("INSERT INTO purchase (article) VALUES ('a bicycle')")
    connection.commit()
    connection.close()

    begin, *rest = steps()
    assert begin == ("both", "deploy/install")
    network = ""
    for host, command in rest[:-2]:
        if command.startswith("scp "):
            _, what, where = command.replace("-r ", "").replace("secondary:", "").split()
            target = cable.directory / "secondary" / "instances" / where.removeprefix("/var/lib/replicate/")
            shutil.copytree(cable.directory / "primary" / what, target)
            continue
        if command.endswith(" status"):
            wait_until(lambda host=host, command=command: is_well(cable, host, command), what="all is well")  # type: ignore[misc]
            continue
        said = cable.on(host, command.replace("UUID", network))
        network = next(iter(re.findall(r"^network (\S+)", said, flags=re.MULTILINE)), network)


@pytest.mark.slow
def test_from_nothing_to_two_hosts(cable: Cable) -> None:
    set_up(cable)
    words = " ".join(command for _, command in steps())
    for verb in ("certificate init", "certificate issue", "region add", "peer add", "config set", "receiver start",
                 "source start",
                 "seed", "update start", "status", "digest", "compare"):  # fmt: skip
        assert f" {verb}" in words

    assert "secondary and primary at seqno" in compared(cable)
    cable.pull(out=True)
    last = cable.on("primary", "python insert.py 50").split()[-1]
    cable.on("secondary", f"replicate -i secondary wait --seqno {last} --timeout 0.5", code=75)
    cable.pull(out=False)
    cable.on("secondary", f"replicate -i secondary wait --seqno {last} --timeout 90")
    assert f"at seqno {last}: equal" in compared(cable)
    for host, noun in (("primary", "source"), ("secondary", "receiver"), ("secondary", "update")):
        cable.on(host, f"replicate -i {host} {noun} stop")
    wait_until(
        lambda: not cable.ip("netns", "pids", cable.names["primary"]).split(), what="the end of the Source Server"
    )


@pytest.mark.slow
def test_the_roles_are_changed_and_changed_back_over_tls_both_ways(cable: Cable) -> None:
    """With the commands of the chapter on roles, from either host; the line is cut while it runs the other way."""
    set_up(cable)
    change = commands(section(chapter("roles"), "A planned change"))
    ready = [line for line in change if " switchover" not in line]
    assert [line.split()[3] for line in ready] == ["peer", "config", "receiver", "source"]
    dry, real = (line for line in change if " switchover" in line)
    ready.insert(2, "replicate -i primary config set receiver.allow secondary")
    refused = cable.on("primary", dry + " 2>&1", code=1)
    assert "peer add primary" in refused, refused
    for line in ready:
        cable.on(line.split()[2], line.replace("127.0.0.1", ADDRESSES["primary"]))
    wait_until(lambda: cable.on("primary", f"{dry} || :"), what="the way back works")
    for name, other, host, command in (
        ("primary", "secondary", "primary", real),
        ("secondary", "primary", "primary", "replicate -i primary switchover"),
    ):
        before = cable.on(name, "python insert.py 20").split()[-1]
        assert f"{other} is primary, after transaction {before}; {name} is secondary" in cable.on(host, command)
        cable.pull(out=True)
        last = cable.on(other, "python insert.py 20").split()[-1]
        cable.pull(out=False)
        cable.on(name, f"replicate -i {name} wait --seqno {last} --timeout 90")
        assert f"at seqno {last}: equal" in compared(cable)


@pytest.mark.slow
def test_plain_tcp_does_not_leave_a_host(cable: Cable) -> None:
    cable.on("primary", "replicate instance create primary --role primary")
    cable.on("primary", "replicate -i primary peer add secondary 192.0.2.2:7430", code=78)
