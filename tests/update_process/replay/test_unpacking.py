"""Packets taken apart: what comes out has verified, and nobody applies anything meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyRunningError, DamagedError
from replicate.instance.instance import Instance
from replicate.journal.segment import open_segment
from replicate.transfer.packet.judge_packets import Offered, look
from tests.harness.packets import export
from tests.harness.pair import Pair
from update_process.replay.run import silent
from update_process.replay.unpacking import unpack, unpacking_room


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def offered(instance: Instance, *paths: Path) -> tuple[Offered, ...]:
    return look(instance, paths, time.time()).packets


def test_each_segment_is_a_directory_and_ends_where_it_says(pair: Pair) -> None:
    seeded, last = pair.last_seqno(), pair.write(4)
    (one,) = export(pair.primary, pair.directory / "out", "west")
    with unpacking_room(pair.secondary) as stage:
        ((directory, ends),) = unpack(None, offered(pair.secondary, one.path), stage, silent)
        with open_segment(next(directory.iterdir()), network=pair.primary.content.network) as segment:
            assert (segment.header.first_seqno, ends) == (seeded + 1, last)
    assert not stage.exists()


def test_one_that_was_replaced_since_it_was_judged_is_refused(pair: Pair) -> None:
    pair.write(1)
    (one,) = export(pair.primary, pair.directory / "out", "west")
    judged = offered(pair.secondary, one.path)
    pair.write(1)
    (two,) = export(pair.primary, pair.directory / "out", "west")
    one.path.write_bytes(two.path.read_bytes())
    with unpacking_room(pair.secondary) as stage, pytest.raises(DamagedError, match="replaced meanwhile"):
        unpack(None, judged, stage, silent)


def test_no_daemon_of_the_instance_can_begin_meanwhile(pair: Pair) -> None:
    with unpacking_room(pair.secondary):
        for name in ("update", "receiver"):
            with pytest.raises(AlreadyRunningError):
                DaemonFiles(pair.secondary.path, name).lock.acquire()
