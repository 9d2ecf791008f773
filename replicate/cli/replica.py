"""`replicate replica list|retire|restore`: the suppliers of a network, one that is gone, and one that was restored."""

from __future__ import annotations

import click

from replicate.cli.common import DOOR, Noun, columns, confirm, emit, open_instance, plain
from replicate.cli.roles import timeout_option


@click.group(cls=Noun)
def replica() -> None:
    """The suppliers that are known here, and what to do about one that is gone, or was restored."""


@replica.command(name="list")
def list_() -> None:
    """List every instance that has written here, how much of it is here, and what it writes now."""
    from replicate.roles.supplier import replicas

    found = replicas(open_instance(DOOR))
    head = ("supplier", "incarnation", "transactions", "writes", "")
    rows: list[tuple[object, ...]] = [
        (one.name, one.incarnation, one.transactions, ", ".join(one.writes) or "-", one.told) for one in found
    ]
    emit([plain(one) for one in found], columns([head, *rows]) if rows else ["none"])


@replica.command()
@click.argument("supplier")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
def retire(supplier: str, yes: bool, timeout_s: float) -> int:
    """Say that a SUPPLIER is gone for good: what it wrote is written here from then on, and nobody waits for it.

    What it had written, and any of the others has, comes to all first; what nobody has is lost. The others take nothing
    from it any more: never let it connect again; make it new. Exit code 1 while some have not heard of it; the same
    command again says who. One that is gone too is retired in the same way, and is not waited for then."""
    from replicate.roles.retiring import retire as retired

    opened = open_instance()
    confirm(f"{supplier} is taken for gone for good, and what it alone has is lost", yes=yes)
    found = retired(opened, supplier, timeout_s=timeout_s)
    if found.is_retired:
        lines = [
            f"{supplier} is retired. Where it is a peer: replicate -i INSTANCE peer remove {supplier}",
        ]
    else:
        awaited = ", ".join(found.awaited) or found.heir
        lines = [f"{supplier} is gone; waited for: {awaited}. Their Update Processes must run, and be connected"]
    emit(plain(found), lines)
    return int(not found.is_retired)


@replica.command()
@click.option("--force", is_flag=True, help="Take writes again without what only those have that are waited for.")
@click.option("--yes", is_flag=True, help="Do not ask before --force.")
def restore(force: bool, yes: bool) -> int:
    """Say whether this supplier, which was restored from an older state, has back what it had.

    Its Receiver Server lets it take writes again once each of its peers has sent all. Exit code 1 while it waits."""
    from replicate.roles.restored import settle

    opened = open_instance()
    if not force:
        waits = opened.content.is_restoring
        told = "waits: replicate -i INSTANCE status names who is waited for" if waits else "takes writes"
        emit({"waits": waits}, [f"{opened.name} {opened.pasteable(told)}"])
        return int(waits)
    if opened.content.is_restoring:
        confirm(
            f"What {opened.name} has committed before, and only those have that are waited for, may be in conflict "
            "with what it commits from now on",
            yes=yes,
        )
    done = settle(opened)
    emit({"waits": False}, [f"{opened.name} takes writes{'' if done else ', as before'}"])
    return 0
