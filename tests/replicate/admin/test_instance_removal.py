"""`replicate instance remove` where instance.json is damaged: what is ours goes, at a word; nothing else does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

import replicate
from replicate.admin.instance_removal import remove_damaged_instance
from replicate.admin.region_release import release_copy, release_region
from replicate.admin.regions import add_region
from replicate.cli.root import root
from replicate.daemon.files import DaemonFiles
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool

ROOM = 4 * 2**20


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """With one region, outside."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Instance.create(tmp_path / "east", role="primary")
    database = apsw.Connection(str(tmp_path / "shop.db"))
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    database.close()
    add_region(made, tmp_path / "shop.db", name="main")
    replicate.connect(str(made.path)).close()
    return Instance.open(made.path)


def remove(instance: Instance, *options: str) -> str:
    result = CliRunner().invoke(root, ["instance", "remove", str(instance.path), *options], standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    return result.stdout


def damage(instance: Instance, change: Callable[[str], str] = lambda text: text[:-3]) -> None:
    file = instance.path / "instance.json"
    file.write_text(change(file.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda _text: "",
        lambda _text: "[1, 2]",
        lambda _text: '{"format": 1}',
        lambda text: text.replace('"format": 1', '"format": null'),
        lambda text: text.replace('"incarnation": 1', '"incarnation": "one"'),
        lambda text: re.sub(r'  "role".*\n', "", text),
        lambda text: text.replace('"name"', '"n\\ud800me"'),
    ],
)
def test_a_damaged_instance_is_removed_at_a_word(
    instance: Instance, tmp_path: Path, change: Callable[[str], str]
) -> None:
    release_region(instance, "main", timeout_s=5)
    pool = ReceivePool.create(instance.content.uuid, configured_bytes=ROOM, last_seqno=0)
    pool.memory.note_home(instance.path)
    pool.close()
    damage(instance, change)
    told = rf"Restore it from a backup.*replicate -i {instance.path} instance remove --force, and make it again"
    with pytest.raises(DamagedError, match=told):
        remove(instance)
    assert instance.path.exists()
    assert remove(instance, "--force") == f"instance removed: {instance.path}\n"
    assert sorted(os.listdir(tmp_path)) == ["shm", "shop.db"]
    assert os.listdir(tmp_path / "shm") == []


def test_what_the_file_still_says_of_a_region_is_believed(instance: Instance, tmp_path: Path) -> None:
    damage(instance)
    file = tmp_path / "shop.db"
    again = rf"region plain {file}, then again replicate instance remove {instance.path} --force"
    with pytest.raises(AlreadyExistsError, match=rf"{file} still is a region of this instance.*{again}"):
        remove(instance, "--force")
    assert instance.path.exists()
    release_copy(file)
    assert "removed" in remove(instance, "--force")
    with apsw.Connection(str(file)) as database:
        assert database.execute("SELECT count(*) FROM item").get == 0


def test_a_database_that_is_another_instances_now_keeps_nothing(instance: Instance, tmp_path: Path) -> None:
    damage(instance)
    release_copy(tmp_path / "shop.db")
    other = Instance.create(tmp_path / "again", role="primary")
    add_region(other, tmp_path / "shop.db", name="main")
    assert "removed" in remove(instance, "--force")
    replicate.connect(str(other.path)).close()


def test_refused_while_a_daemon_or_an_application_uses_it(instance: Instance) -> None:
    release_region(instance, "main", timeout_s=5)
    pool = ReceivePool.create(instance.content.uuid, configured_bytes=ROOM, last_seqno=0)
    damage(instance, lambda _text: "")
    lock = DaemonFiles(instance.path, "source-west").lock.acquire()
    try:
        with pytest.raises(AlreadyRunningError, match=rf"source-west runs.*-i {instance.path} source stop --peer west"):
            remove(instance, "--force")
    finally:
        os.close(lock)
    # Whose the pool is, is not told by the damaged file: only the pool knows its instance's directory.
    for home in (None, instance.path.with_name("gone"), instance.path):
        if home is not None:
            pool.memory.note_home(home)
        with pytest.raises(AlreadyRunningError, match="a process uses the instance"):
            remove(instance, "--force")
    pool.memory.note_home(instance.path.parent)
    assert "removed" in remove(instance, "--force")
    pool.close()


def test_what_may_not_be_ours_stays(instance: Instance) -> None:
    release_region(instance, "main", timeout_s=5)
    damage(instance)
    for name in ("notes.txt", "regions/main.db", "conflict/one"):
        (instance.path / name).write_bytes(b"rows")
        with pytest.raises(AlreadyExistsError, match=rf"still holds {name}"):
            remove(instance, "--force")
        (instance.path / name).unlink()
    (instance.path / "log" / "kept").mkdir()
    with pytest.raises(AlreadyExistsError, match="still holds log/kept"):
        remove(instance, "--force")
    (instance.path / "log" / "kept").rmdir()
    (instance.path / "consumers").rmdir()
    with pytest.raises(NotFoundError, match="'consumers' of the instance is missing"):
        remove(instance, "--force")
    (instance.path / "consumers").symlink_to(instance.path.parent)
    with pytest.raises(PermissionRefusedError, match="symbolic link"):
        remove(instance, "--force")
    assert instance.path.exists()


def test_a_newer_format_and_a_file_that_is_well_are_not_damaged(instance: Instance, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExistsError, match="still has regions: main"):
        remove(instance, "--force")
    with pytest.raises(UsageError, match="the instance file is well"):
        remove_damaged_instance(str(instance.path))
    damage(instance, lambda text: text.replace('"format": 1', '"format": 99'))
    for options in ((), ("--force",)):
        with pytest.raises(FormatUnknownError, match="Use the release that wrote it"):
            remove(instance, *options)
    with pytest.raises(FormatUnknownError):
        remove_damaged_instance(str(instance.path))
    (instance.path / "instance.json").unlink()
    with pytest.raises(NotFoundError, match="there is no instance here"):
        remove(instance, "--force")
    assert instance.path.exists()


def test_a_slip_in_the_settings_keeps_nobody_from_removing(instance: Instance) -> None:
    release_region(instance, "main", timeout_s=5)
    (instance.path / "replicate.toml").write_text("[source]\nhard_trys = 9\n")
    assert "removed" in remove(instance)
