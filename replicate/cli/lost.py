"""`replicate lost list|show|apply|settle`: transactions that only a lost file holds."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from replicate.cli.common import LOOKS, Noun, columns, confirm, emit, open_instance, plain, waiting_option

if TYPE_CHECKING:
    from replicate.lost.apply import LostApplied, LostConflict
    from replicate.lost.files import LostSeen

CONFLICTS_SHOWN: Final = 20
"""More are counted: the whole file may be one, and --json has all."""

VALUE_CHARACTERS_SHOWN: Final = 60
"""Of each value in a conflict: a picture in a column must not fill the terminal."""

file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group(cls=Noun)
def lost() -> None:
    """Transactions that were rolled back, or kept from being lost: look at them, apply them, or let them be."""


@lost.command(name="list")
def list_() -> int:
    """List this instance's lost files; exit code 1 if transactions wait in one."""
    from replicate.lost.files import look_at_lost

    found = look_at_lost(open_instance(LOOKS))
    rows = [
        (one.path.name, one.error)
        if one.error
        else (one.path.name, f"{one.cause} of {one.instance}, {one.written}: {_wait(one)}")
        for one in found
    ]
    emit(found, columns(rows) or ["there is none"])
    return int(any(one.waiting or one.error for one in found))


def _wait(one: LostSeen) -> str:
    if one.sent_to:
        return f"{one.transactions} sent to {one.sent_to}"
    there = f"; {one.in_history} are in this history already, and need nothing" if one.in_history else ""
    return f"{one.waiting} of {one.transactions} wait{there}"


@lost.command()
@file_argument
def show(file: Path) -> None:
    """Show what stands in FILE, and what has become of each transaction."""
    from replicate.lost.read import LostReader
    from replicate.lost.settled import Settled

    with LostReader(file.absolute()) as found:
        settled = Settled.of(file.absolute())
        shown: list[dict[str, Any]] = []
        lines = [f"{found.head['cause']} of {found.head['instance']}: {found.head['from']} to {found.head['to']}"]
        for one in found.transactions():
            how = settled.how.get(one.seqno, "" if not settled.is_all else "settled")
            changes = [f"{change.what} {change.table} {change.text}" for change in found.changes(one)]
            shown.append({"seqno": one.seqno, "kind": one.kind, "how": how, "changes": changes})
            lines.append(f"{one.seqno}  {one.kind}  {how or ('waits' if one.is_data else '')}".rstrip())
            lines += [f"    {change}" for change in changes]
        lines += [f"not in it: {gap['from']} to {gap['to']} ({gap['why']})" for gap in found.last["unreadable"]]
    emit({"head": found.head, "unreadable": found.last["unreadable"], "transactions": shown}, lines)


@lost.command()
@file_argument
@click.option("--only", type=int, multiple=True, metavar="N", help="This one only; may be repeated.")
@click.option(
    "--on-conflict",
    type=click.Choice(["stop", "skip", "overwrite"]),
    default="stop",
    show_default=True,
    help="What becomes of a transaction whose rows here are not as it found them.",
)
@click.option("--dry-run", is_flag=True, help="Try all of them and report every conflict; nothing is kept.")
@waiting_option("How long to wait for applications' transactions, and for another run of this command.")
def apply(file: Path, only: tuple[int, ...], on_conflict: Any, dry_run: bool, timeout_s: float) -> int:
    """Apply the transactions of FILE on this primary, each once; exit code 1 if some have met a conflict."""
    from replicate.lost.apply import apply_lost

    opened = open_instance()
    done = apply_lost(opened, file.absolute(), only=only, on_conflict=on_conflict, dry_run=dry_run, timeout_s=timeout_s)
    emit(plain_of(done), _told(done, opened.named))
    return int(bool(done.conflicts))


def plain_of(done: LostApplied) -> dict[str, Any]:
    """For --json."""
    return dict(plain(done))


def _told(done: LostApplied, named: str) -> list[str]:
    lines = _would(done) if done.dry_run else _counted(done)
    if done.in_history:
        count = len(done.in_history)
        is_ = "is" if count == 1 else "are"
        again = "would not be" if done.dry_run else f"{is_} not"
        lines.append(f"{count} {is_} in this history already, and {again} applied again: {ranges(done.in_history)}")
    if done.before:
        lines.append(f"{done.before} had been settled before")
    lines += [line for conflict in done.conflicts[:CONFLICTS_SHOWN] for line in _conflict(conflict)]
    if len(done.conflicts) > CONFLICTS_SHOWN:
        more, dry = len(done.conflicts) - CONFLICTS_SHOWN, " --dry-run" if done.dry_run else " …"
        lines.append(f"{more} more conflicts: replicate --json -i {named} lost apply {done.file}{dry} has all of them")
    if done.stopped_at and not done.dry_run:
        lines.append(
            f"stopped at {done.stopped_at}; {done.left} wait. To go on: replicate -i {named} lost apply {done.file} "
            "--on-conflict skip (or overwrite)"
        )
    if not lines:
        lines.append("there is nothing to apply" if done.dry_run else "there was nothing to apply")
    return [*lines, "nothing was changed"] if done.dry_run else lines


def _counted(done: LostApplied, *, would: str = "", first: int = 0, last: float = inf, more: str = "") -> list[str]:
    """What has become of transactions, or would, of those from `first` to `last`."""
    kinds = (("applied", done.applied), ("overwritten", done.overwritten), ("skipped", done.skipped))
    found = ((what, [one for one in numbers if first <= one <= last]) for what, numbers in kinds)
    return [f"{len(numbers)} {more}{would}{what}: {ranges(numbers)}" for what, numbers in found if numbers]


def _would(done: LostApplied) -> list[str]:
    at = done.stopped_at
    if not at:
        return _counted(done, would="would be ")
    return [
        *_counted(done, would="would be ", last=at - 1),
        f"it would stop at {at}, and {done.left} would wait",
        *(f"with --on-conflict skip {line}" for line in _counted(done, would="would be ", first=at, more="more ")),
    ]


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people read them: 3, 5 to 9."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)


def _conflict(one: LostConflict) -> list[str]:
    which = f"{one.what} {one.region}.{one.table}: " if one.table else ""
    lines = [f"conflict at {one.seqno}: {one.kind}: {which}{one.reason}"]
    for what, image in (("expected", one.expected), ("found", one.found), ("wanted", one.after)):
        if image is not None:
            values = ", ".join(f"{name}={_value(value)}" for name, value in zip(one.columns, image, strict=False))
            lines.append(f"    {what}: {values}")
    return lines


def _value(value: object) -> str:
    """As `lost show` has it. --json has it whole."""
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= VALUE_CHARACTERS_SHOWN else text[:VALUE_CHARACTERS_SHOWN] + "…"


@lost.command()
@file_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def settle(file: Path, yes: bool) -> None:
    """Say that what still waits in FILE is not wanted any more."""
    import uuid

    from replicate.lost.files import look_at_file
    from replicate.lost.read import LostReader
    from replicate.lost.settled import Settled

    opened, path = open_instance(LOOKS), file.absolute()
    with LostReader(path):
        seen = look_at_file(path, opened.path)
    confirm(f"{seen.waiting} of {seen.transactions} transactions in {path} have not been applied", yes=yes)
    settled = Settled.of(path)  # wherever it was begun: nothing is applied
    settled.instance = settled.instance or str(uuid.UUID(bytes=opened.content.uuid))
    settled.note_all()
    emit({"settled": path, "given_up": seen.waiting}, [f"{path} is settled; {seen.waiting} were not applied"])
