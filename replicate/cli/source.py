"""`replicate source start|stop|run|status|reopen-log|activate|deactivate|filter`: the Source Server of each peer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from replicate.cli import daemons
from replicate.cli.common import DOOR, LOOKS, emit, instance_path, open_instance
from replicate.cli.completion_words import peers
from replicate.cli.filtering import filter_wish, tell_filter
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import start_again
from replicate.daemon.lock_file import daemon_names
from replicate.errors import AlreadyRunningError, ReplicateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicate.daemon.daemon import DaemonContext
    from replicate.instance.file import PeerEntry
    from replicate.instance.instance import Instance

PREFIX = "source-"
SHOWN_S_MAX = 5.0
"""So long a command waits at most until the daemon's status shows what it was told."""
peer_option = click.option(
    "--peer", metavar="NAME", shell_complete=peers, help="The peer; may be left out where there is only one."
)


async def _serve(context: DaemonContext) -> None:
    from source_server.process import serve

    await serve(context, context.name.removeprefix(PREFIX))


def _one(peer: str | None) -> daemons.Daemon:
    name = _peer(open_instance(), peer).name
    return daemons.Daemon(PREFIX + name, ("source", "run", "--peer", name))


def _starts(peer: str | None) -> list[daemons.Daemon]:
    """The one named, else those of all peers that a line leads to."""
    lines = [entry.name for entry in open_instance().peers if not entry.by_packets]
    return [_one(name) for name in sorted(lines)] if peer is None and len(lines) > 1 else [_one(peer)]


def _peer(opened: Instance, peer: str | None) -> PeerEntry:
    """The one named, or the only one there is. UsageError, NotFoundError."""
    if peer is not None:
        return _on_a_line(opened, opened.peer(peer))
    lines = [entry for entry in opened.peers if not entry.by_packets]
    if len(lines) != 1:
        if opened.peers and not lines:
            return _on_a_line(opened, opened.peers[0])
        known = ", ".join(entry.name for entry in lines)
        text = f"there are several peers: {known}" if known else "no peer is registered"
        do = "Name one with --peer" if known else "Add it: replicate -i INSTANCE peer add NAME HOST:PORT"
        raise UsageError(text, where=str(opened.path), do=do)
    return lines[0]


def _on_a_line(opened: Instance, entry: PeerEntry) -> PeerEntry:
    """UsageError for one that gets packets."""
    if entry.by_packets:
        raise UsageError(
            f"peer {entry.name} gets packets, and no Source Server sends to it",
            where=str(opened.path),
            do=f"replicate -i {opened.named} packet export --to {entry.name}; or give it a line: replicate -i "
            f"{opened.named} peer add {entry.name} HOST:PORT --replace",
        )
    return entry


def _start(daemon: daemons.Daemon, settings: dict[str, object], timeout_s: float | None, is_passive: bool) -> None:
    """Start it; a passive one after it was noted that it is to sleep. AlreadyRunningError where it runs."""
    if is_passive:
        opened = open_instance()
        lock = DaemonFiles(opened.path, daemon.name).lock
        running = lock.probe()
        if running is not None:
            raise lock.running_error(running)
        opened.set_mode(daemon.name.removeprefix(PREFIX), passive=True)
    daemon.start(settings, timeout_s)


def _stop(names: Sequence[str], timeout_s: float | None, is_level_wanted: bool) -> int:
    """Stop them; 1 if one had to be killed, or if all were to be level and one was not."""
    if not is_level_wanted:
        return daemons.stop_all(names, timeout_s)
    from replicate.daemon.zero_backlog import stop_level

    opened = open_instance(DOOR)
    made = stop_level(opened, names, timeout_s=daemons.stop_timeout_s(opened.path, timeout_s))
    lines = [f"{count} not acknowledged by {name.removeprefix(PREFIX)}" for name, count in made.lacking.items()]
    emit(
        {"zero_backlog": made.is_zero, "seqno": made.seqno, "not_acknowledged": made.lacking, "daemons": made.stopped},
        [*daemons.stopped_lines(made.stopped), *(lines or [f"zero backlog at {made.seqno}"])],
    )
    return 0 if made.is_zero else 1


def _names(peer: str | None) -> list[str]:
    """The one named, else those of all peers, and what still runs for one that was removed. NotFoundError for a name
    that neither is nor was a peer.

    What is wrong with the instance may be just why they are to be stopped: then those that ever ran."""
    path = instance_path()
    ran = {name for name in daemon_names(path) if name.startswith(PREFIX)}
    if peer is None:
        try:
            registered = {PREFIX + entry.name for entry in open_instance(LOOKS).peers if not entry.by_packets}
            return sorted(registered | {name for name in ran if DaemonFiles(path, name).lock.probe() is not None})
        except ReplicateError:
            if ran:
                return sorted(ran)
            raise
    name = PREFIX + peer
    if name not in ran:
        open_instance(LOOKS).peer(peer)
    return [name]


source = daemons.noun(
    "source",
    "The Source Server, which sends this instance's journal to a peer.",
    _serve,
    drains="send what is committed",
    chosen_by=daemons.Choice(
        peer_option,
        _one,
        _starts,
        _names,
    ),
    start_flag=daemons.StartFlag(
        click.option("--passive", "flag", is_flag=True, help="Have it sleep until it is activated."), _start
    ),
    stop_flag=daemons.StopFlag(
        click.option(
            "--zero-backlog",
            "flag",
            is_flag=True,
            help="Hold the applications' commits until all is durable at the peer; exit code 1 if it is not in time.",
        ),
        _stop,
    ),
    start_help="Start it in the background (all of them without --peer); returns when it serves.",
    stop_help="Stop it (all of them without --peer): it sends what it can, flushes, and says what was acknowledged.",
)


@source.command()
@peer_option
@click.option("--address", metavar="HOST:PORT", help="Where its Receiver Server listens, if that is another one now.")
def activate(peer: str | None, address: str | None) -> None:
    """Make a passive one active: it connects, and goes on where the peer is.

    It stays so over a restart. One that does not run is active when it is started.
    """
    from replicate.admin.peer_address import checked_address

    opened = open_instance()
    known = _peer(opened, peer)
    where = None if address is None else checked_address(opened, known.name, address)
    there = None if where is None else (where.host, where.port)
    if not known.passive and there not in (None, (known.host, known.port)):
        raise AlreadyRunningError(
            f"{PREFIX}{known.name} is active, and its peer at {known.host}:{known.port}",
            where=str(opened.path),
            do=f"Make it passive first: replicate -i {opened.named} source deactivate --peer {known.name}",
        )
    entry = opened.set_mode(known.name, passive=False, address=there)
    at = f"{entry.host}:{entry.port}"
    was = "active already" if not known.passive else "active"
    _told(opened, entry, f"{was}; its peer is at {at}, and replicate -i {opened.named} status says how it is connected")


@source.command()
@peer_option
def deactivate(peer: str | None) -> None:
    """Make an active one passive: it says goodbye to its peer, flushes journal and regions, and sleeps.

    Applications go on. It stays so over a restart. One that does not run is passive when it is started.
    """
    opened = open_instance()
    known = _peer(opened, peer)
    entry = opened.set_mode(known.name, passive=True)
    was = "passive already" if known.passive else "passive"
    kept = "the journal is kept for it"
    if opened.role != "primary":
        kept = "this instance is secondary, so no journal is kept for it: it may have to be seeded again"
    _told(opened, entry, f"{was}; {kept}")


@source.command("filter")
@filter_wish
@peer_option
def filter_command(wish: str, peer: str | None) -> None:
    """Turn a Source Server's filter on or off, at the border of two transactions, or show it.

    It holds until the server ends. A filter can only be turned on where source.filter named one at its start.
    """
    opened = open_instance(LOOKS)
    tell_filter(opened, PREFIX + _peer(opened, peer).name, wish, opened.config.source.filter)


def _told(opened: Instance, entry: PeerEntry, text: str) -> None:
    """Tell the Source Server, if it runs, and say what it is now."""
    from replicate.daemon.orders import FOLLOW, give

    name = PREFIX + entry.name
    is_running = give(opened, name, FOLLOW) is not None
    if is_running:
        _wait_until_shown(opened, name, entry.mode)
    lines = [f"{name}: {text}"] + ([] if is_running else [f"it does not run; next: {start_again(opened, name)}"])
    emit({"daemon": name, "mode": entry.mode, "address": f"{entry.host}:{entry.port}", "is_running": is_running}, lines)


def _wait_until_shown(opened: Instance, name: str, mode: str) -> None:
    """What is asked next should show it. A daemon writes its status once a second; a slow disk holds nobody up here."""
    files = DaemonFiles(opened.path, name)
    until_s = time.monotonic() + SHOWN_S_MAX
    while time.monotonic() < until_s:
        said = files.read_status()
        if said is None or not said.is_running or said.facts.get("mode") == mode:
            return
        time.sleep(0.05)
