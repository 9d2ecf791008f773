"""`replicate status` and `replicate wait`."""

from __future__ import annotations

import click

from replicate.cli.common import DOOR, LOOKS, VerbCommand, emit, open_instance, waiting_option
from replicate.cli.completion_words import findings


@click.command(cls=VerbCommand)
@click.option(
    "--explain",
    metavar="CODE",
    shell_complete=findings,
    help="Say what the code of a finding or an error means (all: the table of findings), and end.",
)
def status(explain: str | None) -> int:
    """Show role, states, positions, backlog, lag, the bottleneck, and what to do; exit code 1 if something is wrong."""
    import shutil

    width = shutil.get_terminal_size().columns
    if explain is not None:
        from replicate.model.findings import CODES, explained
        from replicate.status.text import explanation

        kinds = tuple(CODES.values()) if explain == "all" else (explained(explain),)
        emit(kinds, explanation(kinds, width))
        return 0
    from replicate.status.collect import collect
    from replicate.status.text import lines

    found = collect(open_instance(LOOKS))
    emit(found, lines(found, width))
    return 1 if found.is_wrong else 0


@click.command(cls=VerbCommand)
@click.option("--seqno", type=click.IntRange(0), required=True, metavar="N", help="The number of the transaction.")
@click.option(
    "--origin",
    metavar="NAME[/INCARNATION]",
    help="On a supplier: N is the number that this one has given, as `ruv` prints it.",
)
@waiting_option("How long to wait.")
def wait(seqno: int, origin: str | None, timeout_s: float) -> None:
    """Wait until the databases of this instance hold transaction N; exit code 75 if they do not in time.

    With --origin, until a supplier has what another one has committed up to its number N, merged where it had to be.
    NAME alone is the newest incarnation of it that is known here: one that was restored counts from 1 again, so name
    the incarnation, too, where that may be."""
    from replicate.door.wait import wait_for_origin, wait_for_seqno

    opened = open_instance(DOOR)
    if origin is not None:
        found = wait_for_origin(opened, origin, seqno, timeout_s=timeout_s)
        emit(found, [f"{found.origin}/{found.incarnation} up to {found.last}"])
        return
    reached = wait_for_seqno(opened, seqno, timeout_s=timeout_s)
    emit({"last_seqno": reached}, [f"at seqno {reached}"])
