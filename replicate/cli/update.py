"""`replicate update start|stop|run|status|reopen-log`: the Update Process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli import daemons
from replicate.cli.common import Noun

if TYPE_CHECKING:
    from replicate.daemon.daemon import DaemonContext

NAME = "update"
VERBS = daemons.Verbs(NAME, (NAME, "run"))


@click.group(cls=Noun)
def update() -> None:
    """The Update Process, which applies what was received."""


@update.command()
@daemons.timeout_option("How long it may take until it serves.")
@daemons.set_option
def start(timeout_s: float | None, assignments: tuple[str, ...]) -> None:
    """Start it in the background; returns when it serves."""
    VERBS.start(daemons.overrides(assignments), timeout_s)


@update.command()
@daemons.set_option
@daemons.ready_fd_option
def run(assignments: tuple[str, ...], ready_fd: int | None) -> None:
    """Run it in the foreground (for systemd: Type=notify)."""

    async def serve(context: DaemonContext) -> None:
        from update_process.process import serve as serve_update

        await serve_update(context)

    VERBS.run(daemons.overrides(assignments), ready_fd, serve)


@update.command()
@daemons.timeout_option("How long it may drain: apply what was received.")
def stop(timeout_s: float | None) -> int:
    """Stop it."""
    return daemons.stop([NAME], timeout_s)


@update.command()
def status() -> int:
    """Show its state; exit code 1 if it does not run."""
    return daemons.status([NAME])


@update.command(name="reopen-log")
def reopen_log() -> int:
    """Have it reopen its log file, after a rotation."""
    return daemons.reopen_log([NAME])
