"""`replicate archive`: sealed journal segments into a Parquet archive, by Spark."""

from __future__ import annotations

from pathlib import Path

import click

from replicate.cli.common import VerbCommand, emit, open_instance
from replicate.errors import UsageError


@click.command(cls=VerbCommand)
@click.argument("uri", metavar="[TO_URI]", required=False)
@click.option(
    "--journal", type=click.Path(path_type=Path), metavar="PATH", help="Segments elsewhere [this instance's]."
)
@click.option("--master", metavar="URL", help="The Spark master [local[*]].")
@click.option(
    "--clean",
    is_flag=True,
    help="At a URI: remove what killed runs left there a day ago or earlier [a directory: all].",
)
@click.option("--verify", is_flag=True, help="Compare everything in the archive with its manifests, too.")
def archive(uri: str | None, journal: Path | None, master: str | None, clean: bool, verify: bool) -> None:
    """Add the sealed segments of this instance's journal to an archive: a directory, or any URI that Spark writes.

    Sealed are all but the one that is written to. What is there already is not touched, so run it as often as you like.
    Needs Spark and Java; a replay from a directory needs neither.

    Without TO_URI: to the one that journal.archive names, for which segments are kept.
    """
    from replicate.cli.progress import archiving
    from update_process.replay.command import archive_instance, archive_journal, spark_sessions

    spark = spark_sessions(master)
    with archiving() as told:
        if journal is None:
            done = archive_instance(open_instance(), uri, spark=spark, clean=clean, verify=verify, told=told)
        elif uri is None:
            raise UsageError(
                "--journal needs the archive's URI, too", do="replicate -i INSTANCE archive --journal PATH TO_URI"
            )
        else:
            done = archive_journal(journal.absolute(), uri, spark=spark, clean=clean, verify=verify, told=told)
    ranges = f"{done.ranges} range{'s' * (done.ranges != 1)}"
    lines = [f"archived {ranges}: {done.transactions} transactions, {done.changes} changes"]
    if not done.ranges:
        lines = ["nothing to archive: only the segment that is written to is not in the archive"]
    if done.cleaned:
        lines.append(f"removed what killed runs had left: {done.cleaned} range{'s' * (done.cleaned != 1)}")
    emit(done, [*lines, f"the archive reaches up to transaction {done.last_seqno}"])
