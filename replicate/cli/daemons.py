"""The verbs of the three daemons: start, stop, run, status, reopen-log.

Guarantees: `start` prints a line only when the daemon serves; a daemon's error is printed as its own, exit code too.
Leaves to others: which daemons there are, and what they serve (source.py, receiver.py, update.py).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from replicate.cli import completion_words
from replicate.cli.common import Noun, columns, emit, instance_name, instance_path
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import BOOT, utc
from replicate.daemon.status_file import DaemonStatus
from replicate.errors import NotFoundError, ReplicateError, UsageError, pasteable
from replicate.model.start_command import again_command

if TYPE_CHECKING:
    from pathlib import Path

    from click.decorators import FC

    from replicate.daemon.control import Stopped
    from replicate.daemon.daemon import Serve
    from replicate.instance.instance import Instance

set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting for this run, such as log.level=debug.",
    shell_complete=completion_words.assignments,
)
ready_fd_option = click.option("--ready-fd", type=int, hidden=True)


class Choice(Struct, frozen=True):
    """Of a noun that stands for several daemons: the option that names one, what gives that one to run and those to
    start, and the names of those that the other verbs are for."""

    option: Callable[[Any], Any]
    one: Callable[[str | None], Daemon]
    starts: Callable[[str | None], list[Daemon]]
    names: Callable[[str | None], list[str]]


class StartFlag(Struct, frozen=True):
    """A flag of a noun's own `start`: its option, and what starts one daemon by it, given the daemon, its settings,
    the time that it has, and the flag."""

    option: Callable[[Any], Any]
    start: Callable[[Daemon, dict[str, object], float | None, bool], None]


class StopFlag(Struct, frozen=True):
    """A flag of a noun's own `stop`: its option, and what stops the daemons of these names by it, in the time given;
    its exit code."""

    option: Callable[[Any], Any]
    stop: Callable[[Sequence[str], float | None, bool], int]


def noun(
    name: str,
    about: str,
    serve: Serve,
    *,
    drains: str = "",
    settings: Sequence[Callable[[Any], Any]] = (),
    chosen_by: Choice | None = None,
    start_flag: StartFlag | None = None,
    stop_flag: StopFlag | None = None,
    start_help: str = "Start it in the background; returns when it serves.",
    stop_help: str = "Stop it.",
) -> Noun:
    """The commands of a daemon. `drains`: what it still does when it is stopped. `settings`: options of `start` and
    `run` that set what is named so in the daemon's section. `start_flag`, `stop_flag`: a flag of that verb alone."""
    group = Noun(name, help=about)
    choice = () if chosen_by is None else (chosen_by.option,)
    at_start, at_stop = ([] if one is None else [one.option] for one in (start_flag, stop_flag))

    def one(peer: str | None) -> Daemon:
        return Daemon(name, (name, "run")) if chosen_by is None else chosen_by.one(peer)

    def names(peer: str | None) -> list[str]:
        return [name] if chosen_by is None else chosen_by.names(peer)

    def given(assignments: Sequence[str], flags: Mapping[str, object]) -> dict[str, object]:
        return overrides(assignments, **{f"{name}__{flag}": value for flag, value in flags.items()})

    until_it_serves = timeout_option("How long it may take until it serves.")

    @_verb(group, *choice, *at_start, *settings, until_it_serves, set_option, help=start_help)
    def start(
        timeout_s: float | None,
        assignments: tuple[str, ...],
        peer: str | None = None,
        flag: bool = False,
        **flags: object,
    ) -> None:
        wanted = given(assignments, flags)
        started = [one(peer)] if flag or chosen_by is None else chosen_by.starts(peer)
        if len(started) > 1:
            start_all(started, wanted, timeout_s)
        elif start_flag is None:
            started[0].start(wanted, timeout_s)
        else:
            start_flag.start(started[0], wanted, timeout_s, flag)

    @_verb(group, *choice, *settings, set_option, ready_fd_option)
    def run(assignments: tuple[str, ...], ready_fd: int | None, peer: str | None = None, **flags: object) -> None:
        """Run it in the foreground (for systemd: Type=notify)."""
        one(peer).run(given(assignments, flags), ready_fd, serve)

    drain_help = f"How long it may drain: {drains}." if drains else "How long it may drain."

    @_verb(group, *choice, *at_stop, timeout_option(drain_help), help=stop_help)
    def stop(timeout_s: float | None, peer: str | None = None, flag: bool = False) -> int:
        stopped = names(peer)
        return stop_all(stopped, timeout_s) if stop_flag is None else stop_flag.stop(stopped, timeout_s, flag)

    @_verb(group, *choice)
    def status(peer: str | None = None) -> int:
        """Show its state; exit code 1 if it does not run."""
        return show_status(names(peer))

    @_verb(group, *choice, name="reopen-log")
    def reopen_log(peer: str | None = None) -> int:
        """Have it reopen its log file, after a rotation."""
        return reopen_logs(names(peer))

    return group


def _verb(group: Noun, *options: Callable[[Any], Any], **facts: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a function a verb of `group`, with options in this order."""

    def made(function: Callable[..., Any]) -> click.Command:
        for option in reversed(options):
            function = option(function)
        return group.command(**facts)(function)

    return made


def timeout_option(what: str) -> Callable[[FC], FC]:
    """`--timeout`, in seconds."""
    return click.option("--timeout", "timeout_s", type=click.FloatRange(0, 3600), metavar="SECONDS", help=what)


def overrides(assignments: Sequence[str], **flags: object) -> dict[str, object]:
    """`--set` and the flags of a daemon as settings. `flags` are named `section__name`; None is not given."""
    made: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"{assignment!r} is not KEY=VALUE", do="Write it like --set log.level=debug")
        made[key.strip()] = value.strip()
    made |= {name.replace("__", "."): value for name, value in flags.items() if value is not None}
    return made


class Daemon(Struct, frozen=True):
    """The daemon `name`, which `arguments` run in the foreground."""

    name: str
    arguments: tuple[str, ...]

    def start(self, settings: dict[str, object], timeout_s: float | None) -> None:
        """Start it, and say so."""
        emit(*self.started(settings, timeout_s))

    def started(self, settings: dict[str, object], timeout_s: float | None) -> tuple[dict[str, object], list[str]]:
        """Start it; what is to be said of it, for programs and for people."""
        from replicate.daemon import control
        from replicate.instance.instance import Instance

        # Opened here too: what is wrong with the instance or its settings is then said without starting a process.
        opened = Instance.open(instance_path())
        config = opened.config.with_values(settings)
        self._warn(opened, settings)
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        started = control.start(
            self._files(opened.path),
            ["-i", str(opened.path), *self.arguments, *given],
            timeout_s=config.daemon.start_timeout_s if timeout_s is None else timeout_s,
        )
        for warning in started.warnings:
            click.echo(f"WARNING: {pasteable(warning, shlex.quote(instance_name()), str(opened.path))}", err=True)
        facts: dict[str, object] = {"daemon": self.name, "pid": started.pid, "status": started.text}
        return facts, [f"{self.name} serves as process {started.pid}: {started.text}"]

    def run(self, settings: dict[str, object], ready_fd: int | None, serve: Serve) -> None:
        from replicate.admin.stale_pools import remove_stale_pools
        from replicate.daemon.daemon import run_daemon
        from replicate.daemon.log import terminal
        from replicate.instance.instance import Instance

        remove_stale_pools()
        opened = Instance.open(instance_path())
        if ready_fd is None and terminal() is None:  # else the one that has started it said so, or the log does so here
            self._warn(opened, settings)
        run_daemon(self.name, opened.path, serve, overrides=settings, ready_fd=ready_fd)

    def _warn(self, opened: Instance, settings: dict[str, object]) -> None:
        """Of what the last run was given, and this one will not have."""
        from replicate.daemon.last_run import read_last_run, run_with, warning_of

        run = run_with(opened.config, settings)
        config = opened.config.with_values(settings)
        files = self._files(opened.path)
        missing = read_last_run(files).missing(config, settings)
        if missing and files.lock.probe() is None:  # one that runs goes on as it is, and this start is refused
            named = shlex.quote(instance_name())
            again = again_command(self.name, {**missing, **run.given}, of=named)
            click.echo(f"WARNING: {warning_of(self.name, missing, config, again, named)}", err=True)

    def _files(self, path: Path) -> DaemonFiles:
        return DaemonFiles(path, self.name)


def start_all(daemons: Sequence[Daemon], settings: dict[str, object], timeout_s: float | None) -> None:
    """Start them, and say so. One that runs goes on as it is, and one that cannot be started keeps no other one from
    it: what is wrong with the first of these is raised at the end."""
    path, found, problem = directory(), dict[str, dict[str, object]](), None
    said: list[str] = []
    for daemon in daemons:
        running = DaemonFiles(path, daemon.name).lock.probe()
        if running is not None:
            found[daemon.name] = {"daemon": daemon.name, "pid": running.pid, "status": "runs already"}
            said.append(f"{daemon.name} runs already as process {running.pid}")
            continue
        try:
            found[daemon.name], lines = daemon.started(settings, timeout_s)
            said += lines
        except ReplicateError as error:
            problem = problem or error
    emit(found, said)
    if problem is not None:
        raise problem


def stop_all(names: Sequence[str], timeout_s: float | None) -> int:
    """Stop the daemons; 1 if one had to be killed."""
    from replicate.daemon import control

    path = directory()
    patience_s = stop_timeout_s(path, timeout_s)
    results = {name: control.stop(DaemonFiles(path, name), timeout_s=patience_s) for name in names}
    emit(results, stopped_lines(results))
    return 1 if any(result.killed for result in results.values()) else 0


def stop_timeout_s(path: Path, given_s: float | None) -> float:
    """How long a daemon may drain: as given, or as is set."""
    from replicate.settings.load import FILE_NAME, load

    if given_s is not None:
        return given_s
    try:
        return load(path / FILE_NAME).daemon.stop_timeout_s
    except ReplicateError:  # a bad file must not keep a daemon from being stopped
        return 120.0


def stopped_lines(results: Mapping[str, Stopped]) -> list[str]:
    """How each daemon was stopped."""
    lines = []
    for name, result in results.items():
        how = "stopped" if result.drained else "stopped before everything was drained"
        how = "did not end and was killed" if result.killed else how
        how += f"; {result.last_word}" if result.last_word else ""
        lines.append(f"{name}: {how}" if result.was_running else f"{name}: does not run")
    return lines


def reopen_logs(names: Sequence[str]) -> int:
    """Have the daemons reopen their logs; 1 if one does not run."""
    from replicate.daemon import control

    path = directory()
    results = {name: control.reopen_log(DaemonFiles(path, name)) for name in names}
    emit(results, [f"{n}: {'asked to reopen its log' if well else 'does not run'}" for n, well in results.items()])
    return 0 if all(results.values()) else 1


def show_status(names: Sequence[str]) -> int:
    """Show what the daemons say of themselves; 1 if one does not run."""
    path = directory()
    found = {name: _read(DaemonFiles(path, name)) for name in names}
    emit(found, [line for name, said in found.items() for line in _lines(name, said)])
    return 0 if all(said is not None and said.is_running for said in found.values()) else 1


def _read(files: DaemonFiles) -> DaemonStatus | None:
    said = files.read_status()
    if said is None:
        return None
    text, error = (
        pasteable(one, shlex.quote(instance_name()), str(files.instance_path)) for one in (said.text, said.error)
    )
    return replace(said, text=text, error=error)


def _lines(name: str, said: DaemonStatus | None) -> list[str]:
    if said is None:
        return [f"{name}: never started"]
    rows = [(f"  {key}", value) for key, value in _for_people(said.facts)]
    process = f" (process {said.pid})" if said.is_running else ""
    old = [f"  as it last told, {utc(said.changed_wall_ns)}:"] if rows and not said.is_running else []
    return [f"{name}: {said.state}{process}: {said.error or said.text}", *old, *columns(rows)]


def _for_people(facts: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Facts without what only programs read: times as a date of the wall clock, or as an age; "-" is not known."""
    from replicate.system.boot import boot_word

    for key, value in facts.items():
        name, _, clock = key.removesuffix("_ns").rpartition("_")
        if key.endswith("_wall_ns"):
            yield name, utc(value) if isinstance(value, int) and value else "-"
        elif not key.endswith("_ns") and key != BOOT:
            yield key, "-" if value is None else value
        elif clock == "monotonic" and f"{name}_wall_ns" not in facts and facts.get(BOOT) == boot_word():
            yield name, f"{(time.monotonic_ns() - value) / 1e9:.1f} s ago" if isinstance(value, int) else "-"


def directory() -> Path:
    """The instance's directory. NotFoundError."""
    path = instance_path()
    if not path.is_dir():
        raise NotFoundError("there is no such instance directory", where=str(path), do="Name an existing one with -i")
    return path
