"""A primary that was restored from a backup, by a line, with real daemons: `replica restore`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from tests.harness.both_sites import KEPT, Both
from tests.harness.instances import lose_pool
from tests.harness.manual import chapter, commands, section
from tests.harness.street import QUICK

pytestmark = pytest.mark.slow


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=QUICK, schema=KEPT)
    made.build()
    try:
        yield made.start()
    finally:
        made.close()


def is_waiting(both: Both, instance: Path) -> bool:
    return "RESTORING" in {one["code"] for one in both.status(instance)["findings"]}


def typed(both: Both, line: str, code: int = 0) -> str:
    """A command of the manual, and what it printed."""
    _, _, name, *words = line.partition("#")[0].split()
    words += ["--timeout", "3" if code else "60"] if words[0] == "replica" else []
    done = both.on(both.directory / name, *words, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def files_of(both: Both) -> list[Path]:
    return sorted(both.database.parent.glob(f"{both.database.name}*"))


def test_it_gets_back_by_the_line_what_it_had_and_writes_on(both: Both) -> None:
    primary, copy = both.primary, both.directory / "copy"
    both.equal()
    both.host_is_lost(primary)
    no_files = shutil.ignore_patterns("*.socket", "*.doorbell")
    shutil.copytree(primary, copy / "primary", symlinks=True, ignore=no_files)
    for file in files_of(both):
        shutil.copy(file, copy)
    both.all_start()
    both.write("INSERT INTO audit VALUES ('after the backup', 1)")
    both.equal()
    had = both.last_seqno(primary)
    both.host_is_lost(primary)
    lose_pool(Instance.open(primary))
    shutil.rmtree(primary)
    shutil.copytree(copy / "primary", primary, symlinks=True)
    for file in files_of(both):
        file.unlink()
    for file in copy.glob(f"{both.database.name}*"):
        shutil.copy(file, both.directory)
    both.all_start()

    ask, activate, again, deactivate = commands(section(chapter("roles"), "A primary was restored from a backup"))
    told = typed(both, ask, code=1)
    assert "primary takes no writes; waited for: secondary" in told
    assert both.role(primary) == "secondary"
    assert is_waiting(both, primary)
    typed(both, activate)
    assert f"primary is primary again, with all transactions up to {had}" in typed(both, again)
    typed(both, deactivate)
    assert not is_waiting(both, primary)
    assert both.write("INSERT INTO audit VALUES ('it writes on', 1)") == had + 2
    both.equal()
    assert "secondary is primary" in both.on(primary, "switchover", "--to", "secondary").stdout
