"""`replicate subscription set|add|remove|filter|list|show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import to_builtins

from replicate.cli.common import LOOKS, Noun, columns, emit, open_instance
from replicate.cli.completion_words import partitions
from replicate.model.subscription import LOADING, WAITS
from replicate.model.table_wish import TableWish, named_columns, told_what, told_wish

if TYPE_CHECKING:
    from replicate.admin.partition_release import ReleasedTables
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def subscription() -> None:
    """Say which partitions' rows, and which rows and columns of a table, this secondary gets."""


_with_parents = click.option(
    "--with-parents", is_flag=True, help="And the partitions of the tables that theirs refer to by foreign keys."
)


@subscription.command(name="set")
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
@_with_parents
def set_(name: tuple[str, ...], with_parents: bool) -> None:
    """Get the rows of exactly these partitions, each by its name or number. ALL: of whatever there is.

    Tables of the others are here, too, with their definitions: as they were, and empty where they are new.
    """
    from replicate.admin.subscriptions import set_ as done

    opened = open_instance()
    done(opened, _and_parents(opened, name) if with_parents else name)
    _tell(opened)


@subscription.command()
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
@_with_parents
def add(name: tuple[str, ...], with_parents: bool) -> None:
    """Get the rows of these partitions, too. `seed --partition NAME` brings them; the others go on."""
    from replicate.admin.subscriptions import add as done

    opened = open_instance()
    done(opened, _and_parents(opened, name) if with_parents else name)
    _tell(opened)


def _and_parents(opened: Instance, names: tuple[str, ...]) -> tuple[str, ...]:
    """The partitions' numbers, with those that their tables refer to. UsageError where no table is here yet."""
    from replicate.admin.foreign_keys import references_of, with_parents
    from replicate.admin.subscriptions import numbers_of
    from replicate.errors import UsageError

    if not opened.regions:
        raise UsageError(
            f"{opened.name} has no tables yet, so it does not know what they refer to",
            where=str(opened.path),
            do="Name all partitions; or seed it first, with DEFAULT say, and add the others then",
        )
    return tuple(str(number) for number in with_parents(references_of(opened), numbers_of(opened, names)))


@subscription.command()
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
@click.option(
    "--release",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="And give their tables to the applications here: plain databases in a new directory, REGION.db each.",
)
@click.option("--drop-rows", is_flag=True, help="And delete their rows here, 10,000 in a transaction.")
def remove(name: tuple[str, ...], directory: Path | None, drop_rows: bool) -> None:
    """Get no more of these partitions. Their rows stay as they were, frozen."""
    from replicate.admin.subscriptions import numbers_of
    from replicate.admin.subscriptions import remove as done

    opened = open_instance()
    released: Sequence[ReleasedTables] = ()
    if directory is not None:
        from replicate.admin.partition_release import release_partitions
        from replicate.cli.progress import seeding

        numbers = numbers_of(opened, name)
        with seeding("", "copying region") as copied:
            released = release_partitions(
                opened, numbers, directory.absolute(), lambda: done(opened, name), told=copied
            )
    if drop_rows:
        from replicate.admin.dropping_rows import drop_rows as dropping
        from replicate.cli.progress import counting

        numbers = numbers_of(opened, name)
        with counting("deleting", "rows") as told:
            dropping(opened, numbers, lambda: done(opened, name), told=told)
    elif directory is None:
        done(opened, name)
    _tell(opened, released)


@subscription.command(name="filter")
@click.argument("table", required=False, metavar="[REGION.]TABLE")
@click.option("--where", "condition", metavar="CONDITION", help="The rows that are wanted, as in the WHERE of SQL.")
@click.option("--columns", "listed", metavar="A,B,…", help="The columns that are wanted; those of its key among them.")
@click.option(
    "--ahead", "is_ahead", is_flag=True, help="The table is another one at the source by now: look at it then."
)
@click.option("--none", "has_none", is_flag=True, help="All of the table is wanted again.")
def filter_(table: str | None, condition: str | None, listed: str | None, is_ahead: bool, has_none: bool) -> None:
    """Get of a table the rows of a condition, some columns, or both. Without a table: list what is wanted so.

    A command says all that is wanted of its table. Columns that are not listed are there, and hold blanks: NULL, or the
    empty value of their type where they are NOT NULL.

    It is in force with the next copy of the table's rows: the first seed, or `seed --restart`; or, of a partition that
    was removed and added again, `seed --partition NAME`. Until then it stays as it was.
    """
    from replicate.admin.subscriptions import filter_ as done
    from replicate.errors import UsageError

    opened = open_instance(LOOKS if table is None else None)
    if (condition is not None or listed is not None) + has_none != (table is not None):
        raise UsageError(
            "say a table with --where CONDITION, with --columns A,B,… or with both; or with --none; or nothing, to "
            "list what there is"
        )
    if table is not None:
        columns = named_columns(listed) if listed is not None else ()
        if condition is not None and not condition.strip():
            raise UsageError("the condition is empty", do="Leave --where out where all rows are wanted")
        done(opened, table, None if has_none else TableWish(columns, condition or "").text, is_ahead=is_ahead)
    choice = opened.content.choice
    facts = [
        {
            "table": ".".join(filter(None, key)),
            "wanted": choice.rows.get(key),
            "held": choice.held_rows.get(key),
            "in_force": key not in choice.uncopied,
        }
        for key in sorted({*choice.rows, *choice.held_rows})
    ]
    emit(facts, _row_lines(opened) or ["all rows of every table"])


def _row_lines(opened: Instance) -> list[str]:
    """The tables of which some rows or columns are wanted, or here; nothing where there is none."""
    choice = opened.content.choice
    lines = []
    for key in sorted({*choice.rows, *choice.held_rows}):
        wanted, held = choice.rows.get(key), choice.held_rows.get(key)
        told = told_what(wanted) if wanted is not None else "all rows"
        if key in choice.uncopied:
            told += f"; here until they are copied: {'all' if held is None else told_wish(held)}"
        lines.append(f"table {'.'.join(filter(None, key))}: {told}")
    if choice.uncopied:
        lines.append(f"next: replicate -i {opened.named} seed --restart")
    return lines


@subscription.command(name="list")
def list_() -> None:
    """List the partitions that are wanted, and those that are here."""
    opened = open_instance(LOOKS)
    rows = _rows(opened)
    emit([row._asdict() for row in rows], _lines(opened, rows))


@subscription.command()
@click.argument("name", nargs=-1, required=True, metavar="NAME…", shell_complete=partitions)
def show(name: tuple[str, ...]) -> None:
    """Show the tables of these partitions, and which of them refer to tables whose rows are not here."""
    from replicate.admin.foreign_keys import outside, references_of
    from replicate.admin.subscriptions import numbers_of
    from replicate.transfer.seed.rows import tables_by_partition

    opened = open_instance(LOOKS)
    numbers, tables = numbers_of(opened, name), tables_by_partition(opened)
    held = [number for number in tables if opened.content.holds(number)]
    lacking = {(one.region, one.child): one for one in outside(references_of(opened), held)}
    known, rows = opened.content.partitions, opened.content.held_rows
    facts, lines = [], []
    for row in _rows(opened, numbers):
        names = sorted(tables.get(row.number, ()))
        facts.append({**row._asdict(), "tables": [".".join(one) for one in names]})
        lines.append(f"{row.name}, number {row.number}: {row.state}")
        for one in names:
            to = lacking.get(one)
            some = f", {told_what(rows[one])}" if one in rows else ""
            more = f", refers to {to.parent}, which is in {known.name(to.parent_partition)}: not here" if to else ""
            lines.append(f"  {'.'.join(one)}{some}{more}")
    emit(facts, lines)


class _Subscribed(NamedTuple):
    name: str
    number: int
    state: str


def _rows(opened: Instance, only: tuple[int, ...] = ()) -> list[_Subscribed]:
    return [_Subscribed(*one) for one in opened.content.subscribed(only)]


def _lines(opened: Instance, rows: list[_Subscribed]) -> list[str]:
    from replicate.admin.schema_run import own_elements

    if opened.content.subscription is None and opened.content.held is None:
        return ["all partitions", *_row_lines(opened)]
    lines = columns([row.name, f"number {row.number}", row.state] for row in rows)
    if own := own_elements(opened):
        named = " and ".join((", ".join(own[:-1]), own[-1]) if len(own) > 1 else own)
        lines.append(f"without {named}: schema changes of that kind are its own (replicate help partitions)")
    waits = [row.number for row in rows if opened.content.choice.state(row.number) in (WAITS, LOADING)]
    if waits:
        lines.append(f"next: replicate -i {opened.named} {opened.content.bringing(waits)}")
    return [*lines, *_row_lines(opened)]


def _outside(opened: Instance) -> list[str]:
    """What the wanted rows refer to that is not wanted: a takeover would find children without parents."""
    from replicate.admin.foreign_keys import outside, references_of

    references = references_of(opened)
    wanted = {number for one in references for number in (one.child_partition, one.parent_partition)}
    found = outside(references, {number for number in wanted if opened.content.wants(number)})
    known = opened.content.partitions
    return [
        f"{one.region}.{one.child} refers to {one.parent}, which is in {known.name(one.parent_partition)} and not "
        "wanted (--with-parents)"
        for one in found
    ]


def _tell(opened: Instance, released: Sequence[ReleasedTables] = ()) -> None:
    from replicate.daemon.files import DaemonFiles

    rows = _rows(opened)
    lines = _lines(opened, rows)
    lines += _outside(opened)
    if DaemonFiles(opened.path, "receiver").lock.probe() is not None:
        lines.append("its Receiver Server connects again within a heartbeat, and asks so")
    facts: list[dict[str, object]] = [row._asdict() for row in rows]
    for one in released:
        facts.append({"released": str(one.path), "region": one.region, **to_builtins(one.has)})
        lines.append(f"released: {one.path}, {', '.join(one.has.tables)}")
        lines += [f"  without {name}, which names what is not there" for name in one.has.left_out]
        lines += [f"  {table} refers to {parent}, which is not there" for table, parent in one.has.outside]
    emit(facts, lines)
