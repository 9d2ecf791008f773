"""`replicate statistics`: the logs of daemons as a table or a picture; and whether running daemons log statistics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import LOOKS, VerbCommand, emit, instance_path, open_instance, span_s, wants_json
from replicate.cli.completion_words import instances
from replicate.errors import UsageError

if TYPE_CHECKING:
    from replicate.logs.table import LogTable

ORDERS = ("on", "off")


def _period(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else span_s(value, least_s=0.1, most_s=1e9)


@click.command(cls=VerbCommand)
@click.argument("logs", metavar="[on|off|LOG…]", nargs=-1, shell_complete=instances)
@click.option(
    "--every", "every_s", callback=_period, metavar="PERIOD", help="Of a row, or between two lines: 30s, 5m, 1h."
)
@click.option("--since", metavar="TIME", help="Only from that time on: ISO 8601, a date, or how long ago (-15m, -2h).")
@click.option("--until", metavar="TIME", help="Only before that time. A time without an offset is UTC.")
@click.option("--csv", "as_csv", is_flag=True, help="Print a line for each period and daemon, for a spreadsheet.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw FILE.png or FILE.svg.")
@click.option("--daemon", metavar="NAME", help="Of on and off: only of this daemon: source-PEER, receiver or update.")
def statistics(
    logs: tuple[str, ...],
    every_s: float | None,
    since: str | None,
    until: str | None,
    as_csv: bool,
    picture: Path | None,
    daemon: str | None,
) -> int:
    """Show rates, backlog and lag over time, and what happened, from the logs of daemons.

    LOG is a log, plain or compressed, a directory of logs, or an instance; without one, -i names the instance. Several
    are put together by their times: those of both sites, say.

    `statistics on` and `off` have the running daemons of the instance log statistics, or not, until they end; exit code
    1 if none runs. How they begin the next time the settings say: statistics, statistics_period_s and
    statistics_transactions.
    """
    if len(logs) == 1 and logs[0] in ORDERS:
        if since or until or as_csv or picture:
            raise UsageError("on and off take --every and --daemon only", do=f"For a file of that name: ./{logs[0]}")
        return _order(logs[0] == "on", every_s, daemon)
    if daemon is not None:
        raise UsageError("--daemon is for on and off", do="Name the logs of that daemon")
    if as_csv and wants_json():
        raise UsageError("the output is CSV or JSON", do="Leave --csv or --json out")
    return _show(logs, every_s, since, until, as_csv, picture)


def _show(
    logs: tuple[str, ...],
    every_s: float | None,
    since: str | None,
    until: str | None,
    as_csv: bool,
    picture: Path | None,
) -> int:
    from replicate.logs import picture as pictures
    from replicate.logs import table as tables
    from replicate.logs.files import read_logs
    from replicate.logs.story import LogStory
    from replicate.model.moment import parse_moment

    if picture is not None:
        pictures.check_picture(picture)  # before anything is read
    now_us = time.time_ns() // 1000
    since_us = parse_moment(since, now_us, where="--since") if since is not None else 0
    until_us = parse_moment(until, now_us, where="--until") if until is not None else 2**63
    if until_us <= since_us:
        raise UsageError("--until is not after --since", do="Exchange them")
    story = LogStory(
        since_us=max(0, since_us), until_us=until_us, every_us=None if every_s is None else round(every_s * 1e6)
    )
    read = read_logs([_place(one) for one in logs] if logs else [instance_path()], story)
    if picture is not None:
        drawn = tables.table_of(story, notes=read.notes, most=pictures.ROWS)
        pictures.draw(drawn, picture)
        if not as_csv:
            said = {"picture": str(picture), "files": list(read.paths), "notes": list(drawn.notes)}
            emit(
                said,
                [
                    f"{picture}: drawn from {len(read.paths)} log{'s' * (len(read.paths) != 1)}",
                    *(f"Note: {note}." for note in drawn.notes),
                ],
            )
            return 0
    if as_csv:
        _print_csv(tables.table_of(story, notes=read.notes))
        return 0
    is_for_people = not wants_json()
    table = tables.table_of(story, notes=read.notes, most=tables.ROWS if is_for_people else None)
    emit({} if is_for_people else tables.document(table), tables.lines(table))
    return 0


def _print_csv(table: LogTable) -> None:
    from replicate.logs.table import csv_lines

    emit(None, csv_lines(table))
    for note in table.notes:
        click.echo(f"Note: {note}.", err=True)


def _place(named: str) -> Path:
    """A file or directory; or an instance by its name."""
    from replicate.instance.location import resolve_instance

    path = Path(named)
    if path.exists():
        return path
    try:
        found = resolve_instance(named)
    except UsageError:  # no name of an instance
        return path
    return found if found.is_dir() else path


def _order(is_on: bool, every_s: float | None, daemon: str | None) -> int:
    """Give the order to the daemon named, or to each that runs."""
    from replicate.daemon.lock_file import daemon_names
    from replicate.daemon.orders import PERIOD_S_LEAST, PERIOD_S_MOST, StatisticsOrder, give

    if every_s is not None and not is_on:
        raise UsageError("--every is for `statistics on`", do="Leave it out")
    if every_s is not None and not PERIOD_S_LEAST <= every_s <= PERIOD_S_MOST:
        raise UsageError(f"--every {every_s:g} is out of bounds", do=f"Use {PERIOD_S_LEAST:g} s to {PERIOD_S_MOST:g} s")
    opened = open_instance(LOOKS)
    wanted = StatisticsOrder(is_on, every_s)
    names = daemon_names(opened.path)
    if daemon is not None and daemon not in names:
        known = f"Known here: {', '.join(names)}" if names else "None was ever started here"
        raise UsageError(f"there is no daemon {daemon!r}", where=str(opened.path), do=known)
    told = {name: give(opened, name, wanted.text) for name in names if daemon in (None, name)}
    done = {name: said for name, said in told.items() if said is not None}
    lines = [f"{name}: {_in_words(said)}" for name, said in done.items()]
    emit(done, lines or ["no daemon runs" if daemon is None else f"{daemon} does not run"])
    return 0 if done else 1


def _in_words(said: dict[str, object]) -> str:
    if said.get("standing_by"):
        return "stands by, and has no statistics"
    return f"statistics every {said['period_s']:g} s" if said["statistics"] else "no statistics"
