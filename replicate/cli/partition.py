"""`replicate partition create|drop|assign|give|share|leave|list|default|comments|element|limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from replicate.cli.common import LOOKS, Noun, columns, emit, open_instance, plain
from replicate.cli.completion_words import elements, partitions, tables_of_journal
from replicate.cli.roles import timeout_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicate.model.partitions import Partitions
    from replicate.roles.partition_writers import Written


@click.group(cls=Noun)
def partition() -> None:
    """Say which tables' rows go together to those who subscribe to them."""


@partition.command()
@click.argument("name")
@click.option("--id", "number", type=int, metavar="N", help="Its number, 2 to 63; else the lowest that is free.")
def create(name: str, number: int | None) -> None:
    """Make the partition NAME, which has no tables yet."""
    from replicate.admin.partitions import create as made

    opened = open_instance()
    number = made(opened, name, number)
    verb = f"partition assign {name} TABLE…" if opened.role == "primary" else f"subscription set {name}"
    next_ = f"next: replicate -i {opened.named} {verb}"
    emit({"name": name, "number": number}, [f"partition {name}, number {number}", next_])


@partition.command()
@click.argument("name", shell_complete=partitions)
def drop(name: str) -> None:
    """Remove the partition NAME, which must have no tables. Its number may be used again."""
    from replicate.admin.partitions import drop as dropped

    number = dropped(open_instance(), name)
    emit({"name": name, "number": number}, [f"partition {name}, number {number}, dropped"])


@partition.command()
@click.argument("name", shell_complete=partitions)
@click.argument("table", nargs=-1, required=True, metavar="TABLE…", shell_complete=tables_of_journal)
def assign(name: str, table: tuple[str, ...]) -> None:
    """Put each TABLE (or REGION.TABLE) into the partition NAME, while applications write.

    NONE is one, too: the rows of its tables never leave this instance. A virtual table takes those along that keep its
    content, and the one that it is an index of.
    """
    from replicate.admin.partitions import assign as assigned
    from replicate.model.partitions import NONE

    opened = open_instance()
    moved = assigned(opened, name, table)
    lines = columns(
        [f"{one.region}.{one.table}", f"{one.before} to {one.after}", f"transaction {one.seqno}"] for one in moved
    )
    lines += [
        f"{one.table} has rows, or had: a secondary that has {one.after}, and not {one.before}, stops there until it "
        "is seeded"
        for one in moved
        if one.has_rows and one.after != NONE
    ]
    emit([one._asdict() for one in moved], lines or ["nothing was to be moved"])


@partition.command()
@click.argument("name", shell_complete=partitions)
@click.argument("supplier")
@timeout_option
def give(name: str, supplier: str, timeout_s: float) -> None:
    """Have another SUPPLIER write the partition NAME from now on. ALL: what was never given by name.

    Applications are refused here at once, and taken there once it has applied this."""
    from replicate.roles.partition_writers import give as given

    opened = open_instance()
    seqno = given(opened, name, supplier, timeout_s=timeout_s)
    emit(
        {"name": name, "writer": supplier, "seqno": seqno},
        [f"{name} is written by {supplier}, from transaction {seqno} on"],
    )


@partition.command()
@click.argument("name", shell_complete=partitions)
@click.argument("supplier")
@click.option("--keys-chosen", is_flag=True, help="The application gives each row a key that no other site gives.")
@click.option("--by-row", is_flag=True, help="Of two changes of one row the later one stays whole.")
@click.option("--by-row-of", "whole", metavar="TABLE", multiple=True, help="The same in that table alone.")
@click.option("--sum", "sums", metavar="TABLE.COLUMN", multiple=True, help="An INTEGER that sites add to: all adds up.")
@click.option("--dry-run", is_flag=True, help="Only say which tables bar the way; exit code 1 if any does.")
@timeout_option
def share(
    name: str,
    supplier: str,
    keys_chosen: bool,
    by_row: bool,
    whole: tuple[str, ...],
    sums: tuple[str, ...],
    dry_run: bool,
    timeout_s: float,
) -> int:
    """Have another SUPPLIER write the partition NAME, too, once it has applied this.

    Rows that both change at once are merged, column by column: the later value stays, and the other one is kept
    (`conflict list`). Refused where a table of it cannot be merged."""
    from replicate.roles.partition_writers import share as shared
    from replicate.roles.partition_writers import tables_that_bar

    opened = open_instance()
    if dry_run:
        found = tables_that_bar(opened, name, keys_chosen=keys_chosen)
        lines = [f"{one.table}: {one.why}. {one.do}" for one in found]
        emit([plain(one) for one in found], lines or [f"{name} can be shared"])
        return int(bool(found))
    seqno = shared(
        opened, name, supplier, keys_chosen=keys_chosen, timeout_s=timeout_s, by_row=by_row, whole=whole, sums=sums
    )
    emit(
        {"name": name, "writer": supplier, "seqno": seqno},
        [f"{name} is written by {supplier}, too, from transaction {seqno} on"],
    )
    return 0


@partition.command()
@click.argument("name", shell_complete=partitions)
@timeout_option
def leave(name: str, timeout_s: float) -> None:
    """Write the partition NAME no longer, which another supplier shares with this one. Applications are refused here
    at once. (For one that is gone for good: replica retire.)"""
    from replicate.roles.partition_writers import leave as left

    opened = open_instance()
    seqno = left(opened, name, timeout_s=timeout_s)
    emit({"name": name, "seqno": seqno}, [f"{opened.name} does not write {name}, from transaction {seqno} on"])


@partition.command(name="list")
@click.option("--tables", "shows_tables", is_flag=True, help="Name the tables of each.")
def list_(shows_tables: bool) -> None:
    """List the partitions, and how many tables each has."""
    from replicate.model.elements import elements_in
    from replicate.roles.partition_writers import written
    from replicate.transfer.seed.rows import tables_by_partition

    opened = open_instance(LOOKS)
    known, found = opened.content.partitions, tables_by_partition(opened)
    rows = [
        _ListedPartition(
            known.name(number),
            number,
            [f"{region}.{table}" for region, table in found.get(number, [])],
            number == known.default,
            number == known.comments,
            elements_in(known.elements, number),
        )
        for number in sorted({*known.names, *found, *({known.default, known.comments} - {0})})
    ]
    lines = columns([row.name, _numbered(row.number), _counted(len(row.tables)), _noted(row)] for row in rows)
    if shows_tables:
        lines = [
            line
            for row, shown in zip(rows, lines, strict=True)
            for line in (shown, *(f"  {table}" for table in row.tables))
        ]
    writers = written(opened)
    for one in writers:
        sums = f"; sums: {', '.join(one.sums)}" if one.sums else ""
        by_row = f"; by row: {', '.join(one.whole)}" if one.whole else "; by row" if one.is_by_row else ""
        lines.append(f"{one.name}: written by {', '.join((one.by, *one.others))}{by_row}{sums}")
    emit(
        [row._asdict() | _writer(row.number, writers) for row in rows],
        [*lines, f"at most {known.limit}"],
    )


@partition.command()
@click.argument("name", shell_complete=partitions)
def default(name: str) -> None:
    """Put tables that are created from now on into the partition NAME, or into NONE."""
    _changed(lambda known: known.with_default(name), "default")


@partition.command()
@click.argument("name", shell_complete=partitions)
def comments(name: str) -> None:
    """Put comments of applications into the partition NAME, or into NONE. ALL: everybody gets them."""
    _changed(lambda known: known.with_comments(name), "comments")


@partition.command()
@click.argument("element", shell_complete=elements)
@click.argument("name", shell_complete=partitions)
def element(element: str, name: str) -> None:
    """Put an audit element (DEFINITION, STORAGE or SECTION) into the partition NAME. ALL: everybody gets it.

    DEFINITION is what makes, changes and drops tables and views, STORAGE indexes and statistics, SECTION triggers.
    Where DEFINITION is, the other two are, unless they are put elsewhere. A secondary that does not subscribe to that
    partition gets rows without it from then on."""
    from replicate.admin.partitions import place_element
    from replicate.model.elements import element_named

    known = place_element(open_instance(), element, name)
    named = element_named(element)
    lines = [_said(known, named)]
    if known.place_of(named):
        lines.append("a secondary with some partitions gets it no more, unless it subscribes to that one, too")
    emit(known.pack(), lines)


@partition.command()
@click.argument("number", type=int, metavar="N")
def limit(number: int) -> None:
    """Have N partitions at most, 63 being the most."""
    _changed(lambda known: known.with_limit(number), "limit")


def _changed(how: Callable[[Partitions], Partitions], what: str) -> None:
    from replicate.admin.partitions import change

    known = change(open_instance(), how)
    emit(known.pack(), [_said(known, what)])


def _said(known: Partitions, what: str) -> str:
    from replicate.model.elements import PLACED

    if what == "limit":
        return f"at most {known.limit} partitions"
    if what == "default":
        return f"tables that are created from now on belong to partition {known.name(known.default)}"
    if what in PLACED:
        place = known.place_of(what)
        return f"{what} belongs to partition {known.name(place)}" if place else f"{what} goes to everybody"
    return (
        f"comments belong to partition {known.name(known.comments)}" if known.comments else "comments go to everybody"
    )


class _ListedPartition(NamedTuple):
    name: str
    number: int
    tables: list[str]
    default: bool
    comments: bool
    elements: list[str]


def _writer(number: int, writers: Sequence[Written]) -> dict[str, object]:
    """Of a partition, where there are suppliers."""
    by = {one.number: one for one in writers}
    if not by:
        return {}
    found = by.get(number, by[0])
    told: dict[str, object] = {"writer": found.by, "shared_with": list(found.others)}
    if found.is_by_row or found.whole:
        told["by_row"] = list(found.whole) or True
    return told | {"sums": list(found.sums)} if found.sums else told


def _numbered(number: int) -> str:
    from replicate.limits import PARTITION_NONE

    return "no number" if number == PARTITION_NONE else f"number {number}"


def _counted(count: int) -> str:
    return f"{count} table" if count == 1 else f"{count} tables"


def _noted(row: _ListedPartition) -> str:
    noted = [text for text, is_so in (("new tables", row.default), ("comments", row.comments)) if is_so]
    return ", ".join([*noted, *row.elements])
