"""`replicate status` and `replicate wait`."""

from __future__ import annotations

import click

from replicate.cli.common import DOOR, LOOKS, Verb, emit, open_instance


@click.command(cls=Verb)
@click.option("--explain", metavar="CODE", help="Say what a finding's code means (all: the whole table), and end.")
def status(explain: str | None) -> int:
    """Show role, states, positions, backlog, lag, the bottleneck, and what to do; exit code 1 if something is wrong."""
    if explain is not None:
        from replicate.findings import CODES, explained
        from replicate.status.text import explanation

        kinds = tuple(CODES.values()) if explain == "all" else (explained(explain),)
        emit(kinds, explanation(kinds))
        return 0
    from replicate.status.collect import collect
    from replicate.status.text import lines

    found = collect(open_instance(LOOKS))
    emit(found, lines(found))
    return 1 if found.is_wrong else 0


@click.command(cls=Verb)
@click.option("--seqno", type=click.IntRange(0), required=True, metavar="N")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS")
def wait(seqno: int, timeout_s: float) -> None:
    """Wait until the databases of this instance hold transaction N; exit code 75 if they do not in time."""
    from replicate.wait import wait_for_seqno

    reached = wait_for_seqno(open_instance(DOOR), seqno, timeout_s=timeout_s)
    emit({"last_seqno": reached}, [f"at seqno {reached}"])
