"""`replicate seed`: bring this secondary up from a live primary."""

from __future__ import annotations

import click

from replicate.cli.common import Verb, emit, open_instance


@click.command(cls=Verb)
@click.option("--from", "primary", required=True, metavar="INSTANCE", help="The primary's directory or name.")
@click.option("--restart", is_flag=True, help="Throw away what this secondary holds, and begin anew.")
def seed(primary: str, restart: bool) -> None:
    """Copy the primary's regions at one sequence number, while its writers go on."""
    from replicate.instance import resolve_instance
    from replicate.seed import seed_from_instance

    opened = open_instance()
    seeded = seed_from_instance(opened, resolve_instance(primary), restart=restart)
    emit(seeded, [f"seeded at seqno {seeded.seqno}", f"next: replicate update start -i {opened.path}"])
