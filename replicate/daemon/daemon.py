"""The frame of every daemon: lock, log, signals, readiness, status file, watchdog, orderly end.

Guarantees: one daemon of a name per instance; `ready` is told (to systemd and to a waiting `start`) only when the
daemon says so; SIGTERM or SIGINT asks it to drain and, when the time for that is over or a second signal comes, it is
cancelled; SIGHUP reopens the log; the status file says how it ended. One that is asked to stand aside
(standing_aside.py) drains, gives up its lock, and serves again in the same process once it may. One that ends by an
error ends with that error's exit code, and the log holds it; what we did not expect becomes an InternalError, its
traceback in the log.
Leaves to others: what a daemon does. It is given as `serve`, an async function of a DaemonContext.

For the author of a daemon:

    async def serve(context: DaemonContext, …) -> None:
        …open what is needed, raise a ReplicateError if it cannot be…
        context.ready("waiting for a connection")
        …work; `context.status("sending", last_sent_seqno=7)` whenever something moved (cheap, written once a second)…
        …when `context.stop_requested` is set: drain, and return; Cancelled comes after `context.stop_deadline_s`…
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from replicate import __version__
from replicate.daemon.figures import Figures, no_figures
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import note_last_run, read_last_run, run_with, warning_of
from replicate.daemon.listening import listen
from replicate.daemon.log import LogFile, make_logger, terminal
from replicate.daemon.pool_sizes import void_pool_sizes
from replicate.daemon.standing_aside import is_asked_aside
from replicate.daemon.status_file import FAILED, SERVING, STARTING, STOPPED, STOPPING, DaemonStatus
from replicate.daemon.ticks import sleep_to_tick
from replicate.errors import (
    AlreadyRunningError,
    InternalError,
    JournalIOError,
    PermissionRefusedError,
    ReplicateError,
    TryAgainError,
)
from replicate.instance.file import read_file
from replicate.instance.instance import FILE_NAME as INSTANCE_FILE
from replicate.instance.instance import Instance
from replicate.instance.private_files import check_contents
from replicate.model.start_command import again_command
from replicate.settings.load import FILE_NAME, Config, load
from replicate.system.files import read_private

STATUS_PERIOD_S: Final = 1.0
"""Least time between two writes of the status file."""
KEEP_PERIOD_S: Final = 2.0
"""Between two looks whether our files are still there, and whether we are to stand aside."""
ASIDE_LOOK_S: Final = 0.1
"""While we stand aside, between two looks whether we may go on."""
ASIDE: Final = "standing aside while this instance is changed"


class DaemonContext(Struct, eq=False):
    """What the frame hands to `serve`. All of it belongs to the trio thread.

    `stop_deadline_s` is how many seconds draining may take; it is final once `stop_requested` is set.
    """

    name: str
    instance_path: Path
    config: Config = field(default_factory=Config)
    log: FilteringBoundLogger = field(default_factory=structlog.get_logger)
    stop_requested: trio.Event = field(default_factory=trio.Event)
    stop_deadline_s: float = 120.0
    state: str = STARTING
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    figures: Figures = no_figures
    """What /metrics gives of this daemon, read when somebody asks; `serve` sets it."""
    from_files: Figures = no_figures
    """The same, of what is to be read from files: it is asked in a thread."""
    why_not_ready: Callable[[], str] = lambda: ""
    """Why /readyz says no though the daemon serves ("": it says yes); `serve` may set it."""
    asks_aside: bool = False
    """The others stand aside for this daemon: it does not for itself."""
    on_ready: Callable[[str], None] = lambda _text: None
    _followed: tuple[str, int] | None = None
    """The role and incarnation that the log has told last."""
    _told: str = ""
    _changed: trio.Event = field(default_factory=trio.Event)

    def ready(self, text: str) -> None:
        """Say that the daemon serves from now on; the second and later calls only change the text."""
        first = self.state == STARTING
        if first:
            self.state = SERVING
        self.status(text)
        if first:
            self.on_ready(text)
            self.log.info("serving", status=text)

    def status(self, text: str | None = None, **facts: Any) -> None:
        """Change the line an operator sees (None: keep it) and the facts given; other facts stay as they are.

        Nothing is written while nothing differs, so it may be called on every occasion.
        """
        text = self.text if text is None else text
        if text != self.text or self._told != self.state or any(self.facts.get(k, self) != v for k, v in facts.items()):
            self.text = text
            self._told = self.state
            self.facts.update(facts)
            self._changed.set()

    def follows(self, instance: Instance) -> None:
        """Say in the log which role is followed from now on, where it is another one, or another incarnation's."""
        role = (instance.told_role, instance.content.incarnation)
        if self._followed not in (None, role):
            self.log.info("role followed", name=instance.name, role=role[0], incarnation=role[1])
        self._followed = role

    def missing(self) -> str:
        """Why the daemon is not ready; "" when it is."""
        return self.why_not_ready() if self.state == SERVING else f"{self.state}: {self.text}"

    @property
    def kind(self) -> str:
        """`source`, `receiver` or `update`: the section of its settings."""
        return self.name.partition("-")[0]

    async def _wait_changed(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()


Serve = Callable[[DaemonContext], Awaitable[None]]


def notify(message: str) -> None:
    """Tell systemd (sd_notify); nothing happens without NOTIFY_SOCKET, and a failure is none of ours."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return
    if address[0] == "@":
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode("utf-8", "replace"), address)


def watchdog_period_s() -> float | None:
    """How often systemd wants a sign of life: half of what it allows; None if it does not watch this process."""
    with suppress(ValueError):
        if int(os.environ.get("WATCHDOG_PID", os.getpid())) == os.getpid():
            allowed_us = int(os.environ.get("WATCHDOG_USEC", "0"))
            return allowed_us / 2e6 if allowed_us > 0 else None
    return None


def run_daemon(
    name: str,
    instance_path: Path,
    serve: Serve,
    *,
    overrides: Mapping[str, object] | None = None,
    ready_fd: int | None = None,
) -> None:
    """Run `serve` in this process until it ends. `overrides` are settings given as flags.

    `ready_fd` is the pipe of a waiting `start`: it gets one JSON line when the daemon is ready or has failed, and is
    closed.
    Raises the ReplicateError the daemon ended with, an InternalError for anything else, AlreadyRunningError.
    """
    os.umask(0o077)
    if ready_fd is not None:
        os.set_inheritable(ready_fd, False)
    files = DaemonFiles(instance_path, name)
    check_contents(instance_path)
    held = [_lock_in_time(files)]
    try:
        _Frame(files, overrides or {}, ready_fd, held).run(serve)
    finally:
        for fd in held:
            os.close(fd)


def _lock_in_time(files: DaemonFiles) -> int:
    """Our lock; where it is kept for a moment in which all daemons stand aside, after that. AlreadyRunningError."""
    while True:
        try:
            return files.lock.acquire()
        except AlreadyRunningError:
            if not _is_kept_down(files):
                raise
        time.sleep(ASIDE_LOOK_S)


def _is_kept_down(files: DaemonFiles) -> bool:
    running = files.lock.probe()
    return is_asked_aside(files.instance_path, files.name) and (running is None or bool(running.instead))


class _Frame:
    """One run of one daemon."""

    def __init__(
        self, files: DaemonFiles, overrides: Mapping[str, object], ready_fd: int | None, held: list[int]
    ) -> None:
        """`held`: the descriptors of our lock, the last one of the file that has a name."""
        self._files = files
        self._held = held
        self._ready_fd = ready_fd
        self._started_wall_ns = time.time_ns()
        self._writing = threading.Lock()
        self._written_ns = 0
        """When the picture that the status file shows was taken, by the monotonic clock."""
        self._status_failed = False
        self._is_ousted = False
        """Another daemon of our name has the lock: the status file is its own."""
        self._early_stop = False
        self._drain = trio.CancelScope()
        """Of the daemon's work."""
        self._aside: trio.CancelScope | None = None
        """While we stand aside, or drain for that: of the wait for the end of it."""
        self._keeping = trio.Lock()
        """Of the use of our lock's descriptors."""
        stood = load(files.instance_path / FILE_NAME)
        config = stood.with_values(overrides)
        self._run = run_with(stood, overrides)
        self._missing = read_last_run(files).missing(config, overrides)
        try:
            self._log_file = LogFile(files.log)
        except OSError as error:
            raise JournalIOError(
                f"the log cannot be opened: {error.strerror}", where=str(files.log), do="Mend that, then start again"
            ) from error
        self._context = DaemonContext(
            name=files.name,
            instance_path=files.instance_path,
            config=config,
            log=make_logger(
                daemon=files.name,
                instance=str(files.instance_path),
                level=config.log.level,
                row_values=config.log.row_values,
                file=self._log_file,
                console=terminal(),
            ),
            stop_deadline_s=config.daemon.stop_timeout_s,
            on_ready=self._ready,
        )

    def run(self, serve: Serve) -> None:
        context = self._context
        given = {"given": dict(self._run.given)} if self._run.given else {}
        whose = self._whose()
        if whose:
            context._followed = (whose["role"], whose["incarnation"])
        context.log.info("daemon started", **whose, **given)
        if self._missing:
            named = shlex.quote(str(context.instance_path))
            again = again_command(context.name, {**self._missing, **self._run.given}, of=named)
            context.log.warning(
                "settings of the last run are missing",
                missing=self._missing,
                do=warning_of(context.name, self._missing, context.config, again, named),
            )
        if self._run.given:
            self._note_run()
        # Before and after trio listens: a stop that comes early is remembered, one that comes late changes nothing.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        failure: ReplicateError | None = None
        try:
            self._write_status()
            trio.run(self._main, serve)
        except BaseException as error:
            failure = self._named(error)
            raise failure from error
        finally:
            self._end(failure)

    def _whose(self) -> dict[str, Any]:
        """Of which instance, in which role: a reader of several logs sees by it where roles have changed."""
        try:
            found = read_file(self._files.instance_path / INSTANCE_FILE)
        except ReplicateError:  # the daemon finds that, and says what to do
            return {}
        return {"name": found.name, "role": found.told_role, "incarnation": found.incarnation, "release": __version__}

    def _note_stop(self, _number: int, _frame: object) -> None:
        self._early_stop = True

    def _named(self, error: BaseException) -> ReplicateError:
        """What the operator is told; the log gets all of it."""
        leaves = _leaves(error)
        ours = [leaf for leaf in leaves if isinstance(leaf, ReplicateError)]
        # What we did not expect outweighs what we did: it may be the cause.
        strange = [leaf for leaf in leaves if not isinstance(leaf, (ReplicateError, KeyboardInterrupt, SystemExit))]
        if ours and not strange:
            named = next((leaf for leaf in ours if not isinstance(leaf, InternalError)), ours[0])
            self._context.log.error("daemon failed", error=str(named), code=named.code, **_safe(named.facts))
            return named
        if not strange:
            return InternalError("interrupted before it served", where=self._files.name, do="Start it again")
        self._context.log.error("daemon failed", exc_info=error)
        if all(_is_starved(leaf) for leaf in strange):
            return TryAgainError(
                "there is no memory left, or no thread",
                where=self._files.name,
                do="Free some, or raise the limit of the service; then start it again: nothing is lost",
            )
        text = f"unexpected {type(strange[0]).__name__}: {strange[0]}".splitlines()[0]
        return InternalError(text, where=self._files.name, do=f"The traceback is in {self._files.log}")

    def _end(self, failure: ReplicateError | None) -> None:
        context = self._context
        context.state = STOPPED if failure is None else FAILED
        if failure is not None:
            context.text = str(failure)
        self._write_status(error="" if failure is None else str(failure), exit_code=failure.exit_code if failure else 0)
        notify(f"STOPPING=1\nSTATUS={_one_line(context.text or context.state)}")
        context.log.info("daemon ended", state=context.state)
        if failure is not None:
            # Not only on standard error: that is a file of the instance, and its disk may be what is full.
            self._tell_ready({"error": str(failure), "exit_code": failure.exit_code})
        self._close_ready()
        self._log_file.close()

    async def _main(self, serve: Serve) -> None:
        context = self._context
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as helpers:
                with self._drain:
                    if self._early_stop:
                        self._request_stop(signal.SIGTERM)
                    helpers.start_soon(self._obey, signals)
                    helpers.start_soon(self._keep_status)
                    helpers.start_soon(self._keep_files)
                    helpers.start_soon(self._feed_watchdog)
                    await self._serve_metrics(helpers)
                    await serve(context)
                while await self._stood_aside():
                    with self._drain:
                        await serve(context)
                helpers.cancel_scope.cancel()
        if self._drain.cancelled_caught:
            context.status("stopped before everything was drained", drained=False)
            context.log.warning("drain cut short", stop_deadline_s=context.stop_deadline_s)
        elif context.stop_requested.is_set():
            known = "" if context.text.startswith("stopp") else context.text
            context.status(f"stopped; {known}" if known else "stopped", drained=True)

    async def _serve_metrics(self, helpers: trio.Nursery) -> None:
        """Listen before the daemon serves, so that an address that is taken is told by `start`."""
        context = self._context
        wanted = getattr(getattr(context.config, context.kind, None), "metrics_listen", "")
        if not wanted:
            return
        from replicate.daemon.metrics_port import MetricsServer, Watched

        listeners, address = await listen(wanted, where=f"{context.kind}.metrics_listen")
        watched = Watched(
            figures=lambda: context.figures(),
            from_files=lambda: context.from_files(),
            why_not_ready=context.missing,
            labels={"daemon": context.kind, "peer": context.name.partition("-")[2]},
            instance_path=context.instance_path,
            cap_bytes=context.config.journal.cap_bytes,
            tls=context.config.tls,
            log=context.log,
        )
        helpers.start_soon(MetricsServer(watched).run, listeners)
        context.status(metrics_listen=str(address))
        context.log.info("metrics served", listen=str(address))

    async def _stood_aside(self) -> bool:
        """Where the work has ended for that: wait until we may go on. False where it has ended for good."""
        context = self._context
        if self._aside is None:
            return False
        context.figures, context.why_not_ready = no_figures, lambda: ASIDE
        context.from_files = no_figures
        context.status(ASIDE)
        async with self._keeping:
            while self._held:
                os.close(self._held.pop())
        with self._aside:
            while True:
                await trio.sleep(ASIDE_LOOK_S)
                if await trio.to_thread.run_sync(is_asked_aside, context.instance_path, context.name):
                    continue
                try:
                    self._held.append(await trio.to_thread.run_sync(self._files.lock.acquire))
                    break
                except AlreadyRunningError:
                    running = await trio.to_thread.run_sync(self._files.lock.probe)
                    if running is not None and not running.instead:
                        self._is_ousted = True
                        raise
        if self._aside is None:  # a stop came meanwhile
            return False
        self._aside, self._drain = None, trio.CancelScope()
        context.stop_requested, context.why_not_ready = trio.Event(), lambda: ""
        context.facts.pop("last_word", None)  # of the end that was none
        context.log.info("goes on after standing aside")
        return True

    async def _obey(self, signals: Any) -> None:
        context = self._context
        async for number in signals:
            if number == signal.SIGHUP:
                try:
                    self._log_file.reopen()
                    context.log.info("log reopened")
                except OSError as error:
                    context.log.error("log not reopened", error=str(error), path=str(self._files.log))
            elif context.stop_requested.is_set() and self._aside is None:
                self._drain.cancel()
            else:
                self._request_stop(number)

    def _request_stop(self, number: int) -> None:
        context = self._context
        context.stop_deadline_s = self._asked_stop_timeout_s()
        self._drain.deadline = trio.current_time() + context.stop_deadline_s
        if self._aside is not None:
            self._aside.cancel()
            self._aside = None
        context.state = STOPPING
        context.log.info("stop requested", signal=signal.Signals(number).name, timeout_s=context.stop_deadline_s)
        notify("STOPPING=1")
        context.stop_requested.set()
        context.status()

    def _asked_stop_timeout_s(self) -> float:
        """`replicate … stop --timeout` leaves its number in a file before it sends the signal."""
        try:
            asked = float(read_private(self._files.stop_timeout))
            self._files.stop_timeout.unlink()
            return min(max(asked, 0.0), 3600.0)
        except (OSError, ReplicateError, ValueError):
            return self._context.stop_deadline_s

    async def _keep_status(self) -> None:
        while True:
            await self._context._wait_changed()
            # The disk may be slow, and the loop carries heartbeats: so in a thread, from a picture taken here.
            await trio.to_thread.run_sync(self._write, self._picture(), time.monotonic_ns())
            notify(f"STATUS={_one_line(self._context.text)}")
            await trio.sleep(STATUS_PERIOD_S)

    async def _keep_files(self) -> None:
        """A removal of run/, locks/ or what is in it must not make anybody believe that we are not there, nor start a
        second one beside us. Raises AlreadyRunningError where that has happened all the same, NotFoundError."""
        while True:
            await sleep_to_tick(KEEP_PERIOD_S)
            async with self._keeping:
                is_asked = await trio.to_thread.run_sync(self._look_at_files)
            if is_asked:
                self._stand_aside()

    def _stand_aside(self) -> None:
        """Have the work end as by a stop."""
        context = self._context
        if context.stop_requested.is_set() or context.asks_aside:
            return
        self._aside = trio.CancelScope()
        self._drain.deadline = trio.current_time() + context.stop_deadline_s
        context.log.info("stands aside")
        context.stop_requested.set()

    def _look_at_files(self) -> bool:
        """Keep ours; whether we are to stand aside."""
        if self._held:
            self._keep_files_now()
        return is_asked_aside(self._context.instance_path, self._context.name)

    def _keep_files_now(self) -> None:
        try:
            fd = self._files.lock.keep(self._held[-1])
        except AlreadyRunningError as error:
            self._is_ousted = True
            raise AlreadyRunningError(
                f"the lock files of {self._files.name} were removed, and another one was started: this one ends",
                where=str(self._files.lock.path),
                do="Never remove lock files of what runs",
            ) from error
        except (JournalIOError, PermissionRefusedError, OSError):
            return  # of a disk that takes nothing others tell; the lock that we have stands
        if fd is not None:
            self._held.append(fd)
            self._context.log.warning("lock made again: its file was removed", path=str(self._files.lock.path))
        said = self._files.status.read()
        if said is None or said.pid != os.getpid():
            self._write_status()

    async def _feed_watchdog(self) -> None:
        period_s = watchdog_period_s()
        while period_s is not None:
            notify("WATCHDOG=1")
            await trio.sleep(period_s)

    def _note_run(self) -> None:
        try:
            note_last_run(self._files, self._run)
        except ReplicateError as error:  # it serves all the same; the next start is told less
            self._context.log.warning("settings of this run not noted", error=str(error), code=error.code)

    def _void_pool_sizes(self) -> tuple[str, ...]:
        context = self._context
        try:
            instance = Instance.open(context.instance_path, needs=())
            return void_pool_sizes(instance, context.name, context.config, self._run.given)
        except (ReplicateError, OSError):  # it serves, and has said of its own what is wrong
            return ()

    def _ready(self, text: str) -> None:
        self._note_run()
        warnings = self._void_pool_sizes()
        for warning in warnings:
            self._context.log.warning("a pool has another size than was asked for", do=warning)
        self._write_status()
        notify(f"READY=1\nSTATUS={_one_line(text)}")
        self._tell_ready({"pid": os.getpid(), "text": text, "facts": self._context.facts, "warnings": warnings})
        self._close_ready()

    def _tell_ready(self, said: Mapping[str, object]) -> None:
        if self._ready_fd is not None:
            with suppress(OSError):  # the one that waited has gone; it makes no difference to us
                os.write(self._ready_fd, json.dumps(said, default=repr).encode() + b"\n")

    def _close_ready(self) -> None:
        if self._ready_fd is not None:
            with suppress(OSError):
                os.close(self._ready_fd)
            self._ready_fd = None

    def _picture(self) -> DaemonStatus:
        context = self._context
        return DaemonStatus(
            name=context.name,
            pid=os.getpid(),
            state=context.state,
            text=context.text,
            started_wall_ns=self._started_wall_ns,
            changed_wall_ns=time.time_ns(),
            facts=dict(context.facts),
        )

    def _write_status(self, *, error: str = "", exit_code: int = 0) -> None:
        self._write(replace(self._picture(), error=error, exit_code=exit_code), time.monotonic_ns())

    def _write(self, status: DaemonStatus, taken_ns: int) -> None:
        """A status that cannot be written is logged once and harms nothing else. `taken_ns`: when it was true."""
        if self._is_ousted:
            return
        try:
            with self._writing:  # a thread does it once a second, and this one when the state changes
                if taken_ns < self._written_ns:
                    return  # the thread came late: what it has is older than what the file says by now
                self._files.status.write(status)
                self._written_ns = taken_ns
            self._status_failed = False
        except (ReplicateError, OSError) as error:
            if not self._status_failed:
                self._context.log.error("status not written", error=str(error), path=str(self._files.status.path))
            self._status_failed = True


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def _is_starved(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def _safe(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts as log fields, without those that would collide with the fields of the event itself."""
    return {key: value for key, value in facts.items() if key not in ("event", "error", "code", "level")}


def _one_line(text: str) -> str:
    return " ".join(text.split())
