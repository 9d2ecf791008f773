"""`replicate replica list|join|retire|restore`: the suppliers of a network, one more, one that is gone or restored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from replicate.cli.common import DOOR, Noun, columns, confirm, emit, instance_name, open_instance, plain, wants_json
from replicate.cli.completion_words import instances
from replicate.cli.roles import timeout_option

if TYPE_CHECKING:
    from replicate.admin.join_plan import PlannedStep
    from replicate.instance.instance import Instance

BEGINS_AGAIN_S: Final = 3.0
LOOK_S: Final = 0.05


@click.group(cls=Noun)
def replica() -> None:
    """The suppliers that are known here, one more of them, and what to do about one that is gone, or was restored."""


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
@click.argument("supplier", shell_complete=instances)
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option("--listen", metavar="HOST:PORT", help="Where this one waits for its sources, as with receiver start.")
@click.option("--address", "reached_at", metavar="HOST:PORT", help="Where SUPPLIER reaches it, if not there.")
@click.option("--network", metavar="UUID", help="The network; that of SUPPLIER, where it is on this host.")
@click.option("--name", metavar="NAME", help="Unique in the network; the directory's name if not given.")
@click.option("--dry-run", is_flag=True, help="Only say which steps are done, and what would do the others by hand.")
@timeout_option
def join(
    supplier: str,
    address: str | None,
    listen: str | None,
    reached_at: str | None,
    network: str | None,
    name: str | None,
    dry_run: bool,
    timeout_s: float,
) -> int:
    """Make the instance named with -i, and have it join SUPPLIER as a supplier: made, seeded, converted, linked.

    SUPPLIER is a directory or name of an instance on this host, which is linked, too; or the name of one on another
    host, whose Receiver Server is at HOST:PORT, or will be. What is to be done there is printed, and waited for. Ended
    anywhere, the same command goes on; once all is done, it does nothing. Exit code of --dry-run: 1 while something is
    to be done."""
    from replicate.admin.join_plan import THERE
    from replicate.admin.joining import Join, wish_of
    from replicate.cli.progress import seeding

    wish = wish_of(
        instance_name(), supplier, name=name, network=network, listen=listen, address=reached_at, there=address
    )

    def say(line: str) -> None:
        if not wants_json():
            click.echo(line)

    def waits(steps: tuple[PlannedStep, ...]) -> None:
        say(f"waits for {wish.supplier}. What is to be done there, where it is not yet:")
        for one in steps:
            say(f"  {one.command}")

    with seeding("writers go on") as told:
        made = Join(wish, timeout_s, told, lambda one: say(f"{wish.name}: {one.step.value}"), waits)
        steps = made.look() if dry_run else made.run().steps
    if dry_run:
        rows = [("done" if one.is_done else "to do", one.step.value, one.command) for one in steps]
        emit([plain(one) for one in steps], columns(rows))
        return int(not all(one.is_done for one in steps))
    lines = [f"{wish.name} is a supplier, and linked with {wish.supplier}"]
    lines += [f"there, unless it is done: {one.command}" for one in steps if one.step in THERE and not one.is_done]
    lines.append(f"it writes what is given to it, there: {wish.other} partition give PARTITION {wish.name}")
    emit({"name": wish.name, "steps": [plain(one) for one in steps]}, lines)
    return 0


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
            f"{supplier} is retired. Where it is a peer: replicate -i {opened.named} peer remove {supplier}",
        ]
    else:
        awaited = ", ".join(found.awaited) or found.heir
        lines = [f"{supplier} is gone; waited for: {awaited}. Their Update Processes must run, and be connected"]
    emit(plain(found), lines)
    return int(not found.is_retired)


@replica.command()
@click.option("--force", is_flag=True, help="Take writes again without what only those have that are waited for.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option
def restore(force: bool, yes: bool, timeout_s: float) -> int:
    """Have a supplier, or a primary, that was restored from an older state get back what it had, before it writes.

    A supplier finds that out by itself, and its Receiver Server lets it take writes again once each of its peers has
    sent all. One that was retired by error takes writes again with --force. A primary takes no writes from this command
    on: it is secondary until each of its peers has answered. What it has committed since it was restored goes to a lost
    file first. Given again, the command says who is waited for, and makes it primary once nobody is. Exit code 1 while
    it waits."""
    opened = open_instance()
    if opened.is_supplier:
        return _supplier_restored(opened, force=force, yes=yes)
    return _primary_restored(opened, force=force, yes=yes, timeout_s=timeout_s)


def _supplier_restored(opened: Instance, *, force: bool, yes: bool) -> int:
    from replicate.roles.retired_supplier import not_retired

    waits, by = opened.content.is_restoring, opened.content.retired_by
    if not force:
        told = "waits: replicate -i INSTANCE status names who is waited for" if waits else "takes writes"
        if by is not None:
            told = f"takes no writes: {by.name} says that it is gone for good. replicate -i INSTANCE status says more"
        emit({"waits": not opened.takes_writes}, [f"{opened.name} {opened.pasteable(told)}"])
        return int(not opened.takes_writes)
    if waits:
        _confirm_without(opened, yes=yes)
    done = not_retired(opened)
    emit({"waits": False}, [f"{opened.name} takes writes{'' if done else ', as before'}"])
    return 0


def _confirm_without(opened: Instance, *, yes: bool) -> None:
    confirm(
        f"What {opened.name} has committed before, and only those have that are waited for, may be in conflict with "
        "what it commits from now on",
        yes=yes,
    )


def _primary_restored(opened: Instance, *, force: bool, yes: bool, timeout_s: float) -> int:
    from replicate.roles import restored_primary as back

    if force and opened.role == "primary":
        emit({"waits": False}, [f"{opened.name} takes writes, as before"])
        return 0
    if opened.role == "primary" and opened.content.fence is None and opened.peers:
        to, last, count = back.begun_since(opened)
        if count:
            confirm(
                f"{count} transactions of {to + 1} to {last}, committed since {opened.name} was restored, go to a lost "
                "file, and are to be applied from there",
                yes=yes,
            )
    asked = back.ask(opened, timeout_s=timeout_s)
    opened.reload()
    lines = [] if asked.kept is None else asked.kept.lines()
    facts: dict[str, object] = {"kept": None if asked.kept is None else plain(asked.kept.facts())}
    if successor := back.taken_over(opened):
        lines.append(f"{successor} took over: {opened.name} follows it, and waits for nothing")
        emit({"waits": False, "awaited": [], **facts}, lines)
        return 0
    awaited = () if force else back.settle_answers(opened, wait_s=timeout_s if _receives(opened) else 0.0)
    if awaited:
        lines.append(f"{opened.name} takes no writes; waited for: {', '.join(awaited)}. Then this command again")
        lines += back.steps_for(opened, awaited)
        emit({"waits": True, "awaited": awaited, **facts}, lines)
        return 1

    def finish() -> int:
        from update_process.process import finish_received

        return finish_received(opened, timeout_s=timeout_s)

    if force:
        _confirm_without(opened, yes=yes)
    made = back.end(opened, finish=finish, timeout_s=timeout_s, force=force)
    lines.append(f"{made.instance} is primary again, with all transactions up to {made.seqno}")
    emit({"waits": False, "awaited": [], "seqno": made.seqno, **facts}, lines)
    return 0


def _receives(opened: Instance) -> bool:
    """Whether a line may bring something now: the Receiver Server runs, or does in a moment: it begins again where the
    role has changed."""
    from replicate.daemon.files import DaemonFiles

    lock, deadline_s = DaemonFiles(opened.path, "receiver").lock, time.monotonic() + BEGINS_AGAIN_S
    while (running := lock.probe()) is None and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
    return running is not None
