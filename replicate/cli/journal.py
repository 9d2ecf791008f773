"""`replicate journal show|verify|prune`."""

from __future__ import annotations

import json

import click

from replicate.cli.common import LOOKS, Noun, csns_between, emit, emit_lines, open_instance, wants_json
from replicate.cli.completion_words import tables_of_journal

from_option = click.option("--from", "first_seqno", type=click.IntRange(1), metavar="SEQNO", help="First transaction.")
to_option = click.option("--to", "last_seqno", type=click.IntRange(1), metavar="SEQNO", help="Last transaction.")


@click.group(cls=Noun)
def journal() -> None:
    """Look into the journal files."""


@journal.command()
@from_option
@to_option
@click.option(
    "--since", metavar="TIME", help="Committed at that time or later: ISO 8601, a date, or how long ago (-15m, -2h)."
)
@click.option("--until", metavar="TIME", help="Committed at that time or earlier. A time without an offset is UTC.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="TABLE",
    shell_complete=tables_of_journal,
    help="Only changes of that table, or REGION.TABLE.",
)
@click.option("--last", "last_count", type=click.IntRange(1), metavar="N", help="Of all that, only the last N.")
def show(
    first_seqno: int | None,
    last_seqno: int | None,
    since: str | None,
    until: str | None,
    tables: tuple[str, ...],
    last_count: int | None,
) -> None:
    """Show transactions, one after another. With --json everything: whole values, and the rows of large ones."""
    from replicate.audit.query import Query
    from replicate.audit.show import document, show_journal

    query = Query(
        first_seqno,
        last_seqno,
        *csns_between(since, until),
        tables,
        last_count,
    )
    told = show_journal(open_instance(LOOKS, copy_too=True), query, parts=wants_json())
    if wants_json():
        emit_lines(json.dumps(document(one)) for one in told)
    else:
        emit_lines(line for one in told for line in one.lines())


@journal.command()
@from_option
@to_option
def verify(first_seqno: int | None, last_seqno: int | None) -> int:
    """Check every frame, number, hash and link; exit code 65 if something is damaged."""
    from replicate.audit.query import check_order, not_held
    from replicate.audit.verify import verify_journal

    check_order(first_seqno, last_seqno)
    opened = open_instance(LOOKS, copy_too=True)
    found = verify_journal(opened, first_seqno, last_seqno)
    outside = (first_seqno or 0) > found.last_seqno or (last_seqno or 1) > found.last_seqno or not found.segment_count
    if outside and not found.findings and (first_seqno or last_seqno):
        whole = verify_journal(opened)
        raise not_held(whole.first_seqno, whole.last_seqno, str(opened.journal_directory))
    emit(found, found.lines())
    return 65 if found.findings else 0


@journal.command()
def prune() -> None:
    """Remove segments that no registered consumer needs any more. The daemons do so by themselves."""
    from replicate.door.pruning import prune_journal
    from replicate.door.recovery.opening import open_door

    door = open_door(open_instance())
    try:
        removed = prune_journal(door)
    finally:
        door.close()
    emit(
        {"removed": removed},
        [f"{len(removed)} segment{'s' * (len(removed) != 1)} removed" + (f", up to {removed[-1]}" if removed else "")],
    )
