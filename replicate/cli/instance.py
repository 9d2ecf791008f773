"""`replicate instance create|show|remove`."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from replicate.cli.common import LOOKS, Noun, columns, confirm, emit, instance_name, open_instance, plain
from replicate.cli.completion_words import instances
from replicate.cli.roles import timeout_option
from replicate.errors import DamagedError, FormatUnknownError, NotFoundError, UsageError, pasteable
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.start_command import start_command

if TYPE_CHECKING:
    from replicate.instance.file import InstanceFile
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def instance() -> None:
    """Make an instance, show who it is, or remove it."""


@instance.command()
@click.argument("directory", required=False)
@click.option("--role", type=click.Choice(["primary", "secondary"]), help="primary, unless it is a --feed.")
@click.option("--name", metavar="NAME", help="Unique in the network; the directory's name if not given.")
@click.option("--network", metavar="UUID", help="The network to join; a new one if not given.")
@click.option("--feed", is_flag=True, help="A secondary where others may have tables, and that never becomes primary.")
def create(directory: str | None, role: str | None, name: str | None, network: str | None, feed: bool) -> None:
    """Make a new instance in DIRECTORY (or the one named with -i)."""
    from replicate.admin.stale_pools import remove_stale_pools
    from replicate.instance.instance import Instance

    path = directory or instance_name()
    remove_stale_pools()
    role = role or ("secondary" if feed else "primary")
    made = Instance.create(
        path,
        role=cast(Literal["primary", "secondary"], role),
        name=name,
        network=_uuid(network) if network else None,
        feed=feed,
    )
    add = f"replicate -i {made.named} region add PATH"
    joined = uuid.UUID(bytes=made.content.network)
    lines = [
        f"{'data feed' if feed else made.role} {made.name} made in {made.path}",
        f"network {joined}",
        f"next: {add if role == 'primary' else start_command('receiver', of=made.named)}",
    ]
    if role == "primary":
        lines.append(f"next, for each secondary: replicate instance create NAME --role secondary --network {joined}")
    emit(_facts(made), lines)


@instance.command()
def show() -> None:
    """Show role, name, network, regions and peers."""
    opened = open_instance(LOOKS)
    facts = _facts(opened)
    rows = [(key, value) for key, value in facts.items() if not isinstance(value, list)]
    rows += [("region", f"{r.name}  {r.path}") for r in opened.regions]
    rows += [("peer", f"{p.name}  {p.address}") for p in opened.peers]
    emit(facts, columns(rows))


@instance.command()
@click.option("--role", type=click.Choice(["supplier", "secondary"]), required=True, help="What it is to be.")
@click.option("--dry-run", is_flag=True, help="Only say what bars the way, if anything does.")
@click.option(
    "--force",
    is_flag=True,
    help="A secondary also if a peer has not got all (what no peer has is written to a file first), and if its journal "
    "or region cannot be read: a seed is to replace them.",
)
@timeout_option
def convert(role: str, dry_run: bool, force: bool, timeout_s: float) -> None:
    """Make this primary or secondary a supplier, or this supplier a secondary.

    A supplier takes writes and receives what others commit. The first one of a network was its primary."""
    from replicate.roles.partition_writers import written
    from replicate.roles.supplier import convert as converted

    opened = open_instance()
    if force and role != "secondary":
        raise UsageError("--force is for --role secondary", do="Leave it out")
    made = converted(opened, role, timeout_s=timeout_s, dry_run=dry_run, force=force)
    if dry_run:
        lines = [f"{made.name} can be made {role}"]
        lines += [f"{one.table} can be written by one supplier at a time: {one.why}. {one.do}" for one in made.single]
        emit(plain(made), lines)
        return
    lines = list(made.kept.lines() if made.kept else ())
    lines += [f"{made.name} is {role} (incarnation {made.incarnation}), from transaction {made.seqno} on"]
    if role == "supplier":
        wrote = any(one.is_own or opened.name in one.others for one in written(opened))
        writes = "it writes everything" if made.writes_all else f"it writes {'as before' if wrote else 'nothing yet'}"
        lines.append(f"{writes}: replicate -i {opened.named} partition list says who writes what")
    emit(plain(made), lines)


@instance.command()
@click.argument("state", type=click.Choice(["on", "off"]))
def freeze(state: str) -> None:
    """Hold all transactions, or let them go on.

    On a primary writers wait, and are refused by name after their time-out. On a secondary nothing is applied. Reading,
    sending and receiving go on. It stays so over a restart, until it is turned off."""
    from replicate.admin.freezing import freeze as set_frozen

    opened = open_instance()
    seqno = set_frozen(opened, on=state == "on")
    what = "frozen" if state == "on" else "not frozen"
    emit({"frozen": state == "on", "seqno": seqno}, [f"{opened.name} is {what}, at transaction {seqno}"])


@instance.command()
@click.argument("directory", required=False, shell_complete=instances)
@click.option(
    "--force",
    is_flag=True,
    help="Also if a peer has not got all (what no peer has is written to a file first), and if its instance.json is "
    "damaged, and its databases are plain again.",
)
@click.option("--purge", is_flag=True, help="With the databases that lie in its directory: for a trial.")
@click.option("--yes", is_flag=True, help="Do not ask before a --purge.")
def remove(directory: str | None, force: bool, purge: bool, yes: bool) -> None:
    """Remove the instance in DIRECTORY (or the one named with -i), when its regions have been released.

    What lies outside of its directory stays."""
    from replicate.admin.instance_removal import (
        Purged,
        Removed,
        finish_removal,
        remove_damaged_instance,
        remove_instance,
    )
    from replicate.admin.stale_pools import remove_stale_pools
    from replicate.instance.instance import Instance

    named = directory or instance_name()

    def agree(purged: Sequence[Purged]) -> None:
        if purge:
            files = ", ".join(f"{one.path} ({one.bytes} bytes)" for one in purged) or "no file of yours"
            confirm(f"The instance {named} goes with its journal and {files}", yes=yes)

    try:
        opened = Instance.open(named, needs=LOOKS)
    except FormatUnknownError:  # a newer release's, and whole
        raise
    except NotFoundError:
        path = finish_removal(named)
        if path is None:
            raise
        removed = Removed(path)
    except DamagedError as error:
        if not force:
            # Here alone an instance may be named without -i.
            raise DamagedError(error.what, where=error.where, do=pasteable(error.do, shlex.quote(named))) from error
        if purge:
            raise UsageError(
                "which databases are its own, a damaged instance.json does not tell", do="Leave --purge out"
            ) from error
        removed = remove_damaged_instance(named)
    else:
        removed = remove_instance(opened, force=force, purge=purge, agree=agree)
    remove_stale_pools()
    kept = removed.kept
    emit(
        {"removed": removed.path, "purged": removed.purged, "lost": kept.facts() if kept else None},
        [
            *(kept.lines() if kept else ()),
            *(f"removed: {one.path} ({one.bytes} bytes)" for one in removed.purged),
            f"instance removed: {removed.path}",
        ],
    )


def _facts(made: Instance) -> dict[str, str | int | Path | list[dict[str, str | int]]]:
    from replicate.instance.file import told_rows

    content = made.content
    return {
        "name": made.name,
        "role": made.role,
        **({"feed": True} if made.is_feed else {}),
        "path": made.path,
        "network": str(uuid.UUID(bytes=content.network)),
        "uuid": str(uuid.UUID(bytes=content.uuid)),
        "incarnation": content.incarnation,
        **({"partitions": ", ".join(content.partitions.names.values())} if content.partitions != ONLY_DEFAULT else {}),
        **({"subscription": _told(content, content.subscription)} if content.subscription is not None else {}),
        **({"held": _told(content, content.held)} if content.held is not None else {}),
        **({"rows": told_rows(content.rows)} if content.rows else {}),
        **({"held_rows": told_rows(content.held_rows)} if content.held_rows else {}),
        "regions": [{"region_id": r.region_id, "name": r.name, "path": str(r.path)} for r in made.regions],
        "peers": [{"name": p.name, "host": p.host, "port": p.port} for p in made.peers],
    }


def _told(content: InstanceFile, numbers: tuple[int, ...]) -> str:
    return ", ".join(map(content.partitions.name, numbers)) or "nothing yet"


def _uuid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise UsageError(
            f"{text!r} is not a UUID", do="Copy it from 'replicate -i PRIMARY instance show' on the primary"
        ) from None
