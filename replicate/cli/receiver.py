"""`replicate receiver start|stop|run|status|reopen-log|filter`: the Receiver Server, and the Update Process with it.

`start` and `stop` take the Update Process along. The Receiver Server itself never starts or stops one: it only sees
whether one runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli import daemons
from replicate.cli.common import LOOKS, emit, open_instance
from replicate.cli.filtering import filter_wish, tell_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicate.daemon.daemon import DaemonContext

listen_option = click.option(
    "--listen", metavar="HOST:PORT", help="Where to wait for the source; sets receiver.listen."
)
allow_option = click.option(
    "--allow", metavar="NAME,…", help="The instances that may send to this one; sets receiver.allow."
)
auto_rollback_option = click.option(
    "--auto-rollback",
    is_flag=True,
    default=None,
    help="Go back by itself where another site took over; sets receiver.auto_rollback.",
)
stop_source_filter_option = click.option(
    "--stop-source-filter",
    is_flag=True,
    default=None,
    help="Ask the source to turn its filter off; sets receiver.stop_source_filter.",
)


async def _serve(context: DaemonContext) -> None:
    from receiver_server.process import serve

    await serve(context)


def _start(daemon: daemons.Daemon, settings: dict[str, object], timeout_s: float | None, is_alone: bool) -> None:
    """Start it, then the Update Process if that can be. What is wrong with that one is raised once both were tried."""
    facts, lines = daemon.started(settings, timeout_s)
    if is_alone:
        emit(facts, lines)
        return
    from replicate.daemon.receiver_and_update import as_it_ran, why_not_start

    try:
        opened = open_instance(LOOKS)
        if opened.role == "primary":
            lines.append("a secondary receives; if that is what you mean: replicate -i SECONDARY receiver start")
        reason = why_not_start(opened)
        if reason:
            emit(
                {**facts, "update": {"daemon": "update", "pid": None, "status": reason}}, [*lines, f"update: {reason}"]
            )
            return
        again = daemons.Daemon("update", ("update", "run"))
        update, update_lines = again.started(as_it_ran(opened), timeout_s)
    except BaseException:
        emit(facts, lines)  # it serves, whatever keeps the other one
        raise
    emit({**facts, "update": update}, [*lines, *update_lines])


def _stop(names: Sequence[str], timeout_s: float | None, is_update_kept: bool) -> int:
    """Stop it, and before it the Update Process, which applies what was received; 1 if one had to be killed, or if
    something received is not applied."""
    if is_update_kept:
        return daemons.stop_all(names, timeout_s)
    from replicate.daemon.receiver_and_update import stop_both

    path = daemons.directory()
    made = stop_both(path, timeout_s=daemons.stop_timeout_s(path, timeout_s))
    lines = daemons.stopped_lines(made.stopped)
    if made.left:
        lines.append(f"{made.left} transactions that were received are not applied; they stay in the receive pool")
    emit({**made.stopped, "not_applied": made.left}, lines)
    return 1 if made.left or any(one.killed for one in made.stopped.values()) else 0


receiver = daemons.noun(
    "receiver",
    "The Receiver Server, which takes the stream of a source into the receive pool.",
    _serve,
    drains="with the Update Process, which applies what was received",
    settings=(listen_option, allow_option, auto_rollback_option, stop_source_filter_option),
    start_flag=daemons.StartFlag(
        click.option("--no-update", "flag", is_flag=True, help="Do not start the Update Process with it."), _start
    ),
    stop_flag=daemons.StopFlag(
        click.option("--keep-update", "flag", is_flag=True, help="Leave the Update Process running."), _stop
    ),
    start_help="Start it in the background, and the Update Process with it; returns when they serve.",
    stop_help="Stop the Update Process, once it has applied what was received, and then the Receiver Server.",
)


@receiver.command("filter")
@filter_wish
def filter_command(wish: str) -> None:
    """Turn the Receiver Server's filter on or off, at the border of two transactions, or show it.

    It holds until the server ends. A filter can only be turned on where receiver.filter named one at its start.
    """
    opened = open_instance(LOOKS)
    tell_filter(opened, "receiver", wish, opened.config.receiver.filter)
