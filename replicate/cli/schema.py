"""`replicate schema run`."""

from __future__ import annotations

from pathlib import Path

import click

from replicate.cli.common import Noun, emit, open_instance
from replicate.cli.words import regions
from replicate.errors import UsageError


@click.group(cls=Noun)
def schema() -> None:
    """Change the schema of a secondary that does not get it with the stream."""


@schema.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--region", metavar="NAME", shell_complete=regions, help="In that region [the one there is, else main].")
def run(file: Path, region: str | None) -> None:
    """Run the schema changes in FILE, all of them or none, while the Update Process does not run.

    For a secondary that does not subscribe to the partition of their audit element (partition element). It stops where
    a table is not as the rows that come next have it; this makes it so.
    """
    from replicate.admin.schema_run import run_schema

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file cannot be read: {error}", where=str(file), do="Name one with statements") from None
    opened = open_instance()
    done = run_schema(opened, text, where=str(file), region=region)
    count = f"{done.statements} statement{'s' * (done.statements != 1)}"
    emit(done._asdict(), [f"region {done.region}: {count}", f"next: replicate -i {opened.named} update start"])
