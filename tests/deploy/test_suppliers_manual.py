"""The worked example of the chapter on suppliers is run as it stands there, and shows what it says."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = (ROOT / "deploy/manual/suppliers.md").read_text(encoding="utf-8")


def example(language: str, number: int = 0) -> str:
    return str(re.findall(rf"^```{language}\n(.*?)^```$", CHAPTER, re.DOTALL | re.MULTILINE)[number])


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "shm").mkdir()
    made = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REPLICATE_HOME": str(tmp_path),
        "REPLICATE_SHM_DIR": str(tmp_path / "shm"),
        "PYTHONPATH": str(ROOT),
    }
    yield made
    for instance in ("shop", "depot"):
        for daemon in ("source", "receiver", "update"):
            stop = ["replicate", "-i", instance, daemon, "stop"]
            subprocess.run(stop, cwd=tmp_path, env=made, capture_output=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_shop_and_its_depot(tmp_path: Path, environment: dict[str, str]) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY, what TEXT)")
    connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, count INTEGER)")
    connection.close()
    (tmp_path / "work.py").write_text(example("python"))
    script = example("sh")
    for port in ("7441", "7442"):  # which somebody else may have on this machine
        script = script.replace(port, str(free_port()))
    done = subprocess.run(
        ["sh", "-eu", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "NOT_WRITER: partition stock is written by depot, not by shop" in done.stderr
    said = re.sub(r"seqno \d+", "seqno 8", done.stdout)
    assert example("text", 0) in said
    assert said.endswith(example("text", 1))
    rows = [
        sqlite3.connect(path).execute("SELECT * FROM item, purchase").fetchall()
        for path in (tmp_path / "shop.db", tmp_path / "depot" / "regions" / "main.db")
    ]
    assert rows == [[(1, "lamp", 7, 1, "a lamp")]] * 2
