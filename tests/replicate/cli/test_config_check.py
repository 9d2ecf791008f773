"""`replicate config check` of what the settings name: the application's functions, certificates, keys and addresses;
and of the files that the daemons write.

Each case asks a daemon's own code at its start too: what it refuses is what the check must say, word for word.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import structlog
import trio
from click.testing import CliRunner

from replicate.admin.regions import add_region
from replicate.cli.root import root
from replicate.daemon.files import DaemonFiles
from replicate.daemon.listening import listen
from replicate.daemon.log import LogFile
from replicate.daemon.status_file import SERVING, DaemonStatus
from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
)
from replicate.instance.instance import Instance
from replicate.region.sqlite.open import open_region
from replicate.security.authenticate import LISTEN, Authenticator
from replicate.settings.load import Address
from tests.harness.certificates import Authority
from tests.harness.ports import free_port

FREE = '[receiver]\nlisten = "127.0.0.1:0"\n'
"""The port that a Receiver Server takes without it may be taken on this machine."""
FAR = Address("192.0.2.2", 7430)


@pytest.fixture(autouse=True)
def _shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))


@pytest.fixture
def primary(tmp_path: Path) -> Instance:
    made = Instance.create(tmp_path / "east", role="primary")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, note TEXT)")
    add_region(made, tmp_path / "shop.db", name="main")
    return Instance.open(made.path)


@pytest.fixture
def secondary(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "west", role="secondary", network=bytes(16))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of the application, and returns its name; each has another."""
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "modules").mkdir()

    def write(text: str) -> str:
        name = f"functions_of_config_check_{uuid.uuid4().hex}"
        (tmp_path / "modules" / f"{name}.py").write_text(text)
        return name

    return write


def settings(instance: Instance, text: str) -> Instance:
    (instance.path / "replicate.toml").write_text(text)
    return Instance.open(instance.path)


def check(instance: Instance) -> str:
    result = CliRunner().invoke(root, ["-i", str(instance.path), "config", "check"], standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    assert result.exception is None
    return result.stdout


def told(act: Callable[[], object]) -> tuple[str, str, str, str]:
    with pytest.raises(ReplicateError) as caught:
        act()
    error = caught.value
    return error.code, error.what, error.where, error.do


@pytest.mark.parametrize(
    ("text", "function", "why"),
    [
        ("", ":init", "cannot be imported: ModuleNotFoundError"),
        ("x = 1 +", ":init", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(0)", ":init", "cannot be imported: SystemExit"),
        ("x = 1", ":init", "names nothing that can be called"),
        ("def init(c): c.create_function('f', 1, 5)", ":init", "failed: "),
        ("def init(c): raise SystemExit(0)", ":init", "failed: SystemExit"),
        ("def init(c): pass", "", "should read module:function"),
    ],
)
def test_functions_that_a_daemon_would_not_get(
    primary: Instance, module: Callable[[str], str], text: str, function: str, why: str
) -> None:
    name = module(text) if text else "no_such_module_of_config_check"
    opened = settings(primary, f'[region]\ninit = "{name}{function}"\n')
    found = told(lambda: check(opened))
    assert found[0] == "CONFIGURATION"
    assert why in found[1]
    assert found == told(lambda: open_region(opened.regions[0].path, applier=True))


def test_functions_that_are_well_are_tried_beside_the_region(primary: Instance, module: Callable[[str], str]) -> None:
    """It is not opened: a daemon or an application may have it, alone for the moment."""
    name = module("def init(c): c.create_function('half', 1, lambda n: n / 2, deterministic=True)")
    opened = settings(primary, f'[region]\ninit = "{name}:init"\n')
    lock = DaemonFiles(opened.path, "update").lock.acquire()
    with closing(sqlite3.connect(opened.regions[0].path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "well; 1 setting differs from the defaults" in check(opened)
    os.close(lock)


def test_functions_of_no_region_are_not_run(primary: Instance, module: Callable[[str], str]) -> None:
    name = module("raise RuntimeError('run')")
    assert "well" in check(settings(primary, f'[region]\ninit = "stock={name}:init"\n'))


def test_a_peer_elsewhere_needs_certificates(primary: Instance, tmp_path: Path) -> None:
    primary.register_peer("west", FAR.host, FAR.port)
    authenticator = Authenticator(primary, primary.config, structlog.get_logger())

    def start() -> None:
        authenticator.check(FAR, where="peer west", is_receiver=False)

    found = told(lambda: check(primary))
    assert (found[0], found[2]) == ("CONFIGURATION", "peer west")
    assert found == told(start)
    tls = Authority(tmp_path / "authority").install(primary)
    assert "well" in check(primary)
    (tls / "key.pem").chmod(0o644)
    found = told(lambda: check(primary))
    assert (found[0], found[2]) == (PermissionRefusedError.code, str(tls / "key.pem"))
    assert found == told(start)


def test_a_receiver_is_checked_as_its_settings_say(secondary: Instance, tmp_path: Path) -> None:
    assert "well" in check(settings(secondary, FREE))
    assert os.listdir(tmp_path / "shm") == []  # the key of loopback connections is the receiver's to make

    def start(opened: Instance) -> Callable[[], None]:
        authenticator = Authenticator(opened, opened.config, structlog.get_logger())
        return lambda: authenticator.check(FAR, where=LISTEN, is_receiver=True)

    opened = settings(secondary, f'[receiver]\nlisten = "{FAR}"\n')
    found = told(lambda: check(opened))
    assert (found[0], found[2]) == ("CONFIGURATION", LISTEN)
    assert found == told(start(opened))
    Authority(tmp_path / "authority").install(opened)
    found = told(lambda: check(opened))
    assert found[1:3] == ("nobody may send to west: receiver.allow is empty", "receiver.allow")
    assert found == told(start(opened))
    assert "well" in check(settings(opened, '[receiver]\nlisten = "0.0.0.0:0"\nallow = "east"\n'))
    opened = settings(secondary, FREE + '[loopback]\nkey_file = "key"\n')
    with pytest.raises(NotFoundError, match=r"west/key\]"):
        check(opened)
    (opened.path / "key").write_bytes(b"k" * 40)
    (opened.path / "key").chmod(0o600)
    assert "well" in check(opened)


def test_certificates_that_nothing_wants_yet_must_be_of_use(primary: Instance, tmp_path: Path) -> None:
    tls = Authority(tmp_path / "authority").install(primary, "west")
    with pytest.raises(ConfigurationError, match="the certificate is that of west, and this instance is east") as found:
        check(primary)
    assert "issue east --ca DIR --replace" in found.value.do  # without --replace that command is refused
    Authority(tmp_path / "other").install(primary)
    (tls / "key.pem").unlink()
    with pytest.raises(NotFoundError, match=r"key\.pem"):
        check(primary)


def start_listening(text: str, where: str) -> None:
    """As a daemon does."""

    async def go() -> None:
        for listener in (await listen(text, where=where))[0]:
            await listener.aclose()

    trio.run(go)


def say(instance: Instance, name: str, **facts: object) -> int:
    """The daemon of that name runs, as this process, and says `facts`; its lock."""
    files = DaemonFiles(instance.path, name)
    lock = files.lock.acquire()
    files.status.write(DaemonStatus(name, os.getpid(), SERVING, "waiting", 1, 1, facts))
    return lock


@pytest.mark.parametrize("section", ["source", "receiver", "update"])
def test_a_metrics_port_that_is_taken(secondary: Instance, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        head = FREE if section == "receiver" else f"{FREE}[{section}]\n"
        opened = settings(secondary, f'{head}metrics_listen = "{address}"\n')
        found = told(lambda: check(opened))
        assert found[:3] == ("EXISTS", f"somebody listens on {address} already", f"{section}.metrics_listen")
        assert found == told(lambda: start_listening(address, f"{section}.metrics_listen"))
    assert "well" in check(opened)


def test_a_primary_is_not_asked_for_daemons_that_it_has_not(primary: Instance) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert "well" in check(settings(primary, f'[update]\nmetrics_listen = "{address}"\n'))
        with pytest.raises(AlreadyExistsError, match=r"source\.metrics_listen"):
            check(settings(primary, f'[source]\nmetrics_listen = "{address}"\n'))


def test_addresses_that_no_receiver_can_listen_on(secondary: Instance, tmp_path: Path) -> None:
    Authority(tmp_path / "authority").install(secondary)
    opened = settings(secondary, '[receiver]\nlisten = "nowhere.invalid:7430"\nallow = "east"\n')
    found = told(lambda: check(opened))
    assert (found[0], found[2]) == ("CONFIGURATION", LISTEN)
    assert found == told(lambda: start_listening("nowhere.invalid:7430", LISTEN))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AlreadyExistsError, match=f"somebody listens on 127.0.0.1:{port} already"):
            check(settings(secondary, f'[receiver]\nlisten = "127.0.0.1:{port}"\n'))
        with pytest.raises(AlreadyExistsError, match="somebody listens on"):
            check(settings(secondary, f'[receiver]\nlisten = "0.0.0.0:{port}"\nallow = "east"\n'))


def test_addresses_that_our_own_daemons_have(secondary: Instance) -> None:
    """The daemon that runs may have it: it gives it back before it starts again. Another daemon of ours is named."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
        text = f'[receiver]\nlisten = "localhost:{ports[0]}"\nmetrics_listen = "127.0.0.1:{ports[1]}"\n'
        opened = settings(secondary, text)
        lock = say(opened, "receiver", listen=f"127.0.0.1:{ports[0]}", metrics_listen=f"127.0.0.1:{ports[1]}")
        assert "well" in check(opened)
        opened = settings(opened, FREE + f'[update]\nmetrics_listen = "127.0.0.1:{ports[1]}"\n')
        with pytest.raises(AlreadyExistsError, match=rf"receiver of this instance \(process {os.getpid()}\) listens"):
            check(opened)
        os.close(lock)
        with pytest.raises(AlreadyExistsError, match="somebody listens on"):  # what has ended has nothing any more
            check(opened)


def test_one_address_for_two_daemons(secondary: Instance) -> None:
    port = free_port()
    text = FREE + f'[source]\nmetrics_listen = "localhost:{port}"\n[update]\nmetrics_listen = '
    found = told(lambda: check(settings(secondary, f'{text}"127.0.0.1:{port}"\n')))
    assert (found[0], found[2]) == ("CONFIGURATION", str(secondary.path / "replicate.toml"))
    assert found[1].startswith("source.metrics_listen = 'localhost:")
    assert "update.metrics_listen = " in found[1]
    assert "well" in check(settings(secondary, f'{text}"[::1]:{port}"\n'))


def test_files_that_are_too_open(primary: Instance) -> None:
    """A daemon looks at all of them when it starts; opening an instance looks at the directories alone."""
    file = primary.path / "log" / "source-west.log"
    file.touch(mode=0o666)
    file.chmod(0o666)
    found = told(lambda: check(primary))
    assert (found[0], found[2]) == (PermissionRefusedError.code, str(file))
    assert "chmod 640" in found[3]
    file.chmod(0o640)
    assert "well" in check(primary)


@pytest.mark.parametrize(
    "name",
    [
        "journal", "journal/durable", "journal/*.journal", "locks", "locks/daemon-source-west.lock", "run",
        "run/source-west.lock", "log", "log/source-west.log", "log/source-west.err", "consumers", "conflict",
        "../shop.db", "..",
    ],
)  # fmt: skip
def test_what_a_daemon_writes_and_may_not(primary: Instance, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    primary.register_peer("west", "127.0.0.1", 7430)
    files = DaemonFiles(primary.path, "source-west")
    os.close(files.lock.acquire())
    LogFile(files.log).close()
    files.standard_error.touch(mode=0o600)
    (path,) = primary.path.glob(name) if "*" in name else [primary.path / name]
    real = os.access

    def access(one: str | os.PathLike[str], mode: int) -> bool:
        """For root too, who may write what its owner may not."""
        return real(one, mode) and not (mode & os.W_OK and not os.stat(one).st_mode & stat.S_IWUSR)

    monkeypatch.setattr(os, "access", access)
    assert "well" in check(primary)
    was = path.stat().st_mode
    path.chmod(was & ~0o222)
    try:
        found = told(lambda: check(primary))
        assert found[0] == PermissionRefusedError.code
        assert found[1] == f"the {'directory' if path.is_dir() else 'file'} is read-only for this user"
        assert Path(found[2]).samefile(path)
    finally:
        path.chmod(was)


def test_a_region_that_is_gone(primary: Instance) -> None:
    primary.regions[0].path.unlink()
    with pytest.raises(NotFoundError, match=r"no such database file \[.*shop\.db"):
        check(primary)


def test_nothing_is_made_by_looking(primary: Instance) -> None:
    def there() -> dict[str, list[str]]:
        return {top: sorted(names) for top, _, names in os.walk(primary.path)}

    primary.register_peer("west", "127.0.0.1", 7430)
    before = there()
    result = CliRunner().invoke(root, ["-i", str(primary.path), "config", "check", "--json"], standalone_mode=False)
    assert json.loads(result.stdout)["well"]
    assert there() == before
