"""`replicate journal show|verify|prune`."""

from __future__ import annotations

import click

from replicate.cli.common import LOOKS, Noun, emit, open_instance, wants_json

from_option = click.option("--from", "first_seqno", type=click.IntRange(1), metavar="SEQNO", help="First transaction.")
to_option = click.option("--to", "last_seqno", type=click.IntRange(1), metavar="SEQNO", help="Last transaction.")


@click.group(cls=Noun)
def journal() -> None:
    """Look into the journal files."""


@journal.command()
@from_option
@to_option
def show(first_seqno: int | None, last_seqno: int | None) -> None:
    """Show transactions, one after another. With --json everything: whole values, and the rows of large ones."""
    from replicate.journal.show import show_journal

    for shown in show_journal(open_instance(LOOKS), first_seqno, last_seqno, parts=wants_json()):
        emit(shown, shown.lines())


@journal.command()
@from_option
@to_option
def verify(first_seqno: int | None, last_seqno: int | None) -> int:
    """Check every frame, number, hash and link; exit code 65 if something is damaged."""
    from replicate.journal.show import check_order, not_held
    from replicate.journal.verify import verify_journal

    check_order(first_seqno, last_seqno)
    opened = open_instance(LOOKS)
    found = verify_journal(opened, first_seqno, last_seqno)
    outside = (first_seqno or 0) > found.last_seqno or (last_seqno or 1) > found.last_seqno or not found.segment_count
    if outside and not found.findings and (first_seqno or last_seqno):
        whole = verify_journal(opened)
        raise not_held(whole.first_seqno, whole.last_seqno, str(opened.journal_directory))
    emit(found, found.lines())
    return 65 if found.findings else 0


@journal.command()
def prune() -> None:
    """Remove segments that no registered consumer needs any more."""
    from replicate.door.opening import open_door
    from replicate.pruning import prune_journal

    door = open_door(open_instance())
    try:
        removed = prune_journal(door)
    finally:
        door.close()
    emit({"removed": removed}, [f"{len(removed)} segments removed" + (f", up to {removed[-1]}" if removed else "")])
