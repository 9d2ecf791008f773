"""`replicate schema run|fence|unfence|status`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import DOOR, Noun, emit, open_instance, plain, wants_json
from replicate.cli.completion_words import regions
from replicate.cli.roles import timeout_option
from replicate.errors import UsageError

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from replicate.model.told_fences import ToldFence


@click.group(cls=Noun)
def schema() -> None:
    """Change the schema of suppliers, or of a secondary that does not get it with the stream."""


@schema.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--region", metavar="NAME", shell_complete=regions, help="In that region [the one there is, else main].")
@timeout_option
def run(file: Path, region: str | None, timeout_s: float) -> None:
    """Run the schema changes in FILE, all of them or none.

    On a supplier: all others stand aside, and what they have written comes here first; then the change is made, in one
    transaction, and all write again, with the sharing that they had. Ended anywhere, the same command goes on; schema
    unfence gives it up. Exit code 75 while somebody is waited for who does not stand aside yet.

    On a secondary that does not subscribe to the partition of their audit element (partition element), while the Update
    Process does not run: it stops where a table is not as the rows that come next have it, and this makes it so.
    """
    from replicate.admin.schema_run import run_schema

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file cannot be read: {error}", where=str(file), do="Name one with statements") from None
    opened = open_instance()
    if opened.is_supplier:
        _run_fenced(opened, text, file, region, timeout_s)
        return
    done = run_schema(opened, text, where=str(file), region=region)
    emit(
        done._asdict(),
        [f"region {done.region}: {_counted(done.statements)}", f"next: replicate -i {opened.named} update start"],
    )


def _run_fenced(opened: Instance, text: str, file: Path, region: str | None, timeout_s: float) -> None:
    from replicate.admin.schema_run import run_fenced
    from replicate.dbapi import connect

    done = run_fenced(
        opened,
        text,
        lambda name: connect(opened.path, name, timeout_s),
        where=str(file),
        timeout_s=timeout_s,
        region=region,
        waits=_waits,
    )
    lines = [f"region {done.region}: {_counted(done.statements)}, transaction {done.seqno}"]
    if done.stays_fenced:
        lines.append(f"all others stand aside still: replicate -i {opened.named} schema unfence")
    emit(done._asdict(), lines)


@schema.command()
@timeout_option
def fence(timeout_s: float) -> None:
    """Have all other suppliers stand aside, so that applications here can change the schema, in several transactions if
    need be. Writers are refused elsewhere until schema unfence.

    Ended anywhere, the same command goes on. Exit code 75 while somebody is waited for."""
    from replicate.roles.schema_fence import fence as fenced

    opened = open_instance()
    found = fenced(opened, timeout_s=timeout_s, waits=_waits)
    emit(
        plain(found),
        [
            "all other suppliers stand aside: change the schema",
            f"after that: replicate -i {opened.named} schema unfence",
        ],
    )


@schema.command()
@timeout_option
def unfence(timeout_s: float) -> None:
    """Let the other suppliers write again, with the sharing that they had; whether the schema was changed, or not."""
    from replicate.roles.schema_fence import unfence as unfenced

    opened = open_instance()
    was_fenced = unfenced(opened, timeout_s=timeout_s)
    told = "all suppliers write again" if was_fenced else f"{opened.name} has nobody stand aside"
    emit({"name": opened.name, "was_fenced": was_fenced}, [told])


@schema.command()
def status() -> int:
    """Say which supplier has the others stand aside, and who is waited for. Exit code 1 while one does."""
    from replicate.roles.schema_fence import fences

    opened = open_instance(DOOR)
    found = fences(opened)
    emit([plain(one) for one in found], [_told(one) for one in found] or ["nobody changes the schema"])
    return int(bool(found))


def _told(one: ToldFence) -> str:
    since = f"since {one.since}"
    if one.awaited:
        return f"{one.by} has all other suppliers stand aside {since}; waited for: {', '.join(one.awaited)}"
    return f"all other suppliers stand aside for {one.by}, which changes the schema, {since}"


def _waits(found: ToldFence) -> None:
    if found.awaited and not wants_json():
        click.echo(f"waits for {', '.join(found.awaited)}", err=True)


def _counted(statements: int) -> str:
    return f"{statements} statement{'s' * (statements != 1)}"
