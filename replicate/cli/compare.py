"""`replicate digest` and `replicate compare`: equality at one sequence number."""

from __future__ import annotations

import click

from replicate.cli.common import Verb, columns, emit, open_instance

timeout_option = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS"
)


@click.command(cls=Verb)
@click.option("--at", "seqno", type=click.IntRange(0), metavar="N", help="Wait until the instance stands at N exactly.")
@timeout_option
def digest(seqno: int | None, timeout_s: float) -> None:
    """Print a digest of every table at one sequence number."""
    from replicate.compare import digest_at

    found = digest_at(open_instance(), seqno, timeout_s=timeout_s)
    rows = [(t.region, t.table, t.rows, t.digest.hex()) for t in found.tables]
    emit(found, [f"seqno {found.seqno}", *columns(rows)])


@click.command(cls=Verb)
@click.option("--with", "other", required=True, metavar="INSTANCE", help="The other instance: directory or name.")
@click.option("--rows", "limit", type=click.IntRange(1), default=10, show_default=True, help="Differing rows to show.")
@timeout_option
def compare(other: str, limit: int, timeout_s: float) -> int:
    """Compare with another instance at one sequence number; exit code 1 if they differ."""
    from replicate.compare import compare_instances
    from replicate.instance import Instance

    found = compare_instances(open_instance(), Instance.open(other), limit=limit, timeout_s=timeout_s)
    emit(found, found.lines())
    return 0 if found.equal else 1
