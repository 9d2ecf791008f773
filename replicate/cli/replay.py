"""`replicate replay`: bring a secondary that is far behind up to date from journal files, offline."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import Verb, emit, open_instance
from replicate.errors import UsageError

if TYPE_CHECKING:
    from replicate.instance import Instance
    from update_process.replay.apply import Told
    from update_process.replay.run import Engine, Summary

LINE_PERIOD_S = 1.0


class Bound(click.ParamType[int]):
    """A sequence number, or `latest` (0)."""

    name = "seqno"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text == "latest":
            return 0
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{text!r} is neither a sequence number nor 'latest'", param, ctx)
        return int(text)


@click.command(cls=Verb)
@click.option(
    "--journal",
    "journals",
    multiple=True,
    required=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A primary's instance, or a directory of its journal segments; several may be named.",
)
@click.option("--to", "last_seqno", type=Bound(), default=0, metavar="N|latest", help="Where to end [latest].")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", help="Who collapses it [local].")
@click.option("--archive", metavar="URI", help="With --engine spark: read from this archive what is in it.")
@click.option("--master", metavar="URL", help="With --engine spark: the Spark master [local[*]].")
@click.option("--verify-before", is_flag=True, help="Compare rows that end as they began, too.")
@click.option("--dry-run", is_flag=True, help="Read, verify and collapse; change nothing.")
def replay(
    journals: tuple[Path, ...],
    last_seqno: int,
    engine: str,
    archive: str | None,
    master: str | None,
    verify_before: bool,
    dry_run: bool,
) -> None:
    """Apply a backlog in bulk: the net change of journal files, with this secondary's daemons stopped."""
    from update_process.replay.command import replay as replay_into

    if engine != "spark" and (archive or master):
        raise UsageError("--archive and --master are Spark's", do="Add --engine spark")
    opened = open_instance()
    paths = [path.absolute() for path in journals]
    with _engine(engine, opened, paths, archive, master, verify_before) as chosen:
        done = replay_into(
            opened,
            paths,
            last_seqno=last_seqno or None,
            engine=chosen,
            verify=verify_before,
            dry_run=dry_run,
            told=_told(),
        )
    emit(done, _lines(done))


@contextmanager
def _engine(
    name: str, opened: Instance, paths: list[Path], archive: str | None, master: str | None, verify: bool
) -> Iterator[Engine]:
    """The engine, and what it needs, for the time of the replay."""
    if name == "local":
        from update_process.replay.run import local_engine

        yield local_engine
        return
    from update_process.replay.command import spark_engine

    with spark_engine(opened, paths, archive_uri=archive, master=master, verify=verify) as engine:
        yield engine


def _lines(done: Summary) -> list[str]:
    if not done.transactions:
        return [f"nothing to replay: transaction {done.seqno} is applied already"]
    verb = "would replay" if done.dry_run else "replayed"
    lines = [
        f"{verb} {done.transactions} transactions, {done.first_seqno} to {done.seqno}, in {done.seconds:.1f} s",
        f"{done.pieces} pieces, {done.keys} rows touched; {done.alone} transactions one by one",
    ]
    if not done.dry_run:
        lines.append(f"rows: {done.deleted} removed, {done.updated} changed, {done.inserted} inserted")
        lines.append("next: replicate receiver start; replicate update start")
    return lines


def _told() -> Told:
    """Progress on standard error, once a second; nothing when that is no terminal."""
    if not sys.stderr.isatty():
        return lambda _what, _done: None
    began_s = next_s = time.monotonic()

    def told(what: str, done: int) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s >= next_s:
            next_s = now_s + LINE_PERIOD_S
            click.echo(f"{now_s - began_s:6.0f} s  {what} {done}", err=True)

    return told
