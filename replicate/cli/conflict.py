"""`replicate conflict list|show|retry|skip|overwrite`: transactions at which the Update Process has stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import DOOR, LOOKS, Noun, columns, confirm, emit, open_instance
from replicate.cli.daemons import Daemon
from replicate.daemon.files import DaemonFiles

if TYPE_CHECKING:
    from replicate.instance.instance import Instance

_SEQNO = click.IntRange(1)
seqno_argument = click.argument("seqno", metavar="[N]", type=_SEQNO, required=False)


@click.group(cls=Noun)
def conflict() -> None:
    """Transactions that do not fit a row here: look at them, and say what becomes of them."""


@conflict.command(name="list")
def list_() -> int:
    """List the conflicts that this secondary has met; exit code 1 if one waits for a decision."""
    from update_process.deciding import WAITS, look_at_conflicts

    opened = open_instance(DOOR)
    found = look_at_conflicts(opened.conflict_directory, _applied(opened))
    rows = [(str(one.seqno), one.state, f"{one.operation} {one.table}: {one.reason}") for one in found]
    emit(found, columns(rows) or ["there is none"])
    return int(any(one.state == WAITS for one in found))


@conflict.command()
@seqno_argument
def show(seqno: int | None) -> None:
    """Show both images of the row at which transaction N stopped; without N, of the one that waits."""
    from update_process.conflict import read_conflict

    opened = open_instance(LOOKS if seqno else DOOR)
    facts = read_conflict(opened.conflict_directory, seqno or _applied(opened) + 1)
    emit(facts, _images(facts))


@conflict.command()
def retry() -> None:
    """Start the Update Process again: the row is as it was expected now."""
    _go_on(open_instance(), {}, [])


def _deciding(command: Callable[..., None]) -> Callable[..., None]:
    """What both decisions take."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Say what would be decided; nothing is."),
        click.option("--table", default="", metavar="REGION.TABLE", help="Only conflicts of this table."),
        click.option(
            "--until", type=click.IntRange(1), metavar="M", help="Conflicts of the transactions up to M, too."
        ),
        seqno_argument,
    ):
        command = option(command)
    return command


@conflict.command()
@_deciding
def skip(seqno: int | None, until: int | None, table: str, dry_run: bool, yes: bool) -> None:
    """Leave transaction N out, the one that waits, and go on: it will not be in this secondary's databases.

    All of it is left out, in every region, and a record without content takes its number. The decision is kept beside
    the conflict, with who made it and when. What a later transaction does to the same rows is a conflict again.
    """
    _decide("skip", seqno, until, table, dry_run=dry_run, yes=yes)


@conflict.command()
@_deciding
def overwrite(seqno: int | None, until: int | None, table: str, dry_run: bool, yes: bool) -> None:
    """Make the changes of transaction N, the one that waits, over whatever rows are here, and go on.

    A row that differs is replaced, one that is missing is made again, one that holds a unique value which the
    transaction needs is removed. What was here is in this secondary's journal, as the before-images of the record that
    takes the number. The decision is kept beside the conflict, with who made it and when.
    """
    _decide("overwrite", seqno, until, table, dry_run=dry_run, yes=yes)


_SAID = {
    "skip": ("would be left out", "will not be in the databases of", "is left out"),
    "overwrite": (
        "would be made over other rows",
        "will be made over other rows in the databases of",
        "is overwritten",
    ),
}


def _decide(how: str, seqno: int | None, until: int | None, table: str, *, dry_run: bool, yes: bool) -> None:
    from update_process.deciding import decide
    from update_process.decision import write_decision

    opened = open_instance(DOOR)
    decision = decide(opened, _applied(opened), seqno, how=how, until=until, table=table)
    would, will, done = _SAID[how]
    which = f"transaction {decision.seqno}"
    if decision.until > decision.seqno:
        which += f", and those up to {decision.until} that meet a conflict,"
    of_table = f" of {decision.table}" if decision.table else ""
    if dry_run:
        emit(decision, [f"{which} {would}{of_table}; nothing was decided"])
        return
    confirm(f"{which} {will} {opened.name}{of_table}", yes=yes)
    write_decision(opened.conflict_directory, decision)
    said = f"{which} {done}{of_table}: decided by {decision.by} at {decision.at}"
    _go_on(opened, dataclasses.asdict(decision), [said])


def _applied(opened: Instance) -> int:
    from replicate.door.wait import wait_for_seqno

    return wait_for_seqno(opened, 0, timeout_s=0.0)


def _go_on(opened: Instance, facts: dict[str, Any], lines: list[str]) -> None:
    """Say that, and start the Update Process as it last ran, if nobody has."""
    from replicate.daemon.with_update import as_it_ran

    if DaemonFiles(opened.path, "update").lock.probe() is not None:
        emit(facts, [*lines, "update: runs already"])
        return
    try:
        update, more = Daemon("update", ("update", "run")).started(as_it_ran(opened), None)
    except BaseException:
        emit(facts, lines)  # the decision stands, whatever keeps the Update Process
        raise
    emit({**facts, "update": update}, [*lines, *more])


def _images(facts: dict[str, Any]) -> list[str]:
    images = {name: facts[name] for name in ("expected", "found", "after") if facts.get(name) is not None}
    expected, found = images.get("expected", {}), images.get("found", {})
    rows: list[tuple[str, ...]] = [("", *images, "")]
    for name in dict.fromkeys(column for image in images.values() for column in image):
        values = (repr(image[name]) if name in image else "" for image in images.values())
        differs = bool(expected and found) and expected.get(name) != found.get(name)
        rows.append((name, *values, "differs" * differs))
    head = f"transaction {facts['seqno']}: {facts['operation']} {facts['region']}.{facts['table']}: {facts['reason']}"
    lacking = [f"{name}: no row" for name in ("expected", "found", "after") if facts.get(name) is None]
    return [head, *columns(rows), *lacking]
