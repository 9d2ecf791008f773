"""A pool's size that was asked for and does not count: done where nothing is lost, said otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from replicate.daemon.daemon import DaemonContext, run_daemon
from replicate.daemon.pool_sizes import void_pool_sizes
from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance
from replicate.pool import shared_memory
from replicate.pool.receive_pool import ReceivePool, RecordKind
from replicate.settings.load import Config
from tests.harness.instances import make_primary

MIB = 2**20


@pytest.fixture(autouse=True)
def _shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))


@pytest.fixture
def secondary(tmp_path: Path) -> Instance:
    network = Instance.create(tmp_path / "primary", role="primary").content.network
    return Instance.create(tmp_path / "secondary", role="secondary", network=network)


def pool_of(instance: Instance, size: int = 4 * MIB) -> ReceivePool:
    return ReceivePool.create(instance.content.uuid, configured_bytes=size, last_seqno=0, replace=True)


def wanting(size: int) -> Config:
    return Config().with_values({"receiver.pool_bytes": size, "journal.pool_bytes": size})


def test_an_empty_receive_pool_of_another_size_can_be_made_again(secondary: Instance) -> None:
    pool = pool_of(secondary)
    assert pool.can_be_remade(8 * MIB)
    assert not pool.can_be_remade(2 * MIB)  # too small for one
    assert not pool.can_be_remade(4 * MIB + 1)  # the same in whole pages
    pool.offer(b"x" * 100, 1, 1, 1, RecordKind.FRAMES)
    assert not pool.can_be_remade(8 * MIB)
    pool.close()


def test_one_with_parts_of_a_transaction_cannot(secondary: Instance) -> None:
    pool = pool_of(secondary)
    pool.note_received(0, 3)
    assert not pool.can_be_remade(8 * MIB)
    pool.close()


def test_nor_where_the_other_size_is_not_to_be_had(secondary: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(secondary)
    monkeypatch.setattr(shared_memory, "FREE_SHARE", 2**40)
    assert not pool.can_be_remade(8 * MIB)
    pool.close()


def test_what_is_said_of_a_receive_pool(secondary: Instance) -> None:
    pool = pool_of(secondary)
    assert void_pool_sizes(secondary, "receiver", Config()) == ()  # nobody has asked for the default
    assert void_pool_sizes(secondary, "update", wanting(8 * MIB)) == ()  # no business of its
    assert void_pool_sizes(secondary, "receiver", wanting(4 * MIB)) == ()
    (text,) = void_pool_sizes(secondary, "receiver", wanting(8 * MIB))
    assert 'receiver.pool_bytes = "8 MiB" does not count: the receive pool has 4 MiB: it is empty, but' in text
    pool.offer(b"x" * 100, 1, 1, 1, RecordKind.FRAMES)
    (text,) = void_pool_sizes(secondary, "receiver", Config(), {"receiver.pool_bytes"})
    named = secondary.named
    assert "the receive pool has 4 MiB, and holds what is not applied yet" in text
    assert text.endswith(f"is 0: replicate -i {named} receiver stop; replicate -i {named} receiver start")
    pool.close()


def test_what_is_said_of_a_journal_pool(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with door_of(instance):
        assert void_pool_sizes(instance, "source-west", instance.config) == ()
        (text,) = void_pool_sizes(instance, "source-west", wanting(8 * MIB), {"journal.pool_bytes"})
        assert 'journal.pool_bytes = "8 MiB" does not count: the journal pool has 1 MiB, as it is made by' in text
        assert f"replicate -i {instance.named} config set journal.pool_bytes 8MiB; then stop every process" in text
        (text,) = void_pool_sizes(instance, "source-west", wanting(8 * MIB))
        assert "as when it was made" in text
        assert f"rm {tmp_path / 'shm'}/dualsite-" in text


def test_a_daemon_logs_it_and_tells_who_waits_for_it(secondary: Instance, tmp_path: Path) -> None:
    pool = pool_of(secondary)

    async def serve(context: DaemonContext) -> None:
        context.ready("here")
        await trio.lowlevel.checkpoint()

    told = tmp_path / "told"
    with told.open("wb") as file:
        run_daemon(
            "receiver", secondary.path, serve, overrides={"receiver.pool_bytes": "8MiB"}, ready_fd=os.dup(file.fileno())
        )
    (warning,) = json.loads(told.read_text())["warnings"]
    assert "the receive pool has 4 MiB" in warning
    logged = [json.loads(line) for line in (secondary.path / "log" / "receiver.log").read_text().splitlines()]
    assert [event["do"] for event in logged if event["level"] == "warning"] == [warning]

    pool.close()
