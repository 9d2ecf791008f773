"""instance/private_files.py, and that the whole of an instance keeps to it: owners, modes, links, names, what is said
where."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.daemon.daemon import DaemonContext, run_daemon
from replicate.daemon.files import DaemonFiles
from replicate.daemon.log import LogFile
from replicate.errors import ConfigurationError, NotFoundError, PermissionRefusedError, UsageError
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.file import check_name
from replicate.instance.instance import Instance
from replicate.instance.private_files import DIRECTORY_MODES, FILE_MODES, check_contents
from replicate.pool.shared_memory import PoolKind, SharedMemory, pool_path
from replicate.settings.load import load
from replicate.system.files import read_private
from tests.harness.street import make_database

AS_ROOT = os.geteuid() == 0
SOMEBODY = 64242


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Instance.create(tmp_path / "east", role="primary")


async def serve(context: DaemonContext) -> None:
    context.ready("serves")


def start(instance: Instance) -> None:
    """A daemon that ends at once."""
    run_daemon("toy", instance.path, serve)


@pytest.mark.parametrize("name", ["", *DIRECTORY_MODES, *FILE_MODES])
def test_what_is_too_open_is_refused_with_the_command_that_mends_it(instance: Instance, name: str) -> None:
    path = instance.path / name
    was = stat.S_IMODE(path.stat().st_mode)
    path.chmod(was | 0o022)
    with pytest.raises(PermissionRefusedError, match="may be written by others") as caught:
        Instance.open(instance.path)
    assert caught.value.exit_code == 77
    assert caught.value.where == str(path)
    command = caught.value.do
    assert command == f"chmod {was:o} {path}"
    subprocess.run(command.split(), check=True)
    Instance.open(instance.path)


def test_who_may_read_rows_and_who_may_read_logs(instance: Instance) -> None:
    for name in ("journal", "conflict", "consumers", "run", "locks"):
        (instance.path / name).chmod(0o750)
        with pytest.raises(PermissionRefusedError, match=r"read or entered by others \(mode 0750\)"):
            Instance.open(instance.path)
        (instance.path / name).chmod(0o700)
    (instance.path / "log").chmod(0o750)  # a group of administrators
    (instance.path / "regions").chmod(0o755)  # who may read a database is its own mode's to say
    instance.path.chmod(0o755)
    Instance.open(instance.path)
    (instance.path / "log").chmod(0o755)
    with pytest.raises(PermissionRefusedError, match="read or entered"):
        Instance.open(instance.path)


@pytest.mark.parametrize("name", [*DIRECTORY_MODES, *FILE_MODES])
def test_links_are_not_followed(instance: Instance, tmp_path: Path, name: str) -> None:
    path = instance.path / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionRefusedError) as caught:
        Instance.open(instance.path)
    assert caught.value.where == str(path)
    assert "symbolic link" in str(caught.value)


def test_the_instance_itself_may_be_named_by_a_link(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(instance.path)
    assert Instance.open(tmp_path / "named").name == "east"


@pytest.mark.parametrize("name", sorted({"journal", "locks", "run", "consumers", "conflict", "log"}))
def test_a_daemon_looks_at_every_file_when_it_starts(instance: Instance, tmp_path: Path, name: str) -> None:
    start(instance)
    stray = instance.path / name / "stray"
    stray.write_bytes(b"")
    stray.chmod(0o666)
    with pytest.raises(PermissionRefusedError) as caught:
        start(instance)
    assert (caught.value.where, caught.value.exit_code) == (str(stray), 77)
    subprocess.run(caught.value.do.split(), check=True)
    assert stat.S_IMODE(stray.stat().st_mode) & DIRECTORY_MODES[name] == 0
    start(instance)
    stray.unlink()
    stray.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionRefusedError, match="symbolic link"):
        start(instance)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_refused(instance: Instance) -> None:
    stray = instance.run_directory / "stray"
    stray.write_bytes(b"")
    stray.chmod(0o600)
    os.chown(stray, SOMEBODY, -1)
    with pytest.raises(PermissionRefusedError, match=f"belongs to user {SOMEBODY}") as caught:
        check_contents(instance.path)
    assert f"Run as user {SOMEBODY}, or, if it is yours: chown root {stray}" in caught.value.do
    os.chown(stray, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(PermissionRefusedError, match="belongs to user nobody, not to user root") as caught:
        check_contents(instance.path)
    assert "Run as user nobody, or" in caught.value.do
    stray.unlink()
    os.chown(instance.path, SOMEBODY, -1)
    with pytest.raises(PermissionRefusedError, match=f"belongs to user {SOMEBODY}"):
        Instance.open(instance.path)


def test_small_files_are_read_without_following(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    write_consumer(instance.consumers_directory, Consumer("west", 7))
    for path, read in (
        (instance.consumers_directory / "west.json", lambda: read_consumer(instance.consumers_directory, "west")),
        (instance.run_directory / "toy.status.json", lambda: DaemonFiles(instance.path, "toy").read_status()),
    ):
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / "secret")
        with pytest.raises(PermissionRefusedError, match="symbolic link"):
            read()
    (instance.path / "replicate.toml").unlink()
    (instance.path / "replicate.toml").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigurationError):
        load(instance.path / "replicate.toml")
    (instance.log_directory / "a.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        LogFile(instance.log_directory / "a.log")
    assert (tmp_path / "secret").read_text() == "1"
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PermissionRefusedError, match="no regular file"):
            read_private(odd)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-r", "a/b", "../up", "a\n", "a\0", "a b", "x" * 64, "ä", "a;b", "$(x)"]
)
def test_names_that_could_be_something_else_are_refused(instance: Instance, name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name, "peer")
    with pytest.raises(UsageError):
        instance.register_peer(name, "127.0.0.1", 1)
    with pytest.raises(UsageError):
        instance.register_region(name, b"r" * 16, instance.path / "x.db")
    with pytest.raises(UsageError):
        read_consumer(instance.consumers_directory, name)
    assert check_name("A-1.b_c" + "x" * 56, "peer")


PROGRAM = """
import os, sys
os.umask(0)
from replicate.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_commands_make_files_for_nobody_else_whatever_the_shells_umask_is(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    environment = {**os.environ, "REPLICATE_SHM_DIR": str(tmp_path / "shm"), "PYTHONPATH": os.getcwd()}

    def command(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    make_database(tmp_path / "a.db", "CREATE TABLE t (x)")
    at = str(tmp_path / "new" / "east")
    command("instance", "create", at, "--role", "primary")
    command("-i", at, "region", "add", str(tmp_path / "a.db"))
    command("-i", at, "peer", "add", "west", "127.0.0.1:7555")
    command("-i", at, "source", "start")
    command("-i", at, "source", "stop")
    found = [*(tmp_path / "new").rglob("*"), *(tmp_path / "shm").iterdir()]
    assert len(found) > 15
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.skipif(not AS_ROOT, reason="only root can plant a file of another user")
def test_a_pool_that_another_user_has_planted_is_refused_by_name(instance: Instance, tmp_path: Path) -> None:
    """In a shared /dev/shm anybody may make a file of our name first: it is neither used nor written."""
    path = pool_path(PoolKind.JOURNAL, instance.content.uuid)
    path.write_bytes(b"planted" * 2000)
    path.chmod(0o666)
    os.chown(path, SOMEBODY, -1)
    with pytest.raises(PermissionRefusedError, match=f"must belong to user 0, not to {SOMEBODY}") as caught:
        SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid)
    assert (caught.value.where, caught.value.exit_code) == (str(path), 77)
    assert path.read_bytes() == b"planted" * 2000


STICKY = """
import os, sys
from replicate.errors import ReplicateError
from replicate.pool.shared_memory import PoolKind, SharedMemory
os.setuid(int(sys.argv[1]))
try:
    SharedMemory.create(PoolKind.JOURNAL, bytes.fromhex(sys.argv[2]), configured_bytes=2**20, minimum_bytes=2**20,
        replace=True)
except ReplicateError as error:
    print(error.exit_code, error)
"""


@pytest.mark.skipif(not AS_ROOT, reason="only root can be two users")
def test_a_planted_pool_in_a_sticky_directory_is_named_and_stays(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="replicate-test-") as shared:
        os.chmod(shared, 0o1777)
        monkeypatch.setenv("REPLICATE_SHM_DIR", shared)
        path = pool_path(PoolKind.JOURNAL, instance.content.uuid, SOMEBODY)
        path.write_bytes(b"root's")
        arguments = [sys.executable, "-c", STICKY, str(SOMEBODY), instance.content.uuid.hex()]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=os.getcwd())
        assert done.stdout.startswith("77 PERMISSION: "), done.stdout + done.stderr
        assert str(path) in done.stdout
        assert path.read_bytes() == b"root's"


def test_a_missing_directory_is_still_called_missing(instance: Instance) -> None:
    instance.conflict_directory.rmdir()
    with pytest.raises(NotFoundError, match="'conflict' of the instance is missing"):
        Instance.open(instance.path)


def test_a_journal_that_is_gone_for_good_has_a_way_out(instance: Instance, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE t (a)")
    add_region(instance, tmp_path / "shop.db")
    shutil.rmtree(instance.journal_directory)
    with pytest.raises(NotFoundError) as caught:
        Instance.open(instance.path)
    assert "mkdir -m 700 that directory, then" in caught.value.do
    assert "region release NAME --force" in caught.value.do
    instance.journal_directory.mkdir(mode=0o700)
    release_region(Instance.open(instance.path), "main", timeout_s=5, force=True)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("INSERT INTO t VALUES (1)")


def test_what_is_no_instance_is_called_that_and_not_too_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotFoundError, match="no instance here"):
        Instance.open(tmp_path)


def test_the_status_of_a_daemon_tells_no_environment(instance: Instance) -> None:
    start(instance)
    told = json.loads((instance.run_directory / "toy.status.json").read_text())
    assert set(told) == {
        "name", "pid", "state", "text", "started_wall_ns", "changed_wall_ns", "facts", "error", "exit_code",
    }  # fmt: skip
