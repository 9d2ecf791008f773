"""`replicate promote|demote|rollback`: which of two sites is primary, and how the other one comes back to it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from replicate.cli.common import VerbCommand, emit, open_instance, plain, waiting_option

if TYPE_CHECKING:
    from replicate.roles.promote_demote import Promoted
    from replicate.roles.rollback import RolledBack

timeout_option = waiting_option(
    "How long to wait for daemons to stand aside, for what was received to be applied, and for applications' "
    "transactions."
)


@click.command(cls=VerbCommand)
@click.option(
    "--expect",
    type=click.IntRange(0),
    metavar="N",
    help="Refuse unless the last transaction here is N, as demote has printed it.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also if the source was heard a moment ago, if what was received cannot be applied (it is written to a file "
    "first), or if another site took over (this one takes its role back).",
)
@timeout_option
def promote(expect: int | None, force: bool, timeout_s: float) -> None:
    """Make this secondary the primary, with all that it has received. Network and history stay."""
    from replicate.roles.promote_demote import next_steps
    from replicate.roles.promote_demote import promote as make_primary

    opened = open_instance()

    def finish() -> int:
        from update_process.process import finish_received

        return finish_received(opened, timeout_s=timeout_s)

    made = make_primary(opened, finish=finish, timeout_s=timeout_s, expect=expect, force=force)
    steps = next_steps(opened, made)
    kept = None if made.kept is None else made.kept.facts()
    value = {**plain(made), "kept": plain(kept), "missing_at_most": made.missing_at_most, "next": steps}
    emit(value, [*_told(made), *steps])


def _told(made: Promoted) -> list[str]:
    if not made.source:
        return [f"{made.instance} is primary already, and has taken over from nobody; nothing was changed"]
    if made.was_primary:
        return [_told_again(made)]
    lines = [f"{made.instance} is primary, with all transactions up to {made.seqno}"]
    if made.filter:
        lines.append(f"what it has is what the filter {made.filter} told of it")
    if made.not_applied:
        lines.append(f"not all that was received could be applied: {made.not_applied}")
    lines += made.kept.lines() if made.kept else []
    if made.overruled is not None:
        name, seqno = made.overruled
        return [*lines, f"it took its role back from {name}, which had taken over after {seqno}"]
    if made.source == made.instance:
        lines.append("it was primary before, and has heard of nobody that was since")
    elif made.missing_at_most is None:
        lines.append("how many transactions of the old primary are missing is not known")
    else:
        lines.append(
            f"up to {made.missing_at_most} transactions of the old primary may be missing of those that it told of "
            f"(its last was {made.source_seqno}); what it wrote after its last word is not known here"
        )
    return lines


def _told_again(made: Promoted) -> str:
    """Of one that was primary when the command was given."""
    since = f"{made.instance} is primary already, since transaction {made.seqno}"
    if made.by_switchover:
        return f"{since}: {made.source} gave it the role in a switchover, and nothing is missing; nothing was changed"
    if made.source == made.instance:
        return f"{since}: it was primary before, and has heard of nobody that was since; nothing was changed"
    return (
        f"{since}, when it took over from {made.source}; nothing was changed. What of {made.source} was missing then, "
        "is told when it takes over, and not kept"
    )


@click.command(cls=VerbCommand)
@timeout_option
def demote(timeout_s: float) -> None:
    """Make this primary a secondary: it takes no more writes, and may be sent to."""
    from replicate.model.start_command import start_command
    from replicate.roles.promote_demote import demote as make_secondary

    opened = open_instance()
    made = make_secondary(opened, timeout_s=timeout_s)
    lacking = [f"{name} had not acknowledged {count} transactions of it" for name, count in made.lacking]
    steps = [
        f"next, on the site that is to be primary: replicate -i NAME promote --expect {made.seqno}",
        f"and here: {start_command('receiver', of=opened.named)}",
    ]
    emit({**plain(made), "next": steps}, [f"{made.instance} is secondary, from {made.seqno} on", *lacking, *steps])


@click.command(cls=VerbCommand)
@click.option(
    "--to",
    type=click.IntRange(0),
    metavar="N",
    help="The last transaction that stays: the last common one. Without it: where another site took over, as the "
    "source that refused this secondary has said.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be taken back, and what bars the way.")
@timeout_option
def rollback(to: int | None, dry_run: bool, timeout_s: float) -> int:
    """Take this secondary back to its transaction N, by before-images.

    What it has beyond that is written to a file first. After a kill the same command goes on.
    """
    from replicate.roles.rollback import rollback as take_back

    opened = open_instance()
    tell = partial(click.echo, err=True)
    done = take_back(opened, to, dry_run=dry_run, timeout_s=timeout_s, tell=tell)
    kept = None if done.kept is None else plain(done.kept.facts())
    emit({**plain(done), "kept": kept}, _told_of(done, opened.named))
    return 1 if done.found.barred_at else 0


def _told_of(done: RolledBack, named: str) -> list[str]:
    found = done.found
    lines = [f"{found.transactions} transactions of {done.to + 1} to {done.last} carry data"] if found.changes else []
    for table, counts in found.changes.items():
        lines.append(f"    {table}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if done.kept is not None:
        lines += done.kept.lines()
    if not done.is_done:
        if found.barred_at:
            lines.append(f"transaction {found.barred_at} cannot be taken back: {found.barred_by}")
            lines.append(f"the way out: replicate -i {named} seed --restart")
        return [
            *lines,
            f"{done.instance} can be taken back to {done.to}" if not found.barred_at else "nothing was done",
        ]
    lines.append(f"{done.instance} is back at {done.to}" + (f", from {done.last}" if done.last > done.to else ""))
    return lines
