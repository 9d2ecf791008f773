"""The demonstration's hands: runs `replicate` as an operator would, starts the writers, and leaves nothing behind.

Guarantees: every command is shown before it runs, with its output; a command that fails raises CommandFailedError
with its exit code; after `Workshop.close` no process of this demonstration runs, nothing of it is in shared memory,
and its directory is gone unless it is to be kept. Its processes are known by a mark in their environment, so that
nobody else's is ever taken for one of them.
Leaves to others: the story that the demonstration tells.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

COMMAND_TIMEOUT_S: Final = 120.0
APPLICATION: Final = Path(__file__).resolve().with_name("demo_application.py")
PROC: Final = Path("/proc")
INDENT: Final = " " * 6
"""Of what a command has printed."""
MARK_VARIABLE: Final = "DUALSITE_DEMO"
"""Stands, with a value of this run's own, in the environment of every process that we start, and of theirs."""


class DemoFailedError(Exception):
    """The demonstration cannot go on, or did not show what it should. `exit_code` is that of the whole."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class CommandFailedError(DemoFailedError):
    """A command ended with an exit code that was not expected; its own words have been shown."""


class SignalledError(Exception):
    """A signal asked us to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def say(text: str = "") -> None:
    """One line for the reader, at once."""
    print(text, flush=True)


class WriterProcess:
    """A process of the application. `report` is the last thing it said, as the dictionary of its JSON line."""

    def __init__(self, number: int, process: subprocess.Popen[str], errors: Path) -> None:
        self.number = number
        self.process = process
        self.errors = errors
        self.report: dict[str, Any] = {"number": 0, "rolled_back": 0, "refused": 0, "last_seqno": 0}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.report = json.loads(line)

    def check(self) -> None:
        """Raises DemoFailedError with the application's last words if it has ended by itself."""
        if self.process.poll() is not None:
            self._raise()

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """Ask it to end with a whole transaction; returns its last report."""
        self.process.terminate()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoFailedError(f"writer {self.number} did not end within {timeout_s:g} s", 75) from None
        self._thread.join(5.0)
        if code != 0 or not self.report.get("finished"):
            self._raise()
        return self.report

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(5.0)

    def _raise(self) -> None:
        said = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        for line in said[-12:]:
            say(f"    {line}")
        raise DemoFailedError(f"writer {self.number} ended with exit code {self.process.returncode}", 70)


class Workshop:
    """One demonstration's directory, its commands and its processes."""

    def __init__(self, directory: str, keep: bool) -> None:
        """Makes the directory. Raises DemoFailedError if the one that was named is not empty (73), and where nobody can
        say which processes run (69)."""
        check_proc()
        self.keep = keep
        self.instances: list[str] = []
        self.writers: list[WriterProcess] = []
        self._command = Path(sys.executable).with_name("replicate")
        self._made = True
        if directory:
            self.path = Path(directory).absolute()
            self._made = not self.path.exists()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                occupied = any(self.path.iterdir())
            except OSError as error:
                raise DemoFailedError(f"{self.path} cannot be used: {error.strerror}", 73) from None
            if occupied:
                raise DemoFailedError(f"{self.path} is not empty; name another directory, or remove it", 73)
        else:
            self.path = Path(tempfile.mkdtemp(prefix="dualsite-demo-"))
        self._mark = uuid.uuid4().hex
        self.environment = {
            **{key: value for key, value in os.environ.items() if key != "REPLICATE_INSTANCE"},
            "REPLICATE_HOME": str(self.path),
            "COLUMNS": str(shutil.get_terminal_size().columns - len(INDENT)),
            MARK_VARIABLE: self._mark,
        }

    # Commands.

    def run(self, *arguments: str, instance: str = "", allowed: tuple[int, ...] = (0,)) -> str:
        """Show and run `replicate -i INSTANCE ARGUMENTS`; returns what it printed.

        Raises CommandFailedError with its exit code unless that is one of `allowed`.
        """
        words = [*(("-i", instance) if instance else ()), *arguments]
        say(f"  $ replicate {shlex.join(words)}")
        code, printed, errors = self._call(words)
        for line in (printed + errors).rstrip().splitlines():
            say(f"{INDENT}{line}")
        if code not in allowed:
            raise CommandFailedError(f"'replicate {shlex.join(words)}' ended with exit code {code}", code or 1)
        return printed

    def ask(self, *arguments: str, instance: str, show: bool = False, allowed: tuple[int, ...] = (0,)) -> Any:
        """Run `replicate -i INSTANCE --json ARGUMENTS`, shown only with `show`; returns the JSON value."""
        words = ["-i", instance, *arguments]
        if show:
            say(f"  $ replicate {shlex.join(words)}")
        code, printed, errors = self._call([*words, "--json"])
        if code not in allowed:
            say(f"      {errors.strip()}")
            raise CommandFailedError(f"'replicate {shlex.join(words)}' ended with exit code {code}", code)
        return json.loads(printed)

    def _call(self, words: list[str]) -> tuple[int, str, str]:
        process = subprocess.Popen(
            [str(self._command), *words],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        try:
            printed, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            raise DemoFailedError(
                f"'replicate {shlex.join(words)}' did not end within {COMMAND_TIMEOUT_S:g} s", 75
            ) from None
        except BaseException:
            _end(process)  # gently first: a `start` that is interrupted ends the daemon that it was starting
            raise
        return process.returncode, printed, errors

    # The application.

    def application(self, *arguments: str) -> None:
        """Run the application to its end, as `create` does."""
        done = subprocess.run(
            [sys.executable, str(APPLICATION), *arguments], cwd=self.path, env=self.environment, check=False
        )
        if done.returncode:
            raise DemoFailedError(f"the application ended with exit code {done.returncode}", 70)

    def start_writer(self, number: int, instance: str, rate: float, *more: str) -> None:
        """Start a writer process of the application, in a session of its own: Ctrl-C is ours to handle."""
        errors = self.path / f"writer-{number}.err"
        arguments = ["write", "--instance", str(self.path / instance), "--writer", str(number), "--rate", str(rate)]
        arguments += more
        with open(errors, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, str(APPLICATION), *arguments],
                cwd=self.path,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                encoding="utf-8",
                start_new_session=True,
            )
        self.writers.append(WriterProcess(number, process, errors))

    # The end.

    def stop_daemons(self, timeout_s: float, show: bool) -> None:
        """Stop the daemons of every instance that was made, sources first. Raises CommandFailedError."""
        for daemon in ("source", "receiver", "update"):
            for instance in self.instances:
                if not any((self.path / instance / "run").glob(f"{daemon}*.lock")):
                    continue
                words = (daemon, "stop", "--timeout", f"{timeout_s:g}")
                if show:
                    self.run(*words, instance=instance)
                else:
                    with contextlib.suppress(DemoFailedError, ValueError):
                        self.ask(*words, instance=instance, allowed=(0, 1))

    def running(self) -> dict[int, str]:
        """Processes of this demonstration, by the mark in their environment: {pid: command line}."""
        found: dict[int, str] = {}
        mark = f"{MARK_VARIABLE}={self._mark}".encode()
        for entry in PROC.iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if mark in (entry / "environ").read_bytes().split(b"\0") and is_alive(int(entry.name)):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
        return found

    def close(self, keep: bool) -> tuple[str, ...]:
        """Leave nothing behind; never raises for what it cannot do. Returns the processes that had to be killed."""
        for writer in self.writers:
            writer.kill()
        if self.running():
            self.stop_daemons(3.0, show=False)
        left: dict[int, str] = {}
        wait_until(lambda: not self._kill_what_runs(left), 5.0)
        for name in self._shared_memory():
            with contextlib.suppress(OSError):
                name.unlink()
        if not keep:
            if self._made:
                shutil.rmtree(self.path, ignore_errors=True)
            else:
                for entry in self.path.iterdir():
                    shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        return tuple(left.values())

    def _kill_what_runs(self, killed: dict[int, str]) -> bool:
        """Whether there was anything to kill; notes it in `killed`. Again and again: it may be starting others."""
        found = self.running()
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        return bool(found)

    def _shared_memory(self) -> list[Path]:
        """Pools and keys of our instances; only the owner of the directory can know that nobody wants them any more."""
        directory = Path(os.environ.get("REPLICATE_SHM_DIR", "/dev/shm"))
        marks = []
        for instance in self.instances:
            with contextlib.suppress(DemoFailedError, ValueError, KeyError, OSError):
                shown = self.ask("instance", "show", instance=instance)
                marks += [uuid.UUID(shown[what]).hex for what in ("uuid", "network")]
        return [path for path in directory.glob("dualsite-*") if any(mark in path.name for mark in marks)]


def check_proc() -> None:
    """DemoFailedError where there is no /proc, as in a bare chroot: without it nothing could be seen to be cleaned up,
    and the product needs it, too."""
    if not (PROC / "self" / "environ").exists():
        raise DemoFailedError(f"{PROC} is not there; as root: mount -t proc proc {PROC}", 69)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        state = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=8.0)
            return
