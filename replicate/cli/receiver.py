"""`replicate receiver start|stop|run|status|reopen-log`: the Receiver Server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli import daemons
from replicate.cli.common import Noun

if TYPE_CHECKING:
    from replicate.daemon.daemon import DaemonContext

NAME = "receiver"
VERBS = daemons.Verbs(NAME, (NAME, "run"))
listen_option = click.option(
    "--listen", metavar="HOST:PORT", help="Where to wait for the source; sets receiver.listen."
)


allow_option = click.option(
    "--allow", metavar="NAME,…", help="The instances that may send to this one; sets receiver.allow."
)


@click.group(cls=Noun)
def receiver() -> None:
    """The Receiver Server, which takes the stream of a source into the receive pool."""


@receiver.command()
@listen_option
@allow_option
@daemons.timeout_option("How long it may take until it serves.")
@daemons.set_option
def start(listen: str | None, allow: str | None, timeout_s: float | None, assignments: tuple[str, ...]) -> None:
    """Start it in the background; returns when it serves."""
    VERBS.start(daemons.overrides(assignments, receiver__listen=listen, receiver__allow=allow), timeout_s)


@receiver.command()
@listen_option
@allow_option
@daemons.set_option
@daemons.ready_fd_option
def run(listen: str | None, allow: str | None, assignments: tuple[str, ...], ready_fd: int | None) -> None:
    """Run it in the foreground (for systemd: Type=notify)."""

    async def serve(context: DaemonContext) -> None:
        from receiver_server.server import serve as serve_receiver

        await serve_receiver(context)

    VERBS.run(daemons.overrides(assignments, receiver__listen=listen, receiver__allow=allow), ready_fd, serve)


@receiver.command()
@daemons.timeout_option("How long it may drain.")
def stop(timeout_s: float | None) -> int:
    """Stop it."""
    return daemons.stop([NAME], timeout_s)


@receiver.command()
def status() -> int:
    """Show its state; exit code 1 if it does not run."""
    return daemons.status([NAME])


@receiver.command(name="reopen-log")
def reopen_log() -> int:
    """Have it reopen its log file, after a rotation."""
    return daemons.reopen_log([NAME])
