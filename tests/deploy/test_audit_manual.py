"""The chapter on audit: each command that it prints runs, and so does its code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import replicate
from replicate.cli.root import root
from replicate.instance.instance import Instance
from tests.harness import instances
from tests.harness.manual import chapter
from tests.harness.replaying import archive_segments

SCRIPT = """
    CREATE TABLE purchase (id INTEGER PRIMARY KEY, amount INT);
    CREATE TABLE t (id INTEGER PRIMARY KEY, v);
"""
SHOWN = re.findall(r"^    (replicate .+)$", chapter("audit"), re.MULTILINE)
# tests/spark/test_audited.py runs the others.
COMMANDS = [command for command in SHOWN if "--engine spark" not in command]
PROGRAMS = [
    block.replace("\n    ", "\n")
    for block in re.findall(r"^    (import .+(?:\n    .+)*)", chapter("audit"), re.MULTILINE)
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The instance `primary`, whose transactions 12 to 14 are of purchase 4711; a copy of it, and an archive."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("shop")
        (home / "shm").mkdir()
        patch.setenv("REPLICATE_SHM_DIR", str(home / "shm"))
        made = instances.make_primary(home / "primary", script=SCRIPT, segment_bytes=1024 * 1024)
        with instances.session_of(made) as session:
            for row in range(9):
                instances.insert(session, row, "x" * 300_000)
        with closing(replicate.connect(str(made.path))) as connection:
            for text in (
                "INSERT INTO purchase VALUES (4711, 1)",
                "UPDATE purchase SET amount = 2",
                "UPDATE purchase SET amount = 3",
            ):
                with connection:
                    connection.execute(text)
            assert connection.last_seqno == 14
        instance = Instance.open(made.path)
        shutil.copytree(instance.path, home / "copy")
        archive_segments(instance, home / "archive")
        # The instance is called as the chapter calls it.
        return home


@pytest.fixture
def here(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shop / "shm"))
    monkeypatch.setenv("REPLICATE_HOME", str(shop))
    monkeypatch.setenv("TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    monkeypatch.chdir(shop)
    return shop


@pytest.mark.turns(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, here: Path) -> None:
    words = shlex.split(command.replace("--origin primary", "--origin alpha"))[1:]
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 0, (done.output, done.exception)
    written = [words[at + 1] for at, word in enumerate(words) if word in ("--out", "--plot")]
    assert written or done.stdout or "--comment" in words or "comment" in words
    assert all((here / name).stat().st_size for name in written)


def test_the_code_runs(here: Path) -> None:
    assert len(PROGRAMS) == 2
    undo = shlex.split(next(one for one in COMMANDS if " undo " in one))[1:]
    assert CliRunner().invoke(root, undo).exit_code == 0
    with closing(replicate.connect(str(here / "primary"))) as connection:
        assert connection.execute("SELECT * FROM purchase").fetchall() == [(4711, 3)]
        exec(PROGRAMS[0], {})
        assert connection.execute("SELECT * FROM purchase").fetchall() == []
        exec(PROGRAMS[1], {})
    shown = CliRunner().invoke(root, ["-i", "primary", "audit", "show", "--comment", "nightly run 7"])
    assert "begins" in shown.stdout
    assert "ends" in shown.stdout


def test_the_chapter_has_every_verb() -> None:
    verbs = {words.split(" audit ")[1].split()[0] for words in COMMANDS}
    assert verbs == set(root.commands["audit"].commands)  # type: ignore[attr-defined]
