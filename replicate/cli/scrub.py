"""`replicate scrub`: what all replicas have is not kept any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from replicate.cli.common import VerbCommand, emit, open_instance

if TYPE_CHECKING:
    from replicate.transfer.packet.scrub import KeptFor


@click.command(cls=VerbCommand)
@click.option(
    "--before", metavar="TIME", help="Packets made before it count as arrived: a date, or how long ago (-60d)."
)
@click.option("--epoch", "upto", type=click.IntRange(0), metavar="N", help="Remove up to transaction N at most.")
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
def scrub(before: str | None, upto: int | None, dry_run: bool) -> None:
    """Remove journal files that every peer has confirmed; with --before, also what peers by packets should have.

    The daemons remove by themselves what is confirmed. A peer whose packet is lost must be seeded again once its
    content is removed.
    """
    from replicate.model.moment import parse_moment
    from replicate.transfer.packet.scrub import scrub as scrubbed

    before_ns = parse_moment(before, time.time_ns() // 1000, where="--before") * 1000 if before is not None else None
    done = scrubbed(open_instance(), before_ns=before_ns, upto=upto, dry_run=dry_run)
    count = len(done.removed)
    verb = "would be removed" if dry_run else "removed"
    lines = [f"{count} journal file{'s' * (count != 1)} {verb}"]
    lines += [_kept(one) for one in done.kept_for]
    emit(done, lines)


def _kept(one: KeptFor) -> str:
    if one.seqno is None:
        return f"nothing is kept for {one.peer}, which must be seeded again"
    why = "its packets are older than that" if one.aged else "it has confirmed no more"
    return f"for {one.peer} everything after {one.seqno} is kept: {why}"
