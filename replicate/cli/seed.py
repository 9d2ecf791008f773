"""`replicate seed`: bring this secondary up from a live primary."""

from __future__ import annotations

import sys

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
    progress = _show if sys.stderr.isatty() else None
    seeded = seed_from_instance(opened, resolve_instance(primary), restart=restart, progress=progress)
    what = f"seeded at seqno {seeded.seqno}: {', '.join(seeded.regions)} ({seeded.pages} pages)"
    emit(seeded, [what, f"next: replicate update start -i {opened.path}"])


def _show(region: str, done: int, pages: int) -> None:
    end = "\n" if done >= pages else ""
    print(f"\r{region}: {done} of {pages} pages", end=end, file=sys.stderr, flush=True)
