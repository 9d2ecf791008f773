"""`replicate instance create|show|remove`."""

from __future__ import annotations

import shlex
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from replicate.cli.common import LOOKS, Noun, columns, emit, instance_name, open_instance
from replicate.errors import DamagedError, FormatUnknownError, UsageError
from replicate.pasteable import pasteable

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def instance() -> None:
    """Make an instance, show who it is, or remove it."""


@instance.command()
@click.argument("directory", required=False)
@click.option("--role", type=click.Choice(["primary", "secondary"]), default="primary", show_default=True)
@click.option("--name", help="Unique in the network; the directory's name if not given.")
@click.option("--network", metavar="UUID", help="The network to join; a new one if not given.")
def create(directory: str | None, role: str, name: str | None, network: str | None) -> None:
    """Make a new instance in DIRECTORY (or the one named with -i)."""
    from replicate.admin.stale_pools import remove_stale_pools
    from replicate.instance.instance import Instance

    path = directory or instance_name()
    remove_stale_pools()
    made = Instance.create(
        path, role=cast(Literal["primary", "secondary"], role), name=name, network=_uuid(network) if network else None
    )
    next_step = "region add PATH" if role == "primary" else "receiver start"
    lines = [
        f"{made.role} {made.name} made in {made.path}",
        f"network {uuid.UUID(bytes=made.content.network)}",
        f"next: replicate -i {made.named} {next_step}",
    ]
    emit(_facts(made), lines)


@instance.command()
def show() -> None:
    """Show role, name, network, regions and peers."""
    opened = open_instance(LOOKS)
    facts = _facts(opened)
    rows = [(key, value) for key, value in facts.items() if not isinstance(value, list)]
    rows += [("region", f"{r.name}  {r.path}") for r in opened.regions]
    rows += [("peer", f"{p.name}  {p.host}:{p.port}") for p in opened.peers]
    emit(facts, columns(rows))


@instance.command()
@click.argument("directory", required=False)
@click.option("--force", is_flag=True, help="Also if its instance.json is damaged, and its databases are plain again.")
def remove(directory: str | None, force: bool) -> None:
    """Remove the instance in DIRECTORY (or the one named with -i), when its regions have been released."""
    from replicate.admin.removal import remove_damaged_instance, remove_instance
    from replicate.admin.stale_pools import remove_stale_pools
    from replicate.instance.instance import Instance

    named = directory or instance_name()
    try:
        opened = Instance.open(named, needs=LOOKS)
    except FormatUnknownError:  # a newer release's, and whole
        raise
    except DamagedError as error:
        if not force:
            # Here alone an instance may be named without -i.
            raise DamagedError(error.what, where=error.where, do=pasteable(error.do, shlex.quote(named))) from error
        removed = remove_damaged_instance(named)
    else:
        removed = remove_instance(opened)
    remove_stale_pools()
    emit({"removed": removed}, [f"instance removed: {removed}"])


def _facts(made: Instance) -> dict[str, str | int | Path | list[dict[str, str | int]]]:
    content = made.content
    return {
        "name": made.name,
        "role": made.role,
        "path": made.path,
        "network": str(uuid.UUID(bytes=content.network)),
        "uuid": str(uuid.UUID(bytes=content.uuid)),
        "incarnation": content.incarnation,
        "regions": [{"region_id": r.region_id, "name": r.name, "path": str(r.path)} for r in made.regions],
        "peers": [{"name": p.name, "host": p.host, "port": p.port} for p in made.peers],
    }


def _uuid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise UsageError(
            f"{text!r} is not a UUID", do="Copy it from 'replicate -i PRIMARY instance show' on the primary"
        ) from None
