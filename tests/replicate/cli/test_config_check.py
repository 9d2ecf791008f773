"""`replicate config check` of what the settings name: the application's functions, certificates and keys.

Each case asks a daemon's own code at its start too: what it refuses is what the check must say, word for word.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from replicate.admin.regions import add_region
from replicate.cli.root import root
from replicate.config import Address
from replicate.daemon.files import DaemonFiles
from replicate.database.sqlite import open_region
from replicate.errors import ConfigurationError, NotFoundError, PermissionRefusedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.security.authenticate import LISTEN, Authenticator
from tests.harness.certificates import Authority

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
        ("", ":init", "can not be imported: ModuleNotFoundError"),
        ("x = 1 +", ":init", "can not be imported: SyntaxError"),
        ("import sys; sys.exit(0)", ":init", "can not be imported: SystemExit"),
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
    lock = DaemonFiles(opened.path, "update").acquire()
    with closing(sqlite3.connect(opened.regions[0].path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "well; 1 settings differ" in check(opened)
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
    assert "well" in check(secondary)
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
    assert "well" in check(settings(opened, f'[receiver]\nlisten = "{FAR}"\nallow = "east"\n'))
    opened = settings(secondary, '[loopback]\nkey_file = "key"\n')
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
