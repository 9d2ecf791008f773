"""`replicate source start|stop|run|status|reopen-log`: the Source Server of each peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli import daemons
from replicate.cli.common import LOOKS, Noun, instance_path, open_instance
from replicate.daemon.files import daemon_names
from replicate.errors import ReplicateError, UsageError

if TYPE_CHECKING:
    from replicate.daemon.daemon import DaemonContext

peer_option = click.option("--peer", metavar="NAME", help="The peer; may be left out where there is only one.")


@click.group(cls=Noun)
def source() -> None:
    """The Source Server, which sends this instance's journal to a peer."""


def _verbs(peer: str | None) -> tuple[str, daemons.Verbs]:
    opened = open_instance()
    if peer is None:
        if len(opened.peers) != 1:
            known = ", ".join(entry.name for entry in opened.peers)
            text = f"there are several peers: {known}" if known else "no peer is registered"
            do = "Name one with --peer" if known else "Add it: replicate -i INSTANCE peer add NAME HOST:PORT"
            raise UsageError(text, where=str(opened.path), do=do)
        peer = opened.peers[0].name
    name = opened.peer(peer).name
    return name, daemons.Verbs(f"source-{name}", ("source", "run", "--peer", name))


def _names(peer: str | None) -> list[str]:
    """The one named, else all that ever ran or could. NotFoundError for a name that neither is nor was a peer.

    What is wrong with the instance may be just why they are to be stopped: then those that ever ran."""
    ran = {name for name in daemon_names(instance_path()) if name.startswith("source-")}
    if peer is None:
        try:
            return sorted(ran | {f"source-{entry.name}" for entry in open_instance(LOOKS).peers})
        except ReplicateError:
            if ran:
                return sorted(ran)
            raise
    name = f"source-{peer}"
    if name not in ran:
        open_instance(LOOKS).peer(peer)
    return [name]


@source.command()
@peer_option
@daemons.timeout_option("How long it may take until it serves.")
@daemons.set_option
def start(peer: str | None, timeout_s: float | None, assignments: tuple[str, ...]) -> None:
    """Start it in the background; returns when it serves."""
    _verbs(peer)[1].start(daemons.overrides(assignments), timeout_s)


@source.command()
@peer_option
@daemons.set_option
@daemons.ready_fd_option
def run(peer: str | None, assignments: tuple[str, ...], ready_fd: int | None) -> None:
    """Run it in the foreground (for systemd: Type=notify)."""
    name, verbs = _verbs(peer)

    async def serve(context: DaemonContext) -> None:
        from source_server.server import serve as serve_source

        await serve_source(context, name)

    verbs.run(daemons.overrides(assignments), ready_fd, serve)


@source.command()
@peer_option
@daemons.timeout_option("How long it may drain: send what is committed.")
def stop(peer: str | None, timeout_s: float | None) -> int:
    """Stop it (all of them without --peer)."""
    return daemons.stop(_names(peer), timeout_s)


@source.command()
@peer_option
def status(peer: str | None) -> int:
    """Show its state; exit code 1 if it does not run."""
    return daemons.status(_names(peer))


@source.command(name="reopen-log")
@peer_option
def reopen_log(peer: str | None) -> int:
    """Have it reopen its log file, after a rotation."""
    return daemons.reopen_log(_names(peer))
