"""README.md is true: its commands, as they stand there, lead from nothing to two equal databases and back out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click

from replicate.cli.root import root
from tests.harness.ports import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading."""
    return re.split(r"^#+ ", README.partition(f"## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def commands(text: str) -> list[str]:
    """The indented lines, without those that only find the environment, which is the one that runs this test."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line for line in lines if line and "bin/activate" not in line]


def test_from_nothing_to_two_databases_and_back_out(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(CHECKOUT / "deploy")
    shared_memory = tmp_path / "shm"
    shared_memory.mkdir()
    (application,) = re.findall(r"```python\n(.*?)```", section("In the application"), flags=re.DOTALL)
    (tmp_path / "application.py").write_text(application)
    port = free_port()
    lines = []
    for line in commands(section("From nothing to two databases")):
        if line.startswith("replicate -i primary source stop"):
            lines += ["python application.py", "replicate -i primary compare --with secondary"]
        line = line.replace(":7430", f":{port}").replace("--network UUID", '--network "$uuid"')
        line = line.replace("receiver start", f"receiver start --listen 127.0.0.1:{port}")
        if "instance create primary" in line:
            line = f"uuid=$({line.partition('#')[0]} | sed -n 's/^network //p')"
        lines.append(line)
    assert len(lines) > 15
    ends = ("primary source", "secondary receiver", "secondary update")
    done = subprocess.run(
        [
            "sh",
            "-c",
            "\n".join([f"trap '{'; '.join(f'replicate -i {end} stop' for end in ends)}' EXIT", "set -ex", *lines]),
        ],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "REPLICATE_SHM_DIR": str(shared_memory),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("primary and secondary at seqno [0-9]+: equal", done.stdout)) == 2
    assert (tmp_path / "sites" / "secondary" / "regions" / "main.db").exists()
    assert list(shared_memory.iterdir()) == []


def test_the_table_of_commands_is_the_command_line() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("Commands"), flags=re.MULTILINE)
    told = [re.findall("`([a-z-]+)(?: ([a-z…-]+))?[^`]*`", row) for row in rows]
    nouns = {found[0][0] for found in told} | {noun for found in told for noun, _ in found if noun in root.commands}
    assert nouns == set(root.commands)
    for (noun, first), *others in told:
        command = root.commands[noun]
        if isinstance(command, click.Group) and first != "…":
            assert {first, *(verb for verb, _ in others)} == set(command.commands), noun
