"""Python processes that need not import the product again: forked from one that has. To import it takes most of the
processor time of a command or a daemon of a test.

Guarantees: such a process has arguments, environment, directory, umask, standard streams, session and descriptors as
one that was executed; it may be killed, watched and waited for in the same ways, and is not our child. What only a
new interpreter reads (`PYTHON…`, the locale, another module path) is looked at: where it is not the server's, a real
process is started. The server ends with us; what it has forked does not. A shell has the command from it by
`command` (forwarder.py): what that starts is forked, too.
Leaves to others: what must be seen to start from nothing (tests/deploy starts the installed command).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = ("REPLICATE_CHECK_CAPTURE", "LANG", "LANGUAGE", "TZ")  # read once in a process: as the server has it
FAILPOINT: Final = "REPLICATE_FAILPOINT"
SERVER: Final = "REPLICATE_TEST_FORKS"  # of a process that has no server of its own: where one listens
BEYOND: Final = 1000  # a descriptor that no process of a test has


def popen(words: Sequence[str], **how: Any) -> subprocess.Popen[Any] | Forked:
    """`subprocess.Popen` of this interpreter (`-m MODULE …` or `-c PROGRAM …`), forked where that is the same."""
    environment = dict(how.get("env") or os.environ)
    rest = [word for word in words[1:2] if word != "-P"] + list(words[2:])
    if words[0] != sys.executable or rest[0] not in ("-m", "-c") or not _is_usual(environment):
        return subprocess.Popen(words, **how)
    how["env"] = environment
    return _server().fork(rest, how)


def run(words: Sequence[str], *, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with both outputs kept as text, by `popen`."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = popen(words, env=env, text=True, **streams)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(words), process.returncode, output, errors)


def command(directory: Path) -> dict[str, str]:
    """Put a `replicate` there that is forked: the environment in which a shell finds it."""
    forwarder = Path(__file__).with_name("forwarder.py")
    words = shlex.join([sys.executable, "-ISE", str(forwarder)])
    directory.mkdir(exist_ok=True)
    (directory / "replicate").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (directory / "replicate").chmod(0o755)
    path = [str(directory), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PATH": os.pathsep.join(path), SERVER: _server().address}


@contextlib.contextmanager
def daemons_are_forked() -> Iterator[None]:
    """What is started by a command that runs in this process is forked: it is not our child, and outlives us."""
    from replicate.daemon import control

    before = control.subprocess
    control.subprocess = _Forking  # type: ignore[assignment]
    try:
        yield
    finally:
        control.subprocess = before


class _Forking:
    """What replicate.daemon.control uses of the module subprocess."""

    Popen = staticmethod(popen)
    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired


class Forked:
    """A process that the server has forked: the part of `subprocess.Popen` that tests use."""

    def __init__(self, status: socket.socket, *streams: IO[Any] | None) -> None:
        self._status = status
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.pid = int(self._told(None) or 0)
        if not self.pid:
            raise OSError("the fork server has ended")

    def poll(self) -> int | None:
        """Its exit code, below 0 when a signal has ended it; None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code. Raises subprocess.TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                word = self._told(timeout)
                if not word:
                    raise OSError(f"the fork server has ended before process {self.pid}")
                self.returncode = os.waitstatus_to_exitcode(int(word))
                self._status.close()
        return self.returncode

    def _told(self, timeout: float | None) -> bytes:
        self._status.settimeout(timeout)
        try:
            return self._status.recv(64)
        except (TimeoutError, BlockingIOError):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its input, read its outputs to their ends, wait for it. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        read: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda n=number, s=stream: read.__setitem__(n, s.read()), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return read.get(0), read.get(1)

    def send_signal(self, number: int) -> None:
        """As os.kill; nothing for one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.communicate()


class Server:
    """Our end of a fork server."""

    def __init__(self, address: str = "") -> None:
        """One that listens at `address`, "": a new one."""
        self._lock = threading.Lock()
        self.address = address or f"replicate-tests-{os.getpid()}-{os.urandom(4).hex()}"
        if address:
            self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._requests.connect(f"\0{address}")
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{self.address}")
        listener.listen()
        with theirs, listener:
            numbers = theirs.fileno(), listener.fileno()
            words = [sys.executable, "-m", "tests.harness.fork_server", *map(str, numbers), "replicate"]  # its name
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._process = subprocess.Popen(words, cwd=ROOT, pass_fds=numbers, **streams)

    def fork(self, words: Sequence[str], how: Mapping[str, Any]) -> Forked:
        """Fork a process; `how` is what Popen takes. Raises OSError when the server has ended."""
        ours: list[IO[Any] | None] = []
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = [theirs.fileno()]
        ends: list[int] = []  # what only the other side keeps
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = how.get(name)
            kept: IO[Any] | None = None
            if stream == subprocess.PIPE:
                read, write = os.pipe()
                end, other = (write, read) if number == 0 else (read, write)
                mode = ("w" if number == 0 else "r") + ("" if how.get("text") else "b")
                kept = open(end, mode)  # noqa: SIM115
                ends.append(other)
                given.append(other)
            elif stream == subprocess.DEVNULL:
                ends.append(os.open(os.devnull, os.O_RDWR))
                given.append(ends[-1])
            elif stream == subprocess.STDOUT:
                given.append(given[2])
            else:
                given.append(number if stream is None else stream if isinstance(stream, int) else stream.fileno())
            ours.append(kept)
        request = {
            "words": list(words),
            "environment": how["env"],
            "directory": str(how.get("cwd") or os.getcwd()),
            "session": bool(how.get("start_new_session")),
            "umask": _umask(),
            "passed": list(how.get("pass_fds", ())),
        }
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*given, *request["passed"]])
        for descriptor in ends:
            os.close(descriptor)
        theirs.close()
        return Forked(mine, *ours)


_servers: dict[int, Server] = {}
_servers_lock = threading.Lock()


def _server() -> Server:
    """This process's own: a process that was forked from us has none."""
    with _servers_lock:
        if os.getpid() not in _servers:
            _servers[os.getpid()] = Server(os.environ.get(SERVER, ""))
        return _servers[os.getpid()]


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _is_usual(environment: Mapping[str, str]) -> bool:
    """Whether a new interpreter with this environment would be as the server is."""
    return _of_interpreter(environment) == _of_interpreter({**os.environ, "PYTHONPATH": str(ROOT)})


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {
        name: value
        for name, value in environment.items()
        if name in OURS or name.startswith("LC_") or (name.startswith("PYTHON") and name != "PYTHONPATH")
    }
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    return {**found, "path": list(dict.fromkeys(filter(None, path))) or [str(ROOT)]}


# The server's side.


@dataclass(frozen=True)
class Job:
    """What a forked process runs, once it is as a new one."""

    words: list[str]

    def run(self) -> Any:
        """Run it, in this module's place."""
        kind, what, *arguments = self.words
        if kind == "-c":
            sys.argv = ["-c", *arguments]
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
            return 0
        if what == "replicate.cli.main":
            from replicate.cli.main import main

            sys.argv = ["replicate", *arguments]
            with daemons_are_forked() if SERVER in os.environ else contextlib.nullcontext():
                return main(arguments)
        import runpy

        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return 0


def import_all() -> None:
    """All of the product, but replays: commands import what they need when they are called."""
    for top in ("replicate", "source_server", "receiver_server", "update_process"):
        for module in pkgutil.walk_packages(importlib.import_module(top).__path__, f"{top}."):
            if ".replay" not in module.name:
                importlib.import_module(module.name)


def serve(requests: socket.socket, listener: socket.socket) -> Job | None:
    """Fork what is asked for, until `requests` is closed: None. In each forked process: its job."""
    from replicate.system import failpoint

    import_all()
    gc.collect()
    gc.freeze()  # the collector would write into, and so copy, all that the processes share
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the tests end, and then we do
    waiting = selectors.DefaultSelector()
    waiting.register(requests, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                _ended(waiting, key.fd, *key.data)
                continue
            asked = cast(socket.socket, key.fileobj)
            if asked is listener:
                waiting.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            message, descriptors = _request(asked)
            if not message:
                if asked is requests:
                    return None
                waiting.unregister(asked)
                asked.close()
                continue
            request = json.loads(message)
            pid = os.fork()
            if pid:
                status = socket.socket(fileno=descriptors[0])
                with contextlib.suppress(OSError):  # who asked has ended
                    status.send(b"%d" % pid)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                continue
            # An object that is collected later would close a file of the job.
            for left in waiting.get_map().values():
                (left.data[1] if left.data is not None else cast(socket.socket, left.fileobj)).close()
            waiting.close()
            become(request, descriptors[1:])
            armed = os.environ.get(FAILPOINT)
            if armed:
                failpoint.arm(armed)
            return Job(request["words"])


def _request(asked: socket.socket) -> tuple[bytes, list[int]]:
    """One, and its descriptors; b"" when nobody asks there any more."""
    try:
        message, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 64)
    except ConnectionResetError:
        return b"", []
    return message, descriptors


def _ended(waiting: selectors.BaseSelector, watched: int, pid: int, status: socket.socket) -> None:
    waiting.unregister(watched)
    with contextlib.suppress(OSError):  # nobody waits for it
        status.send(b"%d" % os.waitpid(pid, 0)[1])
    status.close()
    os.close(watched)


def become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Make of a forked process what an executed one would be."""
    import fcntl

    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, BEYOND) for descriptor in descriptors]
    os.closerange(3, BEYOND)
    for source, target in zip(high, (0, 1, 2, *request["passed"]), strict=True):
        os.dup2(source, target)
    os.closerange(BEYOND, max(high) + 1)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()


if __name__ == "__main__":
    job = serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
    sys.exit(job.run() if job else 0)
