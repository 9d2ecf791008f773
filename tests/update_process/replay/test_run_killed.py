"""A replay and a rebuild that die at any of their steps: the old state or the new, and the same command finishes.

The steps are named in the sources (failpoint.hit); a step that this file does not know fails it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from replicate.audit.verify import verify_journal
from replicate.compare.compare import compare
from replicate.daemon.files import DaemonFiles
from replicate.daemon.status_file import FAILED, DaemonStatus
from replicate.errors import AlreadyExistsError, DiskFullError, OutcomeUnknownError
from replicate.instance.instance import STAGE_DIRECTORY, Instance
from replicate.limits import KIB, MIB
from replicate.status.collect import collect
from replicate.system import failpoint
from replicate.transfer.seed.make import make_seed
from tests.harness.backlog import Backlog
from tests.harness.differential import read, same
from tests.harness.instances import ROOT, last_seqno, lose_pool
from tests.harness.machine_tools import small_disk
from update_process.replay.command import apply_session, replay
from update_process.replay.rebuild import rebuild

pytestmark = pytest.mark.slow

REPLAY = (
    *("replay.stage", "replay.unpacked", "replay.read", "replay.removing", "replay.changing", "replay.inserting"),
    *("replay.applied", "take.before_rename", "take.renamed", "take.after_rename", "apply.after_commit"),
    *("replay.committed", "replay.alone", "replay.large"),
)
REBUILD = ("seed.journal_begun", "rebuild.installed", "replay.committed", "rebuild.replayed")
ELSEWHERE = ("archive.", "replay.staged", "packet.")
"""Of the archive, and of Spark: tests/spark/test_archive_steps.py; of packets: test_packets.py."""


def killed(point: str, number: int, work: Callable[[], object]) -> bool:
    """Whether a process of its own, killed at the number-th time that it comes to `point`, came there."""
    pid = os.fork()
    if pid == 0:
        try:
            failpoint.arm(f"{point}:{number}:kill")
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{point}: {error!r}\n".encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def names(backlog: Backlog) -> list[Path]:
    """The archive, and a copy of the journal's end alone."""
    tail = backlog.pair.directory / "tail"
    if not tail.exists():
        tail.mkdir()
        for path in sorted(backlog.pair.primary.journal_directory.glob("*.journal"))[-2:]:
            shutil.copy(path, tail)
    return [backlog.pair.directory / "archive", tail]


def prove_whole(backlog: Backlog, secondary: Instance) -> int:
    """It is exactly as after one of the primary's transactions, in rows and journal; which one."""
    with apply_session(secondary) as session:  # rolls forward what our journal has
        stands = session.position.last_seqno
    other = backlog.secondary()
    replay(other, names(backlog), last_seqno=stands)
    same(read(secondary.region("main").path), read(other.region("main").path), secondary.name, other.name)
    assert not verify_journal(secondary).findings
    return stands


def prove_finished(backlog: Backlog, secondary: Instance) -> None:
    assert compare(backlog.pair.primary, secondary, timeout_s=5).equal
    assert last_seqno(secondary) == last_seqno(backlog.pair.primary)
    assert not verify_journal(secondary).findings
    assert not list(secondary.journal_directory.glob("*.spool"))
    assert not (secondary.path / STAGE_DIRECTORY).exists()


def test_every_step_is_known() -> None:
    found: set[str] = set()
    for path in (ROOT / "update_process" / "replay").rglob("*.py"):
        found.update(re.findall(r'\bhit\(f?"([^"{]+)', path.read_text()))
    found.discard("replay.")  # of the phases, by their names
    assert {name for name in found if not name.startswith(ELSEWHERE)} <= {*REPLAY, *REBUILD}


@pytest.mark.turns(2)
@pytest.mark.parametrize("point", REPLAY)
def test_a_replay_that_is_killed_is_run_again(backlog: Backlog, point: str) -> None:
    reached = 0
    for number in (1, 2):
        secondary = backlog.secondary()
        work = partial(replay, secondary, names(backlog))
        reached += killed(point, number, work)
        if number == 2:
            lose_pool(secondary)  # and the machine started again
        prove_whole(backlog, secondary)
        work()
        prove_finished(backlog, secondary)
    assert reached


def seen(secondary: Instance) -> set[str]:
    """The codes of what `replicate status` finds."""
    return {finding.code for finding in collect(Instance.open(secondary.path)).findings}


@pytest.mark.parametrize("point", REBUILD)
def test_a_rebuild_that_is_killed_is_run_again(backlog: Backlog, point: str) -> None:
    secondary = backlog.empty_secondary()
    work = partial(rebuild, secondary, backlog.base, names(backlog))
    assert killed(point, 1, work)
    secondary.reload()
    if not point.startswith("seed."):
        assert prove_whole(backlog, secondary) >= backlog.base_seqno
    assert (work().base is None) == point.startswith(("replay.", "rebuild.installed", "rebuild.replayed"))
    prove_finished(backlog, secondary)
    with pytest.raises(AlreadyExistsError, match="rebuild --restart"):
        work()


def test_a_rebuild_goes_on_from_its_own_base_copy_only(backlog: Backlog, tmp_path: Path) -> None:
    secondary = backlog.empty_secondary()
    half = partial(rebuild, secondary, backlog.base, names(backlog), last_seqno=backlog.base_seqno + 200)
    assert "REBUILD_UNFINISHED" not in seen(secondary)
    assert killed("rebuild.replayed", 1, half)
    assert "REBUILD_UNFINISHED" in seen(secondary)
    secondary.reload()
    other = make_seed(backlog.pair.primary, "west", tmp_path / "other.seed")
    with pytest.raises(AlreadyExistsError, match="rebuild --restart"):
        rebuild(secondary, tmp_path / "other.seed", [backlog.pair.primary.path])
    with pytest.raises(AlreadyExistsError, match="already, beyond"):
        rebuild(secondary, backlog.base, names(backlog), last_seqno=backlog.base_seqno + 100)
    assert last_seqno(secondary) == backlog.base_seqno + 200
    update = DaemonFiles(secondary.path, "update")
    update.status.write(DaemonStatus("update", 7, FAILED, "", 1, 2, error="CONFLICT: a row. Look", exit_code=65))
    assert "CONFLICT" in seen(secondary)
    assert half().seqno == backlog.base_seqno + 200
    assert not {"REBUILD_UNFINISHED", "CONFLICT"} & seen(secondary)
    assert rebuild(secondary, tmp_path / "other.seed", [backlog.pair.primary.path], restart=True).seqno == other.seqno


def fill(path: Path, left_bytes: int) -> Path:
    """Leave so much room on the disk."""
    found = os.statvfs(path)
    filler = path / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - left_bytes))
    return filler


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
def test_a_full_disk_of_the_target(backlog: Backlog, tmp_path: Path) -> None:
    """Room for ever more of what a replay writes: each time one error, a whole state, and then the same command."""
    with small_disk(tmp_path / "small", "80m"):
        full = unknown = 0
        for left_bytes in range(0, 13 * MIB, 2 * MIB - 64 * KIB):
            secondary = backlog.secondary(tmp_path / "small")
            filler = fill(tmp_path / "small", left_bytes)
            try:
                replay(secondary, [backlog.pair.primary.path])
            except DiskFullError:
                full += 1
            except OutcomeUnknownError:
                unknown += 1
            filler.unlink()
            prove_whole(backlog, secondary)
            replay(secondary, [backlog.pair.primary.path])
            prove_finished(backlog, secondary)
            shutil.rmtree(secondary.path)
        print(f"{full} times full, {unknown} times in the journal and not in the region")
        assert 3 <= full < 7 - unknown
        assert unknown <= 1  # COMMIT itself writes a page or two
