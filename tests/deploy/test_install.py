"""deploy/install and deploy/uninstall: what they make, leave alone, refuse and take away. Mostly with a pretended
Python, which makes an environment of a few empty files; once, slowly, with the real one.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.settings.load import default_text
from tests.deploy.conftest import CHECKOUT, Staged

# It makes environments, and "runs" what is installed in them.
PRETENDED_PYTHON = """#!/bin/sh
case "$*" in
*ensurepip*) exit {ensurepip_code} ;;
*base_prefix*) echo '{base_prefix}' ;;
*sys.executable*) echo 'pretended 3.11' ;;
*"-m venv "*)
    for last; do :; done
    mkdir -p "$last/bin" "$last/lib" && cp "$0" "$last/bin/python"
    echo "command = $0 -m venv $last" >"$last/pyvenv.cfg" ;;
*"-m pip install"*)
    echo "install $*" >>'{home}/calls'
    [ ! -e '{home}/fail' ] || {{ echo 'no such wheel'; exit 1; }}
    mkdir -p "$(dirname "$0")/../lib/dualsite-1.dist-info"
    echo x >"$(dirname "$0")/../lib/dualsite-1.dist-info/direct_url.json"
    echo x >"$(dirname "$0")/some-script" ;;
*"config show --defaults"*) echo '# pretended settings' ;;
esac
exit 0
"""


class Machine:
    """A checkout with a pretended Python; what is installed goes below a root whose name has a space."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.checkout = home / "check out"
        self.root = home / "the root"
        self.python = home / "pretended-python"
        self.use_python()
        for name in ("deploy", "replicate", "source_server", "receiver_server", "update_process"):
            (self.checkout / name).mkdir(parents=True)
        (self.checkout / "pyproject.toml").write_text("version 1\n")
        (self.checkout / "README.md").write_text("read me\n")
        for name in ("install", "uninstall", "installed.sh", "environment.sh", "build_manual.py"):
            shutil.copy(CHECKOUT / "deploy" / name, self.checkout / "deploy" / name)
        for name in ("systemd", "manual"):
            shutil.copytree(CHECKOUT / "deploy" / name, self.checkout / "deploy" / name)

    def use_python(self, *, ensurepip_code: int = 0, base_prefix: str = "/usr") -> None:
        self.python.write_text(
            PRETENDED_PYTHON.format(home=self.home, ensurepip_code=ensurepip_code, base_prefix=base_prefix)
        )
        self.python.chmod(0o755)

    def run(self, script: str, *words: str | Path, root: bool = True) -> tuple[int, str]:
        where = ["--root", str(self.root)] if root else []
        done = subprocess.run(
            [str(self.checkout / "deploy" / script), *where, *map(str, words)],
            env={**os.environ, "PYTHON": str(self.python), "TMPDIR": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def installs(self) -> int:
        calls = self.home / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every path below: mode, time of change, content."""
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


UNITS = "usr/lib/systemd/system"
PLACES = {
    f"{UNITS}/dualsite-source@.service",
    f"{UNITS}/dualsite-receiver@.service",
    f"{UNITS}/dualsite-update@.service",
    f"{UNITS}/dualsite-.service.d/10-common.conf",
    f"{UNITS}/dualsite-compare@.service",
    f"{UNITS}/dualsite-compare@.timer",
    f"{UNITS}/dualsite-compare@.service.d/20-compare.conf",
    f"{UNITS}/dualsite-packet-export@.service",
    f"{UNITS}/dualsite-packet-export@.timer",
    f"{UNITS}/dualsite-packet-import@.service",
    f"{UNITS}/dualsite-packet-import@.timer",
    f"{UNITS}/dualsite-packet-.service.d/20-packet.conf",
    f"{UNITS}/dualsite-web@.service",
    f"{UNITS}/dualsite-web@.service.d/20-web.conf",
    "usr/lib/sysusers.d/dualsite.conf",
    "usr/lib/tmpfiles.d/dualsite.conf",
    "usr/bin/replicate",
    "usr/share/bash-completion/completions/replicate",
    "etc/logrotate.d/dualsite",
}


def test_everything_is_where_it_belongs_and_names_where_it_will_be(machine: Machine) -> None:
    code, said = machine.run("install", "--prefix", "/srv/some.where/else")
    assert code == 0, said
    outside = {path for path in tree(machine.root) if not (machine.root / path).is_dir() and "some.where" not in path}
    assert outside == PLACES
    assert os.readlink(machine.root / "usr/bin/replicate") == "/srv/some.where/else/bin/replicate"
    for path in tree(machine.root):
        if (machine.root / path).is_file() and "deploy/manual" not in path:  # whose chapters name the default place
            text = (machine.root / path).read_text()
            assert "/opt/dualsite" not in text, path
            assert path.endswith("bin/python") or str(machine.home) not in text, path
    completion = (machine.root / "usr/share/bash-completion/completions/replicate").read_text()
    assert '\neval "$(/srv/some.where/else/bin/replicate completion bash 2>/dev/null)"\n' in completion
    unit = (machine.root / UNITS / "dualsite-update@.service").read_text()
    assert "ExecStart=/srv/some.where/else/bin/replicate -i %i update run" in unit
    program = machine.root / "srv/some.where/else/bin/replicate"
    assert program.read_text().startswith("#!/srv/some.where/else/bin/python -I\n")
    assert program.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in program.parent.iterdir()) == ["python", "replicate"]


def test_twice_is_as_once(machine: Machine) -> None:
    assert machine.run("install")[0] == 0
    before = tree(machine.root)
    code, said = machine.run("install")
    assert code == 0, said
    assert tree(machine.root) == before
    assert machine.installs() == 1


def test_modes_do_not_depend_on_the_umask_or_the_checkout(machine: Machine) -> None:
    for path in (machine.checkout / "deploy" / "systemd").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    old = os.umask(0o077)
    try:
        assert machine.run("install")[0] == 0
    finally:
        os.umask(old)
    for path in PLACES:
        facts = (machine.root / path).lstat()
        assert stat.S_ISLNK(facts.st_mode) or facts.st_mode & 0o777 == 0o644, path
        assert (machine.root / path).parent.stat().st_mode & 0o777 == 0o755, path


def test_uninstall_leaves_nothing(machine: Machine) -> None:
    machine.root.mkdir()
    assert machine.run("install")[0] == 0
    assert machine.run("uninstall")[0] == 0
    assert tree(machine.root) == {}
    code, said = machine.run("uninstall")
    assert code == 0
    assert "Nothing is installed" in said
    assert machine.run("install")[0] == 0
    assert machine.run("install", "--uninstall")[0] == 0
    assert tree(machine.root) == {}


def test_uninstall_takes_only_what_was_installed(machine: Machine) -> None:
    other = machine.root / UNITS / "other.service"
    other.parent.mkdir(parents=True)
    other.write_text("not ours")
    wants = machine.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "dualsite-update@x.service").symlink_to(f"/{UNITS}/dualsite-update@.service")
    (wants / "other.service").symlink_to(f"/{UNITS}/other.service")
    timers = wants.with_name("timers.target.wants")
    timers.mkdir()
    (timers / "dualsite-compare@x:y.timer").symlink_to(f"/{UNITS}/dualsite-compare@.timer")
    data = machine.root / "var/lib/replicate/primary/journal"
    data.mkdir(parents=True)
    before = tree(machine.root)
    assert machine.run("install")[0] == 0
    code, said = machine.run("uninstall")
    assert code == 0
    assert "Left:" in said
    left = tree(machine.root)
    assert set(before) - set(left) == {
        "etc/systemd/system/multi-user.target.wants/dualsite-update@x.service",
        "etc/systemd/system/timers.target.wants/dualsite-compare@x:y.timer",
    }
    assert set(left) <= set(before)
    assert other.read_text() == "not ours"

    assert machine.run("install")[0] == 0
    assert machine.run("uninstall", "--purge")[0] == 0
    assert not (machine.root / "var/lib/replicate").exists()
    assert other.exists()


def test_a_purge_takes_nothing_that_only_an_instance_has(machine: Machine) -> None:
    """The command that is installed says so; here a pretended one."""
    state = machine.root / "var/lib/replicate"
    for name in ("east", "not-an-instance"):
        (state / name).mkdir(parents=True)
    (state / "east" / "instance.json").write_text("{}")
    assert machine.run("install")[0] == 0
    python = machine.root / "opt/dualsite/bin/python"
    python.write_text(f'#!/bin/sh\necho "$*" >>"{machine.home}/asked"\necho UNDELIVERED >&2\nexit 73\n')
    before = tree(machine.root)
    code, said = machine.run("uninstall", "--purge")
    assert code == 73
    assert "UNDELIVERED" in said
    asked = f"-I -m replicate.cli.main instance remove {state / 'east'} --purge --yes\n"
    assert (machine.home / "asked").read_text() == asked
    assert tree(machine.root) == before
    python.write_text(f'#!/bin/sh\nrm -r "{state}/east"\n')
    lost = state / "east-lost-3-9.jsonl"
    lost.write_text("{}\n")
    code, said = machine.run("uninstall", "--purge")
    assert code == 73
    assert f"{lost} has transactions that are nowhere else" in said
    lost.unlink()
    assert machine.run("uninstall", "--purge")[0] == 0
    assert not state.exists()


def test_a_file_changed_by_hand_is_neither_replaced_nor_removed(machine: Machine) -> None:
    assert machine.run("install")[0] == 0
    rule = machine.root / "etc/logrotate.d/dualsite"
    rule.write_text("daily\n")
    unit = machine.checkout / "deploy" / "systemd" / "dualsite-update@.service"
    unit.write_text(unit.read_text() + "# newer\n")
    code, said = machine.run("install")
    assert code == 0
    assert f"changed by hand: {rule}" in said
    assert rule.read_text() == "daily\n"
    assert (machine.root / UNITS / unit.name).read_text().endswith("# newer\n")
    code, said = machine.run("uninstall")
    assert code == 0
    assert f"changed by hand: {rule}" in said
    assert [path for path in tree(machine.root) if not (machine.root / path).is_dir()] == ["etc/logrotate.d/dualsite"]


def test_what_the_new_version_no_longer_has_goes(machine: Machine) -> None:
    assert machine.run("install")[0] == 0
    extra = machine.root / "etc/logrotate.d/older"
    shutil.copy(machine.root / "etc/logrotate.d/dualsite", extra)
    names = machine.root / "opt/dualsite/installed-files"
    line = next(line for line in names.read_text().splitlines() if line.endswith("/etc/logrotate.d/dualsite"))
    names.write_text(names.read_text() + line.replace("/dualsite", "/older") + "\n")
    assert machine.run("install")[0] == 0
    assert not extra.exists()
    assert "older" not in names.read_text()


def test_files_that_are_not_ours_are_refused_before_anything_is_written(machine: Machine) -> None:
    foreign = machine.root / "usr/bin/replicate"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("another program")
    before = tree(machine.root)
    code, said = machine.run("install")
    assert code == 73
    assert str(foreign) in said
    assert tree(machine.root) == before
    foreign.unlink()
    other = machine.root / "opt/dualsite/thesis.txt"
    other.parent.mkdir(parents=True)
    other.write_text("ten years")
    code, said = machine.run("install")
    assert code == 73
    assert "--prefix" in said
    assert tree(machine.root).keys() == {"usr", "usr/bin", "opt", "opt/dualsite", "opt/dualsite/thesis.txt"}


def test_a_failed_upgrade_leaves_the_old_version(machine: Machine) -> None:
    assert machine.run("install")[0] == 0
    before = tree(machine.root)
    (machine.checkout / "pyproject.toml").write_text("version 2\n")
    (machine.home / "fail").touch()
    code, said = machine.run("install")
    assert code == 69
    assert "no such wheel" in said
    assert tree(machine.root) == {**before, "opt": (before["opt"][0], tree(machine.root)["opt"][1], b"")}
    (machine.home / "fail").unlink()
    assert machine.run("install")[0] == 0
    assert machine.installs() == 3
    assert machine.run("uninstall")[0] == 0
    assert tree(machine.root) == {}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--prefix",), "--prefix needs a value"),
        (("--prefix=",), "--prefix needs a value"),
        (("--prefix", "relative"), "absolute"),
        (("--prefix", "/a path"), "plain path"),
        (("--prefix", "/a/../b"), "plain path"),
        (("--prefix", "/usr"), "all ours"),
        (("--verbose",), "unknown option: --verbose"),
    ],
)
@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_what_makes_no_sense_is_refused(script: str, words: tuple[str, ...], what: str, machine: Machine) -> None:
    code, said = machine.run(script, *words)
    assert code == 2
    assert said.startswith(f"deploy/{script}: ")
    assert what in said
    assert not machine.root.exists()


def _too_old(machine: Machine) -> None:
    machine.use_python(ensurepip_code=1)


def _at_home(machine: Machine) -> None:
    machine.use_python(base_prefix="/home/somebody/.pyenv/versions/3.11")


@pytest.mark.parametrize("change", [_too_old, _at_home])
def test_a_python_that_services_cannot_use_is_refused(change: Callable[[Machine], None], machine: Machine) -> None:
    change(machine)
    code, said = machine.run("install")
    assert code == 69
    assert str(machine.python) in said
    assert "venv" in said
    assert tree(machine.root) == {}


def test_two_at_once_are_refused(machine: Machine) -> None:
    machine.root.mkdir()
    with subprocess.Popen(["flock", str(machine.root), "sh", "-c", "echo locked; read x"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        code, said = machine.run("install")
        other.communicate(b"\n")
    assert code == 75
    assert "another installation" in said
    assert machine.run("install")[0] == 0


@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_without_a_root_directory_root_is_needed(script: str, machine: Machine) -> None:
    if os.geteuid() == 0:
        # The same script as another user: it asks `id`.
        tools = machine.home / "tools"
        tools.mkdir()
        (tools / "id").write_text("#!/bin/sh\necho 1000\n")
        (tools / "id").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    else:
        environment = dict(os.environ)
    done = subprocess.run(
        [machine.checkout / "deploy" / script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 77
    assert "--root DIR" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "install",
        "uninstall",
        "installed.sh",
        "hooks/commit-msg",
        "systemd/examples/compare-with-host",
        "systemd/examples/ship-packet",
    ],
)
def test_shellcheck_finds_nothing(script: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    command = ["shellcheck", "--shell=sh", "--severity=warning", "--exclude=SC1091,SC2154,SC2034"]
    done = subprocess.run([*command, CHECKOUT / "deploy" / script], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_help_names_every_option(script: str) -> None:
    path = CHECKOUT / "deploy" / script
    assert path.stat().st_mode & 0o111 == 0o111
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for option in ("--root", "--prefix", "--uninstall" if script == "install" else "--purge"):
        assert option in done.stdout


@pytest.mark.slow
def test_the_real_one_is_complete_and_twice_is_as_once(staged: Staged) -> None:
    program = staged.root / "opt/dualsite"
    before = tree(staged.root)
    assert (program / "share/dualsite/replicate.toml").read_text() == default_text()
    links = re.findall(r"\]\((deploy/manual/[^)#]*)", (CHECKOUT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (program / "share/dualsite" / link).is_file()] == []
    assert not [path for path in before if path.startswith("opt/dualsite/bin/") and "pip" in path]
    compiled = [path for path in before if path.endswith("replicate/door/__pycache__/door.cpython-311.pyc")]
    assert compiled or not (program / "bin" / "python3.11").exists()
    for path, (_, _, content) in before.items():
        assert str(staged.root).encode() not in content, path
        assert str(staged.checkout).encode() not in content, path
    done = subprocess.run(
        [program / "bin/python", "-I", program / "bin/replicate", "--json", "config", "show", "--defaults"],
        env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "journal.durability" in done.stdout
    for chapter in (CHECKOUT / "deploy" / "manual").glob("*.md"):
        helped = [program / "bin/python", "-I", program / "bin/replicate", "help", chapter.stem]
        help_done = subprocess.run(helped, env={}, capture_output=True, check=False)
        assert help_done.stdout == chapter.read_bytes(), help_done.stderr
    again = staged.run("install")
    assert again.returncode == 0, again.stderr
    after = tree(staged.root)
    assert {path for path in after if after[path] != before.get(path)} == set()
    assert after.keys() == before.keys()
