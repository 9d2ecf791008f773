"""`replicate archive`: sealed journal segments into a Parquet archive, by Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from replicate.cli.common import Verb, emit, instance_path


@click.command(cls=Verb)
@click.argument("uri", metavar="TO_URI")
@click.option(
    "--journal", type=click.Path(path_type=Path), metavar="PATH", help="Segments elsewhere [this instance's]."
)
@click.option("--master", metavar="URL", help="The Spark master [local[*]].")
@click.option("--verify", is_flag=True, help="Compare everything in the archive with its manifests, too.")
def archive(uri: str, journal: Path | None, master: str | None, verify: bool) -> None:
    """Add the sealed segments of this instance's journal to a Parquet archive: a directory, or any URI of Spark's."""
    from update_process.replay.command import archive_journal

    path = instance_path() if journal is None else journal.absolute()
    done = archive_journal(path, _absolute(uri), master=master, verify=verify, told=_told)
    lines = [f"archived {done.ranges} ranges: {done.transactions} transactions, {done.changes} changes"]
    if not done.ranges:
        lines = ["nothing to archive: only the segment that is written to is not in the archive"]
    emit(done, [*lines, f"the archive reaches up to transaction {done.last_seqno}"])


def _absolute(uri: str) -> str:
    """A path as a URI of this machine; anything with a scheme as it is."""
    return uri if "://" in uri or uri.startswith("file:") else Path(uri).absolute().as_uri()


def _told(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(line, err=True)
