"""The worked example of the chapter on packets is run as it stands there, and shows what it says; the script ships."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = (ROOT / "deploy/manual/packets.md").read_text(encoding="utf-8")
SELL = """
import sys
import replicate
connection = replicate.connect("hub", "main")
for number in range(int(sys.argv[1])):
    connection.execute("INSERT INTO purchase(what) VALUES (?)", (f"thing {number}",))
    connection.commit()
connection.close()
"""


def example(language: str, number: int = 0) -> str:
    return str(re.findall(rf"^```{language}\n(.*?)^```$", CHAPTER, re.DOTALL | re.MULTILINE)[number])


def aged(text: str) -> str:
    """Without ages, which differ."""
    return re.sub(r"\d+ s ago", "N s ago", text)


@pytest.mark.slow
def test_three_sites_one_of_them_without_any_line(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY, what TEXT)")
    connection.close()
    (tmp_path / "sell.py").write_text(SELL)
    (tmp_path / "shm").mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REPLICATE_HOME": str(tmp_path),
        "REPLICATE_SHM_DIR": str(tmp_path / "shm"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["sh", "-eu", "-c", example("sh")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for number in (0, 1):
        assert aged(example("text", number)) in aged(done.stdout)
    rows = [
        sqlite3.connect(path).execute("SELECT * FROM purchase").fetchall()
        for path in (tmp_path / "shop.db", *sorted(tmp_path.glob("*/regions/*.db")))
    ]
    assert len(rows) == 3
    assert len(rows[0]) == 100
    assert rows == [rows[0]] * 3


RSYNC = """#!/bin/sh
# As rsync does it: aside, renamed, and only then removed where it was.
echo "$@" >"$0.said"
while [ $# -gt 2 ]; do shift; done
cp "$1" "$2.part" && mv "$2.part" "$2${1##*/}" && rm "$1"
"""


def test_the_example_ships_a_packet_and_removes_it_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packet, inbox, rsync = tmp_path / "a.packet", tmp_path / "inbox", tmp_path / "rsync"
    packet.write_bytes(b"packet")
    inbox.mkdir()
    rsync.write_text(RSYNC)
    rsync.chmod(0o755)
    monkeypatch.setenv("RSYNC", str(rsync))
    script = ROOT / "deploy/systemd/examples/ship-packet"
    subprocess.run([script, str(inbox), str(packet)], check=True, timeout=60)
    assert not packet.exists()
    assert (inbox / "a.packet").read_bytes() == b"packet"
    assert (tmp_path / "rsync.said").read_text().split()[:3] == ["--remove-source-files", "--chmod=F0600", "--"]
    packet.write_bytes(b"packet")
    failed = subprocess.run([script, str(tmp_path / "no" / "where"), str(packet)], check=False, timeout=60)
    assert failed.returncode
    assert packet.exists()
    assert subprocess.run([script, "one"], check=False, stderr=subprocess.DEVNULL, timeout=60).returncode == 2
