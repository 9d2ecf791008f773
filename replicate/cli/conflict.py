"""`replicate conflict list|show|retry|skip|overwrite`: transactions at which the Update Process has stopped;
`take|settle|purge|export`: what was lost as rows were merged on a supplier."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from replicate.cli.common import DOOR, LOOKS, Noun, columns, confirm, emit, open_instance, plain
from replicate.cli.daemons import Daemon
from replicate.cli.roles import timeout_option
from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyExistsError, UsageError

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from replicate.roles.merge_losses import ShownMerge

_SEQNO = click.IntRange(1)
seqno_argument = click.argument("seqno", metavar="[N]", type=_SEQNO, required=False)


@click.group(cls=Noun)
def conflict() -> None:
    """Transactions that do not fit a row here, and what was lost in merges: look at them, and say what becomes of
    them."""


@conflict.command(name="list")
@click.option("--all", "all_of_them", is_flag=True, help="What is settled of merges, too.")
@click.option("--table", default="", metavar="TABLE", help="Only merges of this table.")
@click.option("--orphans", "shows_orphans", is_flag=True, help="And rows whose foreign key names a row that is gone.")
def list_(all_of_them: bool, table: str, shows_orphans: bool) -> int:
    """List the conflicts that were met here, and on a supplier what was lost in merges (m1, m2, …; with several regions
    m1@REGION); exit code 1 if the Update Process waits for a decision."""
    from replicate.roles.merge_losses import merges, orphans
    from update_process.conflict_commands import WAITS, conflicts_of

    opened = open_instance(DOOR)
    found = conflicts_of(opened, _applied(opened))
    rows = [(str(one.seqno), one.state, f"{one.operation} {one.table}: {one.reason}") for one in found]
    merged = merges(opened, all_of_them=all_of_them, table=table)
    rows += [(one.id, one.state, _told(one)) for one in merged]
    alone = orphans(opened) if shows_orphans else []
    lines = columns(rows)
    lines += [
        f"row {one.key} of {_in_region(one.table, one.region)} names a row of {one.parent} that is not there"
        for one in alone
    ]
    if opened.is_supplier:
        emit({"stops": found, "merges": merged, "orphans": alone}, lines or ["there is none"])
    else:
        emit(found, lines or ["there is none"])
    return int(any(one.state == WAITS for one in found))


class _NumberOf(click.ParamType[Any]):
    """A transaction at which the Update Process has stopped, or (mN, mN@REGION) what was lost in a merge."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if text[:1] == "m" and text[1:].partition("@")[0].isdecimal():
            return text
        return _SEQNO.convert(value, param, ctx)


@conflict.command()
@click.argument("number", metavar="[N|mN]", type=_NumberOf(), required=False)
def show(number: int | str | None) -> None:
    """Show both images of the row at which transaction N stopped (without N: of the one that waits), or what was lost
    in merge mN."""
    from update_process.conflict_file import read_conflict

    if isinstance(number, str):
        from replicate.roles.merge_losses import merge_of

        one = merge_of(open_instance(DOOR), number)
        emit(one, _merge_lines(one))
        return
    seqno = number
    opened = open_instance(LOOKS if seqno else DOOR)
    facts = read_conflict(opened.conflict_directory, seqno or _waiting(opened))
    emit(facts, _images(facts))


_merge_argument = click.argument("number", metavar="mN", type=_NumberOf())


@conflict.command()
@_merge_argument
@click.option(
    "--value", "values", multiple=True, metavar="COLUMN=VALUE", help="Write this value (JSON, or text) instead."
)
@timeout_option
def take(number: int | str, values: tuple[str, ...], timeout_s: float) -> None:
    """Write what was lost in merge mN once more, by a commit of its own, and settle it."""
    from replicate import connect
    from replicate.roles.merge_losses import region_of
    from replicate.roles.merge_losses import take as taken

    opened, given, name = open_instance(), dict(map(_assignment, values)), _merge_id(number)
    with closing(connect(opened.path, region_of(opened, name), timeout=timeout_s)) as connection:
        one = taken(opened, connection, name, given)
    emit(one, [f"{one.id} is written, and settled"])


@conflict.command()
@click.argument("numbers", metavar="mN…", type=_NumberOf(), nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="All that is open.")
def settle(numbers: tuple[int | str, ...], all_of_them: bool) -> None:
    """Say that merges mN are looked at: they are listed no longer."""
    from replicate.roles.merge_losses import merges
    from replicate.roles.merge_losses import settle as settled

    opened = open_instance()
    chosen = [one.id for one in merges(opened)] if all_of_them else [_merge_id(one) for one in numbers]
    if not chosen and not all_of_them:
        raise UsageError("no merge is named", do="Name some (m1 m2), or all that are open: --all")
    count = settled(opened, chosen)
    emit({"settled": count}, [f"{count} settled"])


@conflict.command()
def purge() -> None:
    """Forget the merges that are settled."""
    from replicate.roles.merge_losses import purge as purged

    count = purged(open_instance())
    emit({"purged": count}, [f"{count} purged"])


@conflict.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--all", "all_of_them", is_flag=True, help="What is settled, too.")
def export(file: Path, all_of_them: bool) -> None:
    """Write what was lost in merges to FILE, one JSON object a line."""
    from replicate.roles.merge_losses import merges
    from replicate.system.files import replace_file

    if file.exists():
        raise AlreadyExistsError("there is such a file already", where=str(file), do="Name another one")
    found = merges(open_instance(DOOR), all_of_them=all_of_them)
    lines = [json.dumps(plain(one), ensure_ascii=False) + "\n" for one in found]
    replace_file(file, "".join(lines).encode())
    emit({"file": str(file), "merges": len(found)}, [f"{len(found)} in {file}"])


def _merge_id(number: int | str) -> str:
    if not isinstance(number, str):
        raise UsageError(
            f"{number} is a transaction at which the Update Process stopped, no merge", do="Merges are m1, m2, …"
        )
    return number


def _assignment(text: str) -> tuple[str, Any]:
    name, is_there, value = text.partition("=")
    if not is_there or not name:
        raise UsageError(f"--value {text}: give COLUMN=VALUE")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, value if isinstance(found, list | dict | bool) else found


def _told(one: ShownMerge) -> str:
    key = ", ".join(f"{name} {value!r}" for name, value in one.key.items())
    values = ", ".join(f"{name} = {value!r}" for name, value in one.lost.items())
    return f"{_in_region(one.table, one.region)} ({key}): {one.reason}: {values or 'the row'} of {one.loser}"


def _in_region(table: str, region: str) -> str:
    return f"{region}.{table}" if region else table


def _merge_lines(one: ShownMerge) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "lost", "is there")]
    left = one.left or {}
    for name in dict.fromkeys((*one.lost, *left)):
        here = repr(left[name]) if name in left else ""
        rows.append((name, repr(one.lost[name]) if name in one.lost else "", here))
    head = f"{one.id}, {one.state}: {_told(one)}"
    who = f"lost: by {one.loser} at {one.loser_time}; instead of it: by {one.winner} at {one.winner_time}"
    return [head, who, f"in transaction {one.seqno} here", *columns(rows)]


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
        "would overwrite what is here",
        "will overwrite what is in the databases of",
        "overwrites what was here",
    ),
}


def _decide(how: str, seqno: int | None, until: int | None, table: str, *, dry_run: bool, yes: bool) -> None:
    from update_process.conflict_commands import decide
    from update_process.conflict_decision import write_decision

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
    _go_on(opened, to_builtins(decision), [said])


def _waiting(opened: Instance) -> int:
    """The number of the one that waits; the next one where none does."""
    from update_process.conflict_commands import WAITS, conflicts_of

    applied_seqno = _applied(opened)
    waits = [one.seqno for one in conflicts_of(opened, applied_seqno) if one.state == WAITS]
    return waits[-1] if waits else applied_seqno + 1


def _applied(opened: Instance) -> int:
    from replicate.door.wait import wait_for_seqno

    return wait_for_seqno(opened, 0, timeout_s=0.0)


def _go_on(opened: Instance, facts: dict[str, Any], lines: list[str]) -> None:
    """Say that, and start the Update Process as it last ran, if nobody has."""
    from replicate.daemon.receiver_and_update import as_it_ran

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
