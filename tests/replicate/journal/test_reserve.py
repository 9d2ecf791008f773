"""The room that is kept for the first full disk: made, given up once, made again; and on a disk that is really full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from replicate.door.pruning import prune_journal
from replicate.errors import DiskFullError
from replicate.instance.instance import Instance
from replicate.journal import reserve
from replicate.journal.reserve import NAME, give_up, keep, reserved_bytes
from replicate.journal.space import journal_space
from replicate.limits import MIB
from replicate.status.collect import collect
from replicate.system import failpoint
from tests.harness.instances import check, door_of, insert, lose_pool, make_primary, session_of


def test_it_is_made_given_up_once_and_made_again(tmp_path: Path) -> None:
    assert reserved_bytes(tmp_path) is None
    assert not give_up(tmp_path)
    keep(tmp_path, MIB)
    taken = os.stat(tmp_path / NAME)
    assert (taken.st_size, taken.st_mode & 0o777) == (MIB, 0o600)
    assert taken.st_blocks * 512 >= MIB, "a file that is all hole keeps no room"
    assert journal_space(tmp_path).bytes == 0, "it is none of the journal"
    assert give_up(tmp_path)
    assert (reserved_bytes(tmp_path), os.stat(tmp_path / NAME).st_blocks) == (0, 0)
    assert not give_up(tmp_path)
    keep(tmp_path, MIB)
    keep(tmp_path, 2 * MIB)
    assert reserved_bytes(tmp_path) == 2 * MIB
    keep(tmp_path, 0)
    assert not (tmp_path / NAME).exists()
    keep(tmp_path / "nowhere", MIB)  # it is only a reserve
    assert not give_up(tmp_path / "nowhere")


def test_it_never_takes_the_last_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(f_bavail=2 * MIB - 1, f_frsize=1)
    monkeypatch.setattr(reserve.os, "statvfs", lambda _path: free)
    keep(tmp_path, MIB)
    assert reserved_bytes(tmp_path) is None
    free.f_bavail += 1
    keep(tmp_path, MIB)
    assert reserved_bytes(tmp_path) == MIB


def test_a_disk_that_refuses_it_after_all_has_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reserve.os, "posix_fallocate", full)
    keep(tmp_path, MIB)
    assert reserved_bytes(tmp_path) == 0


@pytest.mark.parametrize("step", ["reserve.emptied", "reserve.made", "reserve.given_up"])
def test_killed_at_each_step_there_is_room_or_a_reserve(tmp_path: Path, step: str) -> None:
    keep(tmp_path, MIB)
    pid = os.fork()
    if pid == 0:
        failpoint.arm(f"{step}:1:kill")
        give_up(tmp_path) if step == "reserve.given_up" else keep(tmp_path, 2 * MIB)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert reserved_bytes(tmp_path) == (2 * MIB if step == "reserve.made" else 0)
    keep(tmp_path, MIB)
    assert give_up(tmp_path)


def has_finding(instance: Instance) -> bool:
    return "JOURNAL_RESERVE_USED" in {one.code for one in collect(instance).findings}


@pytest.mark.slow
@pytest.mark.parametrize("full", ["grow", "switch", "region"])
def test_commits_go_on_over_the_first_full_disk(tmp_path: Path, full: str) -> None:
    """Whether a segment grows, the next one is begun, or a database on the same disk meets it first: then that one
    transaction is refused. The second full disk refuses, and nothing is lost."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(small)], check=True)
    try:
        size = 64 << 20 if full == "grow" else 1 << 20
        # Regions lie beside the instance: on this disk, or on the large one.
        path = small / "alpha" if full == "region" else small
        instance = make_primary(path, segment_bytes=size, reserve_bytes=4 * MIB)
        instance.register_peer("west", "127.0.0.1", 7430)  # which needs all of it
        with door_of(instance) as door:
            prune_journal(door)  # on its rounds
        directory = instance.journal_directory
        assert reserved_bytes(directory) == 4 * MIB
        committed: set[int] = set()
        refused: list[int] = []
        with session_of(instance) as session:
            number = given_up_at = 0
            while len(refused) < (2 if full == "region" else 1):
                number += 1
                try:
                    insert(session, number, "z" * 3000)
                    committed.add(number)
                except (DiskFullError, apsw.FullError):
                    if session.holds_region:
                        session.rollback()
                    refused.append(number)
                if not given_up_at and reserved_bytes(directory) == 0:
                    given_up_at = number
            assert 0 < given_up_at < refused[-1] - 100, "commits went on by that room"
            assert (given_up_at in committed) == (full != "region")
            assert has_finding(instance)
            subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
            insert(session, 30_000)
        with door_of(instance) as door:
            prune_journal(door)
        assert reserved_bytes(directory) == 4 * MIB
        assert not has_finding(instance)
        assert check(instance).rows["main"].keys() == {*committed, 30_000}
        lose_pool(instance)
        check(instance)
    finally:
        subprocess.run(["umount", str(small)], check=False)
