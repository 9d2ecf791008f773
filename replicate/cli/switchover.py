"""`replicate switchover`: the two sites exchange their roles, by one command on either of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import VerbCommand, emit, open_instance, waiting_option
from replicate.cli.completion_words import peers
from replicate.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


@click.command(cls=VerbCommand)
@click.option(
    "--to",
    metavar="NAME",
    shell_complete=peers,
    help="The site that is to be primary; may be left out where there are only two. With it the command may be given "
    "again, whatever became of it before.",
)
@waiting_option(
    "How long all of it may take: the backlog, and applications' transactions.", limits=click.FloatRange(0.1, 3600)
)
@click.option("--dry-run", is_flag=True, help="Only say what bars it.")
def switchover(to: str | None, timeout_s: float, dry_run: bool) -> int:
    """Make the secondary primary, and the primary secondary, by plan: nothing is lost, and both sites were equal.

    On either site. All daemons of both run; they follow the role. What bars it is named, and nothing is changed then.
    """
    from replicate.daemon.orders import SWITCH_OVER, give, order_with

    opened = open_instance()
    daemon, is_there = _whom(opened, to)
    if is_there:
        emit(_nothing(opened), [f"{opened.name} is primary already"])
        return 0
    try:
        told = give(opened, daemon, order_with(SWITCH_OVER, {"timeout_s": timeout_s, "dry_run": dry_run}))
    except KeyboardInterrupt:
        if not dry_run:
            click.echo(
                f"{daemon} goes on with it, for as long as it was given: replicate -i {opened.named} status says who "
                "is primary, and the same command with --to waits for the end",
                err=True,
            )
        raise
    if told is None:
        from replicate.daemon.last_run import start_again

        raise NotFoundError(
            f"{daemon} does not run, and a switchover goes through it",
            where=str(opened.path),
            do=f"Start it: {start_again(opened, daemon)}; then again: replicate -i {opened.named} switchover",
        )
    emit({**told, "dry_run": dry_run}, _lines(told, opened, dry_run=dry_run))
    return 1 if told["problems"] else 0


def _whom(opened: Instance, to: str | None) -> tuple[str, bool]:
    """The daemon that does it; or that the wish is fulfilled already. UsageError, NotFoundError."""
    successor = opened.content.successor
    opened.refuse_supplier(
        "it has no role to hand over",
        f"To have another one write a partition: replicate -i {opened.named} partition give",
    )
    if opened.role == "primary":
        if to == opened.name:
            return "", True
        return f"source-{_peer(opened, to)}", False
    if successor is not None and (successor.is_pending or to == successor.name) and to in (None, successor.name):
        return f"source-{successor.name}", False
    if to not in (None, opened.name):
        raise UsageError(
            f"{opened.name} is secondary: here its own switchover can be asked for",
            where=str(opened.path),
            do=f"Give the command on the primary, or on {to}: replicate -i {to} switchover",
        )
    return "receiver", False


def _peer(opened: Instance, to: str | None) -> str:
    if to is not None:
        return opened.peer(to).name
    if len(opened.peers) == 1:
        return opened.peers[0].name
    known = ", ".join(entry.name for entry in opened.peers)
    raise UsageError(
        f"there are several peers: {known}" if known else "no peer is registered",
        where=str(opened.path),
        do=f"Name one: replicate -i {opened.named} switchover --to NAME",
    )


def _nothing(opened: Instance) -> dict[str, Any]:
    return {"problems": [], "primary": opened.name, "secondary": "", "seqno": None, "finished": True}


def _lines(told: dict[str, Any], opened: Instance, *, dry_run: bool) -> list[str]:
    problems = list(map(str, told["problems"]))
    if problems:
        return [*(f"{number}. {text}" for number, text in enumerate(problems, 1)), "nothing was changed"]
    if dry_run and not told["finished"]:
        return [f"{told['primary']} could be primary, and the way back works; nothing was changed"]
    lines = [f"{told['primary']} is primary, after transaction {told['seqno']}; {told['secondary']} is secondary"]
    if not told["secondary"] or told["seqno"] is None:
        lines = [f"{told['primary']} is primary"]
    for origin, number in (told.get("vector") or {}).items():
        chain = told["chains"].get(origin)
        lines.append(f"proved: of origin {origin} both have all up to {number}" + (f", chain {chain}" if chain else ""))
    if told.get("waited_s") is not None:
        lines.append(f"writers waited for {told['waited_s']:.2f} s at most")
    if told["finished"]:
        lines.append("this command has finished one that was begun before")
    lines += [
        f"{name} is served by {opened.name} no more; if {told['primary']} is to: replicate -i {told['primary']} peer "
        f"add {name} HOST:PORT, and start its Source Server"
        for name in told.get("other_peers") or ()
    ]
    return lines
