"""The units: well-formed, hardened, and at work: under a pretended service manager, and in a container that boots.

The container is systemd-nspawn over this machine's /usr, with an empty /etc and /var and a network of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from replicate.errors import EXIT_CODES
from tests.deploy.conftest import CHECKOUT, Staged
from tests.harness.notified import Notified
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until

UNITS = CHECKOUT / "deploy" / "systemd"
COMMON = (UNITS / "dualsite-.service.d" / "10-common.conf").read_text()
NAMES = ("source", "receiver", "update")
"""The daemons."""
ALL = (*NAMES, "compare", "packet-export", "packet-import", "web")
TIMERS = ("compare", "packet-export", "packet-import")
EXPOSURE_MOST = 2.0


def setting(text: str, name: str) -> str:
    """The last value of a setting in a unit file."""
    return re.findall(f"^{name}=(.*)$", text, flags=re.MULTILINE)[-1]


def exec_start(name: str, instance: str) -> list[str]:
    """What the service manager would run: the specifiers replaced, the words unquoted."""
    command = setting((UNITS / f"dualsite-{name}@.service").read_text(), "ExecStart").removeprefix(":")
    command = command.replace("%%", "\0").replace("%i", instance).replace("\0", "%")
    program = str(Path(sys.executable).parent)
    return [word.replace("/opt/dualsite/bin", program) for word in shlex.split(command)]


# The files.


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A copy of the units, with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    directory = tmp_path / "units"
    shutil.copytree(UNITS, directory)
    program = tmp_path / "bin" / "replicate"
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    for unit in directory.glob("*.service"):
        unit.write_text(unit.read_text().replace("/opt/dualsite/bin", str(program.parent)))
    return directory


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)


@pytest.mark.parametrize("unit", [*(f"{name}@.service" for name in ALL), *(f"{name}@.timer" for name in TIMERS)])
def test_systemd_finds_nothing_wrong_with_the_unit(unit: str, units: Path) -> None:
    done = analyze("verify", units / f"dualsite-{unit}")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("example", "name"),
    [
        ("application.conf", "update"),
        ("update-restart.conf", "update"),
        ("limits.conf", "update"),
        ("compare-two-hosts.conf", "compare"),
        ("packet-disk.conf", "packet-export"),
        ("packet-disk.conf", "packet-import"),
    ],
)
def test_the_examples_are_drop_ins_that_count(example: str, name: str, units: Path) -> None:
    drop_in = units / f"dualsite-{name}@.service.d" / example
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text((units / "examples" / example).read_text().replace("#Memory", "Memory"))
    done = analyze("verify", units / f"dualsite-{name}@.service")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    drop_in.write_text(drop_in.read_text() + "\nNonsense=1\n")
    assert "Nonsense" in analyze("verify", units / f"dualsite-{name}@.service").stderr


@pytest.mark.parametrize("name", ALL)
def test_the_unit_is_hardened(name: str, units: Path) -> None:
    done = analyze("security", "--offline=true", units / f"dualsite-{name}@.service")
    assert done.returncode == 0, done.stderr
    (level,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(level) <= EXPOSURE_MOST, done.stdout


def test_a_compare_is_a_command_that_ends_and_no_daemon() -> None:
    """Its own drop-in comes after the common one, whose name sorts before it."""
    own = UNITS / "dualsite-compare@.service.d" / "20-compare.conf"
    assert own.name > "10-common.conf"
    text = own.read_text()
    assert (setting(text, "Type"), setting(text, "WatchdogSec"), setting(text, "ExecReload")) == ("oneshot", "0", "")
    assert setting((UNITS / "dualsite-compare@.timer").read_text(), "Persistent") == "true"


def test_only_what_may_pass_by_itself_is_started_again() -> None:
    prevented = {int(code) for code in setting(COMMON, "RestartPreventExitStatus").split()}
    assert prevented <= set(EXIT_CODES)
    assert set(EXIT_CODES) - prevented == {0, 1, 70, 74, 75}
    policies = {name: setting((UNITS / f"dualsite-{name}@.service").read_text(), "Restart") for name in NAMES}
    assert policies == {"source": "on-failure", "receiver": "on-failure", "update": "no"}
    assert setting((UNITS / "examples" / "update-restart.conf").read_text(), "Restart") == "on-failure"


def test_what_would_hide_the_pools_from_applications_is_off() -> None:
    assert setting(COMMON, "PrivateIPC") == "no"
    assert setting(COMMON, "RemoveIPC") == "no"
    for name in ("ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectControlGroups", "StateDirectory"):
        assert f"\n{name}=" not in COMMON


def test_the_page_reaches_no_other_host_and_has_nothing_to_open_again() -> None:
    text = (UNITS / "dualsite-web@.service").read_text()
    assert (setting(text, "IPAddressDeny"), setting(text, "IPAddressAllow")) == ("any", "localhost")
    own = UNITS / "dualsite-web@.service.d" / "20-web.conf"
    assert setting(own.read_text(), "ExecReload") == ""


# Under a pretended service manager.


class Site:
    """A primary and a secondary, as instances below REPLICATE_HOME."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "shm").mkdir()
        self.port = free_port()
        self.environment = {
            **os.environ,
            "REPLICATE_HOME": str(home),
            "REPLICATE_SHM_DIR": str(home / "shm"),
            "PYTHONPATH": str(CHECKOUT),
        }
        connection = sqlite3.connect(home / "shop.db")
        connection.execute("CREATE TABLE t (a PRIMARY KEY, b)")
        connection.commit()
        connection.close()
        self.replicate("instance", "create", "primary", "--role", "primary")
        self.replicate("-i", "primary", "region", "add", str(home / "shop.db"), "--name", "main")
        self.replicate("-i", "primary", "peer", "add", "secondary", f"127.0.0.1:{self.port}")
        network = re.findall(r"network +(\S+)", self.replicate("-i", "primary", "instance", "show"))[0]
        self.replicate("instance", "create", "secondary", "--role", "secondary", "--network", network)
        (home / "secondary" / "replicate.toml").write_text(f'[receiver]\nlisten = "127.0.0.1:{self.port}"\n')

    def replicate(self, *words: str) -> str:
        command = [sys.executable, "-m", "replicate.cli.main", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Service:
    """A service as systemd starts it: its command, a socket to notify, a watchdog. Killed in the end."""

    def __init__(self, site: Site, name: str, instance: str, **environment: str) -> None:
        self.told = Notified(site.home / f"notify-{name}")
        self.process = subprocess.Popen(
            exec_start(name, instance),
            env={**site.environment, "NOTIFY_SOCKET": str(self.told.path), "WATCHDOG_USEC": "400000", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self, what: str) -> None:
        self.told.hear(what)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.hear("STOPPING=1")
        _, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, errors) == (0, "")

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.told.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    shutil.rmtree(made.home / "shm")


@pytest.mark.slow
def test_every_command_of_a_unit_serves_tells_and_ends(site: Site) -> None:
    with Service(site, "receiver", "secondary") as receiver:
        receiver.hear("READY=1")
        with Service(site, "source", "primary:secondary") as source:
            source.hear("READY=1")
            source.hear("STATUS=")
            site.replicate("-i", "secondary", "seed", "--from", "primary")
            with Service(site, "update", "secondary") as update:
                update.hear("READY=1")
                for service in (source, receiver, update):
                    service.told.heard.clear()
                    service.hear("WATCHDOG=1")
                compared = site.replicate("-i", "primary", "compare", "--with", "secondary")
                assert re.match("primary and secondary at seqno [0-9]+: equal\n", compared)
                update.stop()
            source.stop()
        receiver.stop()


@pytest.mark.slow
def test_an_instance_with_one_peer_needs_no_name_of_it(site: Site) -> None:
    with Service(site, "source", "primary") as source:
        source.hear("READY=1")
        log = site.home / "primary" / "log" / "source-secondary.log"
        aside = log.rename(log.with_suffix(".1"))
        reload = setting(COMMON, "ExecReload").replace("$MAINPID", str(source.process.pid))
        subprocess.run(shlex.split(reload), check=True)
        wait_until(lambda: log.exists() and "log reopened" in log.read_text(), what=f"a new log beside {aside}")
        source.stop()
        events = [[json.loads(line)["event"] for line in file.read_text().splitlines()] for file in (aside, log)]
        assert "serving" in events[0]
        assert events[1][0] == "log reopened"
        assert events[1][-1] == "daemon ended"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "instance"), [("source", "nowhere"), ("receiver", "nowhere"), ("source", "primary:x")]
)
def test_what_cannot_work_ends_with_a_code_that_is_not_tried_again(name: str, instance: str, site: Site) -> None:
    with Service(site, name, instance) as service:
        _, errors = service.process.communicate(timeout=60)
        assert str(service.process.returncode) in setting(COMMON, "RestartPreventExitStatus").split()
        assert len(errors.splitlines()) == 1


# The compare.


def compared(site: Site, instance: str, *command: str, **environment: str) -> tuple[int, str, list[str]]:
    """How a unit's command ends, what it prints, and the findings of `status` about it."""
    done = subprocess.run(command, env={**site.environment, **environment}, capture_output=True, text=True, check=False)
    shown = subprocess.run(
        [sys.executable, "-m", "replicate.cli.main", "-i", instance, "--json", "status"],
        env=site.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    codes = [finding["code"] for finding in json.loads(shown.stdout)["findings"]]
    return done.returncode, done.stdout + done.stderr, [code for code in codes if code.startswith("COMPARE")]


@pytest.mark.slow
def test_the_unit_compares_two_instances_of_this_host(site: Site) -> None:
    site.replicate("-i", "secondary", "seed", "--from", "primary")
    code, said, codes = compared(site, "secondary", *exec_start("compare", "secondary:primary"))
    assert (code, codes) == (0, ["COMPARED"]), said
    code, said, _ = compared(site, "secondary", *exec_start("compare", "secondary"))
    assert (code, "SECONDARY:PRIMARY" in said) == (2, True)
    spoil(site)
    code, said, codes = compared(site, "primary", *exec_start("compare", "secondary:primary"))
    assert (code, codes, "DIFFERENT" in said) == (1, ["COMPARED_DIFFERENT"], True)


def spoil(site: Site) -> None:
    """A row of the secondary, past the guards."""
    region = apsw.Connection(str(site.home / "secondary" / "regions" / "main.db"))
    region.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    region.execute("INSERT INTO t VALUES (99, 99)")
    region.close()


WRITER = """
import sys, replicate
connection = replicate.connect("primary", "main")
while True:
    with connection:
        connection.execute("INSERT INTO t VALUES (hex(randomblob(8)), 1)")
"""
TRY_AGAIN, TRIES = 75, 6
SSH = """#!/bin/sh
# It plays ssh: the other host is this one.
[ "$1" = far.example ] || exit 255
shift
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_written_to", [False, True])
def test_the_example_compares_with_an_instance_of_another_host(site: Site, is_written_to: bool) -> None:
    program = site.home / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    script = UNITS / "examples" / "compare-with-host"
    command = [str(script), "secondary", "primary", "far.example"]
    bin_directory = Path(sys.executable).parent
    more = {"SSH": str(program), "LOOK_S": "3", "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    with Service(site, "receiver", "secondary") as receiver, Service(site, "source", "primary") as source:
        receiver.hear("READY=1")
        source.hear("READY=1")
        site.replicate("-i", "secondary", "seed", "--from", "primary")
        with Service(site, "update", "secondary") as update:
            update.hear("READY=1")
            writer = None
            if is_written_to:
                writer = subprocess.Popen([sys.executable, "-c", WRITER], env=site.environment)
                site.replicate("-i", "secondary", "wait", "--seqno", "100")
            try:
                for _ in range(TRIES):  # the writer may pass the number before both are asked: "try again later"
                    code, said, codes = compared(site, "secondary", *command, **more)
                    if code != TRY_AGAIN:
                        break
            finally:
                if writer is not None:
                    writer.kill()
                    writer.wait()
            assert (code, codes) == (0, ["COMPARED"]), said
            assert ("comparing at transaction" in said) == is_written_to
            if not is_written_to:
                spoil(site)
                code, said, codes = compared(site, "secondary", *command, **more)
                assert (code, codes) == (1, ["COMPARED_DIFFERENT"]), said
            update.stop()
        source.stop()
        receiver.stop()
    assert subprocess.run([script], check=False, capture_output=True).returncode == 2


# The log.


@pytest.mark.slow
def test_logrotate_rotates_each_log_and_the_daemon_takes_a_new_one(site: Site) -> None:
    logrotate = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin")
    if logrotate is None or shutil.which("runuser", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("logrotate is not installed")
    if os.geteuid() != 0:
        pytest.skip("root is needed")
    log = site.home / "secondary" / "log" / "receiver.log"
    rule = (UNITS / "dualsite.logrotate").read_text()
    rule = rule.replace("/var/lib/replicate/*", str(site.home / "*")).replace("su dualsite dualsite", "su root root")
    rule = rule.replace("/opt/dualsite/bin", str(Path(sys.executable).parent))
    (site.home / "rule").write_text(rule)
    with Service(site, "receiver", "secondary") as receiver:
        receiver.hear("READY=1")
        ended = site.home / "secondary" / "log" / "update.log"
        ended.write_text("a daemon that does not run\n")
        done = subprocess.run(
            [logrotate, "--force", "--state", str(site.home / "state"), str(site.home / "rule")],
            env={**site.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: log.exists() and "log reopened" in log.read_text(), what="a new log")
        assert "daemon started" in log.with_name("receiver.log.1").read_text()
        assert ended.with_name("update.log.1").exists()
        assert not ended.exists()
        receiver.stop()


# In a container that boots.

STEPS = Path(__file__).with_name("container_steps.sh")
CONTAINER_S_MAX = 240
"""It needs ten seconds on an idle machine. Only what hangs is to meet this, before pytest's own limit does."""


class Container:
    """Boots this machine's /usr with the steps as its only aim; they write what they find out into `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if os.geteuid() != 0:
            pytest.skip("root is needed")
        if not all(shutil.which(tool) for tool in ("systemd-nspawn", "systemd-analyze")):
            pytest.skip("systemd-nspawn is not installed")
        directory.mkdir()
        tried = self._nspawn("--as-pid2", "/bin/true")
        if tried.returncode:
            pytest.skip(f"systemd-nspawn cannot run here: {tried.stdout.splitlines()[-1:]}")

    def boot(self, part: str, *options: str) -> dict[str, str]:
        """Boot, do a part of the steps; what they told, by name. AssertionError with all that was said."""
        shutil.copy(STEPS, self.directory / "steps.sh")
        (self.directory / "steps.service").write_text(
            "[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\n"
            f"[Service]\nType=oneshot\nExecStart=/bin/sh /steps/steps.sh {part}\n"
        )
        # What would wait for a network that never comes; and what of /etc Debian's programs do not do without.
        mask = "--bind-ro=/dev/null:/etc/systemd/system/systemd-networkd-wait-online.service"
        needed = ("/etc/alternatives", "/etc/pam.d", "/etc/security")
        binds = [f"--bind-ro={path}" for path in needed if Path(path).is_dir()]
        done = self._nspawn(
            f"--bind={self.directory}:/steps",
            f"--bind-ro={self.directory / 'steps.service'}:/etc/systemd/system/steps.service",
            mask,
            *binds,
            *options,
            "--boot",
            "systemd.unit=steps.service",
            "systemd.firstboot=no",
        )
        told = self.directory / "told"
        assert done.returncode not in (124, 137), f"still there after {CONTAINER_S_MAX} s: {done.stdout[-3000:]}"
        if not (self.directory / "said").exists():
            pytest.skip(f"a container does not boot here: {done.stdout.splitlines()[-1:]}")
        said = (self.directory / "said").read_text()
        assert told.exists(), said
        found = dict(line.split(" ", 1) for line in told.read_text().splitlines())
        assert found.get("end") == part, said
        return found

    @staticmethod
    def _nspawn(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["systemd-nspawn", "--quiet", "--directory=/", "--volatile=yes", "--register=no", "--keep-unit"]
        name = f"dualsite-test-{os.getpid()}"
        command += ["--private-network", "--console=pipe", f"--machine={name}"]
        try:
            return subprocess.run(
                ["timeout", "--signal=TERM", "--kill-after=5", str(CONTAINER_S_MAX), *command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        finally:
            with suppress(OSError):  # what systemd-nspawn may leave
                Path("/run/systemd/nspawn/propagate", name).rmdir()


@pytest.mark.slow
def test_the_units_boot_replicate_and_come_back_in_a_container(tmp_path: Path, staged: Staged) -> None:
    container = Container(tmp_path / "steps")
    root = tmp_path / "staged"  # nspawn takes a colon and a space amiss
    root.symlink_to(staged.root)
    found = container.boot(
        "replicate", f"--bind-ro={root}/opt/dualsite:/opt/dualsite", f"--overlay-ro=/usr:{root}/usr:/usr"
    )
    assert found["user"] == "dualsite"
    assert found["compared"].endswith("equal")
    assert found["pool-of-the-application"] == found["pool-of-the-source"]
    assert found["watchdog"] == "yes"
    assert found["status"] != ""
    assert found["source-killed"] == "active"
    assert found["receiver-frozen"] == "active"
    assert found["compared-after-restarts"].endswith("equal")
    assert found["update-killed"] == "failed"
    assert found["update-configured"] == "active"
    assert found["wrong-setting"] == "failed 78 0"
    assert found["pools-left"] != "0"
    assert found["stopped"] == "success 0"


@pytest.mark.slow
@pytest.mark.long
def test_a_machine_is_installed_and_left_as_it_was(tmp_path: Path, frozen_checkout: Path, wheels: Path) -> None:
    container = Container(tmp_path / "steps")
    upper = tmp_path / "upper"
    upper.mkdir()
    upper.chmod(0o755)  # it becomes /usr
    binds = (f"--bind-ro={wheels}:/wheels", f"--bind-ro={frozen_checkout}:/checkout")
    found = container.boot("install", *binds, f"--overlay=/usr:{upper}:/usr")
    assert found["installed"] == "0"
    assert found["command"] == "0"
    assert found["again"] == "0"
    assert found["directory"] == "dualsite 755"
    assert found["busy"] == "75"
    assert found["stopped"] == "inactive"
    assert found["uninstalled"] == "0"
    assert found["left"] == "/var/lib/replicate/secondary"
    assert found["purged"] == "0"
    assert found["user-left"] == "no"
    assert [path for path in upper.rglob("*") if not path.is_dir()] == []
