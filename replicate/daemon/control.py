"""Daemons from outside: start, stop, reopen the log, ask.

Guarantees: `start` returns only when the daemon has said that it serves; otherwise it raises the daemon's own one-line
error with the daemon's exit code, and nothing is left running. It waits for the end of one that was killed. `stop`
returns when the process has ended, and never signals a process that is not the daemon. Nothing here needs the daemon
to be well.
Leaves to others: what a daemon does, and the instance beyond its directory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

import replicate
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import Running
from replicate.errors import (
    EXIT_CODES,
    JournalIOError,
    PermissionRefusedError,
    ReplicateError,
    TryAgainError,
)
from replicate.system.os_errors import mend
from replicate.system.processes import is_ended, is_ending

CUT_SHORT_GRACE_S: Final = 5.0
"""After the time to drain is over: from the second SIGTERM to SIGKILL."""
DYING_S: Final = 30.0
"""As long at most the end of a process is waited for that was killed: it has its lock until its last thread is gone."""
SETTLED_S: Final = 30.0
"""As long at most a starting daemon has its lock without a word of who it is: a moment, and more on a busy machine."""
BACK_S: Final = 3.0
"""A daemon that stood aside looks ten times a second whether it may go on."""
ROOM_BYTES: Final = 64 * 1024
"""With less room on its disk a daemon cannot say why it has failed."""


class DaemonFailedError(ReplicateError):
    """The daemon ended before it served, or could not do what it was told; text and exit code are its own."""

    code = "DAEMON_FAILED"

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.args = (line,)
        self.own_exit_code = exit_code


class StartedDaemon(Struct, frozen=True):
    """A daemon that serves. `text` is what it said when it became ready (a receiver names its address there);
    `warnings` what was asked for and does not count."""

    pid: int
    text: str
    warnings: tuple[str, ...] = ()


class Stopped(Struct, frozen=True):
    """How a daemon ended: `was_running`, whether it `drained` what it had, whether it had to be `killed`, and what it
    has said at its end ("": nothing)."""

    was_running: bool
    drained: bool = True
    killed: bool = False
    last_word: str = ""


COMMAND_LINE: Final = ("-m", "replicate.cli.main")


def start(
    files: DaemonFiles, arguments: Sequence[str], *, timeout_s: float, program: Sequence[str] = COMMAND_LINE
) -> StartedDaemon:
    """Start `replicate ARGUMENTS` (a foreground `run`) detached, and wait until it serves.

    Raises AlreadyRunningError, DaemonFailedError with the daemon's words, TryAgainError when it neither served nor
    ended within `timeout_s` (it has then been ended).
    """
    running = _alive(files)
    if running is None and _back_from_aside(files) is not None:
        running = files.lock.probe()
    if running is not None:
        raise files.lock.running_error(running)
    files.lock.make_directories()
    absent = [path for path in (files.standard_error, files.log) if not path.exists()]
    try:
        return _start(files, arguments, timeout_s=timeout_s, program=program)
    except BaseException:
        _remove_empty(files, absent)
        raise


def _remove_empty(files: DaemonFiles, paths: Sequence[Path]) -> None:
    """A start that was refused leaves no log in which nothing stands."""
    with suppress(OSError):
        if files.lock.probe() is not None:
            return  # another start was quicker, and has them open
        for path in paths:
            if path.exists() and not path.stat().st_size:
                path.unlink()


def _start(files: DaemonFiles, arguments: Sequence[str], *, timeout_s: float, program: Sequence[str]) -> StartedDaemon:
    read_fd, write_fd = os.pipe()
    try:
        with open(files.standard_error, "ab", opener=_private) as errors:
            offset = errors.tell()
            process = subprocess.Popen(
                [sys.executable, "-P", *program, *arguments, "--ready-fd", str(write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=_environment(),
                pass_fds=(write_fd,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(read_fd)
        raise JournalIOError(f"cannot be started: {error.strerror}", where=files.name, do=mend(error)) from error
    finally:
        os.close(write_fd)
    try:
        line = _read_line(read_fd, time.monotonic() + timeout_s)
    except BaseException:
        _end(process)  # Ctrl-C while waiting: a daemon that nobody was told of must not stay
        raise
    finally:
        os.close(read_fd)
    if line is None:
        _end(process)
        raise TryAgainError(
            f"{files.name} did not serve within {timeout_s:g} s and was ended",
            where=str(files.log),
            do="Look into its log, or give it more time: replicate -i INSTANCE config set daemon.start_timeout_s 120",
        )
    if line:
        try:
            started = ready_word(line, files.name)
        except DaemonFailedError:
            _wait_or_end(process)
            raise
        # Deliberately not waited for: it outlives us. Tell subprocess so, or it would warn.
        process.returncode = 0
        return started
    exit_code = process.wait()
    raise DaemonFailedError(_last_line(files, offset, exit_code), exit_code if exit_code in EXIT_CODES else 70)


def stop(files: DaemonFiles, *, timeout_s: float) -> Stopped:
    """Ask the daemon to drain for at most `timeout_s`, then to end at once, then end it. Waits for the end.

    A daemon that does not run is well stopped. Raises PermissionRefusedError, TryAgainError (it cannot be killed),
    AlreadyRunningError (the holder of its lock is something else, a replay, and nobody is ended).
    """
    running = _running(files)
    if running is None:
        return Stopped(was_running=False)
    holder = files.lock.probe()
    if holder is not None and holder.instead:
        raise files.lock.running_error(holder)
    with suppress(OSError), open(files.stop_timeout, "w", encoding="ascii", opener=_private) as file:
        file.write(f"{timeout_s}\n")
    killed = False
    for number, patience_s in (
        (signal.SIGTERM, timeout_s + 1.0),  # the daemon keeps the time itself; this is for one that cannot
        (signal.SIGTERM, CUT_SHORT_GRACE_S),
        (signal.SIGKILL, DYING_S),
    ):
        killed = number == signal.SIGKILL
        if not _signal(files, running, number) or _wait_ended(files, running, patience_s):
            break
    else:
        raise TryAgainError(
            f"{files.name} (process {running}) does not end", where=str(files.instance_path), do="Is its disk hanging?"
        )
    with suppress(OSError):
        files.stop_timeout.unlink()
    status = files.read_status()
    if killed or status is None:
        return Stopped(was_running=True, drained=False, killed=killed)
    is_drained = status.facts.get("drained") is not False
    return Stopped(was_running=True, drained=is_drained, last_word=str(status.facts.get("last_word", "")))


def is_running(files: DaemonFiles) -> bool:
    """Whether the daemon runs; one that stands aside for a moment does."""
    return _running(files) is not None


def reopen_log(files: DaemonFiles) -> bool:
    """Ask the daemon to reopen its log file; False if it does not run."""
    running = _running(files)
    return running is not None and _signal(files, running, signal.SIGHUP)


def _alive(files: DaemonFiles) -> Running | None:
    """The process that has the daemon's lock, and keeps it: one that was killed is waited for."""
    deadline = time.monotonic() + DYING_S
    while (running := files.lock.probe()) is not None and running.pid and is_ending(running.pid):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return running


def _running(files: DaemonFiles) -> int | None:
    """The daemon's pid; one that stands aside for a moment is waited for."""
    return _settled(files) or _back_from_aside(files)


def _settled(files: DaemonFiles) -> int | None:
    """The daemon's pid; waits for the instant in which a starting one holds the lock but has not noted its pid."""
    deadline = time.monotonic() + SETTLED_S
    while (running := files.lock.probe()) is not None:
        if running.pid:
            return running.pid
        if time.monotonic() > deadline:
            raise TryAgainError(f"{files.name} runs, but has not said as which process", where=str(files.lock.path))
        time.sleep(0.01)
    return None


def _back_from_aside(files: DaemonFiles) -> int | None:
    """The pid of a daemon that stood aside, and takes its lock again in a moment, as nobody asks it to any more: it
    lives, and has not said that it has ended. None when there is none, or it does not come."""
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        said = files.status.read()
        if said is None or not said.is_running or not said.pid or is_ending(said.pid):
            return None
        if (running := _settled(files)) is not None:
            return running
        time.sleep(0.01)
    return None


def _signal(files: DaemonFiles, pid: int, number: int) -> bool:
    """Signal the daemon if it still is that process. A pidfd rules out a number that was given to another since."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        running = files.lock.probe()
        if running is None or running.pid != pid or running.instead:  # a replay, say, dies of SIGHUP
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise PermissionRefusedError(
            f"process {pid} belongs to another user", where=files.name, do="Run as the instance's owner"
        ) from error
    finally:
        os.close(handle)
    return True


def _wait_ended(files: DaemonFiles, pid: int, patience_s: float) -> bool:
    """Whether it ends in that time: it gives up its lock, and a moment later it is gone."""
    deadline = time.monotonic() + patience_s
    while (running := files.lock.probe()) is not None and running.pid == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    while not is_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    return True


def _read_line(fd: int, deadline: float) -> bytes | None:
    """The line a daemon writes when it is ready or has failed; b"" if it ended before, None at the deadline."""
    data = b""
    while not data.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            return None
        piece = os.read(fd, 65536)
        if not piece:
            return b""
        data += piece
    return data


def ready_word(line: bytes, name: str) -> StartedDaemon:
    """What the line says by which the daemon `name` tells that it serves. DaemonFailedError when it says that it has
    failed, or makes no sense (a daemon of another release)."""
    try:
        said = json.loads(line)
        if "error" in said:
            exit_code = int(said["exit_code"])
            text = str(said["error"]) or f"{name} has failed, and does not say why"
            raise DaemonFailedError(text, exit_code if exit_code in EXIT_CODES else 70)
        return StartedDaemon(int(said["pid"]), str(said["text"]), tuple(map(str, said.get("warnings", ()))))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DaemonFailedError(f"{name}: what it said at its start makes no sense: {line[:80]!r}", 70) from error


def _wait_or_end(process: subprocess.Popen[bytes]) -> None:
    """For a daemon that has failed: it has a moment to end by itself."""
    try:
        process.wait(CUT_SHORT_GRACE_S)
    except subprocess.TimeoutExpired:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(CUT_SHORT_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(files: DaemonFiles, offset: int, exit_code: int) -> str:
    """The daemon's last words on standard error."""
    with suppress(OSError), open(files.standard_error, "rb") as file:
        file.seek(offset)
        lines = file.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
        if lines:
            return lines[-1]
    if exit_code == 74 and _is_full(files.log.parent):
        return (
            f"DISK_FULL: {files.name} ended before it served, and had no room to say more [{files.log.parent}]. "
            "Free space on its file system"
        )
    how = f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"
    return f"INTERNAL: {files.name} ended {how} before it served. Look into {files.log}"


def _is_full(directory: Path) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < ROOM_BYTES


def _environment() -> dict[str, str]:
    """Ours, and a way to find this very package when it is not installed (a checkout)."""
    environment = dict(os.environ)
    environment.pop("NOTIFY_SOCKET", None)  # the unit that may be ours is not the daemon's
    home = Path(replicate.__file__).resolve().parent.parent
    if str(home) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else str(home)
    return environment


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
