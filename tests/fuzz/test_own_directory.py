"""A directory of a run's own: it is there while anybody of that run lives, and the next run removes what is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.own_directory import PREFIX, OwnDirectory

ROOT = Path(__file__).parents[2]
MAKE = """
import subprocess, sys, time
from pathlib import Path
from tests.fuzz.own_directory import OwnDirectory
own = OwnDirectory(Path(sys.argv[1]))
(own.path / "below").mkdir()
(own.path / "below" / "file").write_text("x")
words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
child = subprocess.Popen(words, stdout=2, pass_fds=[own.fd][: int(sys.argv[2])])
print(own.path, flush=True)
time.sleep(600)
"""


@contextmanager
def made(within: Path, heirs: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has one below `within`, and a child, to which `heirs` (0 or 1) of its descriptor are left: it
    lives until its standard input ends."""
    words = [sys.executable, "-c", MAKE, str(within), str(heirs)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_run_leaves_the_next_one_removes(tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    with made(tmp_path, 0) as (process, left):
        with OwnDirectory(tmp_path) as own:
            assert (left / "below" / "file").exists()
            assert sorted(tmp_path.glob(f"{PREFIX}*")) == sorted([left, own.path])
        assert not own.path.exists()
        process.kill()
        process.wait()
        assert left.exists()
        with OwnDirectory(tmp_path) as own:
            assert list(tmp_path.glob(f"{PREFIX}*")) == [own.path]
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_it_stays_while_a_child_lives_that_has_inherited_it(tmp_path: Path) -> None:
    with made(tmp_path, 1) as (process, left):
        process.kill()
        process.wait()
        with OwnDirectory(tmp_path):
            assert left.exists()
