"""The set-up that deploy/demo and deploy/test share, with a pretended Python: what it makes, repairs and refuses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

# It plays `python` of the machine and of the environment: it makes environments, and notes each call of pip.
PRETENDED_PYTHON = """#!/bin/sh
calls='{calls}'
case "$*" in
*ensurepip*) exit {ensurepip_code} ;;
*sys.version*base_prefix*) echo 'pretended 3.11' ;;
*"-m venv "*)
    for last; do :; done
    mkdir -p "$last/bin" && cp "$0" "$last/bin/python" && echo venv >>"$calls"
    : >"$last/pyvenv.cfg" ;;
*"-m pip install"*)
    echo "install $*" >>"$calls"
    [ ! -e '{hang}' ] || {{ echo $$ >"$calls.pid"; exec sleep 60; }}
    [ ! -e '{fail}' ] || {{ echo 'no such wheel'; exit 1; }}
    case "$*" in *,fuzz*) [ ! -e '{missing_extra}' ] || exit 1 ;; esac
    sleep 0.2
    : >"$(dirname "$0")/replicate"; chmod +x "$(dirname "$0")/replicate" ;;
esac
exit 0
"""


class Machine:
    """A checkout with a pretended Python, in a directory whose name has a space."""

    def __init__(self, home: Path) -> None:
        self.checkout = home / "check out"
        self.environment = self.checkout / "my env"
        self.calls = home / "calls"
        self.hang = home / "hang"
        self.fail = home / "fail"
        self.missing_extra = home / "missing extra"
        self.python = home / "pretended python"
        self.use_python(ensurepip_code=0)
        (self.checkout / "deploy").mkdir(parents=True)
        (self.checkout / "pyproject.toml").write_text("version 1\n")
        (self.checkout / "deploy" / "environment.sh").write_text((DEPLOY / "environment.sh").read_text())
        (self.checkout / "deploy" / "probe").write_text(
            'set -eu\ncheckout=$(cd "$(dirname "$0")/.." && pwd -P)\n. "$checkout/deploy/environment.sh"\n'
            'set_up_environment "$1" "$2"\necho "ready $environment"\n'
        )

    def use_python(self, ensurepip_code: int) -> None:
        self.python.write_text(
            PRETENDED_PYTHON.format(
                calls=self.calls,
                hang=self.hang,
                fail=self.fail,
                missing_extra=self.missing_extra,
                ensurepip_code=ensurepip_code,
            )
        )
        self.python.chmod(0o755)

    def start(
        self, extra: str = "run", environment: Path | None = None, *, python: str | None = ""
    ) -> subprocess.Popen[str]:
        """`python`: the setting PYTHON; the pretended one if "", none at all if None."""
        command = ["sh", str(self.checkout / "deploy" / "probe"), str(environment or self.environment), extra]
        settings = {**os.environ, "PYTHON": "" if python is None else python or str(self.python)}
        return subprocess.Popen(
            command, env=settings, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, extra: str = "run", environment: Path | None = None, *, python: str | None = "") -> tuple[int, str]:
        process = self.start(extra, environment, python=python)
        printed, errors = process.communicate(timeout=120)
        return process.returncode, printed + errors

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.split()[0] for line in lines]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_second_run_installs_nothing(machine: Machine) -> None:
    code, said = machine.run()
    assert code == 0, said
    assert f"ready {machine.environment}" in said
    assert machine.called() == ["venv", "install"]
    assert machine.run()[0] == 0
    assert machine.called() == ["venv", "install"]
    assert (machine.environment / ".gitignore").read_text() == "*\n"


def test_the_tests_need_more_than_the_demonstration_but_not_the_other_way_round(machine: Machine) -> None:
    machine.run("run")
    machine.run("test")
    machine.run("run")
    calls = machine.calls.read_text().splitlines()
    assert machine.called() == ["venv", "install", "install"]
    assert calls[-1].endswith("[test,spark,plot,fuzz]")


def test_without_the_fuzzer_the_tests_can_be_run_all_the_same(machine: Machine) -> None:
    machine.missing_extra.touch()
    code, said = machine.run("test")
    assert code == 0, said
    assert "The fuzzer (the extra fuzz) does not install here" in said
    assert machine.called() == ["venv", "install", "install"]
    assert machine.calls.read_text().splitlines()[-1].endswith("[test,spark,plot]")
    assert machine.run("test")[0] == 0
    assert machine.called() == ["venv", "install", "install"]


def test_the_tests_need_java_and_say_how_to_get_it(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = tmp_path / "bin"
    pretended.mkdir()
    (pretended / "id").write_text("#!/bin/sh\necho 1000\n")
    (pretended / "id").chmod(0o755)
    monkeypatch.setenv("PATH", f"{pretended}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    code, said = machine.run("test")
    assert code == 69
    assert "apt-get install --yes openjdk-17-jre-headless" in said
    assert not machine.environment.exists()
    assert machine.run("run")[0] == 0  # the demonstration needs none

    (tmp_path / "no java" / "bin").mkdir(parents=True)
    (tmp_path / "no java" / "bin" / "java").write_text("")
    (tmp_path / "no java" / "bin" / "java").chmod(0o755)
    assert machine.run("test")[0] == 0


def test_all_that_is_missing_is_named_at_once_with_one_command(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with nothing but what the script itself calls, and a Python without venv."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("sh", "dirname", "cat"):
        (bare / name).symlink_to(shutil.which(name) or name)
    (bare / "id").write_text("#!/bin/sh\necho 1000\n")
    (bare / "id").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", "")
    script = machine.checkout / "deploy" / "environment.sh"
    # The script looks at /usr/bin/python3 by its full name; this machine may have one.
    script.write_text(script.read_text().replace("/usr/bin/python3", "/nonexistent/python3"))
    monkeypatch.setenv("PATH", str(bare))
    code, said = machine.run("test", python=None)
    assert code == 69, said
    assert said.count("apt-get install") == 1
    assert "apt-get install --yes python3-venv openjdk-17-jre-headless" in said
    assert "Python 3.11 or newer with the modules venv and ensurepip; Java 17 or newer" in said
    code, said = machine.run("run", python=None)
    assert code == 69
    assert "apt-get install --yes python3-venv\n" in said
    assert not machine.environment.exists()


def test_a_changed_project_file_is_installed_again_into_the_same_environment(machine: Machine) -> None:
    machine.run()
    (machine.checkout / "pyproject.toml").write_text("version 2\n")
    assert machine.run()[0] == 0
    assert machine.called() == ["venv", "install", "install"]


def test_a_copy_of_a_checkout_is_stale_when_a_chapter_has_changed(machine: Machine) -> None:
    """The package of a checkout that may not be written is a copy, with the manual."""
    for room in ("replicate", "source_server", "receiver_server", "update_process", "deploy/manual"):
        (machine.checkout / room).mkdir()
    probe = "checkout=$PWD; . deploy/environment.sh; environment=$PWD; install_mode=copy; wanted_hash"
    found = []
    for text in ("one", "two", "one"):
        (machine.checkout / "deploy" / "manual" / "gtm.md").write_text(text)
        done = subprocess.run(["sh", "-c", probe], cwd=machine.checkout, capture_output=True, text=True, check=True)
        found.append(done.stdout)
    assert found[0] == found[2] != found[1]


def test_two_at_once_install_once(machine: Machine) -> None:
    both = [machine.start(), machine.start()]
    said = ["".join(process.communicate(timeout=120)) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert machine.called() == ["venv", "install"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_installation_ends_at_once_and_is_repaired(machine: Machine, number: signal.Signals) -> None:
    machine.hang.touch()
    process = machine.start()
    note = machine.calls.with_name("calls.pid")
    wait_until(lambda: note.exists() and note.read_text().strip() != "")
    process.send_signal(number)
    said = "".join(process.communicate(timeout=60))
    assert process.returncode == 128 + number, said
    assert not Path("/proc", note.read_text().strip()).exists()
    assert not (machine.environment / ".dualsite-stamp").exists()

    machine.hang.unlink()
    assert machine.run()[0] == 0
    assert machine.called() == ["venv", "install", "venv", "install"]


def test_a_failed_installation_says_what_pip_said(machine: Machine) -> None:
    machine.fail.touch()
    code, said = machine.run()
    assert code == 69
    assert "no such wheel" in said
    machine.fail.unlink()
    assert machine.run()[0] == 0


def _a_file(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("ten years of work")


def _an_environment_that_does_not_run(directory: Path) -> None:
    _a_file(directory)
    (directory / "pyvenv.cfg").touch()


@pytest.mark.parametrize("make", [_a_file, _an_environment_that_does_not_run])
def test_a_directory_that_is_not_ours_is_left_alone(machine: Machine, make: Callable[[Path], None]) -> None:
    make(machine.environment)
    before = sorted(machine.environment.iterdir())
    code, said = machine.run()
    assert code == 73, said
    assert sorted(machine.environment.iterdir()) == before


def test_a_working_environment_of_somebody_elses_is_used_but_not_emptied(machine: Machine) -> None:
    _an_environment_that_does_not_run(machine.environment)
    (machine.environment / "bin").mkdir()
    (machine.environment / "bin" / "python").write_text(machine.python.read_text())
    (machine.environment / "bin" / "python").chmod(0o755)
    assert machine.run()[0] == 0
    assert (machine.environment / "thesis.txt").exists()
    assert machine.called() == ["install"]


def test_a_python_that_cannot_make_environments_is_named(machine: Machine) -> None:
    machine.use_python(ensurepip_code=1)
    code, said = machine.run()
    assert code == 69
    assert "venv" in said
    assert not machine.environment.exists()
