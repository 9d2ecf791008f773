"""`replicate replica list|restore`: the suppliers of a network, and one that was restored."""

from __future__ import annotations

import click

from replicate.cli.common import DOOR, Noun, columns, confirm, emit, open_instance, plain


@click.group(cls=Noun)
def replica() -> None:
    """The suppliers that are known here, and what to do about one that was restored."""


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
