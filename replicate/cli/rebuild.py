"""`replicate rebuild`: a new secondary at any transaction or time, from a base copy and an archive."""

from __future__ import annotations

from pathlib import Path

import click

from replicate.cli.common import VerbCommand, emit, open_instance
from replicate.cli.engine import sessions_for
from replicate.cli.replay import collapsing, journal_named, summary_lines
from replicate.errors import UsageError
from replicate.model.moment import stamp_us


class MomentType(click.ParamType[float]):
    """A time with its offset, as ISO 8601 writes it; seconds since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        us = stamp_us(str(value))
        if us is None:
            self.fail(
                f"{value!r} is no time such as 2030-01-31T12:00:00Z: append Z for UTC, or an offset such as +02:00",
                param,
                ctx,
            )
        return us / 1_000_000


@click.command(cls=VerbCommand)
@click.option("--from-file", "base", required=True, metavar="FILE", help="The base copy: a seed file of this network.")
@click.option(
    "--journal",
    "journals",
    multiple=True,
    required=True,
    metavar="URI",
    help="An archive, or a directory of journal segments, that goes on after it; several may be named.",
)
@collapsing
@click.option(
    "--at",
    "until_s",
    type=MomentType(),
    metavar="TIME",
    help="End with the last transaction until then, such as 2030-01-31T12:00:00Z.",
)
@click.option("--restart", is_flag=True, help="Replace what this secondary holds.")
def rebuild(
    base: str,
    journals: tuple[str, ...],
    last_seqno: int,
    until_s: float | None,
    engine: str | None,
    master: str | None,
    restart: bool,
) -> None:
    """Fill this secondary from a base copy, and bring it to one transaction or time by replaying journals."""
    from replicate.cli.progress import replaying, seeding
    from update_process.replay.rebuild import rebuild as make

    if last_seqno and until_s is not None:
        raise UsageError("--to and --at together make no sense", do="Give one of them")
    spark = sessions_for(engine, master)
    opened = open_instance()
    with replaying() as told, seeding("", "installing region") as copied:
        done = make(
            opened,
            Path(base).absolute(),
            [journal_named(one) for one in journals],
            last_seqno=last_seqno or None,
            until_s=until_s,
            restart=restart,
            spark=spark,
            told=told,
            copied=copied,
        )
    lines = ["the base copy was in its place already: going on"]
    if done.base is not None:
        lines = [f"base copy at seqno {done.base.seqno}: {', '.join(done.base.regions)} ({done.base.pages} pages)"]
    emit(done, [*lines, *summary_lines(done.replay, opened)])
