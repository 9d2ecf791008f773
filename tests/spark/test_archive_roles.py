"""An archive that is under way while its instance's role changes: the one process archives, another changes the role.

Guarantees: of a journal that is taken back nothing counts as archived that was taken back, so that what comes in its
place is not pruned without being; the command says so once, and given again says where the archive stands.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from replicate.errors import DivergedError, TryAgainError
from replicate.instance.archive_mark import archived_seqno
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.system import failpoint
from tests.harness.backlog import write_large
from tests.harness.sites import Sites, kill_at
from update_process.replay.archive.files import open_files
from update_process.replay.archive.manifest import read_ranges
from update_process.replay.command import archive_instance

pytestmark = pytest.mark.slow


class Scene:
    """A primary with sealed segments, common ones and some that only it has; another site took over after `common`."""

    def __init__(self, sites: Sites, archive: Path, spark: Any) -> None:
        self.sites = sites
        self.archive = archive
        self.spark = spark
        (sites.primary.path / "replicate.toml").write_text(f"[journal]\narchive = '{archive}'\n")
        self.path = sites.primary.path
        write_large(sites)
        sites.write(3)
        sites.catch_up()
        self.common = sites.last_seqno()

    def part(self) -> None:
        """The old primary writes on, and is secondary then; what it has more, it must take back."""
        for _ in range(2):
            write_large(self.sites)
            self.sites.write(2)
        self.sites.take_over()
        become_secondary(self.sites.secondary)

    def run(self) -> int:
        done = archive_instance(
            Instance.open(self.path), None, spark=lambda: nullcontext(self.spark), verify=True, told=lambda _: None
        )
        return done.last_seqno

    @property
    def noted(self) -> int:
        return archived_seqno(Instance.open(self.path)) or 0

    @property
    def reached(self) -> int:
        """Up to where the archive's manifests go."""
        ranges = read_ranges(open_files(self.archive.as_uri()))
        return ranges[-1].last_seqno if ranges else 0


@pytest.fixture
def scene(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Sites.create(
        tmp_path, "CREATE TABLE loose (a, b); CREATE TABLE account (id INTEGER PRIMARY KEY, owner, balance, note)"
    )
    made.add_peers()
    made.seed()
    yield Scene(made, tmp_path / "archive", spark)
    failpoint.disarm()


def rolled_back(scene: Scene) -> None:
    """By a process of its own."""
    assert kill_at("", "replicate.roles.rollback:rollback", scene.path, scene.common) == 0


@pytest.mark.parametrize("step", ["archive.rows", "archive.copied", "archive.before_manifest"])
def test_what_is_taken_back_meanwhile_is_not_in_it(scene: Scene, step: str) -> None:
    scene.part()
    failpoint.watch(step, 1, lambda: rolled_back(scene))
    with pytest.raises(TryAgainError, match="the journal was taken back while") as caught:
        scene.run()
    assert caught.value.do == "Give the same command"
    assert (scene.reached, scene.noted) == (0, 0)
    assert scene.run() == scene.reached == scene.noted < scene.common + 1
    scene.sites.write(4)
    scene.sites.catch_up()
    assert scene.run() == scene.noted


@pytest.mark.parametrize("step", ["archive.manifest", "archive.before_note"])
def test_what_is_taken_back_after_it_was_written_counts_for_nothing(scene: Scene, step: str) -> None:
    """It counted, and what came in its place was pruned without being in the archive."""
    scene.part()
    failpoint.watch(step, 1, lambda: rolled_back(scene))
    with pytest.raises(DivergedError, match=r"was taken back.*begin another archive"):
        scene.run()
    assert scene.reached > scene.common
    assert scene.noted <= scene.common
    with pytest.raises(DivergedError, match="begin another archive"):
        scene.run()
    assert scene.noted <= scene.common


def test_a_role_that_is_handed_over_meanwhile_hurts_nothing(scene: Scene) -> None:
    write_large(scene.sites)
    scene.sites.catch_up()
    before = Chain(scene.sites.primary.journal_directory).first_seqnos()[-1] - 1
    failpoint.watch("archive.copied", 1, lambda: scene.sites.switch())
    failpoint.watch("archive.before_note", 1, lambda: become_primary(Instance.open(scene.path)))
    assert scene.run() == before == scene.noted == scene.reached
