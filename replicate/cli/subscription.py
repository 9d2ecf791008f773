"""`replicate subscription set|add|remove|list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from replicate.cli.common import LOOKS, Noun, columns, emit, open_instance
from replicate.cli.words import partitions

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def subscription() -> None:
    """Say which partitions' rows this secondary gets."""


@subscription.command(name="set")
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
def set_(name: tuple[str, ...]) -> None:
    """Get the rows of exactly these partitions, each by its name or number. ALL: of whatever there is.

    Tables of the others are here, too, with their definitions: as they were, and empty where they are new.
    """
    from replicate.admin.subscriptions import set_ as done

    opened = open_instance()
    done(opened, name)
    _tell(opened)


@subscription.command()
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
def add(name: tuple[str, ...]) -> None:
    """Get the rows of these partitions, too. They come with the next seed; the others go on."""
    from replicate.admin.subscriptions import add as done

    opened = open_instance()
    done(opened, name)
    _tell(opened)


@subscription.command()
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
def remove(name: tuple[str, ...]) -> None:
    """Get no more of these partitions. Their rows stay as they are."""
    from replicate.admin.subscriptions import remove as done

    opened = open_instance()
    done(opened, name)
    _tell(opened)


@subscription.command(name="list")
def list_() -> None:
    """List the partitions that are wanted, and those that are here."""
    opened = open_instance(LOOKS)
    rows = _rows(opened)
    emit([row._asdict() for row in rows], _lines(opened, rows))


class _Subscribed(NamedTuple):
    name: str
    number: int
    state: str


def _rows(opened: Instance) -> list[_Subscribed]:
    content = opened.content
    known = content.partitions
    numbers = {*(content.subscription or ()), *(content.held or ()), *known.names}
    states = {
        (True, True): "here",
        (True, False): "waits for a seed",
        (False, True): "here",
        (False, False): "not wanted",
    }
    return [
        _Subscribed(known.name(number), number, states[content.wants(number), content.holds(number)])
        for number in sorted(numbers)
    ]


def _lines(opened: Instance, rows: list[_Subscribed]) -> list[str]:
    if opened.content.subscription is None and opened.content.held is None:
        return ["all partitions"]
    lines = columns([row.name, f"number {row.number}", row.state] for row in rows)
    if any(row.state == "waits for a seed" for row in rows):
        lines.append(f"next: replicate -i {opened.named} seed --restart")
    return lines


def _tell(opened: Instance) -> None:
    from replicate.daemon.files import DaemonFiles

    rows = _rows(opened)
    lines = _lines(opened, rows)
    if DaemonFiles(opened.path, "receiver").lock.probe() is not None:
        lines.append("its Receiver Server connects again within a heartbeat, and asks so")
    emit([row._asdict() for row in rows], lines)
