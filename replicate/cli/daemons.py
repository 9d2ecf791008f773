"""The verbs that all three daemons share: start, stop, run, status, reopen-log.

Guarantees: `start` prints a line only when the daemon serves; a daemon's error is printed as its own, exit code too.
Refuses to know: which daemon it is; source.py, receiver.py and update.py say that.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from replicate.cli.common import columns, emit, instance_name, instance_path
from replicate.daemon.files import DaemonFiles, DaemonStatus
from replicate.errors import NotFoundError, ReplicateError, UsageError
from replicate.pasteable import pasteable

if TYPE_CHECKING:
    from pathlib import Path

    from click.decorators import FC

    from replicate.daemon.daemon import Serve

set_option = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting for this run, such as log.level=debug."
)
ready_fd_option = click.option("--ready-fd", type=int, hidden=True)


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


@dataclass(frozen=True, slots=True)
class Verbs:
    """What a verb does, for the daemon `name` that `arguments` run in the foreground."""

    name: str
    arguments: tuple[str, ...]

    def start(self, settings: dict[str, object], timeout_s: float | None) -> None:
        from replicate.daemon import control
        from replicate.instance.instance import Instance

        # Opened here too: what is wrong with the instance or its settings is then said without starting a process.
        opened = Instance.open(instance_path())
        config = opened.config.with_values(settings)
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        started = control.start(
            self._files(opened.path),
            ["-i", str(opened.path), *self.arguments, *given],
            timeout_s=config.daemon.start_timeout_s if timeout_s is None else timeout_s,
        )
        emit(
            {"daemon": self.name, "pid": started.pid, "status": started.text},
            [f"{self.name} serves as process {started.pid}: {started.text}"],
        )

    def run(self, settings: dict[str, object], ready_fd: int | None, serve: Serve) -> None:
        from replicate.admin.stale_pools import remove_stale_pools
        from replicate.daemon.daemon import run_daemon
        from replicate.instance.instance import Instance

        remove_stale_pools()
        run_daemon(self.name, Instance.open(instance_path()).path, serve, overrides=settings, ready_fd=ready_fd)

    def _files(self, path: Path) -> DaemonFiles:
        return DaemonFiles(path, self.name)


def stop(names: Sequence[str], timeout_s: float | None) -> int:
    """Stop the daemons; 1 if one had to be killed."""
    from replicate.config import FILE_NAME, load
    from replicate.daemon import control

    path = _directory()
    if timeout_s is None:
        try:
            timeout_s = load(path / FILE_NAME).daemon.stop_timeout_s
        except ReplicateError:  # a bad file must not keep a daemon from being stopped
            timeout_s = 120.0
    results = {name: control.stop(DaemonFiles(path, name), timeout_s=timeout_s) for name in names}
    lines = []
    for name, result in results.items():
        how = "stopped" if result.drained else "stopped before everything was drained"
        how = "did not end and was killed" if result.killed else how
        lines.append(f"{name}: {how}" if result.was_running else f"{name}: does not run")
    emit(results, lines)
    return 1 if any(result.killed for result in results.values()) else 0


def reopen_log(names: Sequence[str]) -> int:
    """Have the daemons reopen their logs; 1 if one does not run."""
    from replicate.daemon import control

    path = _directory()
    results = {name: control.reopen_log(DaemonFiles(path, name)) for name in names}
    emit(results, [f"{n}: {'asked to reopen its log' if well else 'does not run'}" for n, well in results.items()])
    return 0 if all(results.values()) else 1


def status(names: Sequence[str]) -> int:
    """Show what the daemons say of themselves; 1 if one does not run."""
    path = _directory()
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
    rows = [(f"  {key}", value) for key, value in said.facts.items()]
    process = f" (process {said.pid})" if said.is_running else ""
    return [f"{name}: {said.state}{process}: {said.error or said.text}", *columns(rows)]


def _directory() -> Path:
    path = instance_path()
    if not path.is_dir():
        raise NotFoundError("there is no such instance directory", where=str(path), do="Name an existing one with -i")
    return path
