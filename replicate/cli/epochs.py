"""`replicate epochs`, and `epochs set`: how far each replica is, as far as this one knows."""

from __future__ import annotations

import time
from typing import Any

import click

from replicate.cli.common import Noun, columns, confirm, emit, open_instance
from replicate.cli.completion_words import peers


@click.group(cls=Noun, invoke_without_command=True)
@click.option("--origins", is_flag=True, help="Each incarnation of an instance by itself.")
@click.pass_context
def epochs(context: click.Context, origins: bool) -> None:
    """Show how many transactions of each origin each replica has, as this instance knows it.

    Its own row is exact. ~ marks an estimate: it was exported, and not confirmed yet. The exit code is 1 when a peer
    that gets packets has confirmed nothing for longer than packets.confirm_within_s.
    """
    if context.invoked_subcommand is None:
        context.exit(_show(origins))


def _show(by_origin: bool) -> int:
    from replicate.transfer.packet.matrix import matrix_of

    opened = open_instance()
    found = matrix_of(opened, time.time_ns(), by_origin=by_origin)
    rows: list[dict[str, Any]] = [
        {
            "replica": one.name,
            "kind": one.kind,
            "seqno": one.seqno,
            "age_s": one.age_s,
            "is_late": one.is_late,
            "epochs": dict(zip(found.origins, one.epochs, strict=True)),
        }
        for one in found.rows
    ]
    late = [one.name for one in found.rows if one.is_late]
    lines = columns(found.table)
    lines += [f"{name} has confirmed nothing for longer than packets.confirm_within_s" for name in late]
    emit({"origins": found.origins, "replicas": rows}, lines)
    return 1 if late else 0


@epochs.command(name="set")
@click.argument("peer", shell_complete=peers)
@click.argument("seqno", type=click.IntRange(0), metavar="N")
@click.option("--yes", is_flag=True, help="Do not ask.")
def set_(peer: str, seqno: int, yes: bool) -> None:
    """Have the next export to PEER begin after transaction N: not below what it has confirmed, nor beyond what is
    here."""
    from replicate.transfer.packet.matrix import set_estimate

    opened = open_instance()
    opened.peer(peer)
    before = set_estimate(opened, peer, seqno, time.time_ns(), dry_run=True)  # what may not be is not asked
    confirm(f"the next packet for {peer} begins after transaction {seqno}{_instead(before, seqno)}", yes=yes)
    set_estimate(opened, peer, seqno, time.time_ns())
    emit({"peer": peer, "seqno": seqno}, [f"the next packet for {peer} begins after transaction {seqno}"])


def _instead(before: int, seqno: int) -> str:
    if seqno > before:
        return f", and not after {before}; what it lacks up to there, packets from here do not bring it"
    return f", and not after {before}; what it has already is passed over there" if seqno < before else ", as it did"
