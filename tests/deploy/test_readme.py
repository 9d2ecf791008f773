"""README and the chapters are true: their commands, as they stand there, lead from nothing to two equal databases and
back out."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from replicate.model.findings import CODES
from tests.harness import fork_server
from tests.harness.manual import blocks, chapter, commands, readme, section
from tests.harness.ports import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
WRITTEN = "n=$(replicate -i primary status | sed -n 's/.*last written \\([0-9]*\\),.*/\\1/p')"
"""How far the primary's journal is."""


@dataclass
class Shell:
    """Lines of the manual, run one after the other in a directory as a checkout is."""

    directory: Path
    is_installed: bool = False
    """The command is the installed one, and what it starts; else both are forked (tests/harness/fork_server.py)."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Ports of the manual, and those that are free here."""

    def __post_init__(self) -> None:
        (self.directory / "deploy").symlink_to(CHECKOUT / "deploy")
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.environment = path if self.is_installed else fork_server.command(self.directory / "bin")
        self.shared_memory.mkdir()

    @property
    def shared_memory(self) -> Path:
        return self.directory / "shm"

    def line(self, line: str) -> str:
        """A line with ports that are free; what an `instance create` prints last is the UUID of its network."""
        for port in re.findall(r"127\.0\.0\.1:(\d+)", line):
            line = line.replace(f":{port}", f":{self.numbers.setdefault(port, free_port())}")
        line = line.replace("--network UUID", '--network "$uuid"').replace("--network NEXT", '--network "$next"')
        if found := re.search("instance create (primary|next)", line):
            name = "uuid" if found[1] == "primary" else "next"
            line = f"{name}=$({line.partition('#')[0]} | sed -n 's/^network //p')"
        return line

    def run(self, lines: list[str], daemons: tuple[str, ...]) -> str:
        """Run them until one fails; what they print. `daemons` (of which instance) are stopped in any case."""
        stops = "; ".join(f"replicate -i {daemon} stop || true" for daemon in daemons)
        done = subprocess.run(
            ["sh", "-c", "\n".join([f"trap '{stops}' EXIT", "set -ex", *map(self.line, lines)])],
            env={**os.environ, **self.environment, "REPLICATE_SHM_DIR": str(self.shared_memory)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def beginning() -> list[str]:
    """From nothing to two databases. Of what `status` warns of, only the machine's disk is let pass."""
    lines = [
        line.replace("receiver start", "receiver start --listen 127.0.0.1:7430")
        for line in commands(section(readme(), "From nothing to two databases"))
    ]
    assert len(lines) > 12
    status = lines.index("replicate -i secondary status")
    found, disk = "grep -cE ' (warning|error): ' status.txt", "grep -c 'DISK_FILLING warning' status.txt"
    lines[status] += f' > status.txt || [ "$({found})" = "$({disk})" ]; cat status.txt'
    return lines


def way_out() -> list[str]:
    """And back out. The last number is the one that the chapter says where to find."""
    level, *lines = commands(section(chapter("regions"), "The way out"))
    assert level.startswith("replicate -i secondary wait --seqno N ")
    return [WRITTEN, level.replace("--seqno N ", '--seqno "$n" '), *lines]


DAMAGE = """
import sys
from replicate.instance.instance import Instance
from replicate.pool.shared_memory import PoolKind, pool_path
instance = Instance.open("sites/primary")
(path,) = instance.journal_directory.glob("*.journal")
data = path.read_bytes()
at = len(data.rstrip(bytes(1))) // 2
path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
pool_path(PoolKind.JOURNAL, instance.content.uuid).unlink()
"""


@pytest.mark.slow
def test_from_nothing_to_two_databases_and_back_out(tmp_path: Path) -> None:
    (application,) = blocks(section(readme(), "In your application"), "python")
    (tmp_path / "application.py").write_text(application)
    shell = Shell(tmp_path, is_installed=True)
    (tmp_path / "damage.py").write_text(DAMAGE)
    stop, *again = commands(section(chapter("disaster"), "When the primary's journal is damaged"))
    lines = [*beginning(), "python application.py", stop, f"PYTHONPATH={shlex.quote(str(CHECKOUT))} python damage.py"]
    lines += ["replicate -i primary source start || echo refused with $?", *again]
    lines += ["replicate -i secondary wait --seqno 2", "replicate -i primary compare --with secondary"]
    told = shell.run([*lines, *way_out()], ("primary source", "secondary receiver", "secondary update"))
    assert len(re.findall("primary and secondary at seqno [0-9]+: equal", told)) == 2
    assert "refused with 65" in told
    assert (tmp_path / "sites" / "secondary" / "regions" / "main.db").exists()
    assert list(shell.shared_memory.iterdir()) == []


@pytest.mark.slow
def test_a_third_site_a_lost_primary_and_a_peer_that_is_forgotten(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    lines = [line.replace("--seconds 3", "--seconds 1") for line in beginning()]
    third = commands(chapter("third-site"))
    lines += [
        *third,
        WRITTEN,
        'replicate -i third wait --seqno "$n"',
        "replicate -i primary source stop --peer secondary",
    ]
    lines += ["replicate -i primary source stop --peer third", "echo a part that will be lost"]
    lines += ["python deploy/demo_application.py write --instance primary --seconds 1"]
    for line in commands(section(chapter("disaster"), "When the primary is lost")):
        if line.startswith("replicate -i secondary status"):  # warns of what does not run
            line = "m=$(($(replicate -i secondary status | sed -n 's/.*last written \\([0-9]*\\),.*/\\1/p') + 1))"
        elif line.startswith("replicate -i primary status"):
            line = "replicate -i primary status || [ $? = 1 ]"
        lines.append(line.replace("--from M", '--from "$m"'))
    lines += ["replicate -i again wait --seqno 3", "replicate -i next compare --with again", "echo lost from $m on"]
    forgotten = commands(section(chapter("watching"), "When the journal fills"))
    assert len(forgotten) == 3
    lines += [line.replace("primary", "next").replace("secondary", "again") for line in forgotten]
    daemons = [f"{name} {daemon}" for name in ("secondary", "third", "again") for daemon in ("receiver", "update")]
    told = shell.run(lines, ("primary source", "secondary source", "next source", *daemons))
    assert re.search("primary and third at seqno [0-9]+: equal", told)
    assert re.search("next and again at seqno [0-9]+: equal", told)
    assert "peer again removed" in told
    (first,) = map(int, re.findall("lost from ([0-9]+) on", told))
    lost = [json.loads(line) for line in (tmp_path / "lost.json").read_text().splitlines()]
    assert [one["seqno"] for one in lost] == list(range(first, first + len(lost)))
    last = first + len(lost) - 1
    (kept,) = (tmp_path / "sites").glob("*-lost-*")
    assert kept.name == f"primary-lost-{first}-{last}.jsonl"
    assert [json.loads(line) for line in kept.read_text().splitlines()][1:-1] == lost
    assert told.count(f"{len(lost)} transactions that would be lost (from {first} to {last}): in ") == 2


def test_the_alerts_are_the_rules_and_no_finding_is_left_out() -> None:
    rules = (CHECKOUT / "deploy" / "alerts" / "dualsite.yml").read_text(encoding="utf-8")
    rows = re.findall(r"^\| *(.*?) *\|$", section(chapter("watching"), "Metrics and alerts"), flags=re.MULTILINE)
    told = [[cell.strip().strip("`") for cell in row.split("|")] for row in rows[2:]]
    made = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", rules, flags=re.DOTALL)
    assert [tuple(row[:2]) for row in told] == [*made, ("none", "")]
    found = [
        code
        for row in told
        for code in re.findall("[A-Z]+_[A-Z_]+|CONFLICT|FENCED|FROZEN|RESTORING", row[3] if len(row) > 3 else "")
    ]
    assert sorted(found) == sorted(code for code, kind in CODES.items() if kind.severity != "info")
