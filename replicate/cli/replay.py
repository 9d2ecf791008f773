"""`replicate replay`: bring a secondary that is far behind up to date from journal files or an archive, offline."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from replicate.cli.common import VerbCommand, emit, open_instance
from replicate.cli.engine import sessions_for
from replicate.daemon.last_run import start_again
from replicate.errors import UsageError

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from update_process.replay.run import Summary


LAST = "Where to end [latest: the last transaction that is known to be on the primary's disk]."


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


def collapsing(verb: Callable[..., None]) -> Callable[..., None]:
    """The options of all that collapses journals: where to end, and who does it."""
    for option in (
        click.option("--master", metavar="URL", help="The Spark master [local[*]]; with it Spark is the engine."),
        click.option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            help="Who finds the net change [local; spark with a --master, and where spark-submit runs this].",
        ),
        click.option("--to", "last_seqno", type=Bound(), default=0, metavar="N|latest", help=LAST),
    ):
        verb = option(verb)
    return verb


@click.command(cls=VerbCommand)
@click.option(
    "--journal",
    "journals",
    multiple=True,
    required=True,
    metavar="URI",
    help="A primary's instance, a directory of its journal segments, or an archive; several may be named.",
)
@collapsing
@click.option("--verify-before", is_flag=True, help="Compare rows that end as they began, too.")
@click.option("--dry-run", is_flag=True, help="Read, verify and collapse; change nothing.")
def replay(
    journals: tuple[str, ...],
    last_seqno: int,
    engine: str | None,
    master: str | None,
    verify_before: bool,
    dry_run: bool,
) -> None:
    """Apply a backlog in bulk: the net change of journals, with this secondary's daemons stopped.

    Stop them first (receiver stop, update stop), and start them afterwards: the stream goes on from there. Whatever
    ends a replay before its end leaves the databases whole, and the same command goes on.
    """
    from replicate.cli.progress import replaying
    from update_process.replay.command import replay as replay_into

    spark = sessions_for(engine, master)
    opened = open_instance()
    with replaying() as told:
        done = replay_into(
            opened,
            [journal_named(one) for one in journals],
            last_seqno=last_seqno or None,
            spark=spark,
            verify=verify_before,
            dry_run=dry_run,
            told=told,
        )
    emit(done, summary_lines(done, opened))


def journal_named(text: str) -> str:
    """What --journal says, where it names an instance below REPLICATE_HOME as -i does; what is here goes before."""
    from replicate.instance.location import resolve_instance

    with suppress(UsageError):
        if os.sep not in text and not os.path.exists(text) and (named := resolve_instance(text)).is_dir():
            return str(named)
    return text


def summary_lines(done: Summary, replayed: Instance) -> list[str]:
    """What a replay has done, for people."""
    if not done.transactions:
        return [f"nothing to replay: transaction {done.seqno} is applied already"]
    verb = "would replay" if done.dry_run else "replayed"
    rate = f", {done.transactions / done.seconds:.0f} a second" if done.seconds else ""
    pieces = f"{done.pieces} piece{'s' * (done.pieces != 1)}"
    alone = f"{done.alone} transaction{'s' * (done.alone != 1)} one by one"
    lines = [
        f"{verb} {done.transactions} transactions, {done.first_seqno} to {done.seqno}, in {done.seconds:.1f} s{rate}",
        f"{pieces}: {done.changes} changes of {done.keys} rows; {alone}: {done.alone_changes} changes",
    ]
    if done.dry_run:
        lines += [f"  {one.first_seqno} to {one.last_seqno} from {one.where}" for one in done.sources]
    else:
        lines.append(f"rows: {done.deleted} removed, {done.updated} changed, {done.inserted} inserted")
        lines.append(f"next: {'; '.join(start_again(replayed, name) for name in ('receiver', 'update'))}")
    return lines
